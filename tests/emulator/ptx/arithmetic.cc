// What PTX's arithmetic computes: one row for each name, so that a modifier that is not known has none.
#include <bit>
#include <cfenv>
#include <cmath>
#include <limits>
#include <type_traits>

#include "dma/device.h"
#include "tests/emulator/ptx/ptx.h"

namespace ark::emulator::ptx {
namespace {

using Compute = uint64_t (*)(const uint64_t*);
using Table = std::unordered_map<std::string, Compute>;

template <int kBytes>
using Bits = std::conditional_t<
    kBytes == 1, uint8_t,
    std::conditional_t<kBytes == 2, uint16_t, std::conditional_t<kBytes == 4, uint32_t, uint64_t>>>;
template <class T>
T get(uint64_t v) {
  return std::bit_cast<T>(static_cast<Bits<sizeof(T)>>(v));
}
template <class T>
uint64_t put(T v) {
  return std::bit_cast<Bits<sizeof(T)>>(v);
}
// NaNs that arithmetic makes are canonical.
uint64_t put_float(float v) { return v != v ? 0x7fffffff : put(v); }

// ARK_PTX("add.s32", T, a + b): an operation on up to four operands of one type.
#define ARK_PTX(name, T, expression)                                               \
  table[name] = [](const uint64_t* v) -> uint64_t {                                \
    [[maybe_unused]] const T a = get<T>(v[0]), b = get<T>(v[1]), c = get<T>(v[2]); \
    return put<T>(static_cast<T>(expression));                                     \
  }
#define ARK_PTX_RAW(name, expression) table[name] = [](const uint64_t* v) -> uint64_t { return expression; }

template <class T>
void add_comparisons(Table& table, const std::string& type) {
#define ARK_PTX_COMPARE(name, expression)                                                                  \
  {                                                                                                        \
    using Test = decltype([](const uint64_t* v) {                                                          \
      const T a = get<T>(v[0]), b = get<T>(v[1]);                                                          \
      return expression;                                                                                   \
    });                                                                                                    \
    const std::string start = std::string("setp.") + (name) + ".";                                         \
    table[start + type] = [](const uint64_t* v) -> uint64_t { return Test{}(v); };                         \
    table[start + "and." + type] = [](const uint64_t* v) -> uint64_t { return Test{}(v) && v[2]; };        \
    table[start + "or." + type] = [](const uint64_t* v) -> uint64_t { return Test{}(v) || v[2]; };         \
    table[start + "xor." + type] = [](const uint64_t* v) -> uint64_t { return Test{}(v) != (v[2] != 0); }; \
  }
  if constexpr (std::is_floating_point_v<T>) {
    ARK_PTX_COMPARE("eq", a == b)
    ARK_PTX_COMPARE("ne", a < b || a > b)
    ARK_PTX_COMPARE("equ", !(a < b || a > b))
    ARK_PTX_COMPARE("neu", a != b)
    ARK_PTX_COMPARE("ltu", !(a >= b))
    ARK_PTX_COMPARE("leu", !(a > b))
    ARK_PTX_COMPARE("gtu", !(a <= b))
    ARK_PTX_COMPARE("geu", !(a < b))
    ARK_PTX_COMPARE("num", a == a && b == b)
    ARK_PTX_COMPARE("nan", a != a || b != b)
  } else {
    ARK_PTX_COMPARE("eq", a == b)
    ARK_PTX_COMPARE("ne", a != b)
  }
  ARK_PTX_COMPARE("lt", a < b)
  ARK_PTX_COMPARE("le", a <= b)
  ARK_PTX_COMPARE("gt", a > b)
  ARK_PTX_COMPARE("ge", a >= b)
#undef ARK_PTX_COMPARE
}

template <class T>
void add_integers(Table& table, const std::string& type) {
  using U = std::make_unsigned_t<T>;
  using Wide = std::conditional_t<std::is_signed_v<T>, __int128, unsigned __int128>;
  constexpr int kBits = sizeof(T) * 8;
  add_comparisons<T>(table, type);
  ARK_PTX("add." + type, T, U(a) + U(b));
  ARK_PTX("sub." + type, T, U(a) - U(b));
  ARK_PTX("mul.lo." + type, T, uint64_t(U(a)) * U(b));
  ARK_PTX("mad.lo." + type, T, uint64_t(U(a)) * U(b) + U(c));
  ARK_PTX("mul.hi." + type, T, Wide(a) * Wide(b) >> kBits);
  ARK_PTX_RAW("mul.wide." + type, sizeof(T) == 2
                                      ? static_cast<uint32_t>(Wide(get<T>(v[0])) * Wide(get<T>(v[1])))
                                      : static_cast<uint64_t>(Wide(get<T>(v[0])) * Wide(get<T>(v[1]))));
  ARK_PTX_RAW("mad.wide." + type,
              sizeof(T) == 2 ? static_cast<uint32_t>(Wide(get<T>(v[0])) * Wide(get<T>(v[1])) + v[2])
                             : static_cast<uint64_t>(Wide(get<T>(v[0])) * Wide(get<T>(v[1])) + v[2]));
  ARK_PTX("div." + type, T, b == 0 ? T(-1) : Wide(a) / Wide(b));
  ARK_PTX("rem." + type, T, b == 0 ? a : Wide(a) % Wide(b));
  ARK_PTX("min." + type, T, a < b ? a : b);
  ARK_PTX("max." + type, T, a > b ? a : b);
  ARK_PTX("neg." + type, T, U(0) - U(a));
  ARK_PTX("abs." + type, T, a < T(0) ? U(0) - U(a) : U(a));
  ARK_PTX("selp." + type, T, v[2] ? a : b);
  ARK_PTX_RAW("shr." + type,
              put<T>(static_cast<T>(get<T>(v[0]) >>
                                    (get<uint32_t>(v[1]) < kBits - 1 ? get<uint32_t>(v[1]) : kBits - 1) >>
                                    (get<uint32_t>(v[1]) >= kBits ? 1 : 0))));
}

// bfi d, a, b, at, length: the low bits of a into b.
template <class T>
uint64_t inserted(const uint64_t* v) {
  const uint64_t at = v[2] & 255, length = v[3] & 255;
  T d = get<T>(v[1]);
  for (uint64_t i = 0; i < length && at + i < sizeof(T) * 8; i++)
    d = static_cast<T>((d & ~(T{1} << (at + i))) | (get<T>(v[0]) >> i & 1) << (at + i));
  return put<T>(d);
}

template <class T>
void add_bits(Table& table, const std::string& type) {
  constexpr int kBits = sizeof(T) * 8;
  ARK_PTX("and." + type, T, a & b);
  ARK_PTX("or." + type, T, a | b);
  ARK_PTX("xor." + type, T, a ^ b);
  ARK_PTX("not." + type, T, ~a);
  ARK_PTX("selp." + type, T, v[2] ? a : b);
  ARK_PTX_RAW("shl." + type, get<uint32_t>(v[1]) < kBits ? put<T>(static_cast<T>(get<T>(v[0]) << v[1])) : 0);
  ARK_PTX_RAW("shr." + type, get<uint32_t>(v[1]) < kBits ? put<T>(static_cast<T>(get<T>(v[0]) >> v[1])) : 0);
  ARK_PTX_RAW("popc." + type, std::popcount(get<T>(v[0])));
  ARK_PTX_RAW("clz." + type, std::countl_zero(get<T>(v[0])));
  add_comparisons<T>(table, type);
  ARK_PTX_RAW("bfi." + type, inserted<T>(v));
}

// `mode`: of <cfenv>. What the compiler knows about numbers must not be used across the change.
template <class T>
T fused(T a, T b, T c, int mode) {
  volatile T x = a, y = b, z = c;
  std::fesetround(mode);
  volatile T r = std::fma(x, y, z);
  std::fesetround(FE_TONEAREST);
  return r;
}

template <class T>
T smaller(T a, T b) {
  if (a == b) return std::signbit(a) ? a : b;  // -0 is less than +0
  return std::fmin(a, b);
}

template <class T>
void add_floats(Table& table, const std::string& type) {
  add_comparisons<T>(table, type);
  ARK_PTX("add.rn." + type, T, a + b);
  ARK_PTX("add.rz." + type, T, fused(a, T(1), b, FE_TOWARDZERO));
  ARK_PTX("sub.rn." + type, T, a - b);
  ARK_PTX("mul.rn." + type, T, a * b);
  ARK_PTX("div.rn." + type, T, a / b);
  ARK_PTX("sqrt.rn." + type, T, std::sqrt(a));
  ARK_PTX("rcp.rn." + type, T, T(1) / a);
  ARK_PTX("fma.rn." + type, T, std::fma(a, b, c));
  ARK_PTX("fma.rm." + type, T, fused(a, b, c, FE_DOWNWARD));
  ARK_PTX("fma.rp." + type, T, fused(a, b, c, FE_UPWARD));
  ARK_PTX("fma.rz." + type, T, fused(a, b, c, FE_TOWARDZERO));
  ARK_PTX("neg." + type, T, -a);
  ARK_PTX("abs." + type, T, std::fabs(a));
  ARK_PTX("min." + type, T, smaller(a, b));
  ARK_PTX("max." + type, T, -smaller(-a, -b));
  ARK_PTX("copysign." + type, T, std::copysign(b, a));
  ARK_PTX("selp." + type, T, v[2] ? a : b);
  ARK_PTX("cvt.rni." + type + "." + type, T, std::nearbyint(a));
  ARK_PTX("cvt.rzi." + type + "." + type, T, std::trunc(a));
  ARK_PTX("cvt.rmi." + type + "." + type, T, std::floor(a));
  ARK_PTX("cvt.rpi." + type + "." + type, T, std::ceil(a));
  ARK_PTX("cvt.sat." + type + "." + type, T, a > T(1) ? T(1) : a > T(0) ? a : T(0));
}

// Out of range: the nearest; NaN: 0, of 64 bits the smallest (of s64) or the largest, as machines give it.
template <class To, class From>
uint64_t to_integer(From v) {
  if (v != v) return sizeof(To) == 8 ? uint64_t{1} << 63 : 0;
  constexpr From kEnd = static_cast<From>(std::numeric_limits<To>::max() / 2 + 1) * 2;
  if (v >= kEnd) return put(std::numeric_limits<To>::max());
  if (v < static_cast<From>(std::numeric_limits<To>::min())) return put(std::numeric_limits<To>::min());
  return put(static_cast<To>(v));
}

template <class To, class From>
void add_conversion(Table& table, const std::string& to, const std::string& from) {
  const std::string types = "." + to + "." + from;
  if constexpr (std::is_integral_v<To> && std::is_integral_v<From>) {
    ARK_PTX_RAW("cvt" + types, put<To>(static_cast<To>(get<From>(v[0]))));
  } else if constexpr (std::is_integral_v<From>) {
    ARK_PTX_RAW("cvt.rn" + types, put<To>(static_cast<To>(get<From>(v[0]))));
  } else if constexpr (std::is_integral_v<To>) {
    ARK_PTX_RAW("cvt.rni" + types, (to_integer<To>(std::nearbyint(get<From>(v[0])))));
    ARK_PTX_RAW("cvt.rzi" + types, (to_integer<To>(std::trunc(get<From>(v[0])))));
    ARK_PTX_RAW("cvt.rmi" + types, (to_integer<To>(std::floor(get<From>(v[0])))));
    ARK_PTX_RAW("cvt.rpi" + types, (to_integer<To>(std::ceil(get<From>(v[0])))));
  }
}
template <class To>
void add_conversions(Table& table, const std::string& to) {
  add_conversion<To, int8_t>(table, to, "s8"), add_conversion<To, uint8_t>(table, to, "u8");
  add_conversion<To, int16_t>(table, to, "s16"), add_conversion<To, uint16_t>(table, to, "u16");
  add_conversion<To, int32_t>(table, to, "s32"), add_conversion<To, uint32_t>(table, to, "u32");
  add_conversion<To, int64_t>(table, to, "s64"), add_conversion<To, uint64_t>(table, to, "u64");
  add_conversion<To, float>(table, to, "f32"), add_conversion<To, double>(table, to, "f64");
}

float flushed(float v) { return std::fpclassify(v) == FP_SUBNORMAL ? std::copysign(0.0f, v) : v; }
uint64_t funnel(const uint64_t* v, bool left) {
  const uint64_t both = (v[1] << 32) | static_cast<uint32_t>(v[0]), by = v[2] & 31;
  return left ? static_cast<uint32_t>(both << by >> 32) : static_cast<uint32_t>(both >> by);
}
// Rounded once, where the products are exact, as those with 1 are.
uint64_t fma_bf16x2(const uint64_t* v) {
  const auto half = [&](int operand, int shift) {
    return dev::to_f32(dev::bf16{static_cast<uint16_t>(v[operand] >> shift)});
  };
  const auto sum = [&](int shift) { return std::fma(half(0, shift), half(1, shift), half(2, shift)); };
  return dev::pack_bf16(sum(0), sum(16));
}
uint64_t permuted(const uint64_t* v) {
  const uint64_t both = (v[1] << 32) | static_cast<uint32_t>(v[0]);
  uint64_t d = 0;
  for (int i = 0; i < 4; i++) {
    const uint64_t selector = v[2] >> 4 * i & 15, byte = both >> 8 * (selector & 7) & 255;
    d |= (selector & 8 ? (byte & 128 ? 255 : 0) : byte) << 8 * i;
  }
  return d;
}
// Each bit by the table's bit of that number, the first operand's the highest (PTX ISA, lop3).
uint64_t looked_up(const uint64_t* v) {
  uint64_t d = 0;
  for (int i = 0; i < 32; i++) {
    const uint64_t number = (v[0] >> i & 1) << 2 | (v[1] >> i & 1) << 1 | (v[2] >> i & 1);
    d |= (v[3] >> number & 1) << i;
  }
  return d;
}

Table make_table() {
  Table table;
  add_integers<int16_t>(table, "s16"), add_integers<uint16_t>(table, "u16");
  add_integers<int32_t>(table, "s32"), add_integers<uint32_t>(table, "u32");
  add_integers<int64_t>(table, "s64"), add_integers<uint64_t>(table, "u64");
  add_bits<uint16_t>(table, "b16"), add_bits<uint32_t>(table, "b32"), add_bits<uint64_t>(table, "b64");
  add_floats<float>(table, "f32"), add_floats<double>(table, "f64");
  add_conversions<int16_t>(table, "s16"), add_conversions<uint16_t>(table, "u16");
  add_conversions<int32_t>(table, "s32"), add_conversions<uint32_t>(table, "u32");
  add_conversions<int64_t>(table, "s64"), add_conversions<uint64_t>(table, "u64");
  add_conversions<float>(table, "f32"), add_conversions<double>(table, "f64");
  ARK_PTX_RAW("and.pred", v[0] && v[1]);
  ARK_PTX_RAW("or.pred", v[0] || v[1]);
  ARK_PTX_RAW("xor.pred", v[0] != v[1]);
  ARK_PTX_RAW("not.pred", !v[0]);
  ARK_PTX_RAW("shf.l.wrap.b32", funnel(v, true));
  ARK_PTX_RAW("shf.r.wrap.b32", funnel(v, false));
  ARK_PTX_RAW("prmt.b32", permuted(v));
  ARK_PTX_RAW("lop3.b32", looked_up(v));
  ARK_PTX_RAW("cvt.f64.f32", put<double>(get<float>(v[0])));
  ARK_PTX_RAW("cvt.rn.f32.f64", put_float(static_cast<float>(get<double>(v[0]))));
  // Approximations: hardware is within its documented error of these.
  ARK_PTX_RAW("ex2.approx.ftz.f32", put_float(flushed(std::exp2(flushed(get<float>(v[0]))))));
  ARK_PTX_RAW("ex2.approx.f32", put_float(std::exp2(get<float>(v[0]))));
  ARK_PTX_RAW("lg2.approx.ftz.f32", put_float(std::log2(flushed(get<float>(v[0])))));
  ARK_PTX_RAW("rcp.approx.ftz.f32", put_float(flushed(1.0f / flushed(get<float>(v[0])))));
  ARK_PTX_RAW("rsqrt.approx.ftz.f32", put_float(1.0f / std::sqrt(flushed(get<float>(v[0])))));
  ARK_PTX("div.approx.f32", float, a / b);
  ARK_PTX("div.approx.ftz.f32", float, flushed(flushed(a) / flushed(b)));
  // The second operand of a pair is its lower half.
  ARK_PTX_RAW("cvt.f32.f16", put(dev::to_f32(dev::f16{static_cast<uint16_t>(v[0])})));
  ARK_PTX_RAW("cvt.rn.f16.f32", dev::to_f16(get<float>(v[0])).bits);
  ARK_PTX_RAW("cvt.rn.bf16.f32", dev::to_bf16(get<float>(v[0])).bits);
  ARK_PTX_RAW("cvt.rn.f16x2.f32", dev::pack_f16(get<float>(v[1]), get<float>(v[0])));
  ARK_PTX_RAW("cvt.rn.bf16x2.f32", dev::pack_bf16(get<float>(v[1]), get<float>(v[0])));
  ARK_PTX_RAW("fma.rn.bf16x2", fma_bf16x2(v));
  return table;
}

}  // namespace

Compute arithmetic(const std::string& name) {
  static const Table table = make_table();
  const auto found = table.find(name);
  return found == table.end() ? nullptr : found->second;
}

}  // namespace ark::emulator::ptx
