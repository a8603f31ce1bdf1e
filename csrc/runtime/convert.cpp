// Every pair of bit patterns converts through the value it stands for (float, double or int64). The
// pairs that carry models (half and bfloat16 to df16 and back) also have a direct integer form, because
// there the sixteen bits are the same number with another bias.
#include "runtime/convert.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "runtime/df16.h"
#include "runtime/half.h"

namespace loom::rt {
namespace {

/// C++ leaves float-to-int of large values undefined; this gives what x86 hardware gives.
template <typename F>
std::int64_t to_int(F v) {
  return v >= F(-9223372036854775808.0) && v < F(9223372036854775808.0)
             ? static_cast<std::int64_t>(v)
             : std::numeric_limits<std::int64_t>::min();
}

/// How df16 meets half: 65536 stands for what half calls 65504, so that every finite half comes back
/// finite; anything larger is infinity.
std::uint16_t df16_to_half(std::uint16_t code) {
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

template <typename D, typename S>
std::size_t checked_run(typename D::T* d, std::ptrdiff_t ds, const typename S::T* s, std::ptrdiff_t ss,
                        std::size_t n, std::int64_t* bad) {
  for (std::size_t i = 0; i < n; ++i) {
    const std::int64_t v = D::wide(S::load(s[static_cast<std::ptrdiff_t>(i) * ss]));
    if (v != static_cast<std::int32_t>(v)) {
      *bad = v;
      return i;
    }
    d[static_cast<std::ptrdiff_t>(i) * ds] = static_cast<std::int32_t>(v);
  }
  return n;
}

template <Phys PD, Phys PS>
std::size_t generic(void* dst, std::ptrdiff_t ds, const void* src, std::ptrdiff_t ss, std::size_t n,
                    std::int64_t* bad) {
  using D = Codec<PD>;
  using S = Codec<PS>;
  auto* d = static_cast<typename D::T*>(dst);
  const auto* s = static_cast<const typename S::T*>(src);
  if constexpr (same_pattern(PD, PS)) {
    if (ds == 1 && ss == 1) {
      std::memcpy(d, s, n * sizeof(*d));
    } else {
      for (std::size_t i = 0; i < n; ++i) d[std::ptrdiff_t(i) * ds] = s[std::ptrdiff_t(i) * ss];
    }
    return n;
  } else if constexpr (PD == Phys::I32N) {
    if constexpr (PS == Phys::I64) {
      if (ds == 1 && ss == 1) {
        std::int64_t lost = 0;
        for (std::size_t i = 0; i < n; ++i) {
          d[i] = static_cast<std::int32_t>(s[i]);
          lost |= s[i] ^ static_cast<std::int64_t>(d[i]);
        }
        if (lost == 0) return n;
      }
    }
    return checked_run<D, S>(d, ds, s, ss, n, bad);
  } else if constexpr (PD == Phys::F16 && PS == Phys::DF16) {
    for (std::size_t i = 0; i < n; ++i) d[std::ptrdiff_t(i) * ds] = df16_to_half(s[std::ptrdiff_t(i) * ss]);
    return n;
  } else {
    if (ds == 1 && ss == 1) {
      for (std::size_t i = 0; i < n; ++i) d[i] = D::store(S::load(s[i]));
    } else {
      for (std::size_t i = 0; i < n; ++i)
        d[std::ptrdiff_t(i) * ds] = D::store(S::load(s[std::ptrdiff_t(i) * ss]));
    }
    return n;
  }
}

// ---- direct forms of the frequent pairs (unit strides) ----

using U16 = std::uint16_t;
constexpr std::size_t kBlock = 16;
typedef U16 Vec __attribute__((vector_size(2 * kBlock)));
typedef std::int16_t VecS __attribute__((vector_size(2 * kBlock)));

Vec load_vec(const U16* p) {
  Vec v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

/// A whole vector; past the caches with kStream, where `p` must be aligned to it.
template <bool kStream>
void store_vec(U16* p, Vec v) {
#if defined(__SSE2__)
  if constexpr (kStream) {
    __m128i half[2];
    std::memcpy(half, &v, sizeof v);
    _mm_stream_si128(reinterpret_cast<__m128i*>(p), half[0]);
    _mm_stream_si128(reinterpret_cast<__m128i*>(p) + 1, half[1]);
    return;
  }
#endif
  std::memcpy(p, &v, sizeof v);
}

bool any(VecS mask) {
  std::uint64_t w[sizeof(VecS) / 8];
  std::memcpy(w, &mask, sizeof mask);
  std::uint64_t all = 0;
  for (std::uint64_t x : w) all |= x;
  return all != 0;
}

/// Half to df16: rebias and round off one fraction bit (ties up in magnitude). Subnormal halves need a
/// normalising shift and take the scalar way for their block.
template <bool kStream>
std::size_t half_to_df16(void* dst, std::ptrdiff_t ds, const void* src, std::ptrdiff_t ss, std::size_t n,
                         std::int64_t* bad) {
  if (ds != 1 || ss != 1) return generic<Phys::DF16, Phys::F16>(dst, ds, src, ss, n, bad);
  auto* d = static_cast<U16*>(dst);
  const auto* s = static_cast<const U16*>(src);
  std::size_t i = 0;
  for (; i + kBlock <= n; i += kBlock) {
    const Vec h = load_vec(s + i);
    const Vec magnitude = h & U16(0x7FFF);
    const Vec infinite = std::bit_cast<Vec>(magnitude == U16(0x7C00));
    const Vec nan = std::bit_cast<Vec>(std::bit_cast<VecS>(magnitude) > std::int16_t(0x7C00));
    const VecS zero = magnitude == U16(0);
    const VecS small = (std::bit_cast<VecS>(magnitude) < std::int16_t(0x400)) & ~zero;
    if (any(small)) [[unlikely]] {
      for (std::size_t k = 0; k < kBlock; ++k) d[i + k] = df16::from_float(half_to_float(s[i + k]));
      continue;
    }
    Vec code = (magnitude + U16(0x4001)) >> 1;
    code = ((code & ~infinite) | (infinite & U16(df16::kLargest))) | (h & U16(0x8000));
    code = (code & ~nan) | (nan & U16(df16::kMerged));
    code &= ~std::bit_cast<Vec>(zero);
    store_vec<kStream>(d + i, code);
  }
  for (; i < n; ++i) d[i] = df16::from_float(half_to_float(s[i]));
  return n;
}

/// df16 to half: exact in the range of normal halves; blocks with anything else take the scalar way.
template <bool kStream>
std::size_t df16_to_half_run(void* dst, std::ptrdiff_t ds, const void* src, std::ptrdiff_t ss, std::size_t n,
                             std::int64_t* bad) {
  if (ds != 1 || ss != 1) return generic<Phys::F16, Phys::DF16>(dst, ds, src, ss, n, bad);
  auto* d = static_cast<U16*>(dst);
  const auto* s = static_cast<const U16*>(src);
  constexpr std::int16_t kLow = 17 << 9, kHigh = 47 << 9;  // codes of 2^-14 and of 2^16
  std::size_t i = 0;
  for (; i + kBlock <= n; i += kBlock) {
    const Vec c = load_vec(s + i);
    const Vec magnitude = c & U16(0x7FFF);
    const VecS m = std::bit_cast<VecS>(magnitude);
    const VecS zero = magnitude == U16(0);
    if (any(((m < kLow) & ~zero) | (m >= kHigh))) [[unlikely]] {
      for (std::size_t k = 0; k < kBlock; ++k) d[i + k] = df16_to_half(s[i + k]);
      continue;
    }
    Vec h = ((magnitude << 1) - U16(0x4000)) | (c & U16(0x8000));
    h &= ~std::bit_cast<Vec>(zero);
    store_vec<kStream>(d + i, h);
  }
  for (; i < n; ++i) d[i] = df16_to_half(s[i]);
  return n;
}

/// bfloat16 to df16: exact, another bias and two more fraction bits. Outside the common exponents (zero
/// included inside) the block takes the scalar way.
template <bool kStream>
std::size_t bf16_to_df16(void* dst, std::ptrdiff_t ds, const void* src, std::ptrdiff_t ss, std::size_t n,
                         std::int64_t* bad) {
  if (ds != 1 || ss != 1) return generic<Phys::DF16, Phys::BF16>(dst, ds, src, ss, n, bad);
  auto* d = static_cast<U16*>(dst);
  const auto* s = static_cast<const U16*>(src);
  constexpr std::int16_t kLow = 97 << 7, kHigh = 158 << 7;
  std::size_t i = 0;
  for (; i + kBlock <= n; i += kBlock) {
    const Vec b = load_vec(s + i);
    const Vec magnitude = b & U16(0x7FFF);
    const VecS m = std::bit_cast<VecS>(magnitude);
    const VecS zero = magnitude == U16(0);
    if (any(((m < kLow) & ~zero) | (m >= kHigh))) [[unlikely]] {
      for (std::size_t k = 0; k < kBlock; ++k) d[i + k] = df16::from_float(bf16_to_float(s[i + k]));
      continue;
    }
    // The true result has 15 bits, so wrapping at 16 in between is harmless.
    Vec code = ((magnitude << 2) - U16(96 << 9)) | (b & U16(0x8000));
    code &= ~std::bit_cast<Vec>(zero);
    store_vec<kStream>(d + i, code);
  }
  for (; i < n; ++i) d[i] = df16::from_float(bf16_to_float(s[i]));
  return n;
}

/// df16 to bfloat16: every df16 is in range, two fraction bits round to nearest even.
template <bool kStream>
std::size_t df16_to_bf16(void* dst, std::ptrdiff_t ds, const void* src, std::ptrdiff_t ss, std::size_t n,
                         std::int64_t* bad) {
  if (ds != 1 || ss != 1) return generic<Phys::BF16, Phys::DF16>(dst, ds, src, ss, n, bad);
  auto* d = static_cast<U16*>(dst);
  const auto* s = static_cast<const U16*>(src);
  std::size_t i = 0;
  for (; i + kBlock <= n; i += kBlock) {
    const Vec c = load_vec(s + i);
    const Vec magnitude = c & U16(0x7FFF);
    const Vec rounded = ((magnitude + U16(1) + ((magnitude >> 2) & U16(1))) >> 2) + U16(96 << 7);
    const Vec nan = std::bit_cast<Vec>(magnitude == U16(df16::kMerged));
    const Vec zero = std::bit_cast<Vec>(magnitude == U16(0));
    Vec out = (rounded | (c & U16(0x8000))) & ~zero;
    out = (out & ~nan) | (nan & U16(0x7FC0));
    store_vec<kStream>(d + i, out);
  }
  for (; i < n; ++i) d[i] = float_to_bf16(df16::to_float(s[i]));
  return n;
}

/// Bool to its df16 form: any non-zero byte is one.
template <bool kStream>
std::size_t bool_to_dbool(void* dst, std::ptrdiff_t ds, const void* src, std::ptrdiff_t ss, std::size_t n,
                          std::int64_t* bad) {
  if (ds != 1 || ss != 1) return generic<Phys::DBool, Phys::Bool>(dst, ds, src, ss, n, bad);
  auto* d = static_cast<U16*>(dst);
  const auto* s = static_cast<const std::uint8_t*>(src);
  typedef std::uint8_t Bytes __attribute__((vector_size(kBlock)));
  std::size_t i = 0;
  for (; i + kBlock <= n; i += kBlock) {
    Bytes b;
    std::memcpy(&b, s + i, sizeof b);
    const Vec wide = __builtin_convertvector(b, Vec);
    const Vec code = std::bit_cast<Vec>(wide != U16(0)) & U16(df16::kOne);
    store_vec<kStream>(d + i, code);
  }
  for (; i < n; ++i) d[i] = s[i] != 0 ? df16::kOne : 0;
  return n;
}

/// The df16 form of a bool back to a byte; any code but zero is true.
std::size_t dbool_to_bool(void* dst, std::ptrdiff_t ds, const void* src, std::ptrdiff_t ss, std::size_t n,
                          std::int64_t* bad) {
  if (ds != 1 || ss != 1) return generic<Phys::Bool, Phys::DBool>(dst, ds, src, ss, n, bad);
  auto* d = static_cast<std::uint8_t*>(dst);
  const auto* s = static_cast<const U16*>(src);
  typedef std::uint8_t Bytes __attribute__((vector_size(kBlock)));
  std::size_t i = 0;
  for (; i + kBlock <= n; i += kBlock) {
    const Vec set = std::bit_cast<Vec>(load_vec(s + i) != U16(0)) & U16(1);
    const Bytes b = __builtin_convertvector(set, Bytes);
    std::memcpy(d + i, &b, sizeof b);
  }
  for (; i < n; ++i) d[i] = s[i] != 0;
  return n;
}

template <Phys PD, std::size_t... S>
constexpr std::array<Convert, sizeof...(S)> make_row(std::index_sequence<S...>) {
  return {&generic<PD, static_cast<Phys>(S)>...};
}

constexpr std::size_t kCount = static_cast<std::size_t>(Phys::Count);

template <std::size_t... D>
constexpr std::array<std::array<Convert, kCount>, kCount> make_table(std::index_sequence<D...>) {
  return {make_row<static_cast<Phys>(D)>(std::make_index_sequence<kCount>())...};
}

constexpr auto kTable = make_table(std::make_index_sequence<kCount>());

template <typename T>
void fill_typed(void* dst, std::ptrdiff_t ds, const void* value, std::size_t n) {
  T v;
  std::memcpy(&v, value, sizeof v);
  auto* d = static_cast<T*>(dst);
  if (ds == 1) {
    std::fill(d, d + n, v);
  } else {
    for (std::size_t i = 0; i < n; ++i) d[static_cast<std::ptrdiff_t>(i) * ds] = v;
  }
}

}  // namespace

Convert converter(Phys dst, Phys src) {
  if (dst == Phys::DF16 && src == Phys::F16) return &half_to_df16<false>;
  if (dst == Phys::F16 && src == Phys::DF16) return &df16_to_half_run<false>;
  if (dst == Phys::DF16 && src == Phys::BF16) return &bf16_to_df16<false>;
  if (dst == Phys::BF16 && src == Phys::DF16) return &df16_to_bf16<false>;
  if (dst == Phys::DBool && src == Phys::Bool) return &bool_to_dbool<false>;
  if (dst == Phys::Bool && src == Phys::DBool) return &dbool_to_bool;
  return kTable[static_cast<std::size_t>(dst)][static_cast<std::size_t>(src)];
}

Convert streaming_converter(Phys dst, Phys src) {
  if (dst == Phys::DF16 && src == Phys::F16) return &half_to_df16<true>;
  if (dst == Phys::F16 && src == Phys::DF16) return &df16_to_half_run<true>;
  if (dst == Phys::DF16 && src == Phys::BF16) return &bf16_to_df16<true>;
  if (dst == Phys::BF16 && src == Phys::DF16) return &df16_to_bf16<true>;
  if (dst == Phys::DBool && src == Phys::Bool) return &bool_to_dbool<true>;
  return nullptr;
}

void fill_run(void* dst, std::ptrdiff_t ds, const void* value, int bytes, std::size_t n) {
  switch (bytes) {
    case 1:
      return fill_typed<std::uint8_t>(dst, ds, value, n);
    case 2:
      return fill_typed<std::uint16_t>(dst, ds, value, n);
    case 4:
      return fill_typed<std::uint32_t>(dst, ds, value, n);
    default:
      return fill_typed<std::uint64_t>(dst, ds, value, n);
  }
}

}  // namespace loom::rt
