// A float matrix as codes of blocks along K, made window by window by several threads.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>

#include "base/ir/constant.h"
#include "engine/program/program.h"

namespace ark {

// How codes are laid out: bits a code (4, 8), elements of K a block (even, <= 128), what the codes stand for.
struct CodeForm {
  int bits = 4;
  int64_t block = 32;
  BlockTerms terms = BlockTerms::kOffsets16;
};

// How numbers become codes: exactly, or the nearest of codes that lie evenly between a block's smallest and largest
// number (8 bits: around zero). `hint`: as of fit_block.
struct CodeRule {
  bool is_exact = true;
  // Or -0 may become +0: in a sum that begins with +0 both make the same.
  bool keeps_signs = true;
  int hint = 0;
};

class EncodedMatrix {
 public:
  // `payload`: floats [rows, columns], no view; K lies along `k_axis`. Throws Error(kExhausted) if there is no memory
  // for the codes.
  EncodedMatrix(ConstantPtr payload, int k_axis, CodeForm form);

  int64_t parts() const { return parts_; }
  // Encodes one of the parts, which write disjoint bytes and may run at the same time. False if numbers do not come
  // back bit for bit though they should, or terms have no finite f16: then the matrix cannot be had in this form.
  // Throws as materialise_rows.
  bool encode(int64_t part, CodeRule rule);

  // A lazy f32 constant [N, K], once all parts are encoded.
  ConstantPtr finish(const std::string& name) const;

 private:
  struct Tile;
  void read_tile(const float* window, int64_t first_row, bool keeps_signs, Tile& tile) const;
  void put(const Tile& tile);

  ConstantPtr payload_;
  int k_axis_;
  CodeForm form_;
  int64_t k_, n_, blocks_, step_, parts_;  // step_: rows of the payload a part
  int64_t row_bytes_, zero_bytes_;         // a column's codes and zeros
  Tensor codes_, scales_, others_;         // others_: zeros, offsets or nothing
};

// Pieces of a matrix here and there, read when they are first asked for: what tells most forms from the right one.
class MatrixSamples {
 public:
  // As EncodedMatrix; f32.
  MatrixSamples(ConstantPtr payload, int k_axis) : payload_(std::move(payload)), k_axis_(k_axis) {}
  // Whether all of them can be encoded exactly; sets the hint that fits most of their blocks.
  bool fit(const CodeForm& form, CodeRule& rule);

 private:
  static constexpr int64_t kPlaces = 6, kColumns = 8;
  const Tensor& at(int64_t place);  // [columns, rows of K], from a multiple of the largest block

  ConstantPtr payload_;
  int k_axis_;
  std::array<Tensor, kPlaces> pieces_;
};

}  // namespace ark
