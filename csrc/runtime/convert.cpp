// Every pair of bit patterns converts through the value it stands for. The pairs that carry models have a
// direct form in convert_direct.cpp.
#include "runtime/convert.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "runtime/codec.h"
#include "runtime/convert_direct.h"

namespace loom::rt {
namespace {

template <Phys PD, Phys PS>
class Generic {
  using D = Codec<PD>;
  using S = Codec<PS>;
  using To = typename D::T;
  using From = typename S::T;

  static To one(From x) {
    if constexpr (same_pattern(PD, PS)) {
      return static_cast<To>(x);
    } else if constexpr (PD == Phys::F16 && PS == Phys::DF16) {
      return df16_to_half(x);
    } else {
      return D::store(S::load(x));
    }
  }

  static void run(To* d, std::ptrdiff_t ds, const From* s, std::ptrdiff_t ss, std::size_t n) {
    if (ds == 1 && ss == 1) {
      if constexpr (same_pattern(PD, PS)) {
        std::memcpy(d, s, n * sizeof(*d));
      } else {
        for (std::size_t i = 0; i < n; ++i) d[i] = one(s[i]);
      }
    } else {
      for (std::size_t i = 0; i < n; ++i) d[std::ptrdiff_t(i) * ds] = one(s[std::ptrdiff_t(i) * ss]);
    }
  }

  /// Values that 32 bits may not hold: all are converted first and looked at one by one only when bits were
  /// lost.
  static bool checked(To* d, std::ptrdiff_t ds, const From* s, std::ptrdiff_t ss, std::size_t n,
                      std::int64_t* bad) {
    if constexpr (PS == Phys::I64) {
      if (ds == 1 && ss == 1) {
        std::int64_t lost = 0;
        for (std::size_t i = 0; i < n; ++i) {
          d[i] = static_cast<To>(s[i]);
          lost |= s[i] ^ static_cast<std::int64_t>(d[i]);
        }
        if (lost == 0) return true;
      }
    }
    for (std::size_t i = 0; i < n; ++i) {
      const std::int64_t v = D::wide(S::load(s[std::ptrdiff_t(i) * ss]));
      if (v != static_cast<std::int32_t>(v)) {
        *bad = v;
        return false;
      }
      d[std::ptrdiff_t(i) * ds] = static_cast<std::int32_t>(v);
    }
    return true;
  }

 public:
  static bool convert(void* dst, const void* src, const Runs& runs, std::int64_t* bad) {
    auto* d = static_cast<To*>(dst);
    const auto* s = static_cast<const From*>(src);
    for (std::size_t r = 0; r < runs.rows; ++r, d += runs.dst_pitch, s += runs.src_pitch) {
      if constexpr (D::checked && !same_pattern(PD, PS)) {
        if (!checked(d, runs.dst_step, s, runs.src_step, runs.n, bad)) return false;
      } else {
        run(d, runs.dst_step, s, runs.src_step, runs.n);
      }
    }
    return true;
  }
};

template <Phys PD, std::size_t... S>
constexpr std::array<Convert, sizeof...(S)> make_row(std::index_sequence<S...>) {
  return {&Generic<PD, static_cast<Phys>(S)>::convert...};
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
  if (const Convert direct = direct_converter(dst, src, false)) return direct;
  return kTable[static_cast<std::size_t>(dst)][static_cast<std::size_t>(src)];
}

Convert streaming_converter(Phys dst, Phys src) { return direct_converter(dst, src, true); }

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
