#include "base/ir/quantized.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/error.h"

namespace ark {
namespace {

bool is_view(const Constant& c) { return !c.perm.empty() || !c.begin.empty(); }

// Codes and zeros may come as bytes of packed fields, or as elements of their own type.
bool holds_fields(const Constant& c, const Quantized& q) {
  if (q.floating != DType::kUndefined) return c.dtype == (numbers_of(q.floating) ? DType::kU8 : q.floating);
  switch (c.dtype) {
    case DType::kU8:
      return q.bits < 8 || !q.is_signed;
    case DType::kI8:
      return q.bits == 8 && q.is_signed;
    default:
      return is_integer(c.dtype) && bits_of(c.dtype) == q.bits && is_signed(c.dtype) == q.is_signed;
  }
}

// Are there bits for rows of `columns` fields, `stride` apart? Nothing here can overflow.
bool has_fields(const Constant& c, const Quantized& q, int64_t rows, int64_t columns, int64_t stride) {
  const int64_t held = bytes_of(c.dtype, c.size()) * (8 / q.bits);
  return !is_view(c) && !c.quantized && stride >= columns && columns <= held &&
         (rows == 1 || (held - columns) / (rows - 1) >= stride);
}

// As `dims`, a view where that can be; small enough to be copied otherwise, one number for a whole block.
ConstantPtr shaped(const ConstantPtr& c, const Dims& dims) {
  if (element_count(dims) != c->size()) return nullptr;
  if (ConstantPtr view = reshaped(c, dims)) return view;
  Tensor dense = materialise(*c);
  dense.dims = dims;
  return make_constant(std::move(dense), c->name);
}

// Bytes [first, first + bytes) of the payload, whatever its type.
std::vector<std::byte> payload_bytes(const Constant& c, int64_t first, int64_t bytes) {
  std::vector<std::byte> result(static_cast<std::size_t>(bytes));
  if (c.file)
    c.file->read(c.offset + first, bytes, result.data());
  else if (bytes)
    std::memcpy(result.data(), c.inline_data.data.get() + first, result.size());
  return result;
}

// Fields of rows [first, first + count); `skip`: fields in front of the first one.
std::vector<std::byte> fields(const Constant& c, int bits, int64_t first, int64_t count, int64_t columns,
                              int64_t stride, int64_t& skip) {
  const int64_t per_byte = 8 / bits, from = first * stride, to = (first + count - 1) * stride + columns;
  skip = from % per_byte;
  return payload_bytes(c, from / per_byte, (to + per_byte - 1) / per_byte - from / per_byte);
}

std::vector<float> numbers_of(const Constant& c, int64_t first, int64_t count) {
  const Tensor rows = materialise_rows(c, first, count);
  std::vector<float> numbers(static_cast<std::size_t>(rows.size()));
  load_f32(rows.dtype, rows.data.get(), 0, 1, rows.size(), numbers.data());
  return numbers;
}

bool fits(Quantized& q) {
  if (q.rows <= 0 || q.columns <= 0 || q.block <= 0 || (q.bits != 2 && q.bits != 4 && q.bits != 8) ||
      (q.axis != 0 && q.axis != 1) || !q.codes || !q.scales)
    return false;
  q.block = std::min(q.block, q.axis == 0 ? q.rows : q.columns);  // so that sums with it are safe
  const int64_t low = q.is_signed ? -(1 << (q.bits - 1)) : 0;
  if (q.floating != DType::kUndefined &&
      ((!is_floating(q.floating) && !numbers_of(q.floating)) || bits_of(q.floating) != q.bits ||
       q.is_signed || q.zeros || q.default_zero != 0))
    return false;
  if (q.default_zero < low || q.default_zero >= low + (1 << q.bits)) return false;
  if (!holds_fields(*q.codes, q) || !has_fields(*q.codes, q, q.rows, q.columns, q.code_stride)) return false;
  if (!is_floating(q.scales->dtype) || q.scales->dtype == DType::kF64 || q.scales->quantized) return false;
  const Dims places = q.axis == 1 ? Dims{q.rows, q.blocks()} : Dims{q.blocks(), q.columns};
  const bool single = q.scales->size() == 1;
  q.scales = shaped(q.scales, single ? Dims{1, 1} : places);
  if (!q.scales) return false;
  if (q.offsets) {
    q.offsets = shaped(q.offsets, q.scales->dims);
    if (!q.offsets || q.offsets->dtype != q.scales->dtype || q.offsets->quantized || q.zeros ||
        q.default_zero != 0)
      return false;
  }
  if (!q.zeros) return true;
  if (!holds_fields(*q.zeros, q)) return false;
  if (is_view(*q.zeros)) q.zeros = make_constant(materialise(*q.zeros), q.zeros->name);
  return single ? has_fields(*q.zeros, q, 1, 1, 1)
                : has_fields(*q.zeros, q, places[0], places[1], q.zero_stride);
}

}  // namespace

ConstantPtr make_quantized(Quantized quantized, std::string name) {
  if (!fits(quantized)) return nullptr;
  auto c = std::make_shared<Constant>();
  c->dtype = DType::kF32;
  c->dims = c->stored_dims = {quantized.rows, quantized.columns};
  c->name = std::move(name);
  c->quantized = std::make_shared<const Quantized>(std::move(quantized));
  return c;
}

namespace {

// Scales may be views, and two views of one payload hold other numbers. Codes and zeros are none (fits()):
// their payload and their stride say everything.
bool same_numbers(const Constant& a, const Constant& b) {
  return a.dtype == b.dtype && a.dims == b.dims && a.stored_dims == b.stored_dims && a.perm == b.perm &&
         a.begin == b.begin && same_payload(a, b);
}

}  // namespace

bool same_payload(const Quantized& a, const Quantized& b) {
  if (a.rows != b.rows || a.columns != b.columns || a.bits != b.bits || a.is_signed != b.is_signed ||
      a.floating != b.floating || a.axis != b.axis || a.block != b.block || a.code_stride != b.code_stride ||
      (a.zeros == nullptr) != (b.zeros == nullptr) || (a.offsets == nullptr) != (b.offsets == nullptr) ||
      (a.offsets && !same_numbers(*a.offsets, *b.offsets)))
    return false;
  const bool same_zeros = a.zeros ? a.zero_stride == b.zero_stride && same_payload(*a.zeros, *b.zeros)
                                  : a.default_zero == b.default_zero;
  return same_zeros && same_payload(*a.codes, *b.codes) && same_numbers(*a.scales, *b.scales);
}

QuantizedRows::QuantizedRows(const Quantized& quantized, int64_t first, int64_t count)
    : q_(quantized),
      first_(first),
      single_(quantized.scales->size() == 1),
      flip_(quantized.is_signed ? 1 << (quantized.bits - 1) : 0),
      default_zero_(quantized.default_zero + flip_),
      turn_(numbers_of(quantized.floating) ? 4 : 0),
      shift_(std::has_single_bit(static_cast<uint64_t>(quantized.block))
                 ? std::countr_zero(static_cast<uint64_t>(quantized.block))
                 : -1) {
  ARK_CHECK(first >= 0 && count > 0 && count <= q_.rows - first, "rows out of range of a quantized constant");
  codes_ = fields(*q_.codes, q_.bits, first, count, q_.columns, q_.code_stride, codes_skip_);
  first_block_ = q_.axis == 0 ? first / q_.block : 0;
  const int64_t from = single_ ? 0 : q_.axis == 1 ? first : first_block_;
  const int64_t held = single_ ? 1 : q_.axis == 1 ? count : (first + count - 1) / q_.block - first_block_ + 1;
  scale_stride_ = q_.scales->dims[1];
  scales_ = numbers_of(*q_.scales, from, held);
  if (q_.offsets) offsets_ = numbers_of(*q_.offsets, from, held);
  for (int code = 0; code < 1 << q_.bits; ++code) {
    const auto byte = static_cast<std::byte>(code);
    numbers_[code] = static_cast<float>(code);
    if (q_.floating != DType::kUndefined) load_f32(q_.floating, &byte, 0, 1, 1, &numbers_[code]);
  }
  if (q_.zeros) zeros_ = fields(*q_.zeros, q_.bits, from, held, scale_stride_, q_.zero_stride, zeros_skip_);
}

}  // namespace ark
