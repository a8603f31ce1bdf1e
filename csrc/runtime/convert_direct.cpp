// Sixteen elements at a time in integer arithmetic: in these pairs the bits are the same number with another
// bias or another width. Values outside the common range send their block of sixteen the scalar way.
#include "runtime/convert_direct.h"

#include <bit>
#include <cstring>
#include <utility>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "runtime/codec.h"

namespace loom::rt {
namespace {

using U16 = std::uint16_t;
constexpr std::size_t kBlock = 16;
typedef U16 Vec __attribute__((vector_size(2 * kBlock)));
typedef std::int16_t VecS __attribute__((vector_size(2 * kBlock)));
typedef std::uint8_t Bytes __attribute__((vector_size(kBlock)));
typedef U16 HalfVec __attribute__((vector_size(kBlock)));
typedef std::uint32_t HalfWords __attribute__((vector_size(2 * kBlock)));
/// A block of 32-bit elements: compilers take vectors of one register apart element by element when they are
/// wider.
struct Words {
  HalfWords low, high;
};

template <typename V>
V load(const void* p) {
  V v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

/// Writes a whole vector; past the caches with kStream, where `p` must be aligned to it.
template <bool kStream, typename V>
void store(void* p, V v) {
#if defined(__SSE2__)
  if constexpr (kStream) {
    __m128i parts[sizeof(V) / 16];
    std::memcpy(parts, &v, sizeof v);
    for (std::size_t i = 0; i < sizeof(V) / 16; ++i) _mm_stream_si128(static_cast<__m128i*>(p) + i, parts[i]);
    return;
  }
#endif
  std::memcpy(p, &v, sizeof v);
}

template <bool kStream>
void store(void* p, Words w) {
  store<kStream>(p, w.low);
  store<kStream>(static_cast<std::uint8_t*>(p) + sizeof w.low, w.high);
}

bool any(VecS mask) {
  std::uint64_t w[sizeof(VecS) / 8];
  std::memcpy(w, &mask, sizeof mask);
  std::uint64_t all = 0;
  for (std::uint64_t x : w) all |= x;
  return all != 0;
}

template <typename ToType, typename FromType, typename OutType = Vec>
struct Types {
  using To = ToType;
  using From = FromType;
  using Out = OutType;
};

// Each operation has a scalar form and a form for a block, which returns false when the block must go the
// scalar way.

/// Rebias and round off one fraction bit (ties up in magnitude). Subnormal halves need a normalising shift.
struct HalfToDf16 : Types<U16, U16> {
  static To one(From h) { return df16::from_float(half_to_float(h)); }
  static bool block(const From* s, Out* out) {
    const Vec h = load<Vec>(s);
    const Vec magnitude = h & U16(0x7FFF);
    const Vec infinite = std::bit_cast<Vec>(magnitude == U16(0x7C00));
    const Vec nan = std::bit_cast<Vec>(std::bit_cast<VecS>(magnitude) > std::int16_t(0x7C00));
    const VecS zero = magnitude == U16(0);
    const VecS small = (std::bit_cast<VecS>(magnitude) < std::int16_t(0x400)) & ~zero;
    if (any(small)) [[unlikely]]
      return false;
    Vec code = (magnitude + U16(0x4001)) >> 1;
    code = ((code & ~infinite) | (infinite & U16(df16::kLargest))) | (h & U16(0x8000));
    code = (code & ~nan) | (nan & U16(df16::kMerged));
    *out = code & ~std::bit_cast<Vec>(zero);
    return true;
  }
};

/// Exact in the range of normal halves.
struct Df16ToHalf : Types<U16, U16> {
  static To one(From c) { return df16_to_half(c); }
  static bool block(const From* s, Out* out) {
    constexpr std::int16_t kLow = 17 << 9, kHigh = 47 << 9;  // codes of 2^-14 and of 2^16
    const Vec c = load<Vec>(s);
    const Vec magnitude = c & U16(0x7FFF);
    const VecS m = std::bit_cast<VecS>(magnitude);
    const VecS zero = magnitude == U16(0);
    if (any(((m < kLow) & ~zero) | (m >= kHigh))) [[unlikely]]
      return false;
    const Vec h = ((magnitude << 1) - U16(0x4000)) | (c & U16(0x8000));
    *out = h & ~std::bit_cast<Vec>(zero);
    return true;
  }
};

/// Exact: another bias and two more fraction bits. Zero counts among the common exponents.
struct Bf16ToDf16 : Types<U16, U16> {
  static To one(From b) { return df16::from_float(bf16_to_float(b)); }
  static bool block(const From* s, Out* out) {
    constexpr std::int16_t kLow = 97 << 7, kHigh = 158 << 7;
    const Vec b = load<Vec>(s);
    const Vec magnitude = b & U16(0x7FFF);
    const VecS m = std::bit_cast<VecS>(magnitude);
    const VecS zero = magnitude == U16(0);
    if (any(((m < kLow) & ~zero) | (m >= kHigh))) [[unlikely]]
      return false;
    // The true result has 15 bits, so wrapping at 16 in between is harmless.
    const Vec code = ((magnitude << 2) - U16(96 << 9)) | (b & U16(0x8000));
    *out = code & ~std::bit_cast<Vec>(zero);
    return true;
  }
};

/// Every df16 is in range; two fraction bits round to nearest even.
struct Df16ToBf16 : Types<U16, U16> {
  static To one(From c) { return float_to_bf16(df16::to_float(c)); }
  static bool block(const From* s, Out* out) {
    const Vec c = load<Vec>(s);
    const Vec magnitude = c & U16(0x7FFF);
    const Vec rounded = ((magnitude + U16(1) + ((magnitude >> 2) & U16(1))) >> 2) + U16(96 << 7);
    const Vec nan = std::bit_cast<Vec>(magnitude == U16(df16::kMerged));
    const Vec zero = std::bit_cast<Vec>(magnitude == U16(0));
    const Vec code = (rounded | (c & U16(0x8000))) & ~zero;
    *out = (code & ~nan) | (nan & U16(0x7FC0));
    return true;
  }
};

/// Any non-zero byte is one.
struct BoolToDf16 : Types<U16, std::uint8_t> {
  static To one(From b) { return b != 0 ? df16::kOne : 0; }
  static bool block(const From* s, Out* out) {
    const Vec wide = __builtin_convertvector(load<Bytes>(s), Vec);
    *out = std::bit_cast<Vec>(wide != U16(0)) & U16(df16::kOne);
    return true;
  }
};

/// Any code but zero is true.
struct Df16ToBool : Types<std::uint8_t, U16, Bytes> {
  static To one(From c) { return c != 0; }
  static bool block(const From* s, Out* out) {
    const Vec set = std::bit_cast<Vec>(load<Vec>(s) != U16(0)) & U16(1);
    *out = __builtin_convertvector(set, Bytes);
    return true;
  }
};

struct ByteToWord : Types<std::uint32_t, std::uint8_t, Words> {
  static HalfWords widen(HalfVec v) { return __builtin_convertvector(v, HalfWords); }
  static To one(From b) { return b; }
  static bool block(const From* s, Out* out) {
    const Vec wide = __builtin_convertvector(load<Bytes>(s), Vec);
    *out = {widen(load<HalfVec>(&wide)),
            widen(load<HalfVec>(reinterpret_cast<const U16*>(&wide) + kBlock / 2))};
    return true;
  }
};

struct WordToByte : Types<std::uint8_t, std::uint32_t, Bytes> {
  static To one(From w) { return static_cast<To>(w); }
  static bool block(const From* s, Out* out) {
    const Vec halves = even(load<Vec>(s), load<Vec>(s + kBlock / 2), std::make_index_sequence<kBlock>());
    *out = __builtin_convertvector(halves, Bytes);
    return true;
  }
  /// Lanes 0, 2, 4 and so on of both.
  template <std::size_t... I>
  static Vec even(Vec a, Vec b, std::index_sequence<I...>) {
    return Vec{(I < kBlock / 2 ? a : b)[2 * I % kBlock]...};
  }
};

template <typename Op, bool kStream>
bool direct(void* dst, const void* src, const Runs& runs, std::int64_t*) {
  auto* d = static_cast<typename Op::To*>(dst);
  const auto* s = static_cast<const typename Op::From*>(src);
  for (std::size_t r = 0; r < runs.rows; ++r, d += runs.dst_pitch, s += runs.src_pitch) {
    std::size_t i = 0;
    if (runs.dst_step == 1 && runs.src_step == 1) {
      for (; i + kBlock <= runs.n; i += kBlock) {
        typename Op::Out out;
        if (Op::block(s + i, &out)) [[likely]] {
          store<kStream>(d + i, out);
        } else {
          for (std::size_t k = i; k < i + kBlock; ++k) d[k] = Op::one(s[k]);
        }
      }
    }
    for (; i < runs.n; ++i) {
      const auto k = static_cast<std::ptrdiff_t>(i);
      d[k * runs.dst_step] = Op::one(s[k * runs.src_step]);
    }
  }
  return true;
}

struct Entry {
  Phys dst, src;
  Convert plain, stream;
};

template <typename Op>
constexpr Entry entry(Phys dst, Phys src) {
  return {dst, src, &direct<Op, false>, &direct<Op, true>};
}

constexpr Entry kEntries[] = {
    entry<HalfToDf16>(Phys::DF16, Phys::F16),   entry<Df16ToHalf>(Phys::F16, Phys::DF16),
    entry<Bf16ToDf16>(Phys::DF16, Phys::BF16),  entry<Df16ToBf16>(Phys::BF16, Phys::DF16),
    entry<BoolToDf16>(Phys::DBool, Phys::Bool), entry<Df16ToBool>(Phys::Bool, Phys::DBool),
    entry<ByteToWord>(Phys::U32W, Phys::U8),    entry<WordToByte>(Phys::U8, Phys::U32W),
};

}  // namespace

Convert direct_converter(Phys dst, Phys src, bool stream) {
  for (const Entry& e : kEntries)
    if (e.dst == dst && e.src == src) return stream ? e.stream : e.plain;
  return nullptr;
}

}  // namespace loom::rt
