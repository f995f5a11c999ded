// One warp's matrix instructions with registers as the host gives them; in fragments_kernel.cc.
#pragma once

#include "dma/device.h"

namespace ark::test {

struct Fragments {
  ark::dev::u32 a[32][2][4], b[32][3][2];
  float d[32][2][3][4];
  ark::dev::u16 tile[4][8][8];     // for ldmatrix
  ark::dev::u32 loaded[2][32][4];  // plain, transposed
};

struct FragmentParameters {
  Fragments* fragments;
  bool is_f16;
};

extern "C" void run_fragments(const FragmentParameters& p);

}  // namespace ark::test
