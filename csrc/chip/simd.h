// Eight float or int32 lanes in compiler vector types: AVX2 where the build allows it, plain code elsewhere.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace loom::chip::simd {

inline constexpr int kWidth = 8;
using F = float __attribute__((vector_size(32)));
using I = std::int32_t __attribute__((vector_size(32)));
using U = std::uint32_t __attribute__((vector_size(32)));

template <class V, class T>
inline V loadu(const T* p) {
  V v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
template <class V, class T>
inline void storeu(T* p, V v) {
  std::memcpy(p, &v, sizeof v);
}

/// Copies bits (an addition would quiet signalling NaN patterns, which integers may have).
inline F splat(float x) { return F{x, x, x, x, x, x, x, x}; }
inline I splat(std::int32_t x) { return I{x, x, x, x, x, x, x, x}; }
inline I bits(F x) { return reinterpret_cast<I>(x); }
inline F floats(I x) { return reinterpret_cast<F>(x); }

/// a where the mask is set, b elsewhere. Masks are all ones or zero.
inline F select(I mask, F a, F b) { return floats((bits(a) & mask) | (bits(b) & ~mask)); }
inline I select(I mask, I a, I b) { return (a & mask) | (b & ~mask); }
inline F one_where(I mask) { return floats(mask & bits(splat(1.0f))); }

inline F abs(F x) { return floats(bits(x) & 0x7fffffff); }
inline F copysign(F magnitude, F sign) {
  return floats((bits(magnitude) & 0x7fffffff) | (bits(sign) & std::int32_t(0x80000000)));
}
inline F to_float(I x) { return __builtin_convertvector(x, F); }

#ifdef __AVX2__
inline F sqrt(F x) { return _mm256_sqrt_ps(x); }
inline F floor(F x) { return _mm256_floor_ps(x); }
inline F ceil(F x) { return _mm256_ceil_ps(x); }
inline F nearest(F x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline F trunc(F x) { return _mm256_round_ps(x, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC); }
/// Toward zero; out of range and NaN give INT32_MIN.
inline I to_int(F x) { return reinterpret_cast<I>(_mm256_cvttps_epi32(x)); }
#else
template <class Fn>
inline F each(F x, Fn fn) {
  for (int i = 0; i < kWidth; ++i) x[i] = fn(x[i]);
  return x;
}
inline F sqrt(F x) {
  return each(x, [](float v) { return std::sqrt(v); });
}
inline F floor(F x) {
  return each(x, [](float v) { return std::floor(v); });
}
inline F ceil(F x) {
  return each(x, [](float v) { return std::ceil(v); });
}
inline F nearest(F x) {
  return each(x, [](float v) { return std::nearbyint(v); });
}
inline F trunc(F x) {
  return each(x, [](float v) { return std::trunc(v); });
}
inline I to_int(F x) {
  I r{};
  for (int i = 0; i < kWidth; ++i)
    r[i] = x[i] >= -2147483648.0f && x[i] < 2147483648.0f ? static_cast<std::int32_t>(x[i]) : INT32_MIN;
  return r;
}
#endif

#ifdef __FMA__
inline F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
#else
inline F fma(F a, F b, F c) {
  for (int i = 0; i < kWidth; ++i) a[i] = std::fma(a[i], b[i], c[i]);
  return a;
}
#endif

/// Polynomial in x, coefficients from the constant upwards.
template <std::size_t N>
inline F horner(F x, const float (&c)[N]) {
  F r = splat(c[N - 1]);
  for (std::size_t i = N - 1; i-- > 0;) r = fma(r, x, splat(c[i]));
  return r;
}

}  // namespace loom::chip::simd
