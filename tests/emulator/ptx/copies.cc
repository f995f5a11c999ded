// Matrix units and copies, as threads of PTX ask for them.
#include <bit>

#include "tests/emulator/ptx/thread.h"

namespace ark::emulator::ptx {

void Thread::ldmatrix(const Instruction& i) {
  std::array<unsigned, 4> r{};
  ark_emulator_ldmatrix(r.data(), address(i, 1), i.argument != 0, site(i));
  for (std::size_t k = 0; k < 4; k++) set(i.operands[0].values[k], r[k]);
}
void Thread::mma(const Instruction& i) {
  std::array<unsigned, 4> a{};
  std::array<unsigned, 2> b{};
  std::array<float, 4> d{};
  for (std::size_t k = 0; k < 4; k++) a[k] = static_cast<unsigned>(read(i, i.operands[1].values[k]));
  for (std::size_t k = 0; k < 2; k++) b[k] = static_cast<unsigned>(read(i, i.operands[2].values[k]));
  for (std::size_t k = 0; k < 4; k++)
    d[k] = std::bit_cast<float>(static_cast<uint32_t>(read(i, i.operands[3].values[k])));
  const MmaOperands operands{d.data(), a.data(), b.data(), 1, 1, i.argument != 0};
  ark_emulator_mma(&operands, site(i));
  for (std::size_t k = 0; k < 4; k++) set(i.operands[0].values[k], std::bit_cast<uint32_t>(d[k]));
}
void Thread::cp_async(const Instruction& i) {
  if (number(i, 2) != 16) fail(i, "a copy of other than 16 bytes");
  const uint64_t bytes = i.operands.size() > 3 ? number(i, 3) : 16;
  if (work_) work_.copy();
  ark_emulator_cp_async(shared(i, 0), pointer(i, Space::kGlobal, number(i, 1)), static_cast<unsigned>(bytes),
                        site(i));
}
void Thread::cp_async_commit(const Instruction& i) { ark_emulator_cp_async_commit(site(i)); }
void Thread::cp_async_wait(const Instruction& i) {
  if (work_) work_.wait_for_copies(number(i, 0) == 0);
  ark_emulator_cp_async_wait(static_cast<int>(number(i, 0)), site(i));
}
void Thread::cp_async_arrive(const Instruction& i) { ark_emulator_cp_async_arrive(mbarrier(i, 0), site(i)); }
void Thread::mbarrier_init(const Instruction& i) {
  ark_emulator_mbarrier_init(mbarrier(i, 0), static_cast<unsigned>(number(i, 1)), site(i));
}
void Thread::mbarrier_inval(const Instruction& i) { ark_emulator_mbarrier_inval(mbarrier(i, 0), site(i)); }
void Thread::mbarrier_init_fence(const Instruction& i) { ark_emulator_mbarrier_init_fence(site(i)); }
void Thread::mbarrier_arrive(const Instruction& i) {
  const uint64_t bytes = i.operands.size() > 2 ? number(i, 2) : 0;
  ark_emulator_mbarrier_arrive(mbarrier(i, 1), static_cast<unsigned>(bytes), site(i));
  set(i.operands[0].values[0], 0);
}
void Thread::mbarrier_wait(const Instruction& i) {
  if (work_) work_.stage();
  polled_ = mbarrier(i, 1), seen_ = 0;
  set(i.operands[0].values[0],
      ark_emulator_mbarrier_try_wait(mbarrier(i, 1), static_cast<unsigned>(number(i, 2)), site(i)));
}
void Thread::fence_proxy(const Instruction& i) { ark_emulator_fence_proxy(site(i)); }
void Thread::create_policy(const Instruction& i) { set(i.operands[0].values[0], kPolicy); }
void Thread::bulk_load(const Instruction& i) {
  if (number(i, 4) != kPolicy) fail(i, "a cache policy that nothing has made");
  ark_emulator_bulk_load(shared(i, 0), pointer(i, Space::kGlobal, number(i, 1)),
                         static_cast<unsigned>(number(i, 2)), mbarrier(i, 3), site(i));
}
void Thread::bulk_store(const Instruction& i) {
  ark_emulator_bulk_store(pointer(i, Space::kGlobal, number(i, 0)), shared(i, 1),
                          static_cast<unsigned>(number(i, 2)), site(i));
}
void Thread::bulk_commit(const Instruction& i) { ark_emulator_bulk_commit(site(i)); }
void Thread::bulk_wait(const Instruction& i) {
  ark_emulator_bulk_wait(static_cast<int>(number(i, 0)), site(i));
}
void Thread::prefetch(const Instruction& i) {
  ark_emulator_prefetch(pointer(i, Space::kGlobal, number(i, 0)), site(i));
}
void Thread::bulk_prefetch(const Instruction& i) {
  ark_emulator_bulk_prefetch(pointer(i, Space::kGlobal, number(i, 0)), static_cast<unsigned>(number(i, 1)),
                             site(i));
}

}  // namespace ark::emulator::ptx
