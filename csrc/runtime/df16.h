// df16 (1-6-9) in terms of float32 bits. Both formats store exponent and fraction in order, so shifting
// the magnitude by 14 bits and subtracting a constant converts, and rounding to nearest with ties away
// from zero is one addition that carries into the exponent. Only the two ends need care: 2^-31 has no
// code (it would be zero), and the last code is the one value for overflow and NaN, written without sign.
#pragma once

#include <bit>
#include <cstdint>

namespace loom::rt::df16 {

inline constexpr std::uint32_t kMerged = 0x7FFF;
inline constexpr std::uint32_t kLargest = 0x7FFE;
inline constexpr std::uint32_t kOne = 0x3E00;
inline constexpr int kShift = 14;
inline constexpr std::uint32_t kRebias = (127 - 31) << 9;
/// Bits of 2^-32 * (1 + 1/512) as float32: below it a magnitude rounds to zero.
inline constexpr std::uint32_t kHalfTiny = ((127u - 32u) << 23) | (1u << 14);

inline std::uint16_t from_float(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
  auto code = static_cast<std::int32_t>((magnitude + (1u << (kShift - 1))) >> kShift) -
              static_cast<std::int32_t>(kRebias);
  code = code < 1 ? 1 : code;
  const bool merged = code >= static_cast<std::int32_t>(kMerged);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  std::uint32_t out = merged ? kMerged : (static_cast<std::uint32_t>(code) | sign);
  out = magnitude < kHalfTiny ? 0u : out;
  // The format has no infinity. One that comes from the host (a mask, say) becomes the largest finite value,
  // which compares and exponentiates as intended and reads back as infinity in a half.
  out = magnitude == 0x7F800000u ? (kLargest | sign) : out;
  return static_cast<std::uint16_t>(out);
}

inline float to_float(std::uint16_t code) {
  const std::uint32_t magnitude = code & 0x7FFFu;
  std::uint32_t bits = ((magnitude + kRebias) << kShift) | ((code & 0x8000u) << 16);
  bits = magnitude == 0 ? 0u : bits;
  bits = magnitude == kMerged ? 0x7FC00000u : bits;
  return std::bit_cast<float>(bits);
}

}  // namespace loom::rt::df16
