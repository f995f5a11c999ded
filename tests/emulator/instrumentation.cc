// What -fsanitize=thread calls before each access of a kernel. The program is linked without libtsan; these
// functions take its place. Outside of kernels (constructors of an instrumented file) they do nothing.
#include "tests/emulator/core.h"

namespace ark::emulator {
namespace {

inline void touch(const void* p, uint64_t bytes, Access access, uint64_t alignment, Place place) {
  Core* core = Core::current;
  if (!core || !core->fiber || core->is_own_stack(p)) return;
  core->check_aligned(p, alignment, place);
  core->touch(p, bytes, access, place);
}

}  // namespace
}  // namespace ark::emulator

using ark::emulator::Access;
using ark::emulator::touch;

extern "C" {

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_read_range(void* p, unsigned long bytes) {
  touch(p, bytes, Access::kRead, 1, ARK_EMULATOR_PLACE);
}
void __tsan_write_range(void* p, unsigned long bytes) {
  touch(p, bytes, Access::kWrite, 1, ARK_EMULATOR_PLACE);
}
#define ARK_EMULATOR_ACCESS(bytes)                                                                      \
  void __tsan_read##bytes(void* p) { touch(p, bytes, Access::kRead, bytes, ARK_EMULATOR_PLACE); }       \
  void __tsan_write##bytes(void* p) { touch(p, bytes, Access::kWrite, bytes, ARK_EMULATOR_PLACE); }     \
  void __tsan_unaligned_read##bytes(void* p) { touch(p, bytes, Access::kRead, 1, ARK_EMULATOR_PLACE); } \
  void __tsan_unaligned_write##bytes(void* p) { touch(p, bytes, Access::kWrite, 1, ARK_EMULATOR_PLACE); }
ARK_EMULATOR_ACCESS(1)
ARK_EMULATOR_ACCESS(2)
ARK_EMULATOR_ACCESS(4)
ARK_EMULATOR_ACCESS(8)
ARK_EMULATOR_ACCESS(16)
#undef ARK_EMULATOR_ACCESS
}
