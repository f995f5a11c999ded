// BPE's merges: pair of ids -> rank and the id they become.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

namespace ark::text {

// Open addressing with linear probing at half load; filled once, then only read.
class MergeTable {
 public:
  struct Merge {
    std::int32_t rank, id;
  };

  explicit MergeTable(std::size_t count) : slots_(std::bit_ceil(2 * count + 2)) {}

  // The last of two merges of one pair wins. At most `count` pairs.
  void insert(std::int32_t left, std::int32_t right, Merge merge) {
    Slot& slot = slots_[position(key_of(left, right))];
    slot = {key_of(left, right), merge};
  }

  const Merge* find(std::int32_t left, std::int32_t right) const {
    const Slot& slot = slots_[position(key_of(left, right))];
    return slot.key == kEmpty ? nullptr : &slot.merge;
  }

 private:
  static constexpr std::uint64_t kEmpty = ~std::uint64_t{0};  // ids are never negative
  struct Slot {
    std::uint64_t key = kEmpty;
    Merge merge{};
  };

  static std::uint64_t key_of(std::int32_t left, std::int32_t right) {
    return static_cast<std::uint64_t>(left) << 32 | static_cast<std::uint32_t>(right);
  }
  // Where the key is, or the free slot where it belongs.
  std::size_t position(std::uint64_t key) const {
    const std::size_t mask = slots_.size() - 1;
    std::size_t at = (key * 0x9E3779B97F4A7C15u >> 20) & mask;
    while (slots_[at].key != key && slots_[at].key != kEmpty) at = (at + 1) & mask;
    return at;
  }

  std::vector<Slot> slots_;
};

}  // namespace ark::text
