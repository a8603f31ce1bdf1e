// What each bit pattern stands for: a value (float, double or int64) that every other pattern can store.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "runtime/df16.h"
#include "runtime/half.h"
#include "runtime/types.h"

namespace loom::rt {

/// C++ leaves float-to-int of large values undefined; this gives what x86 hardware gives.
template <typename F>
inline std::int64_t to_int(F v) {
  return v >= F(-9223372036854775808.0) && v < F(9223372036854775808.0)
             ? static_cast<std::int64_t>(v)
             : std::numeric_limits<std::int64_t>::min();
}

/// How df16 meets half: 65536 stands for what half calls 65504, so that every finite half comes back
/// finite; anything larger is infinity.
inline std::uint16_t df16_to_half(std::uint16_t code) {
  const float v = df16::to_float(code);
  return std::fabs(v) == 65536.0f ? static_cast<std::uint16_t>(0x7BFFu | (code & 0x8000u)) : float_to_half(v);
}

template <Phys P>
struct Codec;

#define LOOM_FLOAT_CODEC(P, Type, LOAD, STORE)                              \
  template <>                                                               \
  struct Codec<P> {                                                         \
    using T = Type;                                                         \
    static float load(T x) { return LOAD; }                                 \
    static T store(float v) { return STORE; }                               \
    static T store(double d) { return store(static_cast<float>(d)); }       \
    static T store(std::int64_t i) { return store(static_cast<float>(i)); } \
    static constexpr bool checked = false;                                  \
  }

LOOM_FLOAT_CODEC(Phys::F16, std::uint16_t, half_to_float(x), float_to_half(v));
LOOM_FLOAT_CODEC(Phys::BF16, std::uint16_t, bf16_to_float(x), float_to_bf16(v));
LOOM_FLOAT_CODEC(Phys::F32, float, x, v);
LOOM_FLOAT_CODEC(Phys::F8E4M3, std::uint8_t, e4m3_to_float(x), float_to_e4m3(v));
LOOM_FLOAT_CODEC(Phys::F8E5M2Z, std::uint8_t, e5m2z_to_float(x), float_to_e5m2z(v));
LOOM_FLOAT_CODEC(Phys::DF16, std::uint16_t, df16::to_float(x), df16::from_float(v));
#undef LOOM_FLOAT_CODEC

template <>
struct Codec<Phys::F64> {
  using T = double;
  static double load(T x) { return x; }
  template <typename V>
  static T store(V v) {
    return static_cast<double>(v);
  }
  static constexpr bool checked = false;
};

/// Bools: any non-zero value is true, as in torch.
template <typename Type, Type kTrue>
struct BoolCodec {
  using T = Type;
  static std::int64_t load(T x) { return x != 0; }
  template <typename V>
  static T store(V v) {
    return v != V(0) ? kTrue : T(0);
  }
  static constexpr bool checked = false;
};
template <>
struct Codec<Phys::Bool> : BoolCodec<std::uint8_t, 1> {};
template <>
struct Codec<Phys::DBool> : BoolCodec<std::uint16_t, df16::kOne> {};
template <>
struct Codec<Phys::HBool16> : BoolCodec<std::uint16_t, 0x3C00> {};

template <typename Type, bool kChecked>
struct IntCodec {
  using T = Type;
  static std::int64_t load(T x) { return x; }
  static std::int64_t wide(float v) { return to_int(v); }
  static std::int64_t wide(double v) { return to_int(v); }
  static std::int64_t wide(std::int64_t v) { return v; }
  template <typename V>
  static T store(V v) {
    return static_cast<T>(wide(v));
  }
  static constexpr bool checked = kChecked;
};
template <>
struct Codec<Phys::I64> : IntCodec<std::int64_t, false> {};
template <>
struct Codec<Phys::I32> : IntCodec<std::int32_t, false> {};
template <>
struct Codec<Phys::I16> : IntCodec<std::int16_t, false> {};
template <>
struct Codec<Phys::I8> : IntCodec<std::int8_t, false> {};
template <>
struct Codec<Phys::U8> : IntCodec<std::uint8_t, false> {};
template <>
struct Codec<Phys::I32N> : IntCodec<std::int32_t, true> {};
/// Holds a uint8 and nothing else: a value wraps to eight bits before it is widened.
template <>
struct Codec<Phys::U32W> : IntCodec<std::uint32_t, false> {
  template <typename V>
  static T store(V v) {
    return static_cast<std::uint8_t>(wide(v));
  }
};

}  // namespace loom::rt
