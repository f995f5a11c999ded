#pragma once

namespace ark {

extern const char* const kVersion;  // "0.1.0": the project's, from CMakeLists.txt

}  // namespace ark
