#include "engine/cuda/turned_weights.h"

#include <cstring>

#include "base/error.h"
#include "base/index.h"
#include "engine/cuda/image.h"
#include "engine/program/weight_codec.h"

namespace ark::cuda {
namespace {

constexpr uint64_t kPieceBytes = 16, kRowBytes = kPieceBytes * kTurn;  // of rows of 16-bit numbers

}  // namespace

TurnedWeights::TurnedWeights(const WeightUse& use, uint64_t k) : k_(k) {
  if (use.layout != Layout::kPanels) return;
  if (use.block == 0) {
    if (has_turned_rows(use.panel, static_cast<int>(bytes_of(use.stored, 1)))) unit_bytes_ = kRowBytes;
    return;
  }
  if (!has_turned_codes(use.block, static_cast<i64>(k)) || !codec_of(use.stored)->has_mma) return;
  has_codes_ = true;
  unit_bytes_ = static_cast<uint64_t>(codec_of(use.stored)->unit_bytes(use));
  low_.resize(unit_bytes_), high_.resize(unit_bytes_);
  const int panel = use.panel, bits = bits_of(use.stored), scale = scale_bytes(use.terms);
  const int terms = terms_bytes(use.terms) * panel;
  const auto put = [&](int to, int from) {  // a whole byte
    low_[at(to)] = static_cast<uint32_t>(from) * 2;
    high_[at(to)] = static_cast<uint32_t>(from) * 2 + 1;
  };
  for (int column = 0; column < panel; ++column) {
    const int place = turned_term(column, panel);
    for (int byte = 0; byte < scale; ++byte) put(place * scale + byte, column * scale + byte);
    const int others = scale * panel, other = (terms - others) / panel;  // zeros or offsets, and bytes of one
    for (int byte = 0; byte < other; ++byte)
      put(others + place * other + byte, others + column * other + byte);
  }
  for (int row = 0; row < use.block; ++row) {
    for (int column = 0; column < panel; ++column) {
      const int bit = turned_code_bit(row, column, panel, bits), to = terms + bit / 8;
      const int pair = row / 2 * panel + column;
      if (bits == 8) {
        put(to, terms + pair * 2 + row % 2);
      } else {
        (bit % 8 == 0 ? low_ : high_)[at(to)] = static_cast<uint32_t>((terms + pair) * 2 + row % 2);
      }
    }
  }
}

std::span<const std::byte> TurnedWeights::turn(std::span<const std::byte> window, uint64_t at) {
  ARK_CHECK(is_turned() && at % unit_bytes_ == 0 && window.size() % unit_bytes_ == 0,
            "whole units of a weight");
  turned_.resize(window.size());
  has_codes_ ? turn_blocks(window) : turn_rows(window, at / unit_bytes_);
  return turned_;
}

// Of panels of k rows each, of which the first is number `first` over all panels.
void TurnedWeights::turn_rows(std::span<const std::byte> rows, uint64_t first) {
  for (uint64_t r = 0; r < rows.size() / kRowBytes; ++r) {
    const uint64_t turn = (first + r) % k_ % kTurn;
    for (uint64_t c = 0; c < kTurn; ++c)
      std::memcpy(turned_.data() + r * kRowBytes + (c ^ turn) * kPieceBytes,
                  rows.data() + r * kRowBytes + c * kPieceBytes, kPieceBytes);
  }
}

void TurnedWeights::turn_blocks(std::span<const std::byte> blocks) {
  const auto half = [](const std::byte* from, uint32_t place) {
    return std::to_integer<unsigned>(from[place / 2]) >> place % 2 * 4 & 15;
  };
  for (uint64_t start = 0; start < blocks.size(); start += unit_bytes_) {
    const std::byte* const from = blocks.data() + start;
    for (uint64_t i = 0; i < unit_bytes_; ++i)
      turned_[start + i] = static_cast<std::byte>(half(from, low_[i]) | half(from, high_[i]) << 4);
  }
}

}  // namespace ark::cuda
