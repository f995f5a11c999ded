// A kernel that uses every primitive of dma/device.h once, so that each is compiled for each architecture.
#pragma once

#include "dma/device.h"
#include "tests/emulator/kernels/every_parameters.h"

namespace ark::dev {

template <Scope S, class T>
ARK_DEVICE void use_words(T* p) {
  T v = ld_acquire<S>(p) + ld_relaxed<S>(p + 1);
  st_release<S>(p + 2, v);
  st_relaxed<S>(p + 3, v);
  red_release_add<S>(p + 4, v);
  v = atom_add<S>(p + 5, v) + atom_cas<S>(p + 6, v, static_cast<T>(v + 1));
  fence<S>();
  st_relaxed<S>(p + 7, v);
}

template <class T>
ARK_DEVICE void use_matrix(const u8* tile, float* out) {
  u32 a[2][4], b[4][2] = {};
  ldmatrix_x4(a[0], tile + lane_id() * 16);
  ldmatrix_x4_trans(a[1], tile + lane_id() * 16);
  b[0][0] = pack<T>(1.0f, 2.0f);
  b[1][1] = pack<T>(unpack<T>(a[0][0]).y, to_f32(from_f32<T>(3.0f)));
  float d[2][4][4] = {};
  mma_tile<T>(d, a, b);
  mma_m16n8k16<T>(d[0][0], a[1], b[1]);
  out[thread_id()] = d[0][0][0] + d[1][3][3];
}

ARK_DEVICE float use_numbers(float v) {
  v = exp(v) + log(v) + tanh(v) + erf(v) + sqrt(v) + pow(v, v) + sin(v) + cos(v);
  v = floor(v) + ceil(v) + trunc(v) + round_even(v) + fmod(v, 3.0f) + abs(v) + fma(v, v, v);
  v = max(v, 1.0f) + min(v, 2.0f) + static_cast<float>(max(1, 2) + min(3, 4));
  const u32 bits = multiply_high(as_u32(v), 7u) + popcount(as_u32(v)) + leading_zeros(as_u32(v));
  return v + as_f32(bits) + static_cast<float>(max(i64{1}, i64{2}) + min(i64{1}, i64{2}));
}

ARK_DEVICE float use_lanes(float v) {
  v = shfl(v, 3) + shfl_xor(v, 1) + shfl_down(v, 2) + shfl_up(v, 2) + warp_sum(v) + warp_max(v);
  return v + static_cast<float>(ballot(v > 0) + warp_sum(u32{1}));
}

ARK_DEVICE void wait_for(Mbarrier* barrier, u32 parity) {
  while (!mbarrier_try_wait(barrier, parity)) pause(barrier, 0, parity);
}

ARK_DEVICE void use_copies(u8* arena, const EveryParameters& p) {
  Mbarrier* full = reinterpret_cast<Mbarrier*>(arena);
  Mbarrier* empty = full + 1;
  if (thread_id() == 0) {
    mbarrier_init(full, kCopyAheadArrivals);
    mbarrier_init(empty, 1);
    mbarrier_init_fence();
  }
  sync();
  if (warp_id() == 0) copy_ahead(arena + 1024, p.constant, 1024, full);
  wait_for(full, 0);
  if (thread_id() == 0) mbarrier_arrive(empty);
  wait_for(empty, 0);
  sync();
  cp_async16(arena + 1024 + thread_id() * 16, p.constant + thread_id());
  cp_async16_fill(arena + 4096 + thread_id() * 16, p.constant + thread_id(), 8);
  cp_async_commit();
  cp_async_wait<0>();
  sync();
#if ARK_HAS_BULK
  fence_proxy_async();
  sync();
  if (thread_id() == 0) {
    bulk_store(p.bytes, arena + 1024, 512);
    bulk_commit();
    bulk_wait<0>();
  }
  sync();
#endif
}

ARK_KERNEL(every_primitive, EveryParameters, 64) {
  u8* arena = shared();
  use_copies(arena, p);
  if (warp_id() == 0) {
    bar_sync(1, 64);
    use_matrix<f16>(arena + 1024, p.floats);
    use_matrix<bf16>(arena + 1024, p.floats);
  } else {
    bar_arrive(1, 64);
  }
  sync_warp();
  if (bar_sync_or(2, 64, thread_id() == 63)) st_shared_relaxed(reinterpret_cast<u32*>(arena + 8176), 5);
  sync();
  float v = use_lanes(use_numbers(p.floats[thread_id()]));
  const f32x4 c = ld_nc(p.constant);
  v += ld_nc(&p.constant->x) + ld_nc(reinterpret_cast<const f32x2*>(p.constant)).y + c.w;
  v += static_cast<float>(ld_shared_relaxed(reinterpret_cast<const u32*>(arena + 8176)));
  sync();
  st_global(p.floats + thread_id(), v + ld_global(p.floats + thread_id()));
  st_global(reinterpret_cast<f32x4*>(p.floats) + 32 + thread_id(), f32x4{v, v, v, v});
  if (thread_id() == 0 && block_id() == 0) {
    use_words<Scope::gpu>(p.words);
    use_words<Scope::sys>(p.words);
    use_words<Scope::cta>(p.words);
    use_words<Scope::gpu>(p.long_words);
    use_words<Scope::sys>(p.long_words);
    st_relaxed<Scope::gpu>(p.long_words, global_timer_ns());
    if (grid_blocks() * block_threads() < 0) trap();
  }
}

}  // namespace ark::dev
