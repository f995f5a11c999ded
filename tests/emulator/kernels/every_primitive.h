// A kernel that uses every primitive of dma/device.h and keeps each result in a slot of its own: compiled for each
// architecture, run in the emulator and, as PTX, by the interpreter. All three must agree (primitives_test.cc).
#pragma once

#include "dma/device.h"
#include "tests/emulator/kernels/every_parameters.h"

namespace ark::dev {

struct Results {
  u32* next;
  int slot;
};

ARK_DEVICE void keep(Results& to, [[maybe_unused]] const char* name, [[maybe_unused]] int ulps, u32 v,
                     [[maybe_unused]] bool is_float = false) {
#if defined(ARK_DEVICE_HEADER)
  ark_every_result(to.slot, name, is_float ? ulps : -1);
#endif
  *to.next = v;
  to.next += grid_blocks() * block_threads();
  to.slot++;
}
ARK_DEVICE void keep(Results& to, const char* name, int ulps, float v) {
  keep(to, name, ulps, as_u32(v), true);
}
ARK_DEVICE void keep(Results& to, const char* name, int ulps, int v) {
  keep(to, name, ulps, static_cast<u32>(v));
}
ARK_DEVICE void keep(Results& to, const char* name, int ulps, u64 v) {
  keep(to, name, ulps, static_cast<u32>(v));
  keep(to, name, ulps, static_cast<u32>(v >> 32));
}
ARK_DEVICE void keep(Results& to, const char* name, int ulps, i64 v) {
  keep(to, name, ulps, static_cast<u64>(v));
}
// The same bits on all machines; or as near as two of them may be whose errors are documented.
#define ARK_KEEP(...) keep(to, #__VA_ARGS__, 0, __VA_ARGS__)
#define ARK_KEEP_NEAR(ulps, ...) keep(to, #__VA_ARGS__, ulps, __VA_ARGS__)

ARK_DEVICE void use_places(Results& to) {
  ARK_KEEP(thread_id());
  ARK_KEEP(lane_id());
  ARK_KEEP(warp_id());
  ARK_KEEP(block_id());
  ARK_KEEP(block_threads());
  ARK_KEEP(grid_blocks());
  ARK_KEEP(global_timer_ns() > 0 ? 1 : 0);
}

// Units in the last place: CUDA's documented error, and one of the other machine's library.
ARK_DEVICE void use_numbers(Results& to, float v) {
  ARK_KEEP_NEAR(3, exp(v));
  ARK_KEEP_NEAR(4, exp2(v));
  ARK_KEEP_NEAR(2, log(v));
  ARK_KEEP_NEAR(3, tanh(v));
  ARK_KEEP_NEAR(3, erf(v));
  ARK_KEEP(sqrt(v));
  ARK_KEEP_NEAR(9, pow(v, 1.7f));
  ARK_KEEP_NEAR(9, pow(2.1f, v));
  ARK_KEEP_NEAR(3, sin(v));
  ARK_KEEP_NEAR(3, cos(v));
  ARK_KEEP_NEAR(5, tan(v));
  ARK_KEEP_NEAR(2, expm1(v));
  ARK_KEEP_NEAR(2, log1p(v));
  ARK_KEEP_NEAR(5, asin(v));
  ARK_KEEP_NEAR(3, acos(v));
  ARK_KEEP_NEAR(3, atan(v));
  ARK_KEEP_NEAR(4, sinh(v));
  ARK_KEEP_NEAR(3, cosh(v));
  ARK_KEEP_NEAR(4, asinh(v));
  ARK_KEEP_NEAR(5, acosh(v));
  ARK_KEEP_NEAR(4, atanh(v));
  ARK_KEEP(floor(v));
  ARK_KEEP(ceil(v));
  ARK_KEEP(trunc(v));
  ARK_KEEP(round_even(v));
  ARK_KEEP(fmod(v, 0.7f));
  ARK_KEEP(abs(v));
  ARK_KEEP(fma(v, v, 0.1f));
  ARK_KEEP(fma(0.1f, v, v));
  ARK_KEEP(max(v, 1.0f));
  ARK_KEEP(min(v, 1.0f));
  const i32 number = static_cast<i32>(as_u32(v));
  const i64 wide = static_cast<i64>(u64{as_u32(v)} * 0x9e3779b97f4a7c15u);
  ARK_KEEP(max(number, thread_id()));
  ARK_KEEP(min(number, thread_id()));
  ARK_KEEP(max(wide, i64{number}));
  ARK_KEEP(min(wide, i64{number}));
  ARK_KEEP(multiply_high(as_u32(v), 0xc2b2ae35u));
  ARK_KEEP(permute_bytes(as_u32(v), 0x4b000000u, 0x7442u));
  ARK_KEEP(permute_bytes(as_u32(v), as_u32(0.3f * v), 0x6205u));
  ARK_KEEP(masked_or(as_u32(v) >> 4, 0x000f000fu, 0x43004300u));
  ARK_KEEP(popcount(as_u32(v)));
  ARK_KEEP(leading_zeros(as_u32(v) >> lane_id()));
  ARK_KEEP(as_f32(as_u32(v) ^ 0x80000000u));
}

template <class T>
ARK_DEVICE void use_halves(Results& to, float v) {
  const T half = from_f32<T>(v);
  ARK_KEEP(u32{half.bits});
  ARK_KEEP(to_f32(half));
  const u32 pair = pack<T>(v, 0.3f * v);
  ARK_KEEP(pair);
  ARK_KEEP(unpack<T>(pair).x);
  ARK_KEEP(unpack<T>(pair).y);
  ARK_KEEP(add_bf16x2(pack<bf16>(v, 128.0f), pack<bf16>(0.7f * v, -131.0f)));
}

ARK_DEVICE void use_lanes(Results& to, float v) {
  const u64 wide = u64{as_u32(v)} << 32 | static_cast<u32>(thread_id());
  ARK_KEEP(shfl(v, 3));
  ARK_KEEP(shfl(wide, (lane_id() * 7 + 1) & 31));
  ARK_KEEP(shfl_xor(v, 5));
  ARK_KEEP(shfl_xor(wide, 16));
  ARK_KEEP(shfl_down(v, 2));
  ARK_KEEP(shfl_down(wide, 9));
  ARK_KEEP(shfl_up(v, 2));
  ARK_KEEP(shfl_up(wide, 9));
  ARK_KEEP(uniform(v));
  ARK_KEEP(ballot(v > 0));
  const float sane = v > -100 && v < 100 ? v : 0;
  ARK_KEEP(warp_sum(sane));
  ARK_KEEP(warp_max(sane));
  ARK_KEEP(warp_sum(as_u32(v)));
}

template <class T>
ARK_DEVICE void use_matrix(Results& to, const u8* tile) {
  u32 a[2][4], b[2][2];
  ldmatrix_x4(a[0], tile + lane_id() * 16);
  ldmatrix_x4_trans(a[1], tile + 512 + lane_id() * 16);
  float d[2][2][4];
  for (int i = 0; i < 16; i++) d[i / 8][i / 4 % 2][i % 4] = static_cast<float>(lane_id() * 16 + i);
  for (int i = 0; i < 4; i++) b[i / 2][i % 2] = a[1][i];
  mma_tile<T>(d, a, b);
  mma_m16n8k16<T>(d[0][1], a[1], b[0]);
  for (int i = 0; i < 8; i++) ARK_KEEP(a[i / 4][i % 4]);
  for (int i = 0; i < 16; i++) ARK_KEEP(d[i / 8][i / 4 % 2][i % 4]);
}

// By one thread: eight words that the host has filled.
template <Scope S, class T>
ARK_DEVICE void use_words(Results& to, T* p) {
  ARK_KEEP(ld_acquire<S>(p));
  ARK_KEEP(ld_relaxed<S>(p + 1));
  st_release<S>(p + 2, static_cast<T>(21));
  st_relaxed<S>(p + 3, static_cast<T>(22));
  red_release_add<S>(p + 4, static_cast<T>(23));
  red_relaxed_add<S>(p + 4, static_cast<T>(27));
  ARK_KEEP(atom_add<S>(p + 5, static_cast<T>(24)));
  fence<S>();
  ARK_KEEP(atom_cas<S>(p + 6, static_cast<T>(6), static_cast<T>(25)));  // 6: swapped
  ARK_KEEP(atom_cas<S>(p + 7, static_cast<T>(6), static_cast<T>(26)));  // 7: left
}

ARK_DEVICE void wait_for(Mbarrier* barrier, u32 parity) {
  while (!mbarrier_test_wait(barrier, parity) || !mbarrier_try_wait(barrier, parity))
    pause(barrier, 0, parity);
}

// Into the arena: constants 0..1023 at 1024, 1024..2047 at 2048, parts of these at 4096.
ARK_DEVICE void use_copies(Results& to, u8* arena, const EveryParameters& p) {
  Mbarrier* full = reinterpret_cast<Mbarrier*>(arena);
  Mbarrier* empty = full + 1;
  if (thread_id() == 0) {
    mbarrier_init(full, kCopyAheadArrivals);
    mbarrier_init(empty, 2);
    mbarrier_init_fence();
  }
  sync();
  for (u32 turn = 0; turn < 2; turn++) {
    if (warp_id() == 0) prefetch_ahead(p.constant + 512 * (1 - turn), 512 + 512 * turn);
    if (warp_id() == 0) copy_ahead(arena + 1024, p.constant + 512 * (1 - turn), 512 + 512 * turn, full);
    wait_for(full, turn & 1);
    ARK_KEEP(*reinterpret_cast<const u32*>(arena + 1024 + 4 * thread_id()));
    sync_warp();
    if (lane_id() == 0) mbarrier_arrive(empty);
    wait_for(empty, turn & 1);
  }
  sync();
  if (thread_id() == 0) {
    mbarrier_inval(empty);
    mbarrier_init(empty, 1);
    mbarrier_init_fence();
    mbarrier_arrive(empty);
  }
  sync();
  wait_for(empty, 0);
  const u8* const source = p.constant + 1024 + thread_id() * 16;
  cp_async16(arena + 2048 + thread_id() * 16, source);
  cp_async_commit();
  cp_async16_fill(arena + 4096 + thread_id() * 16, source, static_cast<u32>(thread_id() % 17));
  cp_async_commit();
  cp_async_wait<1>();
  sync();
  const int other = (thread_id() + 33) % block_threads() * 16;
  ARK_KEEP(*reinterpret_cast<const u32*>(arena + 2048 + other + 4));
  cp_async_wait<0>();
  sync();
  for (int i = 0; i < 4; i++) ARK_KEEP(reinterpret_cast<const u32*>(arena + 4096 + other)[i]);
#if ARK_HAS_BULK
  *reinterpret_cast<u32*>(arena + 2048 + 4 * thread_id()) = static_cast<u32>(thread_id());
  fence_proxy_async();
  sync();
  if (thread_id() == 0) {
    u8* const out = p.bytes + block_id() * kBytesOfABlock;
    bulk_store(out, arena + 2048, 256);
    bulk_commit();
    bulk_store(out + 256, arena + 1024, 512);
    bulk_commit();
    bulk_wait<1>();
    bulk_wait<0>();
  }
  sync();
#endif
}

ARK_DEVICE void use_barriers(Results& to, u8* arena) {
  give_registers<160>();
  take_registers<200>();
  u32* const word = reinterpret_cast<u32*>(arena + 8176);
  if (thread_id() == 40) st_shared_relaxed(word, 5);
  if (warp_id() == 0) {
    bar_sync(1, kEveryThreads);
    ARK_KEEP(ld_shared_relaxed(word));
  } else {
    bar_arrive(1, kEveryThreads);
    ARK_KEEP(0u);
  }
  ARK_KEEP(bar_sync_or(2, kEveryThreads, thread_id() == 63) ? 1 : 0);
  ARK_KEEP(bar_sync_or(3, kEveryThreads, thread_id() == 64) ? 1 : 0);
}

ARK_DEVICE void use_memory(Results& to, const EveryParameters& p) {
  const u8* const constant = p.constant + 16 * thread_id();
  prefetch(constant);
  ARK_KEEP(u32{ld_nc(reinterpret_cast<const f16*>(constant) + 1).bits});
  ARK_KEEP(ld_nc(reinterpret_cast<const u32*>(constant) + 1));
  ARK_KEEP(ld_nc(reinterpret_cast<const u64*>(constant) + 1));
  const f32x4 four = ld_nc(reinterpret_cast<const f32x4*>(constant));
  ARK_KEEP(four.x);
  ARK_KEEP(four.w);
  u8* const own = p.bytes + block_id() * kBytesOfABlock + 1024 + 32 * thread_id();
  st_global(reinterpret_cast<f32x4*>(own), four);
  st_global(reinterpret_cast<u32x2*>(own) + 2, u32x2{7, as_u32(four.y)});
  st_global(reinterpret_cast<u32*>(own) + 6, as_u32(four.z));
  st_global(reinterpret_cast<u16*>(own) + 14, static_cast<u16>(as_u32(four.x)));
  st_global(reinterpret_cast<u16*>(own) + 15, static_cast<u16>(thread_id()));
  sync();
  const u8* const other = p.bytes + block_id() * kBytesOfABlock + 1024 + (32 * thread_id() ^ 32);
  ARK_KEEP(ld_global(reinterpret_cast<const f32x4*>(other)).z);
  ARK_KEEP(ld_global(reinterpret_cast<const u32x2*>(other) + 2).y);
  ARK_KEEP(ld_global(reinterpret_cast<const u32*>(other) + 6));
  ARK_KEEP(ld_global(reinterpret_cast<const u32*>(other) + 7));
  sync();
  // What is traced twice in a row counts once: others in between.
  const auto between = [&] { ARK_KEEP(ld_global(reinterpret_cast<const u32*>(constant))); };
  st_words(reinterpret_cast<f32x4*>(own), f32x4{four.w, four.z, four.y, four.x});
  between();
  st_words(reinterpret_cast<u32x2*>(own) + 2, u32x2{as_u32(four.y), 9});
  between();
  st_words(reinterpret_cast<u32*>(own) + 6, as_u32(four.x));
  sync();
  const f32x4 told = ld_words<Scope::sys>(reinterpret_cast<const f32x4*>(other));
  between();
  ARK_KEEP(told.y);
  ARK_KEEP(told.z);
  st_words<Scope::sys>(reinterpret_cast<f32x4*>(own), f32x4{four.w, four.z, four.y, four.x});
  sync();
  const f32x4 words = ld_words(reinterpret_cast<const f32x4*>(other));
  between();
  const u32x2 two = ld_words(reinterpret_cast<const u32x2*>(other) + 2);
  between();
  ARK_KEEP(ld_words(reinterpret_cast<const u32*>(other) + 6));
  ARK_KEEP(words.x);
  ARK_KEEP(words.w);
  ARK_KEEP(two.x);
  ARK_KEEP(two.y);
}

// From block 0 to block 1, in the last bytes of block 0.
ARK_DEVICE void use_grid(Results& to, const EveryParameters& p) {
  u32* const data = reinterpret_cast<u32*>(p.bytes + kBytesOfABlock - 16);
  u32* const flag = data + 1;
  u32 got = 0;
  if (thread_id() == 0) {
    if (block_id() == 0) {
      st_global(data, 77u);
      st_release<Scope::gpu>(flag, 1u);
    } else {
      while (ld_acquire<Scope::gpu>(flag) != 1) pause(flag, 0, 1);
      got = ld_global(data);
    }
  }
  ARK_KEEP(got);
}

ARK_KERNEL(every_primitive, EveryParameters, 64) {
  if (p.traps) trap();
  u8* arena = shared();
  const int thread = block_id() * block_threads() + thread_id();
  const float v = p.inputs[thread];
  Results results{p.results + thread, 0};
  Results& to = results;
  use_places(to);
  use_copies(to, arena, p);
  use_matrix<f16>(to, arena + 1024);
  use_matrix<bf16>(to, arena + 1024);
  use_barriers(to, arena);
  use_numbers(to, v);
  use_halves<f16>(to, v);
  use_halves<bf16>(to, v);
  use_lanes(to, v);
  use_memory(to, p);
  use_grid(to, p);
  if (lane_id() == 1) {
    const int warp = (block_id() * block_threads() + thread_id()) / kWarp;
    use_words<Scope::cta>(to, p.words + warp * kWordsOfAWarp);
    use_words<Scope::gpu>(to, p.words + warp * kWordsOfAWarp + 8);
    use_words<Scope::sys>(to, p.words + warp * kWordsOfAWarp + 16);
    use_words<Scope::cta>(to, p.long_words + warp * kWordsOfAWarp);
    use_words<Scope::gpu>(to, p.long_words + warp * kWordsOfAWarp + 8);
    use_words<Scope::sys>(to, p.long_words + warp * kWordsOfAWarp + 16);
  }
}

}  // namespace ark::dev
