// Programs as pictures: ranks are columns, equal layers stand once ("x 30"), messages are edges with their bytes.
#pragma once

#include <vector>

#include "base/ir/picture.h"
#include "engine/program/program.h"

namespace ark {

// What the partitioner decided: phases with weights, attention and exchanges, with the part that each rank holds.
Picture plan_picture(const std::vector<Program>& programs, std::string name);
// What executors run: every phase with its tiles, and the phases that it waits for.
Picture program_picture(const std::vector<Program>& programs, std::string name);

// "0:4|4:8" with "|" between two.
std::string ranges_text(const std::vector<Range>& ranges, const char* between);

}  // namespace ark
