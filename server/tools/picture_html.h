// A picture as HTML: boxes in rows by their depth, groups as frames around them. The page's script draws the edges.
#pragma once

#include <string>

#include "base/ir/picture.h"

namespace ark {

std::string html_picture(const Picture& picture);

}  // namespace ark
