#include "chip/reduce.h"

#include <bit>
#include <limits>

#include "chip/simd.h"

namespace loom::chip {

namespace {

using namespace simd;

float as_float(std::int32_t v) { return std::bit_cast<float>(v); }

/// The fold of a reduction: neutral element and combination, on lanes and on single values.
struct Add {
  static float neutral() { return 0.0f; }
  static F join(F a, F b) { return a + b; }
};
struct Mul {
  static float neutral() { return 1.0f; }
  static F join(F a, F b) { return a * b; }
};
struct Max {
  static float neutral() { return -std::numeric_limits<float>::infinity(); }
  static F join(F a, F b) { return select((a > b) | (a != a), a, b); }
};
struct Min {
  static float neutral() { return std::numeric_limits<float>::infinity(); }
  static F join(F a, F b) { return select((a < b) | (a != a), a, b); }
};
struct AddI {
  static float neutral() { return 0.0f; }
  static F join(F a, F b) {
    return floats(reinterpret_cast<I>(reinterpret_cast<U>(a) + reinterpret_cast<U>(b)));
  }
};
struct MulI {
  static float neutral() { return as_float(1); }
  static F join(F a, F b) {
    return floats(reinterpret_cast<I>(reinterpret_cast<U>(a) * reinterpret_cast<U>(b)));
  }
};
struct MaxI {
  static float neutral() { return as_float(INT32_MIN); }
  static F join(F a, F b) { return floats(select(bits(a) > bits(b), bits(a), bits(b))); }
};
struct MinI {
  static float neutral() { return as_float(INT32_MAX); }
  static F join(F a, F b) { return floats(select(bits(a) < bits(b), bits(a), bits(b))); }
};
struct OrM {
  static float neutral() { return 0.0f; }
  static F join(F a, F b) { return one_where((a != 0.0f) | (b != 0.0f)); }
};
struct AndM {
  static float neutral() { return 1.0f; }
  static F join(F a, F b) { return one_where((a != 0.0f) & (b != 0.0f)); }
};

template <class Op>
float fold_one(float a, float b) {
  return Op::join(splat(a), splat(b))[0];
}

template <class Op>
void fold_row(float* to, const float* from, std::int64_t n) {
  constexpr int kWays = 4;
  F part[kWays];
  for (F& p : part) p = splat(Op::neutral());
  std::int64_t i = 0;
  for (; i + kWays * kWidth <= n; i += kWays * kWidth)
    for (int w = 0; w < kWays; ++w) part[w] = Op::join(part[w], loadu<F>(from + i + w * kWidth));
  for (; i + kWidth <= n; i += kWidth) part[0] = Op::join(part[0], loadu<F>(from + i));
  if (i < n) {
    F tail = splat(Op::neutral());
    for (int k = 0; i < n; ++i, ++k) tail[k] = from[i];
    part[1] = Op::join(part[1], tail);
  }
  F all = Op::join(Op::join(part[0], part[1]), Op::join(part[2], part[3]));
  float lane[kWidth];
  storeu(lane, all);
  for (int half = kWidth / 2; half; half /= 2)
    for (int k = 0; k < half; ++k) lane[k] = fold_one<Op>(lane[k], lane[k + half]);
  *to = fold_one<Op>(*to, lane[0]);
}

template <class Op>
void fold_lanes(float* to, const float* from, std::int64_t n) {
  std::int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) storeu(to + i, Op::join(loadu<F>(to + i), loadu<F>(from + i)));
  for (; i < n; ++i) to[i] = fold_one<Op>(to[i], from[i]);
}

template <class Op>
constexpr Fold fold() {
  return {Op::neutral, fold_row<Op>, fold_lanes<Op>};
}
constexpr Fold kFolds[kReduces] = {{},           fold<Add>(),  fold<Mul>(),  fold<Max>(),
                                   fold<Min>(),  fold<AddI>(), fold<MulI>(), fold<MaxI>(),
                                   fold<MinI>(), fold<OrM>(),  fold<AndM>()};

}  // namespace

const Fold& fold_of(Reduce reduce) { return kFolds[static_cast<int>(reduce)]; }

}  // namespace loom::chip
