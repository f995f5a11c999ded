// dma/device.h on a GPU: inline PTX for sm_80 and later. Included by dma/device.h only.
// Longer than most: one small function for each instruction.
#pragma once

#define ARK_DEVICE __device__ __forceinline__
// A kernel of at most `threads` threads a block, one block an SM; its one argument is the POD `Parameters p`.
#define ARK_KERNEL(name, Parameters, threads) \
  extern "C" __global__ void __launch_bounds__(threads, 1) name(const __grid_constant__ Parameters p)
#define ARK_UNROLL _Pragma("unroll")
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define ARK_HAS_BULK 1  // bulk copies, their barriers and proxy fences
#else
#define ARK_HAS_BULK 0
#endif

// Warps give registers to others (setmaxnreg): code for one architecture only. Defined as 0: they keep them there, too.
#if defined(ARK_MOVES_REGISTERS)
#elif defined(__CUDA_ARCH_FEAT_SM90_ALL) || defined(__CUDA_ARCH_FEAT_SM100_ALL) || \
    defined(__CUDA_ARCH_FEAT_SM103_ALL)
#define ARK_MOVES_REGISTERS 1
#else
#define ARK_MOVES_REGISTERS 0
#endif

namespace ark::dev {

inline constexpr bool kHasBulk = ARK_HAS_BULK, kMovesRegisters = ARK_MOVES_REGISTERS;

// The call site of a primitive; nothing on a GPU.
struct Site {
  static __device__ __forceinline__ constexpr Site here() { return {}; }
};

extern __shared__ __align__(1024) u8 ark_shared_arena[];

// ---- where am I

ARK_DEVICE int thread_id() { return threadIdx.x; }
ARK_DEVICE int lane_id() { return threadIdx.x & 31; }
ARK_DEVICE int warp_id() { return threadIdx.x >> 5; }
ARK_DEVICE int block_id() { return blockIdx.x; }
ARK_DEVICE int block_threads() { return blockDim.x; }
ARK_DEVICE int grid_blocks() { return gridDim.x; }
// The block's dynamic shared memory, aligned to 1024 bytes. Not cleared at launch.
ARK_DEVICE u8* shared() { return ark_shared_arena; }
ARK_DEVICE u32 shared_address(const void* p) { return static_cast<u32>(__cvta_generic_to_shared(p)); }

// From here on the warp's threads have kCount registers, fewer than before or more; without ARK_MOVES_REGISTERS they
// keep what they have. All four warps of a warpgroup (warps 4n to 4n + 3) do this. Those that take more wait until
// others of the block have given as many.
template <int kCount>
ARK_DEVICE void give_registers(Site = {}) {
  static_assert(kIsRegisterCount<kCount>);
#if ARK_MOVES_REGISTERS
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
#endif
}
template <int kCount>
ARK_DEVICE void take_registers(Site = {}) {
  static_assert(kIsRegisterCount<kCount>);
#if ARK_MOVES_REGISTERS
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
#endif
}

// ---- barriers of a block, and warps

// All threads of the block.
ARK_DEVICE void sync(Site = {}) { __syncthreads(); }
// Named barriers 1..15: `threads` (multiple of 32) threads of the block in all, those that only arrive
// included.
ARK_DEVICE void bar_sync(int id, int threads, Site = {}) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
ARK_DEVICE void bar_arrive(int id, int threads, Site = {}) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
// bar_sync that tells all threads alike whether any of them has voted for it.
ARK_DEVICE bool bar_sync_or(int id, int threads, bool vote, Site = {}) {
  u32 any;
  asm volatile(
      "{ .reg .pred p, q; setp.ne.u32 p, %3, 0; bar.red.or.pred q, %1, %2, p; selp.u32 %0, 1, 0, q; }"
      : "=r"(any)
      : "r"(id), "r"(threads), "r"(static_cast<u32>(vote))
      : "memory");
  return any != 0;
}
// Whole warp; orders memory among its lanes.
ARK_DEVICE void sync_warp(Site = {}) { __syncwarp(); }
// Whole warp; they order no memory. T: 4 or 8 bytes.
template <class T>
ARK_DEVICE T shfl(T v, int source_lane, Site = {}) {
  return __shfl_sync(0xffffffffu, v, source_lane);
}
template <class T>
ARK_DEVICE T shfl_xor(T v, int mask, Site = {}) {
  return __shfl_xor_sync(0xffffffffu, v, mask);
}
template <class T>
ARK_DEVICE T shfl_down(T v, int delta, Site = {}) {
  return __shfl_down_sync(0xffffffffu, v, delta);
}
template <class T>
ARK_DEVICE T shfl_up(T v, int delta, Site = {}) {
  return __shfl_up_sync(0xffffffffu, v, delta);
}
ARK_DEVICE u32 ballot(bool b, Site = {}) { return __ballot_sync(0xffffffffu, b); }

// ---- numbers

ARK_DEVICE u32 as_u32(float v) { return __float_as_uint(v); }
ARK_DEVICE float as_f32(u32 v) { return __uint_as_float(v); }
ARK_DEVICE float to_f32(bf16 v) { return __uint_as_float(static_cast<u32>(v.bits) << 16); }
ARK_DEVICE float to_f32(f16 v) {
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(v.bits));
  return f;
}
// Round to nearest even; NaN becomes 0x7fff.
ARK_DEVICE bf16 to_bf16(float v) {
  bf16 r;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r.bits) : "f"(v));
  return r;
}
ARK_DEVICE f16 to_f16(float v) {
  f16 r;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r.bits) : "f"(v));
  return r;
}
ARK_DEVICE u32 pack_bf16(float lo, float hi) {
  u32 r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  return r;
}
ARK_DEVICE u32 pack_f16(float lo, float hi) {
  u32 r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  return r;
}
// The sums of both halves; of sm_80's instructions.
ARK_DEVICE u32 add_bf16x2(u32 a, u32 b) {
  u32 r;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(0x3f803f80u), "r"(b));
  return r;
}
// Bytes of b:a, which are numbers 4 to 7 and 0 to 3, by the selector's lowest four digits of four bits.
ARK_DEVICE u32 permute_bytes(u32 a, u32 b, u32 selector) { return __byte_perm(a, b, selector); }
// (v & mask) | bits, in one instruction, which the compiler makes two of.
ARK_DEVICE u32 masked_or(u32 v, u32 mask, u32 bits) {
  u32 r;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(r) : "r"(v), "r"(mask), "r"(bits));
  return r;
}
// Plain operators may be contracted by the compiler only if told to (ark compiles with -fmad=false).
ARK_DEVICE float fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }
ARK_DEVICE float max(float a, float b) { return fmaxf(a, b); }
ARK_DEVICE float min(float a, float b) { return fminf(a, b); }
ARK_DEVICE int max(int a, int b) { return a > b ? a : b; }
ARK_DEVICE int min(int a, int b) { return a < b ? a : b; }
ARK_DEVICE i64 max(i64 a, i64 b) { return a > b ? a : b; }
ARK_DEVICE i64 min(i64 a, i64 b) { return a < b ? a : b; }
ARK_DEVICE float abs(float v) { return fabsf(v); }
ARK_DEVICE float exp(float v) { return expf(v); }
// 2^v, off by 2^-22 of it at most (PTX ISA, ex2.approx.ftz); 0 instead of subnormal numbers. One instruction.
ARK_DEVICE float exp2(float v) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
  return r;
}
ARK_DEVICE float log(float v) { return logf(v); }
ARK_DEVICE float tanh(float v) { return tanhf(v); }
ARK_DEVICE float erf(float v) { return erff(v); }
ARK_DEVICE float sqrt(float v) { return __fsqrt_rn(v); }
ARK_DEVICE float pow(float a, float b) { return powf(a, b); }
ARK_DEVICE float sin(float v) { return sinf(v); }
ARK_DEVICE float cos(float v) { return cosf(v); }
ARK_DEVICE float expm1(float v) { return expm1f(v); }
ARK_DEVICE float log1p(float v) { return log1pf(v); }
ARK_DEVICE float tan(float v) { return tanf(v); }
ARK_DEVICE float asin(float v) { return asinf(v); }
ARK_DEVICE float acos(float v) { return acosf(v); }
ARK_DEVICE float atan(float v) { return atanf(v); }
ARK_DEVICE float sinh(float v) { return sinhf(v); }
ARK_DEVICE float cosh(float v) { return coshf(v); }
ARK_DEVICE float asinh(float v) { return asinhf(v); }
ARK_DEVICE float acosh(float v) { return acoshf(v); }
ARK_DEVICE float atanh(float v) { return atanhf(v); }
ARK_DEVICE float floor(float v) { return floorf(v); }
ARK_DEVICE float ceil(float v) { return ceilf(v); }
ARK_DEVICE float trunc(float v) { return truncf(v); }
ARK_DEVICE float round_even(float v) { return rintf(v); }
ARK_DEVICE float fmod(float a, float b) { return fmodf(a, b); }
ARK_DEVICE u32 multiply_high(u32 a, u32 b) { return __umulhi(a, b); }
ARK_DEVICE int popcount(u32 v) { return __popc(v); }
ARK_DEVICE int leading_zeros(u32 v) { return __clz(v); }

// ---- matrix units; whole warp

// Four 8x8 matrices of 16-bit elements from shared memory: lane 8 * m + r gives the address (aligned to 16)
// of row r of matrix m; lane l gets in r[m] the elements 2 * (l % 4) and + 1 of row l / 4 (of its transpose).
ARK_DEVICE void ldmatrix_x4(u32 (&r)[4], const void* row, Site = {}) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}
ARK_DEVICE void ldmatrix_x4_trans(u32 (&r)[4], const void* row, Site = {}) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}
// d += a b with a 16x16 (row major), b 16x8 (column major), d 16x8 f32. With g = lane / 4, t = lane % 4:
// a[i] holds row g + 8 * (i % 2), columns 2t + 8 * (i / 2) and + 1; b[i] rows 2t + 8i and + 1, column g;
// d[i] row g + 8 * (i / 2), column 2t + i % 2. Products are exact; the order of the sum is the machine's.
template <class T>
ARK_DEVICE void mma_m16n8k16(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2], Site = {});
template <>
ARK_DEVICE void mma_m16n8k16<f16>(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2], Site) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
template <>
ARK_DEVICE void mma_m16n8k16<bf16>(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2], Site) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
// Rows x columns of them; one collective in the emulator, so much faster there.
template <class T, int kRows, int kColumns>
ARK_DEVICE void mma_tile(float (&d)[kRows][kColumns][4], const u32 (&a)[kRows][4],
                         const u32 (&b)[kColumns][2], Site = {}) {
  ARK_UNROLL
  for (int i = 0; i < kRows; i++) {
    ARK_UNROLL
    for (int j = 0; j < kColumns; j++) mma_m16n8k16<T>(d[i][j], a[i], b[j]);
  }
}

// ---- global memory

// Constant for the whole kernel (read-only path). T: 4, 8 or 16 bytes.
template <class T>
ARK_DEVICE T ld_nc(const T* p, Site = {}) {
  static_assert(sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16);
  T v;
  if constexpr (sizeof(T) == 2) {
    u16 x;
    asm("ld.global.nc.u16 %0, [%1];" : "=h"(x) : "l"(p));
    memcpy(&v, &x, 2);
  } else if constexpr (sizeof(T) == 4) {
    u32 x;
    asm("ld.global.nc.u32 %0, [%1];" : "=r"(x) : "l"(p));
    memcpy(&v, &x, 4);
  } else if constexpr (sizeof(T) == 8) {
    u32x2 x;
    asm("ld.global.nc.v2.u32 {%0,%1}, [%2];" : "=r"(x.x), "=r"(x.y) : "l"(p));
    memcpy(&v, &x, 8);
  } else {
    u32x4 x;
    asm("ld.global.nc.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "l"(p));
    memcpy(&v, &x, 16);
  }
  return v;
}
// Memory that other blocks write while the kernel runs: read from L2, never from a stale L1 line. Needs an
// acquire before, as all plain reads of such memory do. T: 4, 8 or 16 bytes.
template <class T>
ARK_DEVICE T ld_global(const T* p, Site = {}) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16);
  T v;
  if constexpr (sizeof(T) == 4) {
    u32 x;
    asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(x) : "l"(p) : "memory");
    memcpy(&v, &x, 4);
  } else if constexpr (sizeof(T) == 8) {
    u32x2 x;
    asm volatile("ld.global.cg.v2.u32 {%0,%1}, [%2];" : "=r"(x.x), "=r"(x.y) : "l"(p) : "memory");
    memcpy(&v, &x, 8);
  } else {
    u32x4 x;
    asm volatile("ld.global.cg.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "l"(p)
                 : "memory");
    memcpy(&v, &x, 16);
  }
  return v;
}
// A plain store of 2, 4, 8 or 16 bytes, where the compiler cannot tell that p is into global memory: without it the
// machine finds out, each time.
template <class T>
ARK_DEVICE void st_global(T* p, T v, Site = {}) {
  static_assert(sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16);
  if constexpr (sizeof(T) == 2) {
    u16 x;
    memcpy(&x, &v, 2);
    asm volatile("st.global.u16 [%0], %1;" ::"l"(p), "h"(x) : "memory");
  } else if constexpr (sizeof(T) == 4) {
    u32 x;
    memcpy(&x, &v, 4);
    asm volatile("st.global.u32 [%0], %1;" ::"l"(p), "r"(x) : "memory");
  } else if constexpr (sizeof(T) == 8) {
    u32x2 x;
    memcpy(&x, &v, 8);
    asm volatile("st.global.v2.u32 [%0], {%1,%2};" ::"l"(p), "r"(x.x), "r"(x.y) : "memory");
  } else {
    u32x4 x;
    memcpy(&x, &v, 16);
    asm volatile("st.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(p), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
                 : "memory");
  }
}
// The same of memory whose words say themselves that they are there (engine/cuda/lamport.h): each 32-bit word of T is
// relaxed, of the gpu scope or, between GPUs, of sys, by itself. No acquire is needed, and nothing but these words is
// ordered. Not `told`: the memory has no such words, so these are ld_global() and st_global(), which the emulator holds
// them to. T: 4, 8 or 16 bytes; of sys 16.
template <Scope S = Scope::gpu, class T>
ARK_DEVICE T ld_words(const T* p, [[maybe_unused]] bool told = true, Site = {}) {
  static_assert(sizeof(T) == 16 || (S == Scope::gpu && (sizeof(T) == 4 || sizeof(T) == 8)));
  T v;
  if constexpr (S == Scope::sys) {
    u32x4 x;
    asm volatile("ld.relaxed.sys.global.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "l"(p)
                 : "memory");
    memcpy(&v, &x, 16);
  } else if constexpr (sizeof(T) == 4) {
    u32 x;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(p) : "memory");
    memcpy(&v, &x, 4);
  } else if constexpr (sizeof(T) == 8) {
    u32x2 x;
    asm volatile("ld.relaxed.gpu.global.v2.u32 {%0,%1}, [%2];" : "=r"(x.x), "=r"(x.y) : "l"(p) : "memory");
    memcpy(&v, &x, 8);
  } else {
    u32x4 x;
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "l"(p)
                 : "memory");
    memcpy(&v, &x, 16);
  }
  return v;
}
template <Scope S = Scope::gpu, class T>
ARK_DEVICE void st_words(T* p, T v, [[maybe_unused]] bool told = true, Site = {}) {
  static_assert(sizeof(T) == 16 || (S == Scope::gpu && (sizeof(T) == 4 || sizeof(T) == 8)));
  if constexpr (S == Scope::sys) {
    u32x4 x;
    memcpy(&x, &v, 16);
    asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(p), "r"(x.x), "r"(x.y), "r"(x.z),
                 "r"(x.w)
                 : "memory");
  } else if constexpr (sizeof(T) == 4) {
    u32 x;
    memcpy(&x, &v, 4);
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(x) : "memory");
  } else if constexpr (sizeof(T) == 8) {
    u32x2 x;
    memcpy(&x, &v, 8);
    asm volatile("st.relaxed.gpu.global.v2.u32 [%0], {%1,%2};" ::"l"(p), "r"(x.x), "r"(x.y) : "memory");
  } else {
    u32x4 x;
    memcpy(&x, &v, 16);
    asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(p), "r"(x.x), "r"(x.y), "r"(x.z),
                 "r"(x.w)
                 : "memory");
  }
}
// Asks for p's line of 128 bytes in L2, so that a later load finds it there. It reads nothing, orders nothing and is
// waited for by nobody.
ARK_DEVICE void prefetch(const void* p, Site = {}) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

// ---- words that threads talk through: T is u32 or u64. Only these functions may touch such a word.
#define ARK_SCOPED(instruction, type, constraint)      \
  if constexpr (S == Scope::cta) {                     \
    ARK_SCOPED_##instruction("cta", type, constraint); \
  } else if constexpr (S == Scope::gpu) {              \
    ARK_SCOPED_##instruction("gpu", type, constraint); \
  } else {                                             \
    ARK_SCOPED_##instruction("sys", type, constraint); \
  }
#define ARK_SCOPED_ACQUIRE(scope, type, c) \
  asm volatile("ld.acquire." scope ".global." type " %0, [%1];" : "=" c(v) : "l"(p) : "memory")
#define ARK_SCOPED_LOAD(scope, type, c) \
  asm volatile("ld.relaxed." scope ".global." type " %0, [%1];" : "=" c(v) : "l"(p) : "memory")
#define ARK_SCOPED_RELEASE(scope, type, c) \
  asm volatile("st.release." scope ".global." type " [%0], %1;" ::"l"(p), c(v) : "memory")
#define ARK_SCOPED_STORE(scope, type, c) \
  asm volatile("st.relaxed." scope ".global." type " [%0], %1;" ::"l"(p), c(v) : "memory")
#define ARK_SCOPED_RED_RELEASE(scope, type, c) \
  asm volatile("red.release." scope ".global.add." type " [%0], %1;" ::"l"(p), c(v) : "memory")
#define ARK_SCOPED_RED_RELAXED(scope, type, c) \
  asm volatile("red.relaxed." scope ".global.add." type " [%0], %1;" ::"l"(p), c(v) : "memory")
#define ARK_SCOPED_ATOM_ADD(scope, type, c)                               \
  asm volatile("atom.acq_rel." scope ".global.add." type " %0, [%1], %2;" \
               : "=" c(old)                                               \
               : "l"(p), c(v)                                             \
               : "memory")
#define ARK_SCOPED_ATOM_CAS(scope, type, c)                                   \
  asm volatile("atom.acq_rel." scope ".global.cas." type " %0, [%1], %2, %3;" \
               : "=" c(old)                                                   \
               : "l"(p), c(expected), c(v)                                    \
               : "memory")
#define ARK_SCOPED_WIDTH(instruction, letter) \
  if constexpr (sizeof(T) == 4) {             \
    ARK_SCOPED(instruction, letter "32", "r") \
  } else {                                    \
    ARK_SCOPED(instruction, letter "64", "l") \
  }

template <Scope S, class T>
ARK_DEVICE T ld_acquire(const T* p, Site = {}) {
  T v;
  ARK_SCOPED_WIDTH(ACQUIRE, "u")
  return v;
}
template <Scope S, class T>
ARK_DEVICE T ld_relaxed(const T* p, Site = {}) {
  T v;
  ARK_SCOPED_WIDTH(LOAD, "u")
  return v;
}
template <Scope S, class T>
ARK_DEVICE void st_release(T* p, T v, Site = {}) {
  ARK_SCOPED_WIDTH(RELEASE, "u")
}
template <Scope S, class T>
ARK_DEVICE void st_relaxed(T* p, T v, Site = {}) {
  ARK_SCOPED_WIDTH(STORE, "u")
}
template <Scope S, class T>
ARK_DEVICE void red_release_add(T* p, T v, Site = {}) {
  ARK_SCOPED_WIDTH(RED_RELEASE, "u")
}
template <Scope S, class T>
ARK_DEVICE void red_relaxed_add(T* p, T v, Site = {}) {
  ARK_SCOPED_WIDTH(RED_RELAXED, "u")
}
// Acquire and release; returns the old value.
template <Scope S, class T>
ARK_DEVICE T atom_add(T* p, T v, Site = {}) {
  T old;
  ARK_SCOPED_WIDTH(ATOM_ADD, "u")
  return old;
}
// Acquire and release; stores `v` if *p == expected; returns the old value.
template <Scope S, class T>
ARK_DEVICE T atom_cas(T* p, T expected, T v, Site = {}) {
  T old;
  ARK_SCOPED_WIDTH(ATOM_CAS, "b")
  return old;
}
#undef ARK_SCOPED
#undef ARK_SCOPED_ACQUIRE
#undef ARK_SCOPED_LOAD
#undef ARK_SCOPED_RELEASE
#undef ARK_SCOPED_STORE
#undef ARK_SCOPED_RED_RELEASE
#undef ARK_SCOPED_ATOM_ADD
#undef ARK_SCOPED_ATOM_CAS
#undef ARK_SCOPED_WIDTH

// Acquire and release: makes relaxed accesses around it order what stands before and after.
template <Scope S>
ARK_DEVICE void fence(Site = {}) {
  if constexpr (S == Scope::cta) asm volatile("fence.acq_rel.cta;" ::: "memory");
  if constexpr (S == Scope::gpu) asm volatile("fence.acq_rel.gpu;" ::: "memory");
  if constexpr (S == Scope::sys) asm volatile("fence.acq_rel.sys;" ::: "memory");
}

// A word in shared memory that threads of the block read and write without a barrier between them.
ARK_DEVICE u32 ld_shared_relaxed(const u32* p, Site = {}) {
  u32 v;
  asm volatile("ld.relaxed.cta.shared.u32 %0, [%1];" : "=r"(v) : "r"(shared_address(p)) : "memory");
  return v;
}
ARK_DEVICE void st_shared_relaxed(u32* p, u32 v, Site = {}) {
  asm volatile("st.relaxed.cta.shared.u32 [%0], %1;" ::"r"(shared_address(p)), "r"(v) : "memory");
}

// ---- copies of single threads: global to shared, 16 bytes, both ends aligned to 16 (cp.async)

ARK_DEVICE void cp_async16(void* shared, const void* global, Site = {}) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(shared)), "l"(global)
               : "memory");
}
// Copies `bytes` (0..16) and fills the rest of the 16 with zeros.
ARK_DEVICE void cp_async16_fill(void* shared, const void* global, u32 bytes, Site = {}) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global),
               "r"(bytes)
               : "memory");
}
// Closes the group of the thread's copies since the last commit.
ARK_DEVICE void cp_async_commit(Site = {}) { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most the `kPending` newest groups of this thread are not complete. Other threads see the
// bytes after a barrier.
template <int kPending>
ARK_DEVICE void cp_async_wait(Site = {}) {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}
// Arrives at the barrier once all earlier copies of this thread are complete; counts as one of its arrivals.
ARK_DEVICE void cp_async_arrive(Mbarrier* barrier, Site = {}) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// ---- mbarriers

// By one thread; others may use it after mbarrier_init_fence (by the same thread) and a block barrier.
ARK_DEVICE void mbarrier_init(Mbarrier* barrier, u32 arrivals, Site = {}) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
// By one thread, of a barrier that no other uses any more: its memory may be initialised anew then.
ARK_DEVICE void mbarrier_inval(Mbarrier* barrier, Site = {}) {
  asm volatile("mbarrier.inval.shared.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}
ARK_DEVICE void mbarrier_init_fence(Site = {}) {
#if ARK_HAS_BULK
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}
// Release.
ARK_DEVICE void mbarrier_arrive(Mbarrier* barrier, Site = {}) {
  asm volatile("{ .reg .b64 t; mbarrier.arrive.shared.b64 t, [%0]; }" ::"r"(shared_address(barrier))
               : "memory");
}
// Whether the phase of `parity` is complete: true also while the next one is the current. Acquire if so.
ARK_DEVICE bool mbarrier_test_wait(Mbarrier* barrier, u32 parity, Site = {}) {
  u32 done;
  asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
               : "=r"(done)
               : "r"(shared_address(barrier)), "r"(parity)
               : "memory");
  return done != 0;
}
// The same; may suspend the thread for a time that the machine chooses.
ARK_DEVICE bool mbarrier_try_wait(Mbarrier* barrier, u32 parity, Site = {}) {
  u32 done;
#if ARK_HAS_BULK
  asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
               : "=r"(done)
               : "r"(shared_address(barrier)), "r"(parity)
               : "memory");
#else
  done = mbarrier_test_wait(barrier, parity);
#endif
  return done != 0;
}

// ---- bulk copies by the copy engine, sm_90 on (ARK_HAS_BULK). It is the "async proxy": bytes that threads
// wrote (generic proxy) need fence_proxy_async between the write and the copy, in order with both.
#if ARK_HAS_BULK
ARK_DEVICE void fence_proxy_async(Site = {}) { asm volatile("fence.proxy.async;" ::: "memory"); }
// Arrives, and makes the current phase wait for `bytes` more bytes of copies.
ARK_DEVICE void mbarrier_arrive_expect(Mbarrier* barrier, u32 bytes, Site = {}) {
  asm volatile(
      "{ .reg .b64 t; mbarrier.arrive.expect_tx.shared.b64 t, [%0], %1; }" ::"r"(shared_address(barrier)),
      "r"(bytes)
      : "memory");
}
// Asks for so many bytes in L2; address and bytes are multiples of 16. As prefetch(), by the copy engine.
ARK_DEVICE void bulk_prefetch(const void* global, u32 bytes, Site = {}) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(global), "r"(bytes));
}
// Global to shared; addresses and bytes are multiples of 16. Completes `bytes` at the barrier. One thread.
// Read once a step: the lines leave L2 first.
ARK_DEVICE void bulk_load(void* shared, const void* global, u32 bytes, Mbarrier* barrier, Site = {}) {
  u64 policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, "
      "[%3], "
      "%4;" ::"r"(shared_address(shared)),
      "l"(global), "r"(bytes), "r"(shared_address(barrier)), "l"(policy)
      : "memory");
}
// Shared to global, in groups of this thread; addresses and bytes are multiples of 16.
ARK_DEVICE void bulk_store(void* global, const void* shared, u32 bytes, Site = {}) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global),
               "r"(shared_address(shared)), "r"(bytes)
               : "memory");
}
ARK_DEVICE void bulk_commit(Site = {}) { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Waits until at most `kPending` groups are not complete: their bytes are written.
template <int kPending>
ARK_DEVICE void bulk_wait(Site = {}) {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kPending) : "memory");
}
#endif

// ---- time and waiting

// Inside a polling loop, after a look that was in vain: `seen` at `word`, `needed` wanted. Sleeps about
// `nanoseconds` on a GPU; gives way to other threads in the emulator, which also reports what is waited for.
ARK_DEVICE void pause(const void* word, u64 seen, u64 needed, u32 nanoseconds = 20, Site = {}) {
  (void)word, (void)seen, (void)needed;
  asm volatile("nanosleep.u32 %0;" ::"r"(nanoseconds));
}
// One clock for all SMs; resolution 32 ns to 1 us.
ARK_DEVICE u64 global_timer_ns() {
  u64 t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
  return t;
}
// Ends the kernel with an error.
ARK_DEVICE void trap(Site = {}) { asm volatile("trap;"); }

}  // namespace ark::dev
