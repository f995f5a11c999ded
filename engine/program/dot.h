// Programs of all ranks as Graphviz text, for people: ranks are columns, messages edges with their bytes.
#pragma once

#include <string>
#include <vector>

#include "engine/program/program.h"

namespace ark {

std::string dot(const std::vector<Program>& programs);

}  // namespace ark
