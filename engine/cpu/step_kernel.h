// What the CPU runs for each OpCode: one function over a contiguous range of a phase's tiles.
//
// Bodies never allocate, lock, throw or look at anything but their PhaseCall. They write the outputs of their
// own tiles only. Every body is the same for lockstep and loop.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/ir/kernel.h"
#include "engine/cpu/simd/table.h"
#include "engine/program/program.h"
#include "engine/program/variant_facts.h"
#include "engine/run/mailbox.h"
#include "engine/run/step.h"

namespace ark {

// The step as bodies see it. Written by the rank's leader between steps, constant inside one.
struct StepFrame {
  int64_t step = 0;       // from 0
  bool is_plain = false;  // a plain graph's: what its inputs' values ask for is not proven
  std::span<const StepRow> rows;
  std::span<const BiasEntry> bias;
  std::span<const uint32_t> masks;
  std::vector<int32_t> positions;  // per token
  std::vector<int32_t> slots;      // per token
  std::vector<AttentionItem> items;
};

// What a rank keeps of each sequence between steps. All arrays are fixed at prepare().
struct SlotState {
  int32_t page_size = 0, pages_per_slot = 0;
  std::vector<int32_t> page_tables;  // [slots][pages_per_slot]: leader, between steps
  std::vector<int32_t> last_tokens;  // [slots]: kSample writes, the next step's leader reads
  // [pages][page_size]: token ids as fed, so that shared prefixes bring their history.
  std::vector<int32_t> page_tokens;

  const int32_t* table(int32_t slot) const { return page_tables.data() + int64_t{slot} * pages_per_slot; }
};

// Memory of one processor for the duration of one body.
class Scratch {
 public:
  Scratch() = default;
  explicit Scratch(int64_t bytes);
  void reset() { used_ = 0; }
  // Uninitialised, 64-byte aligned. The need was computed at prepare(); taking more is our bug.
  template <typename T>
  T* take(int64_t count) {
    return reinterpret_cast<T*>(take_bytes(count * static_cast<int64_t>(sizeof(T))));
  }

 private:
  std::byte* take_bytes(int64_t bytes);
  std::shared_ptr<std::byte> memory_;
  int64_t bytes_ = 0, used_ = 0;
};
// Bytes that take<T>(count) uses.
template <typename T>
int64_t scratch_of(int64_t count) {
  return (count * static_cast<int64_t>(sizeof(T)) + 63) / 64 * 64;
}

struct PhaseCall {
  const Variant* variant = nullptr;
  const VariantFacts* facts = nullptr;
  std::span<const TensorView> operands;    // absent optional ones: !present()
  const WeightUse* weight = nullptr;       // of operand 1 (kMatMul, kGatedMatMul, kEmbed)
  const Attributes* attributes = nullptr;  // kGeneric: symbols replaced by their values
  int32_t outputs = 1;                     // kGeneric: how many of the last operands
  int32_t rank = 0;                        // place of the own part among `ranks`
  int32_t ranks = 1;
  const std::byte* sum = nullptr;  // kRecvReduce: of all parts, where the pump has added them up
  std::byte* outbox = nullptr;     // kSend, kSendRows: where the message goes
  Range* sent = nullptr;           // the same: the kernel tells which of its bytes these tiles were
  const simd::Table* simd = nullptr;
  const StepFrame* frame = nullptr;
  SlotState* state = nullptr;
  RowRecord* results = nullptr;  // kSample; null where nobody reads them
  float* logits = nullptr;       // [rows, vocabulary], for rows that want them; null as above
  Scratch* scratch = nullptr;
  int64_t grid = 0, first = 0, last = 0;  // tiles [first, last) of grid
  // Whose these are, of so many; for kernels that deal by other rules than tiles_of.
  int32_t processor = 0, processors = 1;
  std::span<float> shared;  // by all processors, of kernels that join what these have made
};

// Greatest sizes that a phase can meet, for its scratch.
struct PhaseLimits {
  const Variant* variant = nullptr;
  const VariantFacts* facts = nullptr;
  std::span<const TensorView> operands;  // dims at the vals' maxima, no data
  int64_t max_length = 0;
  int32_t processors = 1;
};

struct StepKernel {
  OpCode code = OpCode::kGeneric;
  void (*run)(const PhaseCall& call) = nullptr;
  int64_t (*scratch)(const PhaseLimits& limits) = nullptr;  // bytes; null: none
  bool deals = false;                                       // by itself: called on every processor
  // How many floats of PhaseCall::shared it has use for; whoever is the last of a phase's processors then calls join().
  // It does without where that memory is empty, and join() is not called.
  int64_t (*shared)(const PhaseLimits& limits) = nullptr;
  void (*join)(const PhaseCall& call) = nullptr;
};
const StepKernel& find_step_kernel(OpCode code);

// Product of a view's dims before / from `axis`.
inline int64_t outer_size(const TensorView& v, int axis) {
  int64_t n = 1;
  for (int i = 0; i < axis; ++i) n *= v.dims[i];
  return n;
}
inline int64_t inner_size(const TensorView& v, int axis) {
  int64_t n = 1;
  for (int i = axis; i < v.rank; ++i) n *= v.dims[i];
  return n;
}
inline int64_t last_dim(const TensorView& v) { return v.rank ? v.dims[v.rank - 1] : 1; }
// Element i of an i32 or i64 view.
inline int64_t index_at(const TensorView& v, int64_t i) {
  return v.dtype == DType::kI64 ? v.as<const int64_t>()[i] : v.as<const int32_t>()[i];
}

}  // namespace ark
