// A thread that interprets PTX: registers and parameters of its calls, local memory, and what each instruction asks of
// the emulator.
#pragma once

#include <array>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "tests/emulator/core.h"
#include "tests/emulator/ptx/ptx.h"
#include "tests/emulator/ptx/work_log.h"

namespace ark::emulator::ptx {

inline constexpr std::size_t kLocalBytes = 16 << 10;  // of a thread
inline constexpr uint64_t kPolicy = 0x1e5c1e5c;       // what createpolicy makes
inline constexpr uint64_t kMostSteps = 1 << 30;       // of a thread

class Thread {
 public:
  // `log`: counts what the thread does (work_log.h); null: nothing is counted.
  explicit Thread(const Module& module, WorkLog* log = nullptr)
      : module_(module), locals_(kLocalBytes, std::byte{0xff}), work_(log) {}

  // Leaves the results in `results`, where the caller wants them.
  void run(const Function& f, const std::byte* arguments, const std::vector<std::byte*>& results) {
    Frame frame(f, arguments, locals_.data() + locals_used_);
    Frame* const caller = std::exchange(frame_, &frame);
    locals_used_ += (f.local_bytes + 15) / 16 * 16;
    if (locals_used_ > kLocalBytes) fail(f.code[0], "more than 16 KiB of local memory");
    for (std::size_t pc = 0;;) {
      const Instruction& i = f.code[pc++];
      if (++steps_ > kMostSteps) fail(i, "runs on without an end");
      if (i.guard >= 0) {
        const bool passed = (reg(i, static_cast<std::size_t>(i.guard)) != 0) != i.guard_negated;
        if (work_) work_.decide(known(static_cast<std::size_t>(i.guard)), i.flow == Instruction::kBranch);
        if (!passed) continue;
      }
      i.runs++;
      if (i.compute) {
        std::array<uint64_t, kMaxOperands> v{};
        for (std::size_t k = 1; k < i.operands.size(); k++) v[k - 1] = number(i, k);
        const uint32_t known = work_ ? work_.compute(newest(i, 1)) : 0;
        set(i.operands[0].values[0], i.compute(v.data()));
        if (work_) know(i.operands[0].values[0], known);
      } else if (i.effect) {
        if (work_ && i.effect != &Thread::move && i.access.space != Space::kParameter)
          work_.use(newest(i, has_result(i)));
        (this->*i.effect)(i);
      } else if (i.flow == Instruction::kBranch) {
        pc = i.target;
      } else if (i.flow == Instruction::kCall) {
        call(i);
      } else {
        break;
      }
    }
    if (work_) work_.end_basic_block();
    for (std::size_t k = 0; k < results.size(); k++)
      std::memcpy(results[k], frame.parameter(f.results[k].offset), f.results[k].bytes);
    locals_used_ -= (f.local_bytes + 15) / 16 * 16;
    frame_ = caller;
  }

  // ---- moves

  void move(const Instruction& i) {
    const std::vector<Value>&to = i.operands[0].values, &from = i.operands[1].values;
    const uint64_t bits = static_cast<uint64_t>(i.argument) * 8,
                   mask = bits >= 64 ? ~0ull : (1ull << bits) - 1;
    if (to.size() == 1 && from.size() == 1) {
      if (from[0].kind == Value::kRegister && !frame_->written[from[0].number])
        return;  // poison stays poison
      set(to[0], read(i, from[0]) & mask);
      return pass_on(i);
    }
    if (to.size() > 1) {
      const uint64_t v = read(i, from[0]), each = bits / to.size();
      for (std::size_t k = 0; k < to.size(); k++) set(to[k], v >> k * each & ((1ull << each) - 1));
      return pass_on(i);
    }
    uint64_t v = 0;
    for (std::size_t k = 0, each = bits / from.size(); k < from.size(); k++)
      v |= (read(i, from[k]) & ((1ull << each) - 1)) << k * each;
    set(to[0], v);
    pass_on(i);
  }
  void to_generic(const Instruction& i) {
    set(i.operands[0].values[0], reinterpret_cast<uint64_t>(pointer(i, i.access.space, number(i, 1))));
  }
  void from_generic(const Instruction& i) {
    const uint64_t p = number(i, 1);
    if (i.access.space == Space::kGlobal) return set(i.operands[0].values[0], p);
    const uint64_t offset =
        p - reinterpret_cast<uint64_t>(i.access.space == Space::kShared ? static_cast<void*>(ids().shared)
                                                                        : static_cast<void*>(locals_.data()));
    if (offset > (i.access.space == Space::kShared ? shared_bytes() : kLocalBytes))
      fail(i, "a generic address of another space");
    set(i.operands[0].values[0], offset + (i.access.space == Space::kShared ? kSharedBase : 0));
  }

  // ---- memory

  void load(const Instruction& i) {
    const Access& a = i.access;
    const int all = a.bytes * a.count;
    auto* p = address(i, 1);
    alignas(16) std::array<std::byte, 16> data;
    Core& core = *Core::current;
    const bool is_private_word = is_private(p);
    if (work_ && a.operation) work_.poll(a.operation == WordOperation::kLoadAcquire && !is_shared(p));
    if (is_private_word) {
      std::memcpy(data.data(), p, static_cast<std::size_t>(all));
    } else if (a.operation) {
      ark_emulator_check_words(p, all, site(i));
      for (int k = 0; k < a.count; k++) {
        std::byte* const word = p + k * a.bytes;
        const uint64_t v = ark_emulator_word(*a.operation, a.scope, word, a.bytes, 0, 0, site(i));
        polled_ = word, seen_ = v;
        std::memcpy(data.data() + k * a.bytes, &v, static_cast<std::size_t>(a.bytes));
      }
    } else if (a.is_constant) {
      ark_emulator_read_constant(data.data(), p, all, site(i));
    } else if (a.is_cached_in_l2) {
      ark_emulator_read(data.data(), p, all, site(i));
    } else {
      core.check_aligned(p, static_cast<uint64_t>(all), 0, site(i));
      core.touch(p, static_cast<uint64_t>(all), Access_::kRead, 0, site(i));
      std::memcpy(data.data(), p, static_cast<std::size_t>(all));
    }
    for (int k = 0; k < a.count; k++) {
      uint64_t v = 0;
      std::memcpy(&v, data.data() + k * a.bytes, static_cast<std::size_t>(a.bytes));
      const int unused = 64 - 8 * a.bytes;
      if (a.is_signed) v = static_cast<uint64_t>(static_cast<int64_t>(v << unused) >> unused);
      set(i.operands[0].values[static_cast<std::size_t>(k)], v);
      if (work_)
        know(i.operands[0].values[static_cast<std::size_t>(k)],
             work_.load(!is_private_word && !is_shared(p)));
    }
  }
  void store(const Instruction& i) {
    const Access& a = i.access;
    const int all = a.bytes * a.count;
    auto* p = address(i, 0);
    if (work_ && !is_private(p)) work_.meet();
    alignas(16) std::array<std::byte, 16> data;
    for (int k = 0; k < a.count; k++) {
      const uint64_t v = read(i, i.operands[1].values[static_cast<std::size_t>(k)]);
      std::memcpy(data.data() + k * a.bytes, &v, static_cast<std::size_t>(a.bytes));
    }
    if (a.operation) {
      if (work_ && !is_shared(p)) work_.word(*a.operation);
      ark_emulator_check_words(p, all, site(i));
      for (int k = 0; k < a.count; k++) {
        uint64_t v = 0;
        std::memcpy(&v, data.data() + k * a.bytes, static_cast<std::size_t>(a.bytes));
        ark_emulator_word(*a.operation, a.scope, p + k * a.bytes, a.bytes, v, 0, site(i));
      }
      return;
    }
    if (work_ && i.access.space == Space::kParameter) work_.compute(newest(i, 1));
    if (!is_private(p)) {
      Core::current->check_aligned(p, static_cast<uint64_t>(all), 0, site(i));
      Core::current->touch(p, static_cast<uint64_t>(all), Access_::kWrite, 0, site(i));
    }
    std::memcpy(p, data.data(), static_cast<std::size_t>(all));
  }
  void add(const Instruction& i) {
    count_atomic(i);
    set(i.operands[0].values[0], ark_emulator_word(*i.access.operation, i.access.scope, address(i, 1),
                                                   i.access.bytes, number(i, 2), 0, site(i)));
    if (work_) know(i.operands[0].values[0], work_.load(!is_shared(address(i, 1))));
  }
  void compare_and_swap(const Instruction& i) {
    count_atomic(i);
    set(i.operands[0].values[0], ark_emulator_word(*i.access.operation, i.access.scope, address(i, 1),
                                                   i.access.bytes, number(i, 3), number(i, 2), site(i)));
  }
  void fence(const Instruction& i) {
    if (work_) work_.fence();
    ark_emulator_fence(i.access.scope, site(i));
  }

  // ---- barriers and lanes

  void barrier(const Instruction& i) {
    const int threads = i.operands.size() > 1 ? static_cast<int>(number(i, 1)) : -1;
    const auto id = static_cast<int>(number(i, 0));
    const std::size_t turn = work_ && i.argument != 0 ? work_.reach(id) : 0;
    ark_emulator_barrier(id, threads, i.argument != 0, site(i));
    if (work_ && i.argument != 0) work_.pass(id, turn);
  }
  void barrier_or(const Instruction& i) {
    const auto id = static_cast<int>(number(i, 1));
    const std::size_t turn = work_ ? work_.reach(id) : 0;
    set(i.operands[0].values[0],
        ark_emulator_barrier_or(static_cast<int>(number(i, 1)), static_cast<int>(number(i, 2)),
                                number(i, 3) != 0, site(i)));
    if (work_) work_.pass(id, turn), know(i.operands[0].values[0], 0);
  }
  void sync_warp(const Instruction& i) {
    check_all_lanes(i, 0);
    if (work_) work_.meet();
    ark_emulator_sync_warp(site(i));
  }
  void shuffle(const Instruction& i) {
    const auto kind = static_cast<Shuffle>(i.argument);
    check_all_lanes(i, 4);
    // The last lane of a segment that is the whole warp: of shuffles up, the first.
    if (number(i, 3) != (kind == Shuffle::kUp ? 0 : 31)) fail(i, "a shuffle within a part of the warp");
    auto v = static_cast<uint32_t>(number(i, 1));
    const auto by = static_cast<uint32_t>(number(i, 2));
    ark_emulator_shuffle(&v, 4, kind, static_cast<int>(by), site(i));
    set(i.operands[0].values[0], v);
    const auto lane = static_cast<uint32_t>(ids().lane);
    if (i.operands[0].values.size() > 1)
      set(i.operands[0].values[1],
          kind == Shuffle::kUp ? lane >= by : kind != Shuffle::kDown || lane + by <= 31);
  }
  void ballot(const Instruction& i) {
    check_all_lanes(i, 2);
    if (work_) work_.meet();
    set(i.operands[0].values[0], ark_emulator_ballot(number(i, 1) != 0, site(i)));
  }

  void move_registers(const Instruction& i) {
    ark_emulator_move_registers(static_cast<int>(number(i, 0)), i.argument != 0, site(i));
  }

  // ---- matrix units and copies (copies.cc)

  void ldmatrix(const Instruction& i);
  void mma(const Instruction& i);
  void cp_async(const Instruction& i);
  void cp_async_commit(const Instruction& i);
  void cp_async_wait(const Instruction& i);
  void cp_async_arrive(const Instruction& i);
  void mbarrier_init(const Instruction& i);
  void mbarrier_inval(const Instruction& i);
  void mbarrier_init_fence(const Instruction& i);
  void mbarrier_arrive(const Instruction& i);
  void mbarrier_wait(const Instruction& i);
  void fence_proxy(const Instruction& i);
  void create_policy(const Instruction& i);
  void bulk_load(const Instruction& i);
  void bulk_store(const Instruction& i);
  void bulk_commit(const Instruction& i);
  void bulk_wait(const Instruction& i);
  void prefetch(const Instruction& i);
  void bulk_prefetch(const Instruction& i);

  // What it looked at last is what it waits for.
  void nanosleep(const Instruction& i) {
    if (number(i, 0) > 1'000'000) fail(i, "a sleep of more than a millisecond");
    if (work_) work_.try_again();
    ark_emulator_pause(polled_, seen_, 0, site(i));
  }
  void trap(const Instruction& i) { ark_emulator_trap(site(i)); }

 private:
  struct Frame {
    const Function& function;
    const std::byte* arguments;
    std::byte* locals;
    std::vector<uint64_t> registers;
    std::vector<bool> written;
    // By register, where work is counted: the round behind which its value is there.
    std::vector<uint32_t> known;
    std::vector<std::byte> parameters;  // but the arguments

    Frame(const Function& f, const std::byte* arguments, std::byte* locals)
        : function(f),
          arguments(arguments),
          locals(locals),
          registers(f.registers.size()),
          written(f.registers.size()),
          parameters(f.parameter_bytes - f.argument_bytes) {}
    std::byte* parameter(uint64_t offset) {
      return offset < function.argument_bytes ? const_cast<std::byte*>(arguments) + offset
                                              : parameters.data() + offset - function.argument_bytes;
    }
  };
  using Access_ = ::ark::emulator::Access;

  static const ThreadIds& ids() { return *ark_emulator_ids(); }
  static uint64_t shared_bytes() { return running().warp->block->grid->request.shared_bytes; }
  Site site(const Instruction& i) const { return {module_.name.c_str(), i.line}; }
  [[noreturn]] void fail(const Instruction& i, const std::string& what) const {
    Core::current->fail(Fault::kPtx, i.name + ": " + what, site(i));
  }

  uint64_t reg(const Instruction& i, std::size_t index) {
    if (!frame_->written[index])
      fail(i, "reads " + frame_->function.registers[index] + ", which nothing has written");
    return frame_->registers[index];
  }
  uint64_t read(const Instruction& i, const Value& v) {
    switch (v.kind) {
      case Value::kConstant:
        return v.number;
      case Value::kRegister:
        return v.is_negated ? !reg(i, v.number) : reg(i, v.number);
      case Value::kParameter:
        return reinterpret_cast<uint64_t>(frame_->parameter(v.number));
      case Value::kLocal:
        return static_cast<uint64_t>(frame_->locals - locals_.data()) + v.number;
      case Value::kSink:
        fail(i, "reads _");
      case Value::kSpecial:
        break;
    }
    const ThreadIds& t = ids();
    const std::array<int, 5> all = {t.thread, t.block, t.block_threads, t.grid_blocks, t.lane};
    return v.number == kClock ? ark_emulator_clock_ns() : static_cast<uint64_t>(all[v.number]);
  }
  uint64_t number(const Instruction& i, std::size_t operand) {
    const Operand& o = i.operands[operand];
    return read(i, o.values[0]) + static_cast<uint64_t>(o.offset);
  }
  void set(const Value& v, uint64_t number) {
    if (v.kind == Value::kSink) return;
    frame_->registers[v.number] = number;
    frame_->written[v.number] = true;
    if (work_) know(v, 0);
  }

  // ---- where work is counted
  // Its first operand is written.
  static bool has_result(const Instruction& i) {
    return i.effect != &Thread::store && i.effect != &Thread::barrier && i.effect != &Thread::sync_warp &&
           i.effect != &Thread::prefetch && i.effect != &Thread::bulk_prefetch;
  }
  uint32_t known(std::size_t index) const { return index < frame_->known.size() ? frame_->known[index] : 0; }
  void know(const Value& v, uint32_t round) {
    if (v.kind != Value::kRegister) return;
    frame_->known.resize(frame_->registers.size());
    frame_->known[v.number] = round;
  }
  // Of the registers among an instruction's operands from the first-th on.
  uint32_t newest(const Instruction& i, std::size_t first) const {
    uint32_t round = 0;
    for (std::size_t k = first; k < i.operands.size(); k++) {
      for (const Value& v : i.operands[k].values) {
        if (v.kind == Value::kRegister && frame_->written[v.number]) round = std::max(round, known(v.number));
      }
    }
    return round;
  }
  void pass_on(const Instruction& i) {
    if (!work_) return;
    const uint32_t round = newest(i, 1);
    for (const Value& v : i.operands[0].values) know(v, round);
  }
  void count_atomic(const Instruction& i) {
    if (work_ && !is_shared(address(i, 1))) work_.word(*i.access.operation);
  }
  bool is_shared(const std::byte* p) const {
    return static_cast<uint64_t>(p - reinterpret_cast<const std::byte*>(ids().shared)) < shared_bytes();
  }

  std::byte* pointer(const Instruction& i, Space space, uint64_t a) {
    if (space == Space::kShared) {
      const uint64_t offset = static_cast<uint32_t>(a) - kSharedBase;
      if (offset > shared_bytes()) fail(i, "shared address " + std::to_string(static_cast<uint32_t>(a)));
      return reinterpret_cast<std::byte*>(ids().shared) + offset;
    }
    if (space == Space::kLocal) {
      if (a >= kLocalBytes) fail(i, "local address " + std::to_string(a));
      return locals_.data() + a;
    }
    auto* p = reinterpret_cast<std::byte*>(a);
    if (space == Space::kGlobal && a - reinterpret_cast<uint64_t>(ids().shared) < shared_bytes())
      fail(i, "a shared address in a global access");
    return p;
  }
  std::byte* address(const Instruction& i, std::size_t operand) {
    return pointer(i, i.access.space, number(i, operand));
  }
  std::byte* shared(const Instruction& i, std::size_t operand) {
    return pointer(i, Space::kShared, number(i, operand));
  }
  uint64_t* mbarrier(const Instruction& i, std::size_t operand) {
    return reinterpret_cast<uint64_t*>(shared(i, operand));
  }
  // Memory that no hook watches: locals, parameters of calls, constants of the module.
  bool is_private(const std::byte* p) const {
    if (Core::current->memory.contains(p)) return false;
    const auto is_in = [&](const void* begin, std::size_t bytes) {
      return static_cast<uint64_t>(p - static_cast<const std::byte*>(begin)) < bytes;
    };
    if (is_in(locals_.data(), kLocalBytes) || is_in(frame_->parameters.data(), frame_->parameters.size()) ||
        is_in(frame_->arguments, frame_->function.argument_bytes))
      return true;
    for (const auto& [name, table] : module_.tables) {
      if (is_in(table->data(), table->size() * 8)) return true;
    }
    return false;
  }
  void check_all_lanes(const Instruction& i, std::size_t operand) {
    if (static_cast<uint32_t>(number(i, operand)) != ~0u) fail(i, "a mask of some lanes");
  }

  void call(const Instruction& i) {
    std::vector<std::byte> arguments(i.callee->argument_bytes);
    for (std::size_t k = 0; k < i.arguments.size(); k++) {
      const auto& a = i.callee->arguments[k];
      std::memcpy(arguments.data() + a.offset, frame_->parameter(i.arguments[k]), a.bytes);
    }
    std::vector<std::byte*> results;
    for (const std::size_t offset : i.results) results.push_back(frame_->parameter(offset));
    if (work_) work_.call(*i.callee, arguments.data());
    run(*i.callee, arguments.data(), results);
  }

  const Module& module_;
  Frame* frame_ = nullptr;
  std::vector<std::byte> locals_;
  std::size_t locals_used_ = 0;
  const void* polled_ = nullptr;
  uint64_t seen_ = 0, steps_ = 0;
  ThreadWork work_;
};

}  // namespace ark::emulator::ptx
