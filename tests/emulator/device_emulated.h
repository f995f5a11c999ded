// dma/device.h on the CPU: every CUDA thread is a fiber of the emulator (tests/emulator/README.md). Included
// by dma/device.h only, through ARK_DEVICE_HEADER. What each function means is said in dma/device_cuda.h.
#pragma once

#include <cmath>

#include "tests/emulator/hooks.h"

#define ARK_DEVICE inline
#define ARK_KERNEL(name, Parameters, threads) \
  extern "C" __attribute__((visibility("default"))) void name([[maybe_unused]] const Parameters& p)
#define ARK_UNROLL
#ifndef ARK_EMULATED_ARCH
#define ARK_EMULATED_ARCH 900  // as __CUDA_ARCH__
#endif
#define ARK_HAS_BULK (ARK_EMULATED_ARCH >= 900)
#ifdef ARK_SEEDED_BUGS
#define ARK_BUG(name) (::ark::emulator::ark_emulator_bug() == ::ark::emulator::bug_hash(#name))
#endif

namespace ark::dev {

inline constexpr bool kHasBulk = ARK_HAS_BULK, kMovesRegisters = ARK_EMULATED_ARCH >= 900;

struct Site {
  emulator::Site place;
  static Site here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return {{file, line}};
  }
};

// ---- where am I

ARK_DEVICE int thread_id() { return emulator::ark_emulator_ids()->thread; }
ARK_DEVICE int lane_id() { return emulator::ark_emulator_ids()->lane; }
ARK_DEVICE int warp_id() { return emulator::ark_emulator_ids()->warp; }
ARK_DEVICE int block_id() { return emulator::ark_emulator_ids()->block; }
ARK_DEVICE int block_threads() { return emulator::ark_emulator_ids()->block_threads; }
ARK_DEVICE int grid_blocks() { return emulator::ark_emulator_ids()->grid_blocks; }
ARK_DEVICE u8* shared() { return emulator::ark_emulator_ids()->shared; }

template <int kCount>
ARK_DEVICE void give_registers(Site at = Site::here()) {
  static_assert(kIsRegisterCount<kCount>);
  if (kMovesRegisters) emulator::ark_emulator_move_registers(kCount, false, at.place);
}
template <int kCount>
ARK_DEVICE void take_registers(Site at = Site::here()) {
  static_assert(kIsRegisterCount<kCount>);
  if (kMovesRegisters) emulator::ark_emulator_move_registers(kCount, true, at.place);
}

// ---- barriers of a block, and warps

ARK_DEVICE void sync(Site at = Site::here()) { emulator::ark_emulator_barrier(0, -1, true, at.place); }
ARK_DEVICE void bar_sync(int id, int threads, Site at = Site::here()) {
  emulator::ark_emulator_barrier(id, threads, true, at.place);
}
ARK_DEVICE void bar_arrive(int id, int threads, Site at = Site::here()) {
  emulator::ark_emulator_barrier(id, threads, false, at.place);
}
ARK_DEVICE bool bar_sync_or(int id, int threads, bool vote, Site at = Site::here()) {
  return emulator::ark_emulator_barrier_or(id, threads, vote, at.place);
}
ARK_DEVICE void sync_warp(Site at = Site::here()) { emulator::ark_emulator_sync_warp(at.place); }
template <class T>
ARK_DEVICE T shfl(T v, int source_lane, Site at = Site::here()) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  emulator::ark_emulator_shuffle(&v, sizeof(T), emulator::Shuffle::kIndex, source_lane, at.place);
  return v;
}
template <class T>
ARK_DEVICE T shfl_xor(T v, int mask, Site at = Site::here()) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  emulator::ark_emulator_shuffle(&v, sizeof(T), emulator::Shuffle::kXor, mask, at.place);
  return v;
}
template <class T>
ARK_DEVICE T shfl_down(T v, int delta, Site at = Site::here()) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  emulator::ark_emulator_shuffle(&v, sizeof(T), emulator::Shuffle::kDown, delta, at.place);
  return v;
}
template <class T>
ARK_DEVICE T shfl_up(T v, int delta, Site at = Site::here()) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  emulator::ark_emulator_shuffle(&v, sizeof(T), emulator::Shuffle::kUp, delta, at.place);
  return v;
}
ARK_DEVICE u32 ballot(bool b, Site at = Site::here()) { return emulator::ark_emulator_ballot(b, at.place); }

// ---- numbers

ARK_DEVICE u32 as_u32(float v) { return __builtin_bit_cast(u32, v); }
ARK_DEVICE float as_f32(u32 v) { return __builtin_bit_cast(float, v); }
ARK_DEVICE float to_f32(bf16 v) { return as_f32(static_cast<u32>(v.bits) << 16); }
ARK_DEVICE float to_f32(f16 v) {
  const u32 sign = (v.bits & 0x8000u) << 16, magnitude = v.bits & 0x7fffu;
  if (magnitude >= 0x7c00) return as_f32(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);
  return as_f32(as_u32(as_f32(magnitude << 13) * 0x1p112f) | sign);  // the product is exact, subnormals too
}
ARK_DEVICE bf16 to_bf16(float v) {
  const u32 bits = as_u32(v);
  if ((bits & 0x7fffffff) > 0x7f800000) return {0x7fff};
  return {static_cast<u16>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}
ARK_DEVICE f16 to_f16(float v) {
  const u32 sign = as_u32(v) >> 16 & 0x8000, magnitude = as_u32(v) & 0x7fffffff;
  if (magnitude > 0x7f800000) return {0x7fff};
  if (magnitude >= 0x477ff000) return {static_cast<u16>(sign | 0x7c00)};  // 65520 and more
  // Subnormal: adding 0.5 makes the FPU round at 2^-24.
  if (magnitude < 0x38800000)
    return {static_cast<u16>(sign | (as_u32(as_f32(magnitude) + 0.5f) - 0x3f000000))};
  return {static_cast<u16>(sign | (magnitude + 0xfff + (magnitude >> 13 & 1) - (112u << 23)) >> 13)};
}
ARK_DEVICE u32 pack_bf16(float lo, float hi) {
  return to_bf16(lo).bits | static_cast<u32>(to_bf16(hi).bits) << 16;
}
ARK_DEVICE u32 pack_f16(float lo, float hi) {
  return to_f16(lo).bits | static_cast<u32>(to_f16(hi).bits) << 16;
}
ARK_DEVICE u32 add_bf16x2(u32 a, u32 b) {
  const auto half = [](u32 pair, int shift) { return to_f32(bf16{static_cast<u16>(pair >> shift)}); };
  return pack_bf16(half(a, 0) + half(b, 0), half(a, 16) + half(b, 16));
}
ARK_DEVICE u32 permute_bytes(u32 a, u32 b, u32 selector) {
  const u64 both = u64{b} << 32 | a;
  u32 all = 0;
  for (int i = 0; i < 4; ++i) all |= static_cast<u32>(both >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
  return all;
}
ARK_DEVICE u32 masked_or(u32 v, u32 mask, u32 bits) { return (v & mask) | bits; }
ARK_DEVICE float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
ARK_DEVICE float max(float a, float b) { return std::fmax(a, b); }
ARK_DEVICE float min(float a, float b) { return std::fmin(a, b); }
ARK_DEVICE int max(int a, int b) { return a > b ? a : b; }
ARK_DEVICE int min(int a, int b) { return a < b ? a : b; }
ARK_DEVICE i64 max(i64 a, i64 b) { return a > b ? a : b; }
ARK_DEVICE i64 min(i64 a, i64 b) { return a < b ? a : b; }
ARK_DEVICE float abs(float v) { return std::fabs(v); }
ARK_DEVICE float exp(float v) { return std::exp(v); }
ARK_DEVICE float exp2(float v) {
  const float r = std::exp2(v);
  return r < 0x1p-126f ? 0.0f : r;
}
ARK_DEVICE float log(float v) { return std::log(v); }
ARK_DEVICE float tanh(float v) { return std::tanh(v); }
ARK_DEVICE float erf(float v) { return std::erf(v); }
ARK_DEVICE float sqrt(float v) { return std::sqrt(v); }
ARK_DEVICE float pow(float a, float b) { return std::pow(a, b); }
ARK_DEVICE float sin(float v) { return std::sin(v); }
ARK_DEVICE float cos(float v) { return std::cos(v); }
ARK_DEVICE float expm1(float v) { return std::expm1(v); }
ARK_DEVICE float log1p(float v) { return std::log1p(v); }
ARK_DEVICE float tan(float v) { return std::tan(v); }
ARK_DEVICE float asin(float v) { return std::asin(v); }
ARK_DEVICE float acos(float v) { return std::acos(v); }
ARK_DEVICE float atan(float v) { return std::atan(v); }
ARK_DEVICE float sinh(float v) { return std::sinh(v); }
ARK_DEVICE float cosh(float v) { return std::cosh(v); }
ARK_DEVICE float asinh(float v) { return std::asinh(v); }
ARK_DEVICE float acosh(float v) { return std::acosh(v); }
ARK_DEVICE float atanh(float v) { return std::atanh(v); }
ARK_DEVICE float floor(float v) { return std::floor(v); }
ARK_DEVICE float ceil(float v) { return std::ceil(v); }
ARK_DEVICE float trunc(float v) { return std::trunc(v); }
ARK_DEVICE float round_even(float v) { return std::nearbyint(v); }
ARK_DEVICE float fmod(float a, float b) { return std::fmod(a, b); }
ARK_DEVICE u32 multiply_high(u32 a, u32 b) { return static_cast<u32>(static_cast<u64>(a) * b >> 32); }
ARK_DEVICE int popcount(u32 v) { return __builtin_popcount(v); }
ARK_DEVICE int leading_zeros(u32 v) { return v ? __builtin_clz(v) : 32; }

// ---- matrix units

ARK_DEVICE void ldmatrix_x4(u32 (&r)[4], const void* row, Site at = Site::here()) {
  emulator::ark_emulator_ldmatrix(r, row, false, at.place);
}
ARK_DEVICE void ldmatrix_x4_trans(u32 (&r)[4], const void* row, Site at = Site::here()) {
  emulator::ark_emulator_ldmatrix(r, row, true, at.place);
}
template <class T>
inline constexpr bool kIsF16 = false;
template <>
inline constexpr bool kIsF16<f16> = true;
template <class T, int kRows, int kColumns>
ARK_DEVICE void mma_tile(float (&d)[kRows][kColumns][4], const u32 (&a)[kRows][4],
                         const u32 (&b)[kColumns][2], Site at = Site::here()) {
  const emulator::MmaOperands operands{d[0][0], a[0], b[0], kRows, kColumns, kIsF16<T>};
  emulator::ark_emulator_mma(&operands, at.place);
}
template <class T>
ARK_DEVICE void mma_m16n8k16(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2], Site at = Site::here()) {
  const emulator::MmaOperands operands{d, a, b, 1, 1, kIsF16<T>};
  emulator::ark_emulator_mma(&operands, at.place);
}

// ---- global memory

template <class T>
ARK_DEVICE T ld_nc(const T* p, Site at = Site::here()) {
  static_assert(sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16);
  T v;
  emulator::ark_emulator_read_constant(&v, p, sizeof(T), at.place);
  return v;
}
template <class T>
ARK_DEVICE T ld_global(const T* p, Site at = Site::here()) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16);
  T v;
  emulator::ark_emulator_read(&v, p, sizeof(T), at.place);
  return v;
}
template <class T>
ARK_DEVICE void st_global(T* p, T v, Site at = Site::here()) {
  static_assert(sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16);
  emulator::ark_emulator_write(p, &v, sizeof(T), at.place);
}
ARK_DEVICE void prefetch(const void* p, Site at = Site::here()) {
  emulator::ark_emulator_prefetch(p, at.place);
}

// ---- words that threads talk through

template <Scope S, class T>
ARK_DEVICE T word(emulator::WordOperation operation, const T* p, T v, T expected, Site at) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  static_assert(static_cast<int>(emulator::WordScope::kSystem) == static_cast<int>(Scope::sys));
  return static_cast<T>(emulator::ark_emulator_word(operation, static_cast<emulator::WordScope>(S),
                                                    const_cast<T*>(p), sizeof(T), v, expected, at.place));
}
template <Scope S, class T>
ARK_DEVICE T ld_acquire(const T* p, Site at = Site::here()) {
  return word<S, T>(emulator::WordOperation::kLoadAcquire, p, 0, 0, at);
}
template <Scope S, class T>
ARK_DEVICE T ld_relaxed(const T* p, Site at = Site::here()) {
  return word<S, T>(emulator::WordOperation::kLoadRelaxed, p, 0, 0, at);
}
template <Scope S, class T>
ARK_DEVICE void st_release(T* p, T v, Site at = Site::here()) {
  word<S, T>(emulator::WordOperation::kStoreRelease, p, v, 0, at);
}
template <Scope S, class T>
ARK_DEVICE void st_relaxed(T* p, T v, Site at = Site::here()) {
  word<S, T>(emulator::WordOperation::kStoreRelaxed, p, v, 0, at);
}
template <Scope S, class T>
ARK_DEVICE void red_release_add(T* p, T v, Site at = Site::here()) {
  word<S, T>(emulator::WordOperation::kAddRelease, p, v, 0, at);
}
template <Scope S, class T>
ARK_DEVICE void red_relaxed_add(T* p, T v, Site at = Site::here()) {
  word<S, T>(emulator::WordOperation::kAddRelaxed, p, v, 0, at);
}
template <Scope S, class T>
ARK_DEVICE T atom_add(T* p, T v, Site at = Site::here()) {
  return word<S, T>(emulator::WordOperation::kAdd, p, v, 0, at);
}
template <Scope S, class T>
ARK_DEVICE T atom_cas(T* p, T expected, T v, Site at = Site::here()) {
  return word<S, T>(emulator::WordOperation::kCompareSwap, p, v, expected, at);
}
template <Scope S = Scope::gpu, class T>
ARK_DEVICE T ld_words(const T* p, bool told = true, Site at = Site::here()) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16);
  if (!told) return ld_global(p, at);
  emulator::ark_emulator_check_words(p, sizeof(T), at.place);
  u32 words[sizeof(T) / 4];
  for (u32 i = 0; i < sizeof(T) / 4; ++i) words[i] = ld_relaxed<S>(reinterpret_cast<const u32*>(p) + i, at);
  T v;
  __builtin_memcpy(&v, words, sizeof v);
  return v;
}
template <Scope S = Scope::gpu, class T>
ARK_DEVICE void st_words(T* p, T v, bool told = true, Site at = Site::here()) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16);
  if (!told) return st_global(p, v, at);
  emulator::ark_emulator_check_words(p, sizeof(T), at.place);
  u32 words[sizeof(T) / 4];
  __builtin_memcpy(words, &v, sizeof v);
  for (u32 i = 0; i < sizeof(T) / 4; ++i) {
    emulator::ark_emulator_told(reinterpret_cast<u32*>(p) + i, words[i], at.place);
    st_relaxed<S>(reinterpret_cast<u32*>(p) + i, words[i], at);
  }
}
template <Scope S>
ARK_DEVICE void fence(Site at = Site::here()) {
  emulator::ark_emulator_fence(static_cast<emulator::WordScope>(S), at.place);
}
ARK_DEVICE u32 ld_shared_relaxed(const u32* p, Site at = Site::here()) {
  return ld_relaxed<Scope::cta>(p, at);
}
ARK_DEVICE void st_shared_relaxed(u32* p, u32 v, Site at = Site::here()) { st_relaxed<Scope::cta>(p, v, at); }

// ---- copies of single threads

ARK_DEVICE void cp_async16(void* shared, const void* global, Site at = Site::here()) {
  emulator::ark_emulator_cp_async(shared, global, 16, at.place);
}
ARK_DEVICE void cp_async16_fill(void* shared, const void* global, u32 bytes, Site at = Site::here()) {
  emulator::ark_emulator_cp_async(shared, global, bytes, at.place);
}
ARK_DEVICE void cp_async_commit(Site at = Site::here()) { emulator::ark_emulator_cp_async_commit(at.place); }
template <int kPending>
ARK_DEVICE void cp_async_wait(Site at = Site::here()) {
  emulator::ark_emulator_cp_async_wait(kPending, at.place);
}

// ---- mbarriers; uint64_t and u64 are different types of one size

ARK_DEVICE uint64_t* raw(Mbarrier* barrier) { return reinterpret_cast<uint64_t*>(barrier); }
ARK_DEVICE void cp_async_arrive(Mbarrier* barrier, Site at = Site::here()) {
  emulator::ark_emulator_cp_async_arrive(raw(barrier), at.place);
}
ARK_DEVICE void mbarrier_init(Mbarrier* barrier, u32 arrivals, Site at = Site::here()) {
  emulator::ark_emulator_mbarrier_init(raw(barrier), arrivals, at.place);
}
ARK_DEVICE void mbarrier_inval(Mbarrier* barrier, Site at = Site::here()) {
  emulator::ark_emulator_mbarrier_inval(raw(barrier), at.place);
}
ARK_DEVICE void mbarrier_init_fence(Site at = Site::here()) {
  emulator::ark_emulator_mbarrier_init_fence(at.place);
}
ARK_DEVICE void mbarrier_arrive(Mbarrier* barrier, Site at = Site::here()) {
  emulator::ark_emulator_mbarrier_arrive(raw(barrier), 0, at.place);
}
ARK_DEVICE bool mbarrier_test_wait(Mbarrier* barrier, u32 parity, Site at = Site::here()) {
  return emulator::ark_emulator_mbarrier_try_wait(raw(barrier), parity, at.place);
}
ARK_DEVICE bool mbarrier_try_wait(Mbarrier* barrier, u32 parity, Site at = Site::here()) {
  return emulator::ark_emulator_mbarrier_try_wait(raw(barrier), parity, at.place);
}

#if ARK_HAS_BULK
ARK_DEVICE void fence_proxy_async(Site at = Site::here()) { emulator::ark_emulator_fence_proxy(at.place); }
ARK_DEVICE void mbarrier_arrive_expect(Mbarrier* barrier, u32 bytes, Site at = Site::here()) {
  emulator::ark_emulator_mbarrier_arrive(raw(barrier), bytes, at.place);
}
ARK_DEVICE void bulk_prefetch(const void* global, u32 bytes, Site at = Site::here()) {
  emulator::ark_emulator_bulk_prefetch(global, bytes, at.place);
}
ARK_DEVICE void bulk_load(void* shared, const void* global, u32 bytes, Mbarrier* barrier,
                          Site at = Site::here()) {
  emulator::ark_emulator_bulk_load(shared, global, bytes, raw(barrier), at.place);
}
ARK_DEVICE void bulk_store(void* global, const void* shared, u32 bytes, Site at = Site::here()) {
  emulator::ark_emulator_bulk_store(global, shared, bytes, at.place);
}
ARK_DEVICE void bulk_commit(Site at = Site::here()) { emulator::ark_emulator_bulk_commit(at.place); }
template <int kPending>
ARK_DEVICE void bulk_wait(Site at = Site::here()) {
  emulator::ark_emulator_bulk_wait(kPending, at.place);
}
#endif

// ---- time and waiting

ARK_DEVICE void pause(const void* word, u64 seen, u64 needed, u32 = 20, Site at = Site::here()) {
  emulator::ark_emulator_pause(word, seen, needed, at.place);
}
ARK_DEVICE u64 global_timer_ns() { return emulator::ark_emulator_clock_ns(); }
ARK_DEVICE void trap(Site at = Site::here()) { emulator::ark_emulator_trap(at.place); }

}  // namespace ark::dev
