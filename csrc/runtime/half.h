// IEEE half, bfloat16 and the two 8-bit floats against float32, one element at a time.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#if defined(__F16C__)
#include <immintrin.h>
#endif

namespace loom::rt {

inline float half_to_float(std::uint16_t h) {
#if defined(__F16C__)
  return _cvtsh_ss(h);
#else
  const std::uint32_t sign = (h & 0x8000u) << 16;
  const std::uint32_t magnitude = h & 0x7FFFu;
  if (magnitude >= 0x7C00u) return std::bit_cast<float>(sign | 0x7F800000u | ((magnitude & 0x3FFu) << 13));
  if (magnitude >= 0x400u) return std::bit_cast<float>(sign | ((magnitude << 13) + (112u << 23)));
  const float value = static_cast<float>(magnitude) * 0x1p-24f;
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(value));
#endif
}

/// Nearest, ties to even, overflow to infinity.
inline std::uint16_t float_to_half(float value) {
#if defined(__F16C__)
  return static_cast<std::uint16_t>(_cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#else
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return static_cast<std::uint16_t>(sign | 0x7E00u);
  if (magnitude >= 0x477FF000u) return static_cast<std::uint16_t>(sign | 0x7C00u);
  if (magnitude < 0x38800000u) {
    const float scaled = std::bit_cast<float>(magnitude) * 0x1p24f;
    return static_cast<std::uint16_t>(sign | static_cast<std::uint32_t>(std::nearbyintf(scaled)));
  }
  const std::uint32_t rounded = magnitude + 0xFFFu + ((magnitude >> 13) & 1u);
  return static_cast<std::uint16_t>(sign | ((rounded - (112u << 23)) >> 13));
#endif
}

inline float bf16_to_float(std::uint16_t b) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(b) << 16);
}

inline std::uint16_t float_to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  return static_cast<std::uint16_t>((bits & 0x7FFFFFFFu) > 0x7F800000u ? 0x7FC0u : rounded);
}

/// Decodes an 8-bit float with `M` fraction bits and exponent bias `B`; the NaN codes are handled outside.
template <int M, int B>
inline float fp8_magnitude(std::uint32_t code) {
  const std::uint32_t e = code >> M, f = code & ((1u << M) - 1);
  const float fraction = static_cast<float>(f) / (1 << M);
  return e == 0 ? std::ldexp(fraction, 1 - B) : std::ldexp(1.0f + fraction, static_cast<int>(e) - B);
}

/// Encodes |value| (finite) to nearest even; may return a code above the largest finite one.
template <int M, int B>
inline std::uint32_t fp8_encode(float value) {
  int e = 0;
  std::frexp(value, &e);
  const int exponent = value == 0 ? 1 - B : std::max(e - 1, 1 - B);
  const float steps = std::nearbyintf(std::ldexp(value, M - exponent));
  if (steps > 1e6f) return 0xFFFFu;
  return static_cast<std::uint32_t>(steps) + (static_cast<std::uint32_t>(exponent + B - 1) << M);
}

inline float e4m3_to_float(std::uint8_t c) {
  if ((c & 0x7F) == 0x7F) return NAN;
  const float m = fp8_magnitude<3, 7>(c & 0x7F);
  return (c & 0x80) != 0 ? -m : m;
}

/// What lies beyond 448, infinities included, becomes 448, as in PyTorch.
inline std::uint8_t float_to_e4m3(float v) {
  const std::uint8_t sign = std::signbit(v) ? 0x80 : 0;
  if (std::isnan(v)) return sign | 0x7F;
  const std::uint32_t code = std::isinf(v) ? 0x7Eu : fp8_encode<3, 7>(std::fabs(v));
  return static_cast<std::uint8_t>(sign | std::min(code, 0x7Eu));
}

inline float e5m2z_to_float(std::uint8_t c) {
  if (c == 0x80) return NAN;
  const float m = fp8_magnitude<2, 16>(c & 0x7F);
  return (c & 0x80) != 0 ? -m : m;
}

/// The format has one NaN (0x80), no infinity and no negative zero; overflow becomes NaN.
inline std::uint8_t float_to_e5m2z(float v) {
  if (!std::isfinite(v)) return 0x80;
  const std::uint32_t code = fp8_encode<2, 16>(std::fabs(v));
  if (code > 0x7F) return 0x80;
  return static_cast<std::uint8_t>(std::signbit(v) && code != 0 ? (0x80u | code) : code);
}

}  // namespace loom::rt
