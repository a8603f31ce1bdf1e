// Conversion of runs with the choice of writing past the caches.
#pragma once

#include <algorithm>
#include <cstdint>

#include "runtime/blocks.h"
#include "runtime/convert.h"
#include "runtime/transfer.h"

namespace loom::rt {

/// Converts runs and writes them, past the caches when asked to and where whole cache lines result.
class Writer {
 public:
  Writer(Phys dst, Phys src, bool stream)
      : dst_bytes(phys_bytes(dst)),
        src_bytes(phys_bytes(src)),
        convert_(converter(dst, src)),
        streaming_(streaming_converter(dst, src)),
        same_(same_pattern(dst, src)),
        stream_(stream) {}

  const int dst_bytes, src_bytes;

  /// Through the caches.
  void convert(void* dst, const void* src, const Runs& runs) const {
    std::int64_t bad = 0;
    if (!convert_(dst, src, runs, &bad)) throw ValueError(bad);
  }

  bool may_stream() const { return stream_; }

  /// True when runs that start at `dst` are made of whole cache lines, or long enough for their ends not to
  /// matter.
  bool streams(const void* dst, const Runs& runs) const {
    if (!stream_ || runs.dst_step != 1) return false;
    const auto bytes = static_cast<std::int64_t>(runs.n) * dst_bytes;
    const auto pitch = static_cast<std::int64_t>(runs.dst_pitch) * dst_bytes;
    return bytes >= kLongRun || (bytes % kLine == 0 && (runs.rows == 1 || pitch % kLine == 0) &&
                                 reinterpret_cast<std::uintptr_t>(dst) % kLine == 0);
  }

  void write(void* dst, const void* src, const Runs& runs) const {
    if (!streams(dst, runs)) return convert(dst, src, runs);
    if (streaming_ != nullptr && runs.src_step == 1 &&
        reinterpret_cast<std::uintptr_t>(dst) % kStreamAlignment == 0 &&
        (runs.rows == 1 || runs.dst_pitch * dst_bytes % static_cast<std::ptrdiff_t>(kStreamAlignment) == 0)) {
      std::int64_t none = 0;
      (void)streaming_(dst, src, runs, &none);
      return;
    }
    auto* to = static_cast<std::uint8_t*>(dst);
    const auto* from = static_cast<const std::uint8_t*>(src);
    for (std::size_t r = 0; r < runs.rows; ++r) {
      stream_run(to, from, static_cast<std::int64_t>(runs.n), runs.src_step);
      to += runs.dst_pitch * dst_bytes;
      from += runs.src_pitch * src_bytes;
    }
  }

 private:
  static constexpr std::int64_t kLine = 64;
  /// Bytes from which a run may begin and end inside a cache line.
  static constexpr std::int64_t kLongRun = 2048;

  void stream_run(std::uint8_t* dst, const std::uint8_t* src, std::int64_t n, std::ptrdiff_t src_step) const {
    if (same_ && src_step == 1) return stream_copy(dst, src, static_cast<std::size_t>(n * dst_bytes));
    alignas(64) std::uint8_t stage[4096];
    const std::int64_t room = static_cast<std::int64_t>(sizeof stage) / dst_bytes;
    for (std::int64_t done = 0; done < n; done += room) {
      const std::int64_t now = std::min(room, n - done);
      Runs run;
      run.n = static_cast<std::size_t>(now);
      run.src_step = src_step;
      convert(stage, src + done * src_step * src_bytes, run);
      stream_copy(dst + done * dst_bytes, stage, static_cast<std::size_t>(now * dst_bytes));
    }
  }

  Convert convert_, streaming_;
  bool same_, stream_;
};

}  // namespace loom::rt
