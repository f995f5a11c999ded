// How one weight gets from its constant into its packed place, window by window.
#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/ir/quantized.h"
#include "engine/program/weight_codec.h"
#include "engine/run/weight_store.h"

namespace ark {
namespace {

constexpr int64_t kWindow = 1 << 20;     // bytes of a constant that a thread holds at once
constexpr int64_t kPartBytes = 4 << 20;  // packed bytes of a part

// The stored tensor without its transposition, so that windows follow the file.
struct Matrix {
  ConstantPtr constant;  // [rows, columns], no permutation
  Range rows, columns;   // of this use
  bool rows_are_n = false;
};

Matrix matrix_of(const Constant& constant, const WeightUse& use) {
  ARK_CHECK(constant.dims.size() == 2 && use.ranges.size() == 2 && use.panel > 0,
            "weight " + escaped(constant.name) + " is no matrix that panels can be made of");
  auto plain = std::make_shared<Constant>(constant);
  Matrix m{plain, use.ranges[0], use.ranges[1], use.transposed};
  if (!plain->perm.empty() && plain->perm[0] == 1) {
    plain->perm.clear();
    std::swap(plain->dims[0], plain->dims[1]);
    if (!plain->begin.empty()) std::swap(plain->begin[0], plain->begin[1]);
    std::swap(m.rows, m.columns);
    m.rows_are_n = !m.rows_are_n;
  }
  return m;
}

// Elements of `tensor` as `type`; the tensor itself if it has it already.
Tensor converted(Tensor tensor, DType type, const std::string& name) {
  if (tensor.dtype == type) return tensor;
  ARK_CHECK(is_floating(tensor.dtype) && is_floating(type) && type != DType::kF64,
            "weight " + escaped(name) + " cannot be stored as " + std::string(name_of(type)));
  Tensor out = Tensor::empty(type, tensor.dims);
  // Window by window through f32, which holds what narrower types have.
  constexpr int64_t kFloats = 1024;
  float values[kFloats];
  const int64_t n = tensor.size();
  for (int64_t i = 0; i < n; i += kFloats) {
    const int64_t count = std::min(kFloats, n - i);
    load_f32(tensor.dtype, tensor.data.get(), i, 1, count, values);
    store_f32(type, out.data.get(), i, count, values);
  }
  return out;
}

Tensor read_box(const ConstantPtr& constant, const std::vector<Range>& ranges, DType type) {
  ConstantPtr box = constant;
  for (std::size_t axis = 0; axis < ranges.size(); ++axis) {
    const Range& r = ranges[axis];
    if (r.begin != 0 || r.end != box->dims[axis])
      box = sliced(box, static_cast<int64_t>(axis), r.begin, r.end);
  }
  return converted(materialise(*box), type, constant->name);
}

// Where element (k, n) of a packed weight lies.
template <typename T>
struct Panels {
  T* data;
  int64_t k_size, panel;

  // Rows [k, k + count) of all columns.
  void put_k_rows(const T* rows, int64_t k, int64_t count, int64_t columns) const {
    for (int64_t p = 0; p * panel < columns; ++p) {
      const auto n = static_cast<std::size_t>(std::min(panel, columns - p * panel));
      for (int64_t i = 0; i < count; ++i) {
        std::memcpy(data + (p * k_size + k + i) * panel, rows + i * columns + p * panel, n * sizeof(T));
      }
    }
  }
  // Columns [n, n + count), given as rows of k_size elements: a transposition in blocks of sixteen k.
  void put_n_rows(const T* rows, int64_t n, int64_t count) const {
    for (int64_t first = 0; first < count;) {
      const int64_t at = (n + first) % panel, in_panel = std::min(panel - at, count - first);
      T* to = data + (n + first) / panel * k_size * panel + at;
      for (int64_t k = 0; k < k_size; k += 16) {
        const int64_t k_end = std::min(k + 16, k_size);
        for (int64_t j = 0; j < in_panel; ++j) {
          const T* from = rows + (first + j) * k_size;
          for (int64_t i = k; i < k_end; ++i) to[i * panel + j] = from[i];
        }
      }
      first += in_panel;
    }
  }
};

template <typename T>
void pack_panels(const Matrix& m, const WeightUse& use, std::byte* into, Range part) {
  const int64_t row_elements = m.columns.size();
  const Panels<T> panels{reinterpret_cast<T*>(into), m.rows_are_n ? row_elements : m.rows.size(), use.panel};
  const int64_t step =
      std::max<int64_t>(1, kWindow / std::max<int64_t>(1, row_elements * static_cast<int64_t>(sizeof(T))));
  for (int64_t r = part.begin; r < part.end; r += step) {
    const int64_t count = std::min(step, part.end - r);
    const Tensor box =
        read_box(m.constant, {{m.rows.begin + r, m.rows.begin + r + count}, m.columns}, use.stored);
    if (m.rows_are_n) {
      panels.put_n_rows(box.as<const T>(), r, count);
    } else {
      panels.put_k_rows(box.as<const T>(), r, count, row_elements);
    }
  }
}

// Panels of codes (engine/program/weight_codec.h), element by element.
class CodePanels {
 public:
  CodePanels(const WeightUse& use, std::byte* into)
      : into_(into),
        panel_(use.panel),
        block_(use.block),
        bits_(codec_of(use.stored)->bits),
        pair_bytes_(codec_of(use.stored)->pair_bytes()),
        terms_(use.terms),
        unit_bytes_(codec_of(use.stored)->unit_bytes(use)),
        panel_bytes_(units_of(matrix_rows(use).size(), use.block) * unit_bytes_) {}

  void put(int64_t k, int64_t n, int code) {
    const int64_t bit = k % 2 * bits_;
    pair_at(k, n)[bit / 8] |= static_cast<std::byte>(code << bit % 8);
  }
  // All of column n from packed codes of as many bits: pairs of rows lie in pairs of codes.
  void put_column(int64_t n, int64_t k_size, const std::byte* from, std::byte flips) {
    const int64_t step = panel_ * pair_bytes_;
    for (int64_t k = 0; k < k_size; k += block_) {
      std::byte* to = pair_at(k, n);
      const int64_t end = std::min(k + block_, k_size), pairs = (end - k) / 2;
      for (int64_t pair = 0; pair < pairs; ++pair, to += step) {
        for (int64_t i = 0; i < pair_bytes_; ++i) to[i] = *from++ ^ flips;
      }
      if ((end - k) % 2 == 0) continue;
      *to = (*from ^ flips) & static_cast<std::byte>(0xff >> (8 - bits_));
    }
  }
  // Of an element of `window`.
  void put_terms(int64_t k, int64_t n, const QuantizedRows& window, int64_t row, int64_t column) {
    std::byte* const scales = block_at(k, n);
    std::byte* const others = scales + panel_ * scale_bytes(terms_);
    const float scale = window.scale(row, column);
    const DType type = has_halves(terms_) ? DType::kF16 : DType::kF32;
    store_f32(type, scales, n % panel_, 1, &scale);
    if (terms_ == BlockTerms::kZeros) others[n % panel_] = static_cast<std::byte>(window.zero(row, column));
    if (has_zeros(terms_)) return;
    const float offset = window.offset(row, column);
    store_f32(type, others, n % panel_, 1, &offset);
  }

 private:
  std::byte* block_at(int64_t k, int64_t n) const {
    return into_ + n / panel_ * panel_bytes_ + k / block_ * unit_bytes_;
  }
  std::byte* pair_at(int64_t k, int64_t n) const {
    return block_at(k, n) + panel_ * terms_bytes(terms_) +
           (k % block_ / 2 * panel_ + n % panel_) * pair_bytes_;
  }
  std::byte* into_;
  int64_t panel_, block_, bits_, pair_bytes_;
  BlockTerms terms_;
  int64_t unit_bytes_, panel_bytes_;
};

struct Place {
  int64_t row, column;  // of a quantized constant
};

// Column n, the constant's row from `from` on.
void pack_column(CodePanels& panels, const WeightUse& use, const QuantizedRows& window, Place from, int64_t n,
                 int64_t k_size) {
  // Codes that lie along K as panels want them: the form of MatMulNBits.
  const std::byte* packed =
      window.bits() == bits_of(use.stored) ? window.packed(from.row, from.column) : nullptr;
  if (packed) panels.put_column(n, k_size, packed, window.byte_flips());
  for (int64_t k = 0; !packed && k < k_size; ++k) panels.put(k, n, window.code(from.row, from.column + k));
  for (int64_t k = 0; k < k_size; k += use.block) panels.put_terms(k, n, window, from.row, from.column + k);
}

// Row k, the same.
void pack_row(CodePanels& panels, const WeightUse& use, const QuantizedRows& window, Place from, int64_t k,
              int64_t n_size) {
  for (int64_t n = 0; n < n_size; ++n) panels.put(k, n, window.code(from.row, from.column + n));
  for (int64_t n = 0; n < n_size && k % use.block == 0; ++n)
    panels.put_terms(k, n, window, from.row, from.column + n);
}

// Parts and windows follow the file; where its rows are rows of K, they are whole blocks.
void pack_quantized(const Matrix& m, const WeightUse& use, std::byte* into, int64_t part, int64_t parts) {
  const Constant& c = *m.constant;
  const Quantized& q = *c.quantized;
  const int64_t rows = m.rows.size(), columns = m.columns.size(), unit = m.rows_are_n ? 1 : use.block;
  const int64_t first_row = m.rows.begin + (c.begin.empty() ? 0 : c.begin[0]),
                first_column = m.columns.begin + (c.begin.empty() ? 0 : c.begin[1]);
  const Range units = tiles_of((rows + unit - 1) / unit, part, parts);
  const int64_t step = std::max<int64_t>(1, kWindow / std::max<int64_t>(1, columns * unit)) * unit;
  CodePanels panels(use, into);
  for (int64_t r = units.begin * unit; r < std::min(rows, units.end * unit); r += step) {
    const int64_t end = std::min({rows, units.end * unit, r + step});
    const QuantizedRows window(q, first_row + r, end - r);
    for (int64_t row = r; row < end; ++row) {
      if (m.rows_are_n)
        pack_column(panels, use, window, {first_row + row, first_column}, row, columns);
      else
        pack_row(panels, use, window, {first_row + row, first_column}, row, columns);
    }
  }
}

// Windows run along the axis that is the slowest in the file, whatever the view made of it.
void pack_raw(const Constant& constant, const WeightUse& use, std::byte* into, int64_t part, int64_t parts) {
  const auto shared = std::make_shared<Constant>(constant);
  const std::size_t rank = constant.dims.size();
  std::size_t axis = 0;
  while (axis < constant.perm.size() && constant.perm[axis] != 0) ++axis;
  int64_t outer = 1, inner = 1;
  for (std::size_t a = 0; a < rank; ++a) (a < axis ? outer : inner) *= use.ranges[a].size();
  if (rank == 0 || bits_of(use.stored) < 8) {
    if (part == 0) {
      const Tensor all = read_box(shared, use.ranges, use.stored);
      if (all.bytes()) std::memcpy(into, all.data.get(), static_cast<std::size_t>(all.bytes()));
    }
    return;
  }
  if (outer * inner == 0) return;
  const Range whole = use.ranges[axis];
  const int64_t slice = bytes_of(use.stored, outer * inner / whole.size());  // bytes of one index of `axis`
  const int64_t inner_bytes = slice / outer;
  const int64_t step = std::max<int64_t>(1, kWindow / slice);
  const Range mine = tiles_of(whole.size(), part, parts);
  for (int64_t i = mine.begin; i < mine.end; i += step) {
    const int64_t count = std::min(step, mine.end - i);
    std::vector<Range> ranges = use.ranges;
    ranges[axis] = {whole.begin + i, whole.begin + i + count};
    const Tensor box = read_box(shared, ranges, use.stored);
    for (int64_t o = 0; o < outer; ++o) {
      std::memcpy(into + (o * whole.size() + i) * inner_bytes, box.data.get() + o * count * inner_bytes,
                  static_cast<std::size_t>(count * inner_bytes));
    }
  }
}

// The blocks of panels must lie inside those of the constant.
bool has_fitting_blocks(const Constant& constant, const WeightUse& use) {
  const Quantized& q = *constant.quantized;
  const std::size_t axis = use.transposed ? 1 : 0;  // of the view: K
  const int64_t stored_axis = constant.perm.empty() ? static_cast<int64_t>(axis) : constant.perm[axis];
  const int64_t first = use.ranges[axis].begin + (constant.begin.empty() ? 0 : constant.begin[axis]);
  if (q.scales->size() == 1) return true;
  return q.axis == stored_axis && (q.block >= (stored_axis == 0 ? q.rows : q.columns) ||
                                   (q.block % use.block == 0 && first % use.block == 0));
}

}  // namespace

std::string misfit_of(const Constant& constant, const WeightUse& use) {
  if (use.ranges.size() != constant.dims.size()) return "has a part of another rank";
  for (std::size_t a = 0; a < use.ranges.size(); ++a) {
    if (use.ranges[a].begin < 0 || use.ranges[a].begin > use.ranges[a].end ||
        use.ranges[a].end > constant.dims[a])
      return "has a part outside of the constant";
  }
  const bool panels = use.layout == Layout::kPanels;
  if (panels && (use.ranges.size() != 2 || use.panel <= 0)) return "has panels, but is no matrix";
  const WeightCodec* codec = codec_of(use.stored);
  if (panels && (!codec || !codec->allows(use.block, use.terms))) return "cannot be stored in such panels";
  if (panels && use.block != 0) {
    if (!constant.quantized || !codec->holds(*constant.quantized) ||
        terms_of(*constant.quantized) != use.terms)
      return "is not quantized so";
    return has_fitting_blocks(constant, use) ? "" : "has blocks that lie across the constant's";
  }
  const bool converts = is_floating(constant.dtype) && is_floating(use.stored) && use.stored != DType::kF64;
  if (panels ? !converts : use.stored != constant.dtype && !converts) return "cannot be stored so";
  return "";
}

Range matrix_rows(const WeightUse& use) { return use.ranges[use.transposed ? 1 : 0]; }
Range matrix_columns(const WeightUse& use) { return use.ranges[use.transposed ? 0 : 1]; }

int64_t packed_bytes(const WeightUse& use) {
  if (use.layout == Layout::kPanels) {
    const int64_t panels = (matrix_columns(use).size() + use.panel - 1) / use.panel;
    const WeightCodec* codec = codec_of(use.stored);
    ARK_CHECK(codec, "panels of type " + std::string(name_of(use.stored)));
    return panels * units_of(matrix_rows(use).size(), use.block) * codec->unit_bytes(use);
  }
  int64_t n = 1;
  for (const Range& r : use.ranges) n *= r.size();
  return bytes_of(use.stored, n);
}

int64_t pack_parts(const WeightUse& use) { return std::max<int64_t>(1, packed_bytes(use) / kPartBytes); }

void pack_weight(const Constant& constant, const WeightUse& use, std::byte* into, int64_t part,
                 int64_t parts) {
  const std::string misfit = misfit_of(constant, use);
  ARK_CHECK(misfit.empty(), "weight " + escaped(constant.name) + " " + misfit);
  if (use.layout == Layout::kRaw) return pack_raw(constant, use, into, part, parts);
  const Matrix m = matrix_of(constant, use);
  if (use.block != 0) return pack_quantized(m, use, into, part, parts);
  const Range mine = tiles_of(m.rows.size(), part, parts);
  switch (bits_of(use.stored)) {
    case 32:
      return pack_panels<uint32_t>(m, use, into, mine);
    case 16:
      return pack_panels<uint16_t>(m, use, into, mine);
    default:
      return pack_panels<uint8_t>(m, use, into, mine);
  }
}

}  // namespace ark
