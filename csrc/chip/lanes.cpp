// The lane function of every operation that takes no immediate.
#include <cmath>

#include "chip/convert.h"
#include "chip/ops.h"
#include "chip/vecmath.h"

namespace loom::chip {

namespace {

using namespace simd;

template <auto Fn>
void map1(float* d, const float* a, const float*, const float*, int n) {
  for (int i = 0; i < n; i += kWidth) storeu(d + i, Fn(loadu<F>(a + i)));
}
template <auto Fn>
void map2(float* d, const float* a, const float* b, const float*, int n) {
  for (int i = 0; i < n; i += kWidth) storeu(d + i, Fn(loadu<F>(a + i), loadu<F>(b + i)));
}
template <auto Fn>
void map3(float* d, const float* a, const float* b, const float* c, int n) {
  for (int i = 0; i < n; i += kWidth) storeu(d + i, Fn(loadu<F>(a + i), loadu<F>(b + i), loadu<F>(c + i)));
}
template <auto Fn>
void int2(float* d, const float* a, const float* b, const float*, int n) {
  for (int i = 0; i < n; i += kWidth) storeu(d + i, Fn(loadu<I>(a + i), loadu<I>(b + i)));
}
/// One lane at a time, through the C library: functions too rare to be worth a vector version.
template <auto Fn>
void each1(float* d, const float* a, const float*, const float*, int n) {
  for (int i = 0; i < n; ++i) d[i] = Fn(a[i]);
}
template <auto Fn>
void each2(float* d, const float* a, const float* b, const float*, int n) {
  for (int i = 0; i < n; ++i) d[i] = Fn(a[i], b[i]);
}
template <auto Fn>
void each_int2(float* d, const float* a, const float* b, const float*, int n) {
  for (int i = 0; i < n; ++i)
    d[i] = std::bit_cast<float>(Fn(std::bit_cast<std::int32_t>(a[i]), std::bit_cast<std::int32_t>(b[i])));
}

template <bool Cosine>
void sine_lanes(float* d, const float* a, const float*, const float*, int n) {
  for (int i = 0; i < n; i += kWidth) {
    const F x = loadu<F>(a + i);
    F y = sine(x, Cosine);
    const I far = ~(abs(x) <= kSinRange);  // NaN included
    for (int k = 0; k < kWidth; ++k)
      if (far[k]) y[k] = Cosine ? std::cos(x[k]) : std::sin(x[k]);
    storeu(d + i, y);
  }
}

F max_nan(F a, F b) { return select((a > b) | (a != a), a, b); }
F min_nan(F a, F b) { return select((a < b) | (a != a), a, b); }
F max_num(F a, F b) { return select((a > b) | (b != b), a, b); }
F min_num(F a, F b) { return select((a < b) | (b != b), a, b); }

/// Toward zero, saturating; NaN gives 0.
I saturate(F x) {
  I r = to_int(x);
  r = select(x >= 2147483648.0f, splat(INT32_MAX), r);
  return select(x != x, I{}, r);
}
F saturate_bits(F x) { return floats(saturate(x)); }
F unsigned_value(F x) {
  const I v = bits(x);
  // Halves are exact in float, so the sum rounds once.
  return to_float((v >> 16) & 0xffff) * 65536.0f + to_float(v & 0xffff);
}

// Integer division by zero gives 0 in that lane (masked-out lanes may hold anything); INT_MIN / -1 wraps.
std::int32_t divide(std::int32_t a, std::int32_t b) {
  return b == 0 ? 0 : static_cast<std::int32_t>(std::int64_t{a} / b);
}
std::int32_t remainder(std::int32_t a, std::int32_t b) {
  return b == 0 ? 0 : static_cast<std::int32_t>(std::int64_t{a} % b);
}
std::int32_t floor_divide(std::int32_t a, std::int32_t b) {
  if (b == 0) return 0;
  const std::int64_t q = std::int64_t{a} / b, r = std::int64_t{a} % b;
  return static_cast<std::int32_t>(q - (r != 0 && (r < 0) != (b < 0)));
}
std::uint32_t bits_of(std::int32_t v) { return static_cast<std::uint32_t>(v); }
std::int32_t divide_u(std::int32_t a, std::int32_t b) {
  return b == 0 ? 0 : static_cast<std::int32_t>(bits_of(a) / bits_of(b));
}
std::int32_t remainder_u(std::int32_t a, std::int32_t b) {
  return b == 0 ? 0 : static_cast<std::int32_t>(bits_of(a) % bits_of(b));
}
// Shift counts outside 0..31 shift everything out.
std::int32_t shift_left(std::int32_t a, std::int32_t b) {
  return bits_of(b) > 31 ? 0 : static_cast<std::int32_t>(bits_of(a) << b);
}
std::int32_t shift_right(std::int32_t a, std::int32_t b) { return a >> (bits_of(b) > 31 ? 31 : b); }
std::int32_t shift_right_u(std::int32_t a, std::int32_t b) {
  return bits_of(b) > 31 ? 0 : static_cast<std::int32_t>(bits_of(a) >> b);
}
std::int32_t multiply_high(std::int32_t a, std::int32_t b) {
  return static_cast<std::int32_t>((std::int64_t{a} * b) >> 32);
}
I wrap(U v) { return reinterpret_cast<I>(v); }
U unsign(I v) { return reinterpret_cast<U>(v); }

float log_gamma(float x) {
  int sign;
  return ::lgammaf_r(x, &sign);
}

struct Table {
  LaneFn fn[kVecOps] = {};

  void set(VecOp op, LaneFn f) { fn[static_cast<std::size_t>(op)] = f; }

  Table() {
    using enum VecOp;
    set(ADD_F, map2<[](F a, F b) { return a + b; }>);
    set(SUB_F, map2<[](F a, F b) { return a - b; }>);
    set(MUL_F, map2<[](F a, F b) { return a * b; }>);
    set(DIV_F, map2<[](F a, F b) { return a / b; }>);
    set(MAX_F, map2<max_nan>);
    set(MIN_F, map2<min_nan>);
    set(MAXNUM_F, map2<max_num>);
    set(MINNUM_F, map2<min_num>);
    set(NEG_F, map1<[](F a) { return floats(bits(a) ^ INT32_MIN); }>);
    set(ABS_F, map1<[](F a) { return simd::abs(a); }>);
    set(FMA_F, map3<[](F a, F b, F c) { return simd::fma(a, b, c); }>);
    set(EXP, map1<[](F a) { return simd::exp(a); }>);
    set(EXP2, map1<[](F a) { return simd::exp2(a); }>);
    set(EXPM1, map1<[](F a) { return simd::expm1(a); }>);
    set(LOG, map1<[](F a) { return simd::log(a); }>);
    set(LOG2, map1<[](F a) { return simd::log2(a); }>);
    set(LOG1P, map1<[](F a) { return simd::log1p(a); }>);
    set(SQRT, map1<[](F a) { return simd::sqrt(a); }>);
    set(RSQRT, map1<[](F a) { return 1.0f / simd::sqrt(a); }>);
    set(RECIP, map1<[](F a) { return 1.0f / a; }>);
    set(TANH, map1<[](F a) { return simd::tanh(a); }>);
    set(ERF, map1<[](F a) { return simd::erf(a); }>);
    set(SIGMOID, map1<sigmoid>);
    set(SILU, map1<silu>);
    set(GELU, map1<gelu>);
    set(SOFTPLUS, map3<softplus>);
    set(SIN, sine_lanes<false>);
    set(COS, sine_lanes<true>);
    set(POW, each2<[](float a, float b) { return std::pow(a, b); }>);
    set(FLOOR, map1<[](F a) { return simd::floor(a); }>);
    set(CEIL, map1<[](F a) { return simd::ceil(a); }>);
    set(ROUND, map1<nearest>);
    set(TRUNC, map1<[](F a) { return simd::trunc(a); }>);
    set(EQ_F, map2<[](F a, F b) { return one_where(a == b); }>);
    set(NE_F, map2<[](F a, F b) { return one_where(a != b); }>);
    set(LT_F, map2<[](F a, F b) { return one_where(a < b); }>);
    set(LE_F, map2<[](F a, F b) { return one_where(a <= b); }>);
    set(GT_F, map2<[](F a, F b) { return one_where(a > b); }>);
    set(GE_F, map2<[](F a, F b) { return one_where(a >= b); }>);
    set(SELECT, map3<[](F a, F b, F c) { return select(a != 0.0f, b, c); }>);
    set(AND_M, map2<[](F a, F b) { return one_where((a != 0.0f) & (b != 0.0f)); }>);
    set(OR_M, map2<[](F a, F b) { return one_where((a != 0.0f) | (b != 0.0f)); }>);
    set(XOR_M, map2<[](F a, F b) { return one_where((a != 0.0f) ^ (b != 0.0f)); }>);
    set(NOT_M, map1<[](F a) { return one_where(a == 0.0f); }>);
    set(ADD_I, int2<[](I a, I b) { return wrap(unsign(a) + unsign(b)); }>);
    set(SUB_I, int2<[](I a, I b) { return wrap(unsign(a) - unsign(b)); }>);
    set(MUL_I, int2<[](I a, I b) { return wrap(unsign(a) * unsign(b)); }>);
    set(MIN_I, int2<[](I a, I b) { return select(a < b, a, b); }>);
    set(MAX_I, int2<[](I a, I b) { return select(a > b, a, b); }>);
    set(FLOORDIV_I, each_int2<floor_divide>);
    set(DIV_I, each_int2<divide>);
    set(REM_I, each_int2<chip::remainder>);
    set(AND_I, int2<[](I a, I b) { return a & b; }>);
    set(OR_I, int2<[](I a, I b) { return a | b; }>);
    set(XOR_I, int2<[](I a, I b) { return a ^ b; }>);
    set(SHL_I, each_int2<shift_left>);
    set(SHR_I, each_int2<shift_right>);
    set(SHRU_I, each_int2<shift_right_u>);
    set(UDIV_I, each_int2<divide_u>);
    set(UREM_I, each_int2<remainder_u>);
    set(MULHI_I, each_int2<multiply_high>);
    set(CHECK, map2<[](F, F b) { return b; }>);  // the segment looks at the flags
    set(EQ_I, int2<[](I a, I b) { return one_where(a == b); }>);
    set(NE_I, int2<[](I a, I b) { return one_where(a != b); }>);
    set(LT_I, int2<[](I a, I b) { return one_where(a < b); }>);
    set(LE_I, int2<[](I a, I b) { return one_where(a <= b); }>);
    set(GT_I, int2<[](I a, I b) { return one_where(a > b); }>);
    set(GE_I, int2<[](I a, I b) { return one_where(a >= b); }>);
    set(ULT_I, int2<[](I a, I b) { return one_where(unsign(a) < unsign(b)); }>);
    set(ULE_I, int2<[](I a, I b) { return one_where(unsign(a) <= unsign(b)); }>);
    set(F_TO_I, map1<saturate_bits>);
    set(I_TO_F, map1<[](F a) { return to_float(bits(a)); }>);
    set(U_TO_F, map1<unsigned_value>);
    set(ROUND_DF16, [](float* d, const float* a, const float*, const float*, int n) { round_df16(d, a, n); });
    set(ROUND_F16, [](float* d, const float* a, const float*, const float*, int n) { round_f16(d, a, n); });
    set(ROUND_BF16, [](float* d, const float* a, const float*, const float*, int n) { round_bf16(d, a, n); });
    set(COPY, map1<[](F a) { return a; }>);
    set(REM_F, each2<[](float a, float b) { return std::fmod(a, b); }>);
    set(TAN, each1<[](float a) { return std::tan(a); }>);
    set(ASIN, each1<[](float a) { return std::asin(a); }>);
    set(ACOS, each1<[](float a) { return std::acos(a); }>);
    set(ATAN, each1<[](float a) { return std::atan(a); }>);
    set(ATAN2, each2<[](float a, float b) { return std::atan2(a, b); }>);
    set(SINH, each1<[](float a) { return std::sinh(a); }>);
    set(COSH, each1<[](float a) { return std::cosh(a); }>);
    set(ASINH, each1<[](float a) { return std::asinh(a); }>);
    set(ACOSH, each1<[](float a) { return std::acosh(a); }>);
    set(ATANH, each1<[](float a) { return std::atanh(a); }>);
    set(ISNAN, map1<[](F a) { return one_where(a != a); }>);
    set(ISINF, map1<[](F a) { return one_where(simd::abs(a) == kInf); }>);
    set(ERFC, each1<[](float a) { return std::erfc(a); }>);
    set(LGAMMA, each1<log_gamma>);
  }
};

}  // namespace

LaneFn lane_function(VecOp op) {
  static const Table table;
  return table.fn[static_cast<std::size_t>(op)];
}

}  // namespace loom::chip
