#include "base/ir/decoder.h"

#include <algorithm>

#include "base/error.h"

namespace ark {
namespace {

void put(Tensor& t, int64_t i, int64_t v) {
  const auto refuse = [&] {
    throw Error(Code::kUnsupported,
                "a decoder input of type " + std::string(name_of(t.dtype)) + " cannot be driven");
  };
  if (t.dtype != DType::kI64 && t.dtype != DType::kI32 && t.dtype != DType::kBool &&
      (!is_floating(t.dtype) || t.dtype == DType::kF64))
    refuse();
  with_element(
      t.dtype,
      [&](auto element) {
        element.store(t.data.get(), i, static_cast<typename decltype(element)::Value>(v));
      },
      refuse);
}

template <typename F>
Tensor filled(DType dtype, const Dims& dims, F&& f) {
  Tensor t = Tensor::zeros(dtype, dims);
  for (int64_t i = 0; i < t.size(); ++i) put(t, i, f(i));
  return t;
}

// [.., S, total]. Floating masks are added to the scores, others select.
Tensor causal_mask(DType dtype, const Dims& dims, int64_t past) {
  constexpr int64_t kHidden = -65504;  // the least of 16 bits
  const bool adds = is_floating(dtype);
  const int64_t keys = dims.back(), queries = dims[dims.size() - 2];
  return filled(dtype, dims, [&](int64_t i) {
    const bool seen = queries == 1 || i % keys <= past + i / keys % queries;
    return adds ? (seen ? 0 : kHidden) : int64_t{seen};
  });
}

template <typename T>
bool contains(const std::vector<T>& list, const T& item) {
  return std::find(list.begin(), list.end(), item) != list.end();
}

}  // namespace

std::optional<Tensor> step_input(const Graph& graph, const DecoderSignature& signature, std::size_t input,
                                 const Dims& dims, int64_t past, int64_t sequence) {
  const DType dtype = graph.value(graph.inputs[input]).dtype;
  if (signature.mask == input)
    return dims.size() < 3 ? filled(dtype, dims, [](int64_t) { return int64_t{1}; })
                           : causal_mask(dtype, dims, past);
  if (contains(signature.positions, input))
    return filled(dtype, dims, [&](int64_t i) { return past + i % sequence; });
  for (const DecoderSignature::Length& length : signature.lengths)
    if (length.input == input)
      return filled(dtype, dims, [&](int64_t) { return past + sequence - length.offset; });
  if (signature.token_types == input || contains(signature.ignored, input)) return Tensor::zeros(dtype, dims);
  return std::nullopt;
}

}  // namespace ark
