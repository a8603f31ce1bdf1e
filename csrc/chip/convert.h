// Element formats <-> 32-bit registers, and the rounding rules of df16 (docs/chip.md, number formats).
//
// df16 (1-6-9, bias 31): no subnormals, code 0x7fff (any sign) is the one merged NaN/infinity and reads as
// NaN, code 0 (any sign) is zero. Rounding is to nearest, ties away from zero; what exceeds the range
// becomes the merged code; below the smallest positive value the nearer of it and zero, the half goes up.
// Codes are written with a positive sign for zero and for the merged value.
#pragma once

#include <cstdint>

#include "chip/program.h"

namespace loom::chip {

void df16_to_f32(const std::uint16_t* from, float* to, std::int64_t n);
void f32_to_df16(const float* from, std::uint16_t* to, std::int64_t n);

/// Read n elements, `stride` elements apart, into 32-bit lanes (floats, or int32 for integer formats).
/// Returns false when an int64 value does not fit in 32 bits.
bool load_lanes(Elem elem, const std::uint8_t* from, std::int64_t stride, float* to, std::int64_t n);

/// Round n lanes to elements, `stride` elements apart. Narrow integers keep the low bits.
void store_lanes(Elem elem, const float* from, std::uint8_t* to, std::int64_t stride, std::int64_t n);

/// Round in place to the nearest value of a narrower float format, kept as float.
void round_df16(float* to, const float* from, std::int64_t n);
void round_f16(float* to, const float* from, std::int64_t n);
void round_bf16(float* to, const float* from, std::int64_t n);

}  // namespace loom::chip
