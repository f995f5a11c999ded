#include "server/version.h"

namespace ark {

const char* const kVersion = ARK_VERSION;

}  // namespace ark
