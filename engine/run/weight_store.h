// The weights of one rank, packed as its program wants them: read by pread windows straight into their place.
//
// Peak memory while loading is the arena plus one window a thread; nothing stays mapped or open afterwards.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/ir/constant.h"
#include "dma/region.h"
#include "engine/program/program.h"

namespace ark {

// Where a program's weights lie in an arena, by weight; the first at 0.
struct WeightLayout {
  std::vector<int64_t> offsets, bytes;
  int64_t total = 0;
  explicit WeightLayout(const Program& program);
};

class WeightStore {
 public:
  // `constants`: what WeightUse::constant indexes. Throws Error(kBadModel) naming the weight if a file is shorter
  // than it was, Error(kExhausted) if the memory cannot be had, Error(kInternal) if a use does not fit its constant.
  // `node`: whose memory it should be, as for place_on_node().
  WeightStore(const Program& program, std::span<const ConstantPtr> constants, int threads, int node = -1);
  // With what arena() of such a store once held, which `fill` reads; null if that returns false. Throws
  // Error(kExhausted).
  static std::shared_ptr<WeightStore> filled(const Program& program,
                                             const std::function<bool(std::span<std::byte> arena)>& fill,
                                             int node = -1);

  std::byte* address(int32_t weight) const { return memory_.region.base + layout_.offsets[weight]; }
  int64_t bytes(int32_t weight) const { return layout_.bytes[weight]; }
  // All of it, address(0) first.
  std::span<const std::byte> arena() const { return {memory_.region.base, memory_.region.bytes}; }
  // Once a device has a copy: gives the memory back; sizes stay.
  void release() {
    memory_.owner.reset();
    memory_.region.base = nullptr;
  }
  // The arena with its owner, for who needs it beyond release().
  const dma::Memory& memory() const { return memory_; }
  int64_t arena_bytes() const { return static_cast<int64_t>(memory_.region.bytes); }

 private:
  WeightStore(const Program& program, int node);

  WeightLayout layout_;
  dma::Memory memory_;
};

// Bytes that a weight takes in memory, padding of panels included.
int64_t packed_bytes(const WeightUse& use);
// K and N of a kPanels weight's part.
Range matrix_rows(const WeightUse& use);     // K
Range matrix_columns(const WeightUse& use);  // N

// Empty, or why a use cannot be made of its constant ("has ..."): ranges, types, blocks.
std::string misfit_of(const Constant& constant, const WeightUse& use);

// Packs one weight into `into` (packed_bytes zeroed bytes). Part `part` of `parts`: parts write disjoint
// bytes and may run at the same time.
void pack_weight(const Constant& constant, const WeightUse& use, std::byte* into, int64_t part,
                 int64_t parts);
// How many parts are worth while.
int64_t pack_parts(const WeightUse& use);

}  // namespace ark
