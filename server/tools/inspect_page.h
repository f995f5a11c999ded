// ark-inspect --html: all that is known of a model as one page that needs nothing else, neither a network nor a server.
#pragma once

#include <string>

#include "server/tools/inspect_stages.h"

namespace ark {

// Every text of the model's file is escaped: a page may be made of a hostile file. Stages that the model does not
// reach say why.
std::string html_page(Inspection& inspection);

}  // namespace ark
