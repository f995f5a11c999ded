// Products of short numbers by AMX: a tile of sixteen rows of x, each of up to sixteen 32-bit words along k, times one
// of as many rows of words, sixteen columns each, is added to a tile of sums.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace ark::simd {
namespace {

constexpr int kTileRows = 16, kTileColumns = 16;
constexpr int kTileBytes = kTileRows * 64;
constexpr int kTileBlocks = 32;  // of rows, that share a piece of the weight

// The tiles' shapes, from begin to end of some products. 0 to 3: sums; 4, 5: x; 6, 7: weights.
class Tiles {
 public:
  explicit Tiles(int words, int rows = kTileRows) {  // 1 to 16, of k; of x
    Shapes shapes{};
    shapes.palette = 1;
    for (int tile = 0; tile < 8; ++tile) {
      shapes.row_bytes[tile] = static_cast<uint16_t>(tile == 4 || tile == 5 ? words * 4 : 64);
      shapes.rows[tile] = static_cast<uint8_t>(tile < 6 ? rows : words);
    }
    asm volatile("ldtilecfg %0" : : "m"(shapes));
  }
  ~Tiles() { asm volatile("tilerelease" : : : "memory"); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;

 private:
  struct Shapes {  // Intel SDM, volume 1, 18.2: "palette_table and tile_config"
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
  };
};

// As the intrinsics, but these tell the compiler of the memory. `stride`: bytes from row to row.
template <int kTile>
void load_tile(const void* from, int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(kTile) : "memory");
}
template <int kTile>
void store_tile(void* to, int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(kTile) : "memory");
}
template <int kTile>
void clear_tile() {
  asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
}
template <int kSums, int kX, int kW>
void add_bf16_products() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSums), "i"(kX), "i"(kW));
}

}  // namespace
}  // namespace ark::simd
