// Element conversion of runs: the innermost loops of every transfer.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/types.h"

namespace loom::rt {

/// `rows` runs of `n` elements each; steps lead from element to element, pitches from run to run, both
/// counted in elements of their side.
struct Runs {
  std::size_t n = 0, rows = 1;
  std::ptrdiff_t dst_step = 1, src_step = 1;
  std::ptrdiff_t dst_pitch = 0, src_pitch = 0;
};

/// Converts all elements of the runs. Returns false when one does not fit the destination: `*bad` then holds
/// it, and what follows it is not written.
using Convert = bool (*)(void* dst, const void* src, const Runs&, std::int64_t* bad);

/// The conversion for a pair of bit patterns; every pair has one.
Convert converter(Phys dst, Phys src);

/// The same conversion with its results written past the caches (stream_fence applies), for the pairs that
/// have one; it cannot fail, needs unit steps and runs that start at multiples of kStreamAlignment bytes.
inline constexpr std::size_t kStreamAlignment = 32;
Convert streaming_converter(Phys dst, Phys src);

/// True when the conversion is a copy of bytes.
constexpr bool same_pattern(Phys dst, Phys src) {
  return dst == src || (dst == Phys::I32 && src == Phys::I32N);
}

/// Writes the `bytes`-sized pattern at `value` to `n` places.
void fill_run(void* dst, std::ptrdiff_t dst_step, const void* value, int bytes, std::size_t n);

}  // namespace loom::rt
