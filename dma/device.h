// Everything that device code may use of the machine: the one header that generated loop kernels include.
//
// Two backends with the same functions, chosen at compile time:
//   nvcc and NVRTC   dma/device_cuda.h: inline PTX. Needs no CUDA or C++ header, so NVRTC needs no include
//   path. any C++ compiler $ARK_DEVICE_HEADER (tests/emulator/device_emulated.h): every CUDA thread is a
//   fiber, and
//                    what PTX leaves undefined is reported as an error.
// This file holds what both share: types before the backend, helpers made of its primitives after it.
//
// Conventions. A function takes its call site last (`Site`): empty on the GPU, file and line in the emulator.
// "Whole warp" marks collectives: all 32 lanes must call them at the same place. Scopes are those of PTX: a
// release and an acquire must both name a scope that holds the two threads (cta: block; gpu: GPU; sys: also
// the host and other GPUs). Global memory that the host or another GPU touches takes sys. Sources: the PTX
// ISA.
#pragma once

namespace ark::dev {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i8 = signed char;
using i16 = short;
using i32 = int;
using i64 = long long;
static_assert(sizeof(u16) == 2 && sizeof(u32) == 4 && sizeof(u64) == 8 && sizeof(void*) == 8);

enum class Scope { cta, gpu, sys };

// Of a thread, as give_registers and take_registers have it.
template <int kCount>
inline constexpr bool kIsRegisterCount = kCount % 8 == 0 && kCount >= 24 && kCount <= 256;

// 16-bit floats as bits; arithmetic is done in f32.
struct f16 {
  u16 bits;
};
struct bf16 {
  u16 bits;
};

// Vectors that load and store in one instruction.
struct alignas(8) u32x2 {
  u32 x, y;
};
struct alignas(16) u32x4 {
  u32 x, y, z, w;
};
struct alignas(8) f32x2 {
  float x, y;
};
struct alignas(16) f32x4 {
  float x, y, z, w;
};

inline constexpr int kWarp = 32;

// A barrier in shared memory that counts arrivals and the bytes of bulk copies (PTX mbarrier). Phases
// complete in turn; the n-th (from 0) has parity n & 1. Zeroed or recycled memory is not a valid one.
using Mbarrier = u64;

}  // namespace ark::dev

#if defined(__CUDACC__)
#include "dma/device_cuda.h"
#elif defined(ARK_DEVICE_HEADER)
#include ARK_DEVICE_HEADER
#else
#error "define ARK_DEVICE_HEADER, or compile with nvcc or NVRTC"
#endif

// A bug seeded for the tests: `if (!ARK_BUG(missing_fence)) fence<...>();`. Constant false but in their build
// (ARK_SEEDED_BUGS), where a launch chooses one bug by name. List: tests/emulator/bugs_test.cc.
#ifndef ARK_BUG
#define ARK_BUG(name) false
#endif

namespace ark::dev {

// The value that all lanes have. Whole warp. The compiler then knows that branches on it do not part the
// lanes, and leaves out what shuffles behind such branches would else need.
template <class T>
ARK_DEVICE T uniform(T v, Site at = Site::here()) {
  return shfl(v, 0, at);
}

// ---- reductions; whole warp; butterfly order: lane distances 16, 8, 4, 2, 1; all lanes get the result

ARK_DEVICE float warp_sum(float v, Site at = Site::here()) {
  ARK_UNROLL
  for (int distance = kWarp / 2; distance > 0; distance /= 2) v += shfl_xor(v, distance, at);
  return v;
}

ARK_DEVICE float warp_max(float v, Site at = Site::here()) {
  ARK_UNROLL
  for (int distance = kWarp / 2; distance > 0; distance /= 2) v = max(v, shfl_xor(v, distance, at));
  return v;
}

ARK_DEVICE u32 warp_sum(u32 v, Site at = Site::here()) {
  ARK_UNROLL
  for (int distance = kWarp / 2; distance > 0; distance /= 2) v += shfl_xor(v, distance, at);
  return v;
}

// ---- 16-bit floats in pairs: `lo` is the element at the lower address

ARK_DEVICE f16 low_f16(u32 pair) { return {static_cast<u16>(pair & 0xffff)}; }
ARK_DEVICE f16 high_f16(u32 pair) { return {static_cast<u16>(pair >> 16)}; }
ARK_DEVICE bf16 low_bf16(u32 pair) { return {static_cast<u16>(pair & 0xffff)}; }
ARK_DEVICE bf16 high_bf16(u32 pair) { return {static_cast<u16>(pair >> 16)}; }

ARK_DEVICE float to_f32(float v) { return v; }

template <class T>
ARK_DEVICE T from_f32(float v);
template <>
ARK_DEVICE float from_f32<float>(float v) {
  return v;
}
template <>
ARK_DEVICE f16 from_f32<f16>(float v) {
  return to_f16(v);
}
template <>
ARK_DEVICE bf16 from_f32<bf16>(float v) {
  return to_bf16(v);
}

template <class T>
ARK_DEVICE u32 pack(float lo, float hi);
template <>
ARK_DEVICE u32 pack<f16>(float lo, float hi) {
  return pack_f16(lo, hi);
}
template <>
ARK_DEVICE u32 pack<bf16>(float lo, float hi) {
  return pack_bf16(lo, hi);
}
template <class T>
ARK_DEVICE f32x2 unpack(u32 pair);
template <>
ARK_DEVICE f32x2 unpack<f16>(u32 pair) {
  return {to_f32(low_f16(pair)), to_f32(high_f16(pair))};
}
template <>
ARK_DEVICE f32x2 unpack<bf16>(u32 pair) {
  return {to_f32(low_bf16(pair)), to_f32(high_bf16(pair))};
}

// ---- streaming ahead

// Arrivals that one copy_ahead makes at its barrier: the count to give mbarrier_init.
inline constexpr u32 kCopyAheadArrivals = kHasBulk ? 1 : kWarp;

// Copies `bytes` (multiple of 16, may be 0; both ends aligned to 16) from global to shared memory and lets `full`
// complete its phase when they are there. Whole warp. One bulk copy from sm_90 on, else cp.async by all
// lanes. The source must be constant while the kernel runs, or bulk copies need fence_proxy_async before.
// Reading order: the consumer waits for `full`; whoever refills the destination waits until its readers are
// through.
ARK_DEVICE void copy_ahead(void* shared, const void* global, u32 bytes, Mbarrier* full,
                           Site at = Site::here()) {
#if ARK_HAS_BULK
  if (lane_id() == 0) {
    mbarrier_arrive_expect(full, bytes, at);
    if (bytes != 0) bulk_load(shared, global, bytes, full, at);
  }
  sync_warp(at);
#else
  sync_warp(at);  // one lane may have waited for the readers of the destination: all lanes write
  for (u32 i = lane_id() * 16; i < bytes; i += kWarp * 16) {
    cp_async16(static_cast<u8*>(shared) + i, static_cast<const u8*>(global) + i, at);
  }
  cp_async_arrive(full, at);
#endif
}

// Asks for `bytes` (multiple of 16, aligned to 16) in L2, as prefetch() does for a line. Whole warp.
ARK_DEVICE void prefetch_ahead(const void* global, u32 bytes, Site at = Site::here()) {
#if ARK_HAS_BULK
  if (lane_id() == 0 && bytes != 0) bulk_prefetch(global, bytes, at);
#else
  constexpr u32 kLine = 128;
  const u32 before = static_cast<u32>(reinterpret_cast<u64>(global) % kLine);
  for (u32 i = lane_id() * kLine; i < before + bytes; i += kWarp * kLine)
    prefetch(static_cast<const u8*>(global) - before + i, at);
#endif
}

}  // namespace ark::dev
