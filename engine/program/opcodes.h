// What each OpCode demands of the phases that run it: one table, which the program's text, the lowering, the validator
// and the executors read. A new OpCode is a line of the enum and a row of the table in opcodes.cc; its bodies stand in
// engine/cpu/step_kernels and engine/cuda/bodies.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/ir/attributes.h"
#include "engine/program/program.h"

namespace ark {

enum class OperandKind : uint8_t {
  kInput,    // f32 that phases compute, the host brings or a raw weight holds: dense
  kIndices,  // the same of i32 or i64
  kVector,   // a raw f32 weight
  kPanels,   // a packed weight
  kTable,    // a raw or packed weight; its sizes are those of rows: packed, it is transposed
  kKeys,     // pages of a cache
  kValues,
  kInbox,     // what a peer has sent; the peers' follow the own part, operand 0
  kOutput,    // f32 that this phase computes
  kAnything,  // kGeneric: of any element type
};
enum OperandFlags : uint8_t {
  kOptional = 1,  // may be absent: Operand{}
  kWritten = 2,
  kMany = 4,  // any number; kInbox: one of each peer, in rank order. One such operand at most (kGeneric: two)
};

struct OperandInfo {
  std::string_view name;
  OperandKind kind = OperandKind::kInput;
  // The sizes, a word a dim. Equal names are equal sizes; small letters are a symbol of the step; "..." stands for any
  // number of dims, the same ones wherever it stands. Empty: as the OpCode's check says.
  std::string_view dims;
  uint8_t flags = 0;
};

struct AttributeInfo {
  template <typename T>
  AttributeInfo(Key<T> key) : name(key.name), type(AttributeValue(std::in_place_type<T>).index()) {}
  std::string_view name;
  std::size_t type;  // index into AttributeValue
};

enum VariantParts : uint8_t { kHasRecipe = 1, kHasEpilogue = 2, kHasSteps = 4 };

class PhaseView;

struct OpCodeInfo {
  OpCode code;
  std::string_view name;  // "MatMul"
  std::vector<OperandInfo> operands;
  std::vector<AttributeInfo> attributes;           // all must be there (kGeneric: those of the operator may)
  uint8_t parts = 0;                               // VariantParts that it may have
  Expr (*grid)(const PhaseView& phase) = nullptr;  // number of tiles; null: the kernel's own
  // What else must hold: empty, or what does not. Null: nothing.
  std::string (*check)(const PhaseView& phase) = nullptr;
};

const OpCodeInfo& info_of(OpCode code);
std::span<const OpCodeInfo> all_opcodes();  // in the order of the enum
std::string_view name_of(OpCode code);      // "MatMul"
std::string in_single_quotes(std::string_view name);

constexpr bool is_send(OpCode code) { return code == OpCode::kSend || code == OpCode::kSendRows; }
constexpr bool is_receive(OpCode code) {
  return code == OpCode::kRecvReduce || code == OpCode::kRecvConcat || code == OpCode::kRecvRows;
}

// Whether phases multiply rows by whole packed weights; tiles are panels of columns.
constexpr bool is_product(OpCode code) { return code == OpCode::kMatMul || code == OpCode::kGatedMatMul; }
// Places of kRotaryAppend's operands.
namespace rotary_append {
inline constexpr std::size_t kQueries = 0, kPositions = 3, kKeys = 4, kValues = 5, kOut = 6, kPages = 7;
}
// Whether one code multiplies both packed weights.
bool are_stored_alike(const WeightUse& a, const WeightUse& b);
// Whether a packed weight is of what the precision multiplies.
bool can_multiply(Precision precision, const WeightUse& weight);
// Whether operand `index` of `count` is written by phases of this variant.
bool is_written(const Variant& variant, std::size_t index, std::size_t count);
// What of a variant its OpCode does not have: parts, attributes, their types. Empty: nothing.
std::string variant_problem(const Variant& variant);

}  // namespace ark
