#include "tests/emulator/kernels/fragments.h"

namespace ark::test {

using namespace ark::dev;

extern "C" void run_fragments(const FragmentParameters& p) {
  Fragments& f = *p.fragments;
  const int lane = lane_id();
  u32 a[2][4], b[3][2];
  float d[2][3][4];
  for (int i = 0; i < 8; i++) a[i / 4][i % 4] = f.a[lane][i / 4][i % 4];
  for (int i = 0; i < 6; i++) b[i / 2][i % 2] = f.b[lane][i / 2][i % 2];
  for (int i = 0; i < 24; i++) d[i / 12][i / 4 % 3][i % 4] = f.d[lane][i / 12][i / 4 % 3][i % 4];
  if (p.is_f16) {
    mma_tile<f16>(d, a, b);
    mma_m16n8k16<f16>(d[1][2], a[0], b[1]);
  } else {
    mma_tile<bf16>(d, a, b);
    mma_m16n8k16<bf16>(d[1][2], a[0], b[1]);
  }
  for (int i = 0; i < 24; i++) f.d[lane][i / 12][i / 4 % 3][i % 4] = d[i / 12][i / 4 % 3][i % 4];

  auto* rows = reinterpret_cast<u16*>(shared());
  for (int i = lane; i < 256; i += 32) rows[i] = (&f.tile[0][0][0])[i];
  sync_warp();
  u32 r[4];
  ldmatrix_x4(r, rows + lane * 8);
  for (int i = 0; i < 4; i++) f.loaded[0][lane][i] = r[i];
  ldmatrix_x4_trans(r, rows + lane * 8);
  for (int i = 0; i < 4; i++) f.loaded[1][lane][i] = r[i];
}

}  // namespace ark::test
