// Runs PTX, as NVRTC makes it of device code, on the emulator: what dma/device_cuda.h says in assembly is executed,
// not only compiled. Each thread is a fiber that interprets; barriers, words, copies and matrix units are the
// emulator's own hooks, so that bounds, races, alignment and deadlocks are found as in any kernel.
//
// Whatever is not known is refused when the text is parsed: an instruction with a modifier too many is an Error that
// names it. A register that nothing has written is poison: it may be moved, not used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/cuda/gpu.h"
#include "tests/emulator/hooks.h"

namespace ark::emulator::ptx {

// A number that an instruction reads, or the register that it writes.
struct Value {
  enum Kind : uint8_t { kConstant, kRegister, kSpecial, kParameter, kLocal, kSink } kind = kConstant;
  bool is_negated = false;  // !%p
  // Its value, or the register's index, the Special, the offset among the function's parameters or locals.
  uint64_t number = 0;
};
enum Special : uint64_t { kThread, kBlock, kBlockThreads, kGridBlocks, kLane, kClock };

// One value, {several}, or [an address] with its offset.
struct Operand {
  std::vector<Value> values;
  int64_t offset = 0;
};

enum class Space : uint8_t { kGeneric, kGlobal, kShared, kLocal, kParameter };

// What a load, a store, an atomic or a conversion of addresses does.
struct Access {
  Space space = Space::kGeneric;
  int bytes = 0, count = 1;
  bool is_signed = false, is_constant = false, is_cached_in_l2 = false;
  std::optional<WordOperation> operation;  // none: plain
  WordScope scope = WordScope::kBlock;
};

class Thread;
struct Function;
struct Instruction {
  std::string name;  // with all modifiers
  int line = 0;
  int guard = -1;  // register
  bool guard_negated = false;
  std::vector<Operand> operands;
  uint64_t (*compute)(const uint64_t*) = nullptr;        // of all operands but the first, which it writes
  void (Thread::*effect)(const Instruction&) = nullptr;  // everything else but branches
  Access access;
  int argument = 0;  // of the effect
  enum Flow : uint8_t { kNone, kBranch, kReturn, kCall } flow = kNone;
  std::string label;  // target of a branch, name of the function called
  std::size_t target = 0;
  const Function* callee = nullptr;
  std::vector<std::size_t> results, arguments;  // of a call: places among the caller's parameters
  mutable uint64_t runs = 0;
};

struct Function {
  std::string name;
  struct Parameter {
    std::size_t offset = 0, bytes = 0;
  };
  std::vector<Parameter> results, arguments;
  // Parameters are the arguments, and behind them the results and what calls are given and give.
  std::size_t argument_bytes = 0, parameter_bytes = 0, local_bytes = 0;
  std::vector<std::string> registers;  // by index
  std::vector<Instruction> code;
};

struct Module {
  std::string name;
  std::unordered_map<std::string, std::unique_ptr<Function>> functions;
  // .global with their content.
  std::unordered_map<std::string, std::unique_ptr<std::vector<uint64_t>>> tables;
};

// Where shared memory begins in its window: not at 0, so that an address taken for an offset is noticed.
inline constexpr uint64_t kSharedBase = 1024;
inline constexpr std::size_t kMaxOperands = 6;

// Throws Error(kInternal) with the line and the instruction that is not known. `name` stands in reports.
std::shared_ptr<const Module> parse(const std::string& text, const std::string& name);

// `entry` as a kernel of a LaunchRequest. `log`: what its threads do is counted there (work_log.h).
class WorkLog;
std::function<void(const void*)> kernel(std::shared_ptr<const Module> module, const std::string& entry,
                                        std::shared_ptr<WorkLog> log = nullptr);

// Instructions that have never run, once each, without the numbers of registers.
std::vector<std::string> never_run(const Module& module);

// parse.cc asks; null if the arithmetic has no such instruction (arithmetic.cc).
uint64_t (*arithmetic(const std::string& name))(const uint64_t*);
// Sets `effect`, `access` and `argument`; false if no effect has this name (effects.cc).
bool bind_effect(Instruction& instruction);

}  // namespace ark::emulator::ptx
