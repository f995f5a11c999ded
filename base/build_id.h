// Which build of a program runs: a key for what other builds may make differently.
#pragma once

#include <string>

namespace ark {

// Hexadecimal digits that the linker has made of all of the program (.note.gnu.build-id); empty if it made none.
std::string build_id();

}  // namespace ark
