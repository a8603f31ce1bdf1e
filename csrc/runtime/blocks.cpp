// Sixteen-byte vectors throughout: every x86-64 has them, and both kernels are bound by memory.
#include "runtime/blocks.h"

#include <algorithm>
#include <cstring>
#include <utility>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace loom::rt {
namespace {

constexpr std::size_t kLine = 64;

template <typename T>
struct Block {
  static constexpr std::size_t kSide = 16 / sizeof(T);
  typedef T Vec __attribute__((vector_size(16)));

  template <std::size_t... I>
  static Vec low(Vec a, Vec b, std::index_sequence<I...>) {
    return Vec{(I % 2 != 0 ? b : a)[I / 2]...};
  }
  template <std::size_t... I>
  static Vec high(Vec a, Vec b, std::index_sequence<I...>) {
    return Vec{(I % 2 != 0 ? b : a)[kSide / 2 + I / 2]...};
  }

  /// One square. Interleaving row k with row k + n/2 is a perfect shuffle of the n * n elements; log2(n)
  /// of them swap the two halves of an element's index, which is the transpose.
  static void square(T* dst, std::ptrdiff_t dst_pitch, const T* src, std::ptrdiff_t src_pitch) {
    constexpr auto lanes = std::make_index_sequence<kSide>();
    Vec v[kSide], w[kSide];
    for (std::size_t r = 0; r < kSide; ++r)
      std::memcpy(&v[r], src + static_cast<std::ptrdiff_t>(r) * src_pitch, sizeof(Vec));
    for (std::size_t n = kSide; n > 1; n /= 2) {
      for (std::size_t k = 0; k < kSide / 2; ++k) {
        w[2 * k] = low(v[k], v[k + kSide / 2], lanes);
        w[2 * k + 1] = high(v[k], v[k + kSide / 2], lanes);
      }
      std::copy(w, w + kSide, v);
    }
    for (std::size_t r = 0; r < kSide; ++r)
      std::memcpy(dst + static_cast<std::ptrdiff_t>(r) * dst_pitch, &v[r], sizeof(Vec));
  }

  static void edge(T* dst, std::ptrdiff_t dst_pitch, const T* src, std::ptrdiff_t src_pitch, std::size_t rows,
                   std::size_t columns) {
    for (std::size_t r = 0; r < rows; ++r)
      for (std::size_t c = 0; c < columns; ++c)
        dst[static_cast<std::ptrdiff_t>(c) * dst_pitch + static_cast<std::ptrdiff_t>(r)] =
            src[static_cast<std::ptrdiff_t>(r) * src_pitch + static_cast<std::ptrdiff_t>(c)];
  }

  static void run(void* to, std::ptrdiff_t dst_pitch, const void* from, std::ptrdiff_t src_pitch,
                  std::size_t rows, std::size_t columns, Far far) {
    auto* dst = static_cast<T*>(to);
    const auto* src = static_cast<const T*>(from);
    auto one = [&](std::size_t r, std::size_t c) {
      const std::size_t height = std::min(kSide, rows - r), width = std::min(kSide, columns - c);
      T* d = dst + static_cast<std::ptrdiff_t>(c) * dst_pitch + static_cast<std::ptrdiff_t>(r);
      const T* s = src + static_cast<std::ptrdiff_t>(r) * src_pitch + static_cast<std::ptrdiff_t>(c);
      if (height == kSide && width == kSide) {
        square(d, dst_pitch, s, src_pitch);
      } else {
        edge(d, dst_pitch, s, src_pitch, height, width);
      }
    };
    if (far == Far::Src) {
      for (std::size_t r = 0; r < rows; r += kSide)
        for (std::size_t c = 0; c < columns; c += kSide) one(r, c);
    } else {
      for (std::size_t c = 0; c < columns; c += kSide)
        for (std::size_t r = 0; r < rows; r += kSide) one(r, c);
    }
  }
};

}  // namespace

void stream_copy(void* dst, const void* src, std::size_t bytes) {
#if defined(__SSE2__)
  auto* d = static_cast<std::uint8_t*>(dst);
  const auto* s = static_cast<const std::uint8_t*>(src);
  const std::size_t head = std::min(bytes, (kLine - reinterpret_cast<std::uintptr_t>(d) % kLine) % kLine);
  std::memcpy(d, s, head);
  std::size_t i = head;
  for (; i + kLine <= bytes; i += kLine) {
    const auto* from = reinterpret_cast<const __m128i*>(s + i);
    auto* to = reinterpret_cast<__m128i*>(d + i);
    const __m128i a = _mm_loadu_si128(from), b = _mm_loadu_si128(from + 1);
    const __m128i c = _mm_loadu_si128(from + 2), e = _mm_loadu_si128(from + 3);
    _mm_stream_si128(to, a);
    _mm_stream_si128(to + 1, b);
    _mm_stream_si128(to + 2, c);
    _mm_stream_si128(to + 3, e);
  }
  std::memcpy(d + i, s + i, bytes - i);
#else
  std::memcpy(dst, src, bytes);
#endif
}

void stream_fence() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

void transpose(void* dst, std::ptrdiff_t dst_pitch, const void* src, std::ptrdiff_t src_pitch,
               std::size_t rows, std::size_t columns, int bytes, Far far) {
  switch (bytes) {
    case 1:
      return Block<std::uint8_t>::run(dst, dst_pitch, src, src_pitch, rows, columns, far);
    case 2:
      return Block<std::uint16_t>::run(dst, dst_pitch, src, src_pitch, rows, columns, far);
    case 4:
      return Block<std::uint32_t>::run(dst, dst_pitch, src, src_pitch, rows, columns, far);
    default:
      return Block<std::uint64_t>::run(dst, dst_pitch, src, src_pitch, rows, columns, far);
  }
}

}  // namespace loom::rt
