// exp, tanh and erf over vectors of sixteen lanes, equal bits for every vector type.
//
// Errors against the exact value, from a test over all exponents: exp 2 ulp (also for denormal results), tanh
// 3 ulp, erf 1.2e-7 absolute. NaN in, NaN out. Polynomials: least squares towards minimax in f64.
#pragma once

namespace ark::simd {
namespace {

// c[0] + x (c[1] + x (...)).
template <class T, int N>
typename T::V polynomial(typename T::V x, const float (&c)[N]) {
  typename T::V r = T::set(c[N - 1]);
  for (int i = N - 2; i >= 0; --i) r = T::fma(r, x, T::set(c[i]));
  return r;
}

// 2^n exp(r) with n = round(x / ln 2); exactly 0 below -110, infinite above 89.
template <class T>
typename T::V exp(typename T::V x) {
  static constexpr float kTail[] = {5.000000000e-01f, 1.666651219e-01f, 4.166618735e-02f, 8.369598538e-03f,
                                    1.395171741e-03f};
  x = T::min(T::set(90.f), T::max(T::set(-110.f), x));
  const typename T::V magic = T::set(12582912.f);  // 1.5 * 2^23: adding it rounds to an integer, half to even
  const typename T::V n = T::sub(T::fma(x, T::set(1.44269504f), magic), magic);
  typename T::V r = T::fma(n, T::set(-0.693359375f), x);  // ln 2 in two parts
  r = T::fma(n, T::set(2.12194440e-4f), r);
  typename T::V p = polynomial<T>(r, kTail);
  p = T::add(T::fma(T::mul(r, r), p, r), T::set(1.f));
  if constexpr (requires { T::scale_far(p, n); }) {
    return T::scale_far(p, n);
  } else {  // in two steps, so that results beyond 2^127 and below 2^-126 round once
    const typename T::V half = T::sub(T::fma(n, T::set(0.5f), magic), magic);
    return T::scale(T::scale(p, half), T::sub(n, half));
  }
}

template <class T>
typename T::V tanh(typename T::V x) {
  static constexpr float kSmall[] = {-3.333328366e-01f, 1.333149076e-01f, -5.374349654e-02f, 2.065057866e-02f,
                                     -5.717036780e-03f};
  const typename T::V size = T::abs(x);
  const typename T::V square = T::mul(x, x);
  const typename T::V small = T::fma(T::mul(x, square), polynomial<T>(square, kSmall), x);
  const typename T::V e = exp<T>(T::add(size, size));
  const typename T::V large = T::sub(T::set(1.f), T::div(T::set(2.f), T::add(e, T::set(1.f))));
  return T::copy_sign(T::select(T::less(size, T::set(0.625f)), small, large), x);  // the sign of -0 too
}

template <class T>
typename T::V erf(typename T::V x) {
  static constexpr float kSmall[] = {1.128379107e+00f, -3.761262596e-01f, 1.128358543e-01f, -2.685381100e-02f,
                                     5.188327748e-03f, -8.010192541e-04f, 7.853857824e-05f};
  // ln(1 - erf(x)) on [1, 4]; beyond 4 erf rounds to 1.
  static constexpr float kLog[] = {1.990085439e-04f,  -1.129634261e+00f, -6.330980062e-01f,
                                   -1.085680649e-01f, 2.532066219e-02f,  -4.257617053e-03f,
                                   4.566799325e-04f,  -2.417184078e-05f, 1.725141487e-07f};
  const typename T::V size = T::abs(x);
  const typename T::V small = T::mul(x, polynomial<T>(T::mul(x, x), kSmall));
  const typename T::V bounded = T::min(T::set(4.f), size);
  const typename T::V large = T::sub(T::set(1.f), exp<T>(polynomial<T>(bounded, kLog)));
  return T::select(T::less(size, T::set(1.f)), small, T::copy_sign(large, x));
}

}  // namespace
}  // namespace ark::simd
