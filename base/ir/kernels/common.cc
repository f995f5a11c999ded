#include "base/ir/kernels/common.h"

#include <limits>

namespace ark {

TensorView view_of(const Tensor& tensor) {
  if (tensor.dims.size() > 8) throw Error(Code::kUnsupported, "tensors of rank above 8 are not run");
  TensorView v{tensor.data.get(), tensor.dtype, static_cast<int>(tensor.dims.size()), {}};
  std::copy(tensor.dims.begin(), tensor.dims.end(), v.dims.begin());
  return v;
}

}  // namespace ark

namespace ark::kernels {
namespace {

// Out-of-range floats saturate instead of being undefined; NaN gives 0.
template <typename S, typename C>
S convert(C value) {
  if constexpr (std::is_same_v<S, bool>) {
    return value != C{0};
  } else if constexpr (std::is_floating_point_v<C> && std::is_integral_v<S>) {
    if (!(value > static_cast<C>(std::numeric_limits<S>::min())))
      return value != value ? S{0} : std::numeric_limits<S>::min();
    if (value >= static_cast<C>(std::numeric_limits<S>::max())) return std::numeric_limits<S>::max();
  }
  return static_cast<S>(value);
}

// Floats that no integer is become the lowest one, as x86 does it, not something undefined.
template <typename C, typename V>
C number_of(V value) {
  if constexpr (std::is_floating_point_v<V> && std::is_integral_v<C> && sizeof(C) == 8) {
    if (std::is_unsigned_v<C> && value >= V{0x1p63} && value < V{0x1p64}) return static_cast<C>(value);
    const bool fits = value >= V{-0x1p63} && value < V{0x1p63};
    return static_cast<C>(fits ? static_cast<int64_t>(value) : std::numeric_limits<int64_t>::min());
  } else {
    return static_cast<C>(value);
  }
}
}  // namespace

template <typename C>
void load(const TensorView& view, int64_t first, int64_t n, C* into) {
  with_element(
      view.dtype,
      [&](auto element) {
        const std::byte* data = view.data;
        for (int64_t i = 0; i < n; ++i) into[i] = number_of<C>(element.load(data, first + i));
      },
      [&] { unsupported("no kernel reads type " + std::string(name_of(view.dtype))); });
}

template <typename C>
void store(const TensorView& view, int64_t first, int64_t n, const C* from) {
  with_element(
      view.dtype,
      [&](auto element) {
        using Value = typename decltype(element)::Value;
        std::byte* data = view.data;
        for (int64_t i = 0; i < n; ++i) element.store(data, first + i, convert<Value>(from[i]));
      },
      [&] { unsupported("no kernel writes type " + std::string(name_of(view.dtype))); });
}

template <typename C>
void load_broadcast(const TensorView& view, std::span<const int64_t> out, const Index& strides, int64_t first,
                    int64_t n, C* into) {
  const int64_t last = out.empty() ? 1 : out.back();
  const int64_t inner = out.empty() ? 1 : strides[out.size() - 1];
  if (view.size() == product(out)) return load(view, first, n, into);
  if (view.size() == 1) {
    std::fill(into, into + n, load_one<C>(view, 0));
    return;
  }
  for (int64_t done = 0; done < n;) {  // one run along the last axis at a time
    int64_t row = (first + done) / last, column = (first + done) % last, base = 0;
    for (int64_t axis = static_cast<int64_t>(out.size()) - 2; axis >= 0; --axis) {
      const auto a = static_cast<std::size_t>(axis);
      base += row % out[a] * strides[a];
      row /= out[a];
    }
    const int64_t run = std::min(n - done, last - column);
    if (inner == 0)
      std::fill(into + done, into + done + run, load_one<C>(view, base));
    else
      load(view, base + column, run, into + done);
    done += run;
  }
}

#define ARK_INSTANTIATE(C)                                                                            \
  template void load<C>(const TensorView&, int64_t, int64_t, C*);                                     \
  template void store<C>(const TensorView&, int64_t, int64_t, const C*);                              \
  template void load_broadcast<C>(const TensorView&, std::span<const int64_t>, const Index&, int64_t, \
                                  int64_t, C*);
ARK_INSTANTIATE(float)
ARK_INSTANTIATE(double)
ARK_INSTANTIATE(int64_t)
ARK_INSTANTIATE(uint64_t)
#undef ARK_INSTANTIATE

std::string dims_text(std::span<const int64_t> dims) {
  std::string out = "[";
  for (std::size_t i = 0; i < dims.size(); ++i) out += (i ? "," : "") + std::to_string(dims[i]);
  return out + "]";
}

int64_t product(std::span<const int64_t> dims) { return element_count(dims); }

Index strides_of(std::span<const int64_t> dims) {
  Index strides{};
  int64_t stride = 1;
  for (std::size_t i = dims.size(); i-- > 0; stride *= dims[i]) strides[i] = stride;
  return strides;
}

Index broadcast_strides(const TensorView& view, std::span<const int64_t> out) {
  const Index own = strides_of(view.shape());
  Index strides{};
  const std::size_t shift = out.size() - static_cast<std::size_t>(view.rank);
  for (std::size_t i = 0; i < static_cast<std::size_t>(view.rank); ++i)
    strides[i + shift] = view.dims[i] == 1 && out[i + shift] != 1 ? 0 : own[i];
  return strides;
}

Dims broadcast(std::span<const int64_t> a, std::span<const int64_t> b) {
  if (a.size() < b.size()) std::swap(a, b);
  Dims out(a.begin(), a.end());
  const std::size_t shift = a.size() - b.size();
  for (std::size_t i = 0; i < b.size(); ++i) {
    int64_t& o = out[i + shift];
    if (o == b[i] || b[i] == 1) continue;
    if (o != 1) misfit("shapes " + dims_text(a) + " and " + dims_text(b) + " do not broadcast");
    o = b[i];
  }
  return out;
}

void check_broadcasts(const TensorView& view, std::span<const int64_t> out, std::string_view what) {
  bool fits = static_cast<std::size_t>(view.rank) <= out.size();
  for (std::size_t i = 1; fits && i <= static_cast<std::size_t>(view.rank); ++i) {
    const int64_t n = view.dims[view.rank - i];
    fits = n == 1 || n == out[out.size() - i];
  }
  if (!fits)
    misfit(std::string(what) + " of " + dims_text(view.shape()) + " does not broadcast to " + dims_text(out));
}

Odometer::Odometer(std::span<const int64_t> dims, std::vector<Index> strides, int64_t first)
    : dims_(dims.begin(), dims.end()), strides_(std::move(strides)), offsets_(strides_.size(), 0) {
  for (std::size_t axis = dims_.size(); axis-- > 0;) {
    if (dims_[axis] == 0) return;
    index_[axis] = first % dims_[axis];
    first /= dims_[axis];
    for (std::size_t s = 0; s < strides_.size(); ++s) offsets_[s] += index_[axis] * strides_[s][axis];
  }
}

void Odometer::next() {
  for (std::size_t axis = dims_.size(); axis-- > 0;) {
    if (++index_[axis] < dims_[axis]) {
      for (std::size_t s = 0; s < strides_.size(); ++s) offsets_[s] += strides_[s][axis];
      return;
    }
    for (std::size_t s = 0; s < strides_.size(); ++s) offsets_[s] -= (dims_[axis] - 1) * strides_[s][axis];
    index_[axis] = 0;
  }
}

bool has_input(const KernelCall& call, std::size_t i) {
  return i < call.inputs.size() && call.inputs[i].present();
}

namespace {

// Elements of a shape-like input; nullopt if it is absent.
std::optional<Dims> ints_input(const KernelCall& call, std::string_view name, std::size_t input) {
  if (!has_input(call, input)) return std::nullopt;
  const TensorView& view = call.inputs[input];
  if (view.size() > 64) misfit("operand " + std::string(name) + " has more than 64 elements");
  Dims out(static_cast<std::size_t>(view.size()));
  load<int64_t>(view, 0, view.size(), out.data());
  return out;
}

}  // namespace

std::optional<Dims> ints_operand(const KernelCall& call, Key<std::vector<int64_t>> key, std::size_t input) {
  return call.attributes->has(key) ? call.attributes->get(key) : ints_input(call, key.name, input);
}

std::optional<Dims> ints_operand(const KernelCall& call, Key<Shape> key, std::size_t input) {
  if (!call.attributes->has(key)) return ints_input(call, key.name, input);
  Dims out;
  for (const Expr& e : call.attributes->get(key)) {
    const auto c = e.constant();
    ARK_CHECK(c.has_value(), "attribute " + std::string(key.name) + " still holds symbols: " + e.str());
    out.push_back(*c);
  }
  return out;
}

void check_scalar(const KernelCall& call, std::size_t i, std::string_view what) {
  if (!has_input(call, i) || call.inputs[i].size() != 1)
    misfit(std::string(what) + " must be one number" +
           (has_input(call, i) ? ", not " + dims_text(call.inputs[i].shape()) : ""));
}

void check_same_type(const TensorView& a, const TensorView& b) {
  if (a.dtype != b.dtype)
    misfit("operands have types " + std::string(name_of(a.dtype)) + " and " + std::string(name_of(b.dtype)));
}

std::size_t own_axis(int64_t axis, const TensorView& of) {
  if (of.rank == 0) misfit("axis " + std::to_string(axis) + " of a scalar");
  return static_cast<std::size_t>(norm_axis(axis, of.rank));
}

int64_t norm_axis(int64_t axis, int rank) {
  if (axis < -rank || axis >= std::max(rank, 1))
    misfit("axis " + std::to_string(axis) + " is out of range for rank " + std::to_string(rank));
  return axis < 0 ? axis + rank : axis;
}

int64_t element_bytes(const TensorView& view) {
  const int bits = bits_of(view.dtype);
  if (bits < 8) unsupported("type " + std::string(name_of(view.dtype)) + " cannot be moved by elements");
  return bits / 8;
}

std::vector<OutputType> like_first(const KernelCall& call) {
  return {{call.inputs[0].dtype, dims_of(call.inputs[0])}};
}
int64_t grid_by_elements(const KernelCall& call) { return tiles_for(call.outputs[0].size()); }

}  // namespace ark::kernels
