#include "chip/convert.h"

#include <bit>
#include <cstring>

#include "chip/simd.h"

namespace loom::chip {

namespace {

using namespace simd;

constexpr std::int32_t kRebias = (127 - 31)
                                 << 9;  // df16 code of 1.0 is this far below the top bits of a float

template <class T>
T at(const std::uint8_t* p, std::int64_t i) {
  T value;
  std::memcpy(&value, p + i * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
  return value;
}
template <class T>
void put(std::uint8_t* p, std::int64_t i, T value) {
  std::memcpy(p + i * static_cast<std::int64_t>(sizeof(T)), &value, sizeof(T));
}

/// The float bits of a df16 code held in an int32 lane (vector or scalar).
template <class V>
V df16_bits(V code) {
  const V magnitude = code & 0x7fff;
  V value = ((magnitude + kRebias) << 14) | ((code & 0x8000) << 16);
  if constexpr (sizeof(V) == 4) {
    if (magnitude == 0) value = 0;
    if (magnitude == 0x7fff) value = 0x7fc00000;
  } else {
    value &= ~(magnitude == 0);
    value = select(magnitude == 0x7fff, I{} + 0x7fc00000, value);
  }
  return value;
}

constexpr std::int32_t kHalfSmallest = 0x2f804000;  // 2^-32 (1 + 1/512)

/// The df16 code of float bits, in an int32 lane. The merged code and zero have no sign.
template <class V>
V df16_code(V value) {
  const V magnitude = value & 0x7fffffff;
  // (magnitude + 0x2000) >> 14 without the sum, which the last NaN patterns would carry out of the type
  V code = (((magnitude >> 13) + 1) >> 1) - kRebias;
  if constexpr (sizeof(V) == 4) {
    const V least = magnitude >= kHalfSmallest ? 1 : 0;
    code = code < least ? least : code;
    if (code >= 0x7fff) return 0x7fff;
    return code == 0 ? 0 : code | ((value >> 16) & 0x8000);
  } else {
    const V least = (magnitude >= kHalfSmallest) & 1;
    code = select(code < least, least, code);
    const V over = code >= 0x7fff;
    const V sign = (value >> 16) & 0x8000 & (code != 0);
    return select(over, I{} + 0x7fff, code | sign);
  }
}

using U16x8 = std::uint16_t __attribute__((vector_size(16)));
using I16x8 = std::int16_t __attribute__((vector_size(16)));

I widen(const std::uint16_t* p) {
#ifdef __AVX2__
  return reinterpret_cast<I>(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
#else
  return __builtin_convertvector(loadu<U16x8>(p), I);
#endif
}
void narrow(std::uint16_t* p, I v) {  // lanes hold 0..0xffff
#ifdef __AVX2__
  const __m256i packed = _mm256_packus_epi32(reinterpret_cast<__m256i>(v), reinterpret_cast<__m256i>(v));
  const __m256i order = _mm256_permute4x64_epi64(packed, 0x08);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(order));
#else
  storeu(p, __builtin_convertvector(v, U16x8));
#endif
}

float f16_value(std::uint16_t h) {
  const std::uint32_t sign = std::uint32_t{h & 0x8000u} << 16, magnitude = h & 0x7fffu;
  if (magnitude >= 0x7c00)
    return std::bit_cast<float>(sign | 0x7f800000u | (magnitude & 0x3ff) << 13 |
                                (magnitude > 0x7c00 ? 0x400000u : 0));
  if (magnitude < 0x400) {
    const float value = static_cast<float>(magnitude) * 0x1p-24f;
    return sign ? -value : value;
  }
  return std::bit_cast<float>(sign | ((magnitude << 13) + (std::uint32_t{112} << 23)));
}

/// IEEE half, round half to even.
std::uint16_t f16_code(float f) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(f), sign = bits >> 16 & 0x8000,
                      magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return static_cast<std::uint16_t>(sign | 0x7e00);
  if (magnitude >= 0x477ff000) return static_cast<std::uint16_t>(sign | 0x7c00);  // 65520 and up
  if (magnitude < 0x38800000) {  // below 2^-14: a multiple of 2^-24, rounded by the adder
    const float value = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(value) & 0x7ff));
  }
  const std::uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
  return static_cast<std::uint16_t>(sign | ((rounded >> 13) - (112u << 10)));
}

std::uint32_t bf16_code(std::uint32_t bits) {
  if ((bits & 0x7fffffff) > 0x7f800000) return (bits >> 16) | 0x40;
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

template <class T, class Fn>
void load_each(const std::uint8_t* from, std::int64_t stride, float* to, std::int64_t n, Fn fn) {
  for (std::int64_t i = 0; i < n; ++i) to[i] = fn(at<T>(from, i * stride));
}
template <class T, class Fn>
void store_each(const float* from, std::uint8_t* to, std::int64_t stride, std::int64_t n, Fn fn) {
  for (std::int64_t i = 0; i < n; ++i) put<T>(to, i * stride, static_cast<T>(fn(from[i])));
}

float from_int(std::int32_t v) { return std::bit_cast<float>(v); }
std::int32_t to_int32(float v) { return std::bit_cast<std::int32_t>(v); }
float df16_value(std::uint16_t h) { return from_int(df16_bits(std::int32_t{h})); }

}  // namespace

void df16_to_f32(const std::uint16_t* from, float* to, std::int64_t n) {
  std::int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) storeu(to + i, df16_bits(widen(from + i)));
  for (; i < n; ++i) to[i] = df16_value(from[i]);
}

void f32_to_df16(const float* from, std::uint16_t* to, std::int64_t n) {
  std::int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) narrow(to + i, df16_code(loadu<I>(from + i)));
  for (; i < n; ++i) to[i] = static_cast<std::uint16_t>(df16_code(to_int32(from[i])));
}

void round_df16(float* to, const float* from, std::int64_t n) {
  std::int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) storeu(to + i, df16_bits(df16_code(loadu<I>(from + i))));
  for (; i < n; ++i) to[i] = from_int(df16_bits(df16_code(to_int32(from[i]))));
}
void round_f16(float* to, const float* from, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) to[i] = f16_value(f16_code(from[i]));
}
void round_bf16(float* to, const float* from, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i)
    to[i] = std::bit_cast<float>(bf16_code(std::bit_cast<std::uint32_t>(from[i])) << 16);
}

bool load_lanes(Elem elem, const std::uint8_t* from, std::int64_t stride, float* to, std::int64_t n) {
  if (n <= 0) return true;
  if (stride == 0 && n > 1) {  // one element for all lanes
    if (!load_lanes(elem, from, 1, to, 1)) return false;
    for (std::int64_t i = 1; i < n; ++i) to[i] = to[0];
    return true;
  }
  switch (elem) {
    case Elem::DF16:
      if (stride == 1)
        df16_to_f32(reinterpret_cast<const std::uint16_t*>(from), to, n);
      else
        load_each<std::uint16_t>(from, stride, to, n, df16_value);
      break;
    case Elem::F32:
    case Elem::I32:
      if (stride == 1)
        std::memcpy(to, from, static_cast<std::size_t>(n) * 4);
      else
        load_each<float>(from, stride, to, n, [](float v) { return v; });
      break;
    case Elem::F16:
      load_each<std::uint16_t>(from, stride, to, n, f16_value);
      break;
    case Elem::BF16:
      load_each<std::uint16_t>(from, stride, to, n, [](std::uint16_t v) { return from_int(v << 16); });
      break;
    case Elem::I16:
      load_each<std::int16_t>(from, stride, to, n, [](std::int16_t v) { return from_int(v); });
      break;
    case Elem::I8:
      load_each<std::int8_t>(from, stride, to, n, [](std::int8_t v) { return from_int(v); });
      break;
    case Elem::U8:
      load_each<std::uint8_t>(from, stride, to, n, [](std::uint8_t v) { return from_int(v); });
      break;
    case Elem::I64:
      for (std::int64_t i = 0; i < n; ++i) {
        const auto v = at<std::int64_t>(from, i * stride);
        if (v != static_cast<std::int32_t>(v)) return false;
        to[i] = from_int(static_cast<std::int32_t>(v));
      }
      break;
  }
  return true;
}

void store_lanes(Elem elem, const float* from, std::uint8_t* to, std::int64_t stride, std::int64_t n) {
  if (n <= 0) return;
  switch (elem) {
    case Elem::DF16:
      if (stride == 1)
        f32_to_df16(from, reinterpret_cast<std::uint16_t*>(to), n);
      else
        store_each<std::uint16_t>(from, to, stride, n, [](float v) { return df16_code(to_int32(v)); });
      break;
    case Elem::F32:
    case Elem::I32:
      if (stride == 1)
        std::memcpy(to, from, static_cast<std::size_t>(n) * 4);
      else
        store_each<float>(from, to, stride, n, [](float v) { return v; });
      break;
    case Elem::F16:
      store_each<std::uint16_t>(from, to, stride, n, f16_code);
      break;
    case Elem::BF16:
      store_each<std::uint16_t>(from, to, stride, n,
                                [](float v) { return bf16_code(std::bit_cast<std::uint32_t>(v)); });
      break;
    case Elem::I16:
      store_each<std::uint16_t>(from, to, stride, n, to_int32);
      break;
    case Elem::I8:
    case Elem::U8:
      store_each<std::uint8_t>(from, to, stride, n, to_int32);
      break;
    case Elem::I64:
      store_each<std::int64_t>(from, to, stride, n, to_int32);
      break;
  }
}

}  // namespace loom::chip
