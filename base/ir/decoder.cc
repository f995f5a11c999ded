#include "base/ir/decoder.h"

#include <algorithm>

#include "base/error.h"

namespace ark {
namespace {

void put(Tensor& t, int64_t i, int64_t v, const std::string& name) {
  const auto refuse = [&] {
    throw Error(Code::kUnsupported, "input '" + escaped(name) + "' of type " + std::string(name_of(t.dtype)) +
                                        " cannot be driven: it would not hold " + std::to_string(v) +
                                        "; export it as int64");
  };
  const bool is_small = v >= 0 && v < 128;  // as a mask's numbers are
  if (is_floating(t.dtype) ? t.dtype == DType::kF64
                           : t.dtype != DType::kBool && bits_of(t.dtype) < (is_small ? 8 : 32))
    refuse();
  with_element(
      t.dtype,
      [&](auto element) {
        element.store(t.data.get(), i, static_cast<typename decltype(element)::Value>(v));
      },
      refuse);
}

template <typename F>
Tensor filled(const Value& input, const Dims& dims, F&& f) {
  Tensor t = Tensor::zeros(input.dtype, dims);
  for (int64_t i = 0; i < t.size(); ++i) put(t, i, f(i), input.name);
  return t;
}

// [B, total], or [.., S, total], which is causal.
Tensor mask_of(const Value& input, const Dims& dims, const DecoderSignature& signature, int64_t past) {
  using Meaning = DecoderSignature::MaskMeaning;
  constexpr int64_t kHidden = -65504;  // the least of 16 bits
  const bool by_query = dims.size() > 2 || signature.mask_by_query;
  const bool adds = is_floating(input.dtype) && by_query && signature.mask_meaning == Meaning::kUsual;
  const int64_t keys = dims.back(), queries = by_query ? dims[dims.size() - 2] : 1;
  return filled(input, dims, [&](int64_t i) {
    const bool seen = queries == 1 || i % keys <= past + i / keys % queries;
    return adds ? (seen ? 0 : kHidden) : int64_t{seen != (signature.mask_meaning == Meaning::kHides)};
  });
}

template <typename T>
bool contains(const std::vector<T>& list, const T& item) {
  return std::find(list.begin(), list.end(), item) != list.end();
}

}  // namespace

std::optional<int64_t> parts_a_row(const Expr& size, const Expr& batch) {
  if (batch.is_constant(0)) return std::nullopt;
  const Expr parts = floordiv(size, batch);
  return parts * batch == size ? parts.constant() : std::nullopt;
}

std::optional<Tensor> step_input(const Graph& graph, const DecoderSignature& signature, std::size_t input,
                                 const Dims& dims, int64_t past, int64_t sequence) {
  const Value& value = graph.value(graph.inputs[input]);
  if (signature.mask == input) return mask_of(value, dims, signature, past);
  if (contains(signature.positions, input))
    return filled(value, dims, [&](int64_t i) { return past + i % sequence; });
  for (const DecoderSignature::Length& length : signature.lengths)
    if (length.input == input) return filled(value, dims, [&](int64_t) { return length.at(past, sequence); });
  if (signature.token_types == input || contains(signature.ignored, input))
    return Tensor::zeros(value.dtype, dims);
  return std::nullopt;
}

}  // namespace ark
