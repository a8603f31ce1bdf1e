// Elementary functions over eight lanes, accurate to a few units in the last place of fp32.
// Range reduction in two constants, then polynomials fitted here by iteratively reweighted least squares
// on Chebyshev nodes (relative error of the whole function as weight). NaN and infinities as in C.
#pragma once

#include <limits>

#include "chip/simd.h"

namespace loom::chip::simd {

inline constexpr float kInf = std::numeric_limits<float>::infinity();
inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
// ln 2 as a short head (exact products with small integers) and a tail.
inline constexpr float kLn2Head = 0.693359375f, kLn2Tail = -2.12194440e-4f;
inline constexpr float kLog2E = 1.44269504f;

/// x * 2^n for n in -252..254, in two exact steps so that subnormal results round once.
inline F scale(F x, I n) {
  const I half = n >> 1;
  const F a = floats((half + 127) << 23), b = floats((n - half + 127) << 23);
  return x * a * b;
}

inline F exp(F x) {
  static constexpr float kP[] = {5.e-01f, 1.6666518e-01f, 4.1666206e-02f, 8.368953e-03f, 1.3950601e-03f};
  const F in = select((x > -104.0f) & (x < 89.0f), x, splat(0.0f));
  const F n = nearest(in * kLog2E);
  const F r = fma(n, splat(-kLn2Tail), fma(n, splat(-kLn2Head), in));
  F y = scale(fma(r * r, horner(r, kP), r) + 1.0f, to_int(n));
  y = select(x >= 89.0f, splat(kInf), y);
  y = select(x <= -104.0f, splat(0.0f), y);
  return select(x != x, x, y);
}

inline F exp2(F x) {
  static constexpr float kP[] = {6.931472e-01f, 2.402265e-01f,  5.550411e-02f, 9.618036e-03f,
                                 1.333343e-03f, 1.5467238e-04f, 1.5315072e-05f};
  const F in = select((x > -150.0f) & (x < 128.0f), x, splat(0.0f));
  const F n = nearest(in);
  const F r = in - n;
  F y = scale(fma(r, horner(r, kP), splat(1.0f)), to_int(n));
  y = select(x >= 128.0f, splat(kInf), y);
  y = select(x <= -150.0f, splat(0.0f), y);
  return select(x != x, x, y);
}

inline F expm1(F x) {
  static constexpr float kP[] = {1.6666667e-01f, 4.166648e-02f, 8.333282e-03f, 1.3933397e-03f,
                                 1.9909814e-04f};
  const F in = select((x > -20.0f) & (x < 89.0f), x, splat(0.0f));
  const F n = nearest(in * kLog2E);
  const F r = fma(n, splat(-kLn2Tail), fma(n, splat(-kLn2Head), in));
  const F p = fma(r * r, fma(r, horner(r, kP), splat(0.5f)), r);  // e^r - 1
  // 2^n (p + 1) - 1, with 2^n split so that it stays finite up to n = 128.
  const I k = to_int(n);
  const I half = k >> 1;
  const F a = floats((half + 127) << 23), b = floats((k - half + 127) << 23);
  F y = fma(p * a, b, fma(a, b, splat(-1.0f)));
  y = select(x >= 89.0f, splat(kInf), y);
  y = select(x <= -20.0f, splat(-1.0f), y);
  y = select(x == 0.0f, x, y);
  return select(x != x, x, y);
}

/// Splits positive normal x into m in [sqrt(1/2), sqrt(2)) and e with x = m 2^e, returning m - 1.
inline F log_parts(F x, F* e) {
  const I b = bits(x);
  const I k = (b - 0x3f3504f3) >> 23;  // 0x3f3504f3: bits of sqrt(1/2)
  *e = to_float(k);
  return floats(b - (k << 23)) - 1.0f;
}
inline F log1p_poly(F f) {  // (log(1 + f) - f + f^2 / 2) / f^3
  static constexpr float kP[] = {3.333331e-01f,  -2.4999987e-01f, 2.0002227e-01f,
                                 -1.666925e-01f, 1.4218655e-01f,  -1.2384372e-01f,
                                 1.187302e-01f,  -1.1789685e-01f, 6.915126e-02f};
  return horner(f, kP);
}
/// Zero, infinity, NaN and negative arguments of a logarithm.
inline F log_special(F x, F y) {
  y = select(x == 0.0f, splat(-kInf), y);
  y = select(x == kInf, x, y);
  y = select(x < 0.0f, splat(kNan), y);
  return select(x != x, x, y);
}

inline F log(F x) {
  const I tiny = x < 1.17549435e-38f;
  F e;
  const F f = log_parts(select(tiny, x * 16777216.0f, x), &e);
  e = select(tiny, e - 24.0f, e);
  const F z = f * f;
  const F y = fma(e, splat(kLn2Tail), fma(f * z, log1p_poly(f), z * -0.5f));
  return log_special(x, fma(e, splat(kLn2Head), f + y));
}

inline F log2(F x) {
  const I tiny = x < 1.17549435e-38f;
  F e;
  const F f = log_parts(select(tiny, x * 16777216.0f, x), &e);
  e = select(tiny, e - 24.0f, e);
  const F z = f * f;
  const F y = fma(f * z, log1p_poly(f), z * -0.5f);
  // (f + y) log2(e), log2(e) = 1 + 0.442695...: the head is added last.
  const F s = fma(f, splat(0.44269504f), y * kLog2E);
  return log_special(x, e + (f + s));
}

inline F log1p(F x) {
  const F u = x + 1.0f;
  const F d = u - 1.0f;
  F y = select(d == 0.0f, x, log(u) * (x / select(d == 0.0f, splat(1.0f), d)));
  y = select(x == kInf, x, y);
  y = select(x == -1.0f, splat(-kInf), y);
  return select(x < -1.0f, splat(kNan), select(x != x, x, y));
}

inline F tanh(F x) {
  static constexpr float kP[] = {-3.333333e-01f, 1.333321e-01f,  -5.3947203e-02f,
                                 2.170297e-02f,  -8.182677e-03f, 2.1475398e-03f};
  const F a = abs(x), z = x * x;
  const F near = fma(x * z, horner(z, kP), x);
  const F far = 1.0f - 2.0f / (exp(select(a > 20.0f, splat(20.0f), a) * 2.0f) + 1.0f);
  return select(x != x, x, select(a < 0.625f, near, copysign(far, x)));
}

inline F erf(F x) {
  static constexpr float kNear[] = {1.2837917e-01f, -3.7612638e-01f, 1.1283783e-01f, -2.6865445e-02f,
                                    5.221075e-03f,  -8.484711e-04f,  1.1270545e-04f, -9.680139e-06f};
  static constexpr float kFar[] = {-1.04406114e-04f, 1.1290866e+00f, 6.344833e-01f,   1.06558174e-01f,
                                   -2.3478951e-02f,  3.1528557e-03f, -2.3059902e-05f, -8.317083e-05f,
                                   1.5029804e-05f,   -9.3821234e-07f};  // -log erfc on 0.95..4
  const F a = abs(x), z = x * x;
  const F near = fma(x, horner(z, kNear), x);
  const F far = 1.0f - exp(-horner(select(a > 4.0f, splat(4.0f), a), kFar));
  return select(x != x, x, select(a < 1.0f, near, copysign(far, x)));
}

inline F sigmoid(F x) { return 1.0f / (1.0f + exp(-x)); }
inline F silu(F x) { return x / (1.0f + exp(-x)); }
inline F gelu(F x) { return x * 0.5f * (1.0f + erf(x * 0.70710678f)); }
inline F softplus(F x, F beta, F threshold) {
  const F scaled = x * beta;
  return select(scaled > threshold, x, log1p(exp(scaled)) / beta);
}

/// Sine (or cosine) for |x| <= kSinRange; larger arguments are the caller's business.
inline constexpr float kSinRange = 8192.0f;
inline F sine(F x, bool cosine) {
  static constexpr float kSin[] = {-1.6666667e-01f, 8.333329e-03f, -1.9839327e-04f, 2.7182373e-06f};
  static constexpr float kCos[] = {4.1666646e-02f, -1.3887362e-03f, 2.4437728e-05f};
  const F n = nearest(x * 0.63661977f);
  F r = fma(n, splat(-1.5703125f), x);  // pi / 2 in three parts
  r = fma(n, splat(-4.83751297e-4f), r);
  r = fma(n, splat(-7.54978942e-8f), r);
  const I q = to_int(n) + (cosine ? 1 : 0);
  const F z = r * r;
  const F s = fma(r * z, horner(z, kSin), r);
  const F c = fma(z * z, horner(z, kCos), fma(z, splat(-0.5f), splat(1.0f)));
  const F y = select((q & 1) != 0, c, s);
  return floats(bits(y) ^ ((q & 2) << 30));
}

}  // namespace loom::chip::simd
