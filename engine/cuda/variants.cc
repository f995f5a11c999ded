#include "engine/cuda/variants.h"

#include <algorithm>
#include <numeric>
#include <sstream>

#include "base/error.h"
#include "base/index.h"
#include "engine/cpu/step_kernel.h"
#include "engine/cuda/image.h"
#include "engine/cuda/pointwise_source.h"
#include "engine/program/text.h"
#include "engine/program/unroll.h"
#include "engine/program/weight_codec.h"

namespace ark::cuda {
namespace {

[[noreturn]] void refuse(const Phase& phase, const std::string& why) {
  throw Error(Code::kUnsupported,
              "node " + escaped(phase.name) + " has no device code: " + why + "; run with --device cpu");
}

const char* element_type(DType dtype) {
  if (const WeightCodec* codec = codec_of(dtype)) return codec->device;
  return dtype == DType::kI32 ? "i32" : dtype == DType::kI64 ? "i64" : nullptr;
}

// Names one phase's case.
class Namer {
 public:
  Namer(const Program& program, const Phase& phase, Numerics numerics)
      : program_(program),
        phase_(phase),
        variant_(program.variants[phase.variant]),
        facts_(VariantFacts::of(variant_)),
        numerics_(numerics) {}

  DeviceVariant name() const {
    switch (variant_.code) {
      case OpCode::kEmbed:
        return {join("Embed", {type(1), type(0)}), ""};
      case OpCode::kNorm:
        return {join("Norm", {facts_.rms ? "true" : "false"}), ""};
      case OpCode::kMatMul:
        return {matmul(), ""};
      case OpCode::kRotary:
        return {join("Rotary", {facts_.interleaved ? "true" : "false", type(3)}), ""};
      case OpCode::kKvAppend:
        return {"KvAppend", ""};
      case OpCode::kAttention:
        return {attention(), ""};
      case OpCode::kSelectRows:
        return {"SelectRows", ""};
      case OpCode::kPointwise:
        return pointwise_source(variant_, phase_.operands.size() - 1);
      case OpCode::kSend:
        return {"Send", ""};
      case OpCode::kRecvReduce:
        if (program_.ranks > 8) refuse(phase_, "partial sums of more than 8 ranks");
        return {join("RecvReduce", {std::to_string(program_.ranks)}), ""};
      case OpCode::kRecvConcat:
        return {"RecvConcat", ""};
      case OpCode::kSample:
        return {"Sample", ""};
      case OpCode::kGeneric:
        return {generic(), ""};
    }
    refuse(phase_, "unknown operation");
  }

 private:
  const Buffer& buffer(std::size_t operand) const {
    return program_.buffers[resolve(program_, phase_, phase_.operands[operand], 0)];
  }
  std::string type(std::size_t operand) const {
    const char* name = element_type(buffer(operand).dtype);
    if (!name) refuse(phase_, "elements of type " + std::string(name_of(buffer(operand).dtype)));
    return name;
  }
  int64_t constant_dim(std::size_t operand, std::size_t axis) const {
    const int64_t n = constant_of(program_, buffer(operand).dims[axis]);
    if (n < 0) refuse(phase_, "a size that changes from step to step");
    return n;
  }
  static std::string join(const std::string& name, const std::vector<std::string>& parameters) {
    std::string text = name + "<";
    for (std::size_t i = 0; i < parameters.size(); ++i) text += (i ? ", " : "") + parameters[i];
    return text + ">";
  }

  std::string matmul() const {
    const Buffer& w = buffer(1);
    const int32_t panel = program_.weights[w.weight].panel, block = program_.weights[w.weight].block;
    if (panel != 16 && panel != 32 && panel != 64)
      refuse(phase_, "panels of " + std::to_string(panel) + " columns");
    const std::vector<int32_t> pieces = pieces_of(variant_.recipe, std::max(1, block));
    if (static_cast<int>(pieces.size()) - 1 > kMaxPieces) refuse(phase_, "more rows than pieces hold");
    bool mma = codec_of(w.dtype)->has_mma && block % 16 == 0;
    for (const int32_t border : pieces) mma = mma && border % 16 == 0;
    const char* path = !mma ? "kFma" : numerics_ == Numerics::kExact ? "kMma" : "kMixed";
    return join("MatMul", {type(1), std::to_string(panel), path});
  }

  std::string attention() const {
    const int64_t key = constant_dim(1, 3), value = constant_dim(2, 3);
    if (key % 4 != 0 || value % 4 != 0 || key > 256 || value > 256)
      refuse(phase_, "heads of " + std::to_string(key) + " and " + std::to_string(value) + " elements");
    return join("Attention", {std::to_string(key), std::to_string(value)});
  }

  std::string generic() const {
    if (variant_.op != Op::kSplit && variant_.op != Op::kSlice && variant_.op != Op::kIdentity)
      refuse(phase_, "operator " + std::string(ark::name_of(variant_.op)));
    if (bytes_of(buffer(0).dtype, 1) != 4) refuse(phase_, "elements that do not have four bytes");
    return join("Copy", {std::to_string(variant_.outputs)});
  }

  const Program& program_;
  const Phase& phase_;
  const Variant& variant_;
  const VariantFacts facts_;
  const Numerics numerics_;
};

}  // namespace

int64_t constant_of(const Program& program, ValId val) { return program.vals[val].e.constant().value_or(-1); }

std::vector<int32_t> pieces_of(const Recipe& recipe, int32_t unit) {
  std::vector<int32_t> pieces = {0};
  const int32_t both = std::lcm(unit, 16), step = both <= kMaxPanelBlock ? both : unit;
  const auto parts_of = [step](int32_t rows) {
    if (rows <= kPieceRows) return 1;
    // Whole steps are dealt evenly, else a piece may be one step longer. (Numbers keep the pieces that they
    // have had, and so their bits.)
    const bool is_whole = step > 16 && rows % step == 0;
    const int32_t dealt = is_whole ? step : 1, most = is_whole ? kPieceRows : kPieceRows - step;
    int32_t parts = 1;
    while ((rows / dealt + parts - 1) / parts * dealt > most) parts *= 2;
    return parts;
  };
  // Each slab is cut by its own length only, and filled up with empty pieces: equal bits on any rank.
  int32_t most = 1;
  for (std::size_t s = 0; s + 1 < recipe.slabs.size(); ++s)
    most = std::max(most, parts_of(recipe.slabs[s + 1] - recipe.slabs[s]));
  for (std::size_t s = 0; s + 1 < recipe.slabs.size(); ++s) {
    const int32_t first = recipe.slabs[s], rows = recipe.slabs[s + 1] - first, parts = parts_of(rows);
    for (int32_t i = 1; i <= most; ++i) {
      const int32_t end = i >= parts ? rows : static_cast<int32_t>(int64_t{rows} * i / parts / step * step);
      pieces.push_back(first + end);
    }
  }
  return pieces;
}

DeviceVariant device_variant(const Program& program, PhaseId phase, Numerics numerics) {
  return Namer(program, program.phases[phase], numerics).name();
}

VariantSet::VariantSet(std::span<const Program* const> programs, Numerics numerics) {
  std::map<std::string, int32_t> known;
  for (const Program* program : programs) {
    std::vector<int32_t>& numbers = numbers_.emplace_back();
    for (const Phase& phase : program->phases) {
      DeviceVariant variant = Namer(*program, phase, numerics).name();
      const auto [it, is_new] =
          known.try_emplace(variant.type + variant.definition, static_cast<int32_t>(all_.size()));
      if (is_new) all_.push_back(std::move(variant));
      numbers.push_back(it->second);
    }
  }
}

}  // namespace ark::cuda
