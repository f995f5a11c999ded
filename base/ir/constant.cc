#include "base/ir/constant.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <numeric>

#include "base/error.h"
#include "base/ir/quantized.h"

namespace ark {

std::shared_ptr<const WeightFile> WeightFile::open(const std::string& path) {
  const std::string shown = escaped(path);
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a FIFO must not block us
  if (descriptor < 0) {
    const bool missing = errno == ENOENT || errno == ENOTDIR;
    throw Error(missing ? Code::kNotFound : Code::kOs, "cannot open " + shown + ": " + std::strerror(errno));
  }
  struct stat status {};
  const bool known = ::fstat(descriptor, &status) == 0;
  auto file = std::shared_ptr<const WeightFile>(new WeightFile(descriptor, known ? status.st_size : 0, path));
  if (!known || !S_ISREG(status.st_mode)) throw Error(Code::kBadModel, shown + " is not a regular file");
  return file;
}

WeightFile::WeightFile(int descriptor, int64_t size, std::string path)
    : descriptor_(descriptor), size_(size), path_(std::move(path)) {}

WeightFile::~WeightFile() { ::close(descriptor_); }

void WeightFile::read(int64_t offset, int64_t bytes, void* into) const {
  auto* out = static_cast<std::byte*>(into);
  while (bytes > 0) {
    const ssize_t n =
        ::pread(descriptor_, out, static_cast<std::size_t>(std::min<int64_t>(bytes, 1 << 30)), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw Error(Code::kOs, "cannot read " + escaped(path_) + ": " + std::strerror(errno));
    if (n == 0)
      throw Error(Code::kBadModel, escaped(path_) + " ends at byte " + std::to_string(offset) + ", " +
                                       std::to_string(bytes) + " bytes before the end of a tensor");
    out += n;
    offset += n;
    bytes -= n;
  }
}

ConstantPtr make_constant(Tensor tensor, std::string name) {
  auto c = std::make_shared<Constant>();
  c->dtype = tensor.dtype;
  c->dims = c->stored_dims = tensor.dims;
  c->inline_data = std::move(tensor);
  c->name = std::move(name);
  return c;
}

namespace {

constexpr int64_t kReadWindow = 8 << 20;  // bytes of a payload held at once while a strided view is gathered

// Gathers a box of the stored tensor into a dense output, reading the payload in windows.
class BoxReader {
 public:
  BoxReader(const Constant& constant, int64_t first, int64_t count)
      : c_(constant), rank_(constant.dims.size()) {
    Dims out_dims = c_.dims;
    if (rank_) out_dims[0] = count;
    out_ = Tensor::empty(c_.dtype, out_dims);
    low_.resize(rank_), extent_.resize(rank_), stored_stride_.resize(rank_), out_stride_.resize(rank_);
    Dims dense(rank_);
    int64_t stored = 1, out = 1;
    for (std::size_t i = rank_; i-- > 0;) {
      stored_stride_[i] = stored, stored *= c_.stored_dims[i];
      dense[i] = out, out *= out_dims[i];
    }
    for (std::size_t a = 0; a < rank_; ++a) {
      const std::size_t s = c_.perm.empty() ? a : static_cast<std::size_t>(c_.perm[a]);
      low_[s] = (c_.begin.empty() ? 0 : c_.begin[a]) + (a == 0 ? first : 0);
      extent_[s] = out_dims[a];
      out_stride_[s] = dense[a];
    }
  }

  Tensor read() {
    if (out_.size() == 0) return std::move(out_);
    if (c_.quantized) return decode(), std::move(out_);
    if (!read_contiguous()) gather(low_, extent_, 0);
    if (const int64_t used = out_.size() * bits_of(c_.dtype) % 8; bits_of(c_.dtype) < 8 && used)
      out_.data.get()[out_.bytes() - 1] &= std::byte((1 << used) - 1);
    return std::move(out_);
  }

 private:
  int64_t offset_of(const Dims& index) const {
    return std::inner_product(index.begin(), index.end(), stored_stride_.begin(), int64_t{0});
  }

  void load(int64_t first_byte, int64_t bytes, std::byte* into) const {
    if (c_.file)
      c_.file->read(c_.offset + first_byte, bytes, into);
    else
      std::memcpy(into, c_.inline_data.data.get() + first_byte, static_cast<std::size_t>(bytes));
  }

  // The box of a quantized matrix, some rows at a time.
  void decode() {
    const Quantized& q = *c_.quantized;
    const int64_t window = std::max<int64_t>(1, kReadWindow / (q.code_stride * q.bits / 8 + 1));
    for (int64_t first = 0; first < extent_[0]; first += window) {
      const int64_t count = std::min(window, extent_[0] - first);
      const QuantizedRows rows(q, low_[0] + first, count);
      for (int64_t i = first; i < first + count; ++i) {
        float* const to = out_.as<float>() + i * out_stride_[0];
        for (int64_t j = 0; j < extent_[1]; ++j)
          to[j * out_stride_[1]] = rows.value(low_[0] + i, low_[1] + j);
      }
    }
  }

  // The box is one dense range of the payload: read it in place.
  bool read_contiguous() {
    for (std::size_t i = 0; i < rank_; ++i)
      if (extent_[i] > 1 && stored_stride_[i] != out_stride_[i]) return false;
    const int64_t bits = offset_of(low_) * bits_of(c_.dtype);
    if (bits % 8) return false;
    load(bits / 8, out_.bytes(), out_.data.get());
    return true;
  }

  // Splits the box until the payload's range that it spans fits the window.
  void gather(Dims low, Dims extent, int64_t out_offset) {
    int64_t span = 1;
    for (std::size_t i = 0; i < rank_; ++i) span += (extent[i] - 1) * stored_stride_[i];
    const int64_t first = offset_of(low), bits = bits_of(c_.dtype);
    if (!c_.file) return copy(c_.inline_data.data.get(), first, extent, out_offset);
    if (span * bits / 8 > kReadWindow) {
      std::size_t axis = 0;
      while (axis < rank_ && extent[axis] == 1) ++axis;
      const int64_t half = extent[axis] / 2;
      Dims part = extent;
      part[axis] = half;
      gather(low, part, out_offset);
      low[axis] += half;
      part[axis] = extent[axis] - half;
      return gather(std::move(low), std::move(part), out_offset + half * out_stride_[axis]);
    }
    const int64_t first_byte = first * bits / 8, last_byte = ((first + span) * bits + 7) / 8;
    window_.resize(static_cast<std::size_t>(last_byte - first_byte));
    load(first_byte, last_byte - first_byte, window_.data());
    copy(window_.data(), first - first_byte * 8 / bits, extent, out_offset);
  }

  void copy(const std::byte* from, int64_t first, const Dims& extent, int64_t out_offset) {
    switch (bits_of(c_.dtype)) {
      case 2:
        return copy_packed<2>(from, first, out_offset, extent);
      case 4:
        return copy_packed<4>(from, first, out_offset, extent);
      case 8:
        return copy_elements<uint8_t>(from, first, out_offset, extent);
      case 16:
        return copy_elements<uint16_t>(from, first, out_offset, extent);
      case 32:
        return copy_elements<uint32_t>(from, first, out_offset, extent);
      default:
        return copy_elements<uint64_t>(from, first, out_offset, extent);
    }
  }

  template <typename T>
  void copy_elements(const std::byte* from, int64_t first, int64_t out_offset, const Dims& extent) {
    T* const to = out_.as<T>();
    copy_axis(0, first, out_offset, extent, [&](int64_t f, int64_t t) {
      std::memcpy(to + t, from + f * static_cast<int64_t>(sizeof(T)), sizeof(T));  // `from` may be unaligned
    });
  }

  template <int kBits>
  void copy_packed(const std::byte* from, int64_t first, int64_t out_offset, const Dims& extent) {
    using Element = PackedElement<kBits, false>;
    copy_axis(0, first, out_offset, extent,
              [&](int64_t f, int64_t t) { Element::store(out_.data.get(), t, Element::load(from, f)); });
  }

  template <typename F>
  void copy_axis(std::size_t axis, int64_t from, int64_t to, const Dims& extent, const F& element) const {
    if (axis == rank_) return element(from, to);
    const int64_t n = extent[axis], from_step = stored_stride_[axis], to_step = out_stride_[axis];
    if (axis + 1 == rank_) {
      for (int64_t i = 0; i < n; ++i) element(from + i * from_step, to + i * to_step);
    } else {
      for (int64_t i = 0; i < n; ++i)
        copy_axis(axis + 1, from + i * from_step, to + i * to_step, extent, element);
    }
  }

  const Constant& c_;
  std::size_t rank_;
  Tensor out_;
  Dims low_, extent_;  // the box, by stored axis
  Dims stored_stride_, out_stride_;
  std::vector<std::byte> window_;
};

std::shared_ptr<Constant> copy_of(const ConstantPtr& constant) {
  return std::make_shared<Constant>(*constant);
}

}  // namespace

Tensor materialise(const Constant& constant) {
  if (!constant.file && !constant.quantized && constant.perm.empty() && constant.begin.empty()) {
    Tensor same = constant.inline_data;
    same.dims = constant.dims;
    return same;
  }
  return BoxReader(constant, 0, constant.dims.empty() ? 1 : constant.dims[0]).read();
}

Tensor materialise_rows(const Constant& constant, int64_t first, int64_t count) {
  ARK_CHECK(!constant.dims.empty() && first >= 0 && count >= 0 && first + count <= constant.dims[0],
            "rows out of range of constant " + escaped(constant.name));
  return BoxReader(constant, first, count).read();
}

ConstantPtr transposed(const ConstantPtr& constant, const std::vector<int64_t>& perm) {
  auto c = copy_of(constant);
  c->perm.resize(perm.size());
  for (std::size_t a = 0; a < perm.size(); ++a) {
    const auto from = static_cast<std::size_t>(perm[a]);
    c->perm[a] = constant->perm.empty() ? perm[a] : constant->perm[from];
    c->dims[a] = constant->dims[from];
    if (!constant->begin.empty()) c->begin[a] = constant->begin[from];
  }
  bool identity = true;
  for (std::size_t a = 0; a < perm.size(); ++a) identity = identity && c->perm[a] == static_cast<int64_t>(a);
  if (identity) c->perm.clear();
  return c;
}

ConstantPtr sliced(const ConstantPtr& constant, int64_t axis, int64_t begin, int64_t end) {
  const auto a = static_cast<std::size_t>(axis);
  ARK_CHECK(a < constant->dims.size() && begin >= 0 && begin <= end && end <= constant->dims[a],
            "slice out of range of constant " + escaped(constant->name));
  if (begin == 0 && end == constant->dims[a]) return constant;
  auto c = copy_of(constant);
  if (c->begin.empty()) c->begin.assign(c->dims.size(), 0);
  c->begin[a] += begin;
  c->dims[a] = end - begin;
  return c;
}

ConstantPtr reshaped(const ConstantPtr& constant, Dims dims) {
  ARK_CHECK(element_count(dims) == constant->size(),
            "reshape changes the size of " + escaped(constant->name));
  if (dims == constant->dims) return constant;
  if (constant->perm.empty() && constant->begin.empty() && !constant->quantized) {
    auto c = copy_of(constant);
    c->dims = c->stored_dims = std::move(dims);
    return c;
  }
  if (!constant->is_small()) return nullptr;
  Tensor dense = materialise(*constant);
  dense.dims = std::move(dims);
  return make_constant(std::move(dense), constant->name);
}

ConstantPtr as_packed(const ConstantPtr& constant, DType type) {
  if (constant->dtype != DType::kU8 || constant->dims.empty() || !constant->perm.empty() ||
      !constant->begin.empty())
    return nullptr;
  auto c = copy_of(constant);
  c->dtype = c->inline_data.dtype = type;
  c->dims.back() *= 8 / bits_of(type);
  c->stored_dims = c->inline_data.dims = c->dims;
  return c;
}

bool same_payload(const Constant& a, const Constant& b) {
  if (a.quantized || b.quantized)
    return a.quantized && b.quantized &&
           (a.quantized == b.quantized || same_payload(*a.quantized, *b.quantized));
  if (a.file || b.file) return a.file == b.file && a.offset == b.offset && a.bytes == b.bytes;
  return a.inline_data.data && a.inline_data.data == b.inline_data.data;
}

const void* payload_place(const Constant& constant) {
  if (constant.quantized) return constant.quantized.get();
  return constant.file ? static_cast<const void*>(constant.file.get()) : constant.inline_data.data.get();
}

std::string content_key(const Constant& c) {
  std::string key = std::string(name_of(c.dtype)) + ":";
  for (const int64_t d : c.dims) key += std::to_string(d) + ",";
  if (c.size() <= 64) {
    const Tensor dense = materialise(c);
    return key + "=" + std::string(reinterpret_cast<const char*>(dense.data.get()), dense.bytes());
  }
  for (const int64_t p : c.perm) key += "p" + std::to_string(p);
  for (const int64_t b : c.begin) key += "b" + std::to_string(b);
  for (const int64_t d : c.stored_dims) key += "s" + std::to_string(d);
  return key + "@" + std::to_string(reinterpret_cast<uintptr_t>(payload_place(c))) + "+" +
         std::to_string(c.offset);
}

}  // namespace ark
