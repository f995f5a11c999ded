// Weights: where they lie, never copied while the graph is worked on.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/tensor.h"

namespace ark {

// An open file that payloads are read from by pread; closes with the last owner.
class WeightFile {
 public:
  // Throws Error(kNotFound) if it cannot be opened, kBadModel if it is no regular file.
  static std::shared_ptr<const WeightFile> open(const std::string& path);
  ~WeightFile();
  WeightFile(const WeightFile&) = delete;
  WeightFile& operator=(const WeightFile&) = delete;

  // Reads exactly [offset, offset + bytes). Throws Error(kBadModel) if the file is shorter (by now).
  void read(int64_t offset, int64_t bytes, void* into) const;
  int64_t size() const { return size_; }
  const std::string& path() const { return path_; }

 private:
  WeightFile(int descriptor, int64_t size, std::string path);
  int descriptor_;
  int64_t size_;
  std::string path_;
};

struct Quantized;  // quantized.h

// A constant tensor: inline bytes, a range of a file, or codes of a quantized matrix, seen through a chain of lazy
// views.
// Immutable; shared by all values that read it, so that identity (`source`) tells tied weights.
struct Constant {
  DType dtype = DType::kUndefined;
  Dims dims;  // of the view

  // Exactly one of the three holds the payload (row-major, of `stored_dims`):
  Tensor inline_data;                          // small, or computed by folding
  std::shared_ptr<const WeightFile> file;      // with offset, bytes
  std::shared_ptr<const Quantized> quantized;  // f32 [rows, columns]; decoded whenever it is read
  int64_t offset = 0;
  int64_t bytes = 0;
  Dims stored_dims;

  // The view: transpose of the stored tensor (perm, empty = identity), then the slice [begin, begin + dims) per
  // axis of the transposed tensor (begin empty = zeros). Rank of stored_dims == rank of dims: a reshape of an
  // untouched payload reinterprets stored_dims.
  std::vector<int64_t> perm;
  Dims begin;

  std::string name;  // for messages, unescaped
  int64_t size() const { return element_count(dims); }
  bool is_small() const { return size() <= 4096; }
};
using ConstantPtr = std::shared_ptr<const Constant>;

ConstantPtr make_constant(Tensor tensor, std::string name = "");
// The whole view as a dense tensor (reads the file). Throws as WeightFile::read.
Tensor materialise(const Constant& constant);
// Rows [first, first + count) of axis 0 of the view, densely packed: what windowed packing reads.
Tensor materialise_rows(const Constant& constant, int64_t first, int64_t count);
// Lazy views of a constant; no bytes move. reshape of a sliced or transposed view materialises if small,
// otherwise returns null; so does that of a quantized matrix.
ConstantPtr transposed(const ConstantPtr& constant, const std::vector<int64_t>& perm);
ConstantPtr sliced(const ConstantPtr& constant, int64_t axis, int64_t begin, int64_t end);
ConstantPtr reshaped(const ConstantPtr& constant, Dims dims);
// The bytes of a u8 constant as kU4 or kU2, low bits first, the last axis so much longer; null for sliced or
// transposed views.
ConstantPtr as_packed(const ConstantPtr& constant, DType type);
// True if both read the same payload (tied weights), whatever their views.
bool same_payload(const Constant& a, const Constant& b);
// Where the payload starts, together with `offset`: what tells payloads apart in a key. Differs for quantized
// matrices that were made twice of the same payload.
const void* payload_place(const Constant& constant);
// Equal for constants of one type, shape and content: small ones are compared by content, large ones by the payload
// and how it is seen.
std::string content_key(const Constant& constant);

}  // namespace ark
