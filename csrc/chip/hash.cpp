#include "chip/hash.h"

#include <bit>
#include <cstring>

namespace loom::chip {

namespace {

constexpr std::array<std::uint32_t, 256> crc_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) ? 0xEDB88320u : 0u);
    table[i] = value;
  }
  return table;
}

constexpr bool is_prime(std::uint32_t n) {
  for (std::uint32_t d = 2; d * d <= n; ++d)
    if (n % d == 0) return false;
  return true;
}

/// The first 32 fraction bits of the square (root 2) or cube (root 3) root of n, found by bisection.
constexpr std::uint32_t root_bits(std::uint64_t n, int root) {
  using Wide = unsigned __int128;
  std::uint64_t low = 0, high = std::uint64_t{1} << 40;  // root * 2^32; the roots stay below 256
  while (high - low > 1) {
    const std::uint64_t mid = low + (high - low) / 2;
    const Wide square = static_cast<Wide>(mid) * mid;  // below 2^80, the cube below 2^120
    const bool fits =
        root == 2 ? square <= (static_cast<Wide>(n) << 64) : square * mid <= (static_cast<Wide>(n) << 96);
    (fits ? low : high) = mid;
  }
  return static_cast<std::uint32_t>(low);
}

struct ShaConstants {
  std::array<std::uint32_t, 64> k{};
  std::array<std::uint32_t, 8> start{};
};

constexpr ShaConstants sha_constants() {
  ShaConstants c;
  int found = 0;
  for (std::uint32_t n = 2; found < 64; ++n) {
    if (!is_prime(n)) continue;
    c.k[static_cast<std::size_t>(found)] = root_bits(n, 3);
    if (found < 8) c.start[static_cast<std::size_t>(found)] = root_bits(n, 2);
    ++found;
  }
  return c;
}

const ShaConstants kSha = sha_constants();

void sha_block(std::array<std::uint32_t, 8>& state, const std::uint8_t* data) {
  std::uint32_t w[64];
  for (int i = 0; i < 16; ++i)
    w[i] = std::uint32_t{data[4 * i]} << 24 | std::uint32_t{data[4 * i + 1]} << 16 |
           std::uint32_t{data[4 * i + 2]} << 8 | data[4 * i + 3];
  for (int i = 16; i < 64; ++i) {
    const std::uint32_t s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
    const std::uint32_t s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
    w[i] = w[i - 16] + s0 + w[i - 7] + s1;
  }
  auto [a, b, c, d, e, f, g, h] = state;
  for (int i = 0; i < 64; ++i) {
    const std::uint32_t s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    const std::uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + kSha.k[static_cast<std::size_t>(i)] + w[i];
    const std::uint32_t s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    const std::uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
  }
  const std::uint32_t add[8] = {a, b, c, d, e, f, g, h};
  for (std::size_t i = 0; i < 8; ++i) state[i] += add[i];
}

}  // namespace

std::uint32_t crc32(std::span<const std::uint8_t> data) {
  static constexpr auto kTable = crc_table();
  std::uint32_t crc = ~0u;
  for (std::uint8_t byte : data) crc = (crc >> 8) ^ kTable[(crc ^ byte) & 255];
  return ~crc;
}

std::array<std::uint8_t, 32> sha256(std::span<const std::uint8_t> data) {
  std::array<std::uint32_t, 8> state = kSha.start;
  const std::size_t whole = data.size() / 64 * 64;
  for (std::size_t at = 0; at < whole; at += 64) sha_block(state, data.data() + at);
  std::uint8_t tail[128] = {};
  const std::size_t rest = data.size() - whole;
  if (rest) std::memcpy(tail, data.data() + whole, rest);
  tail[rest] = 0x80;
  const std::size_t padded = rest < 56 ? 64 : 128;
  const std::uint64_t bits = std::uint64_t{data.size()} * 8;
  for (std::size_t i = 0; i < 8; ++i) tail[padded - 1 - i] = static_cast<std::uint8_t>(bits >> (8 * i));
  for (std::size_t at = 0; at < padded; at += 64) sha_block(state, tail + at);
  std::array<std::uint8_t, 32> digest;
  for (std::size_t i = 0; i < 32; ++i)
    digest[i] = static_cast<std::uint8_t>(state[i / 4] >> (24 - 8 * (i % 4)));
  return digest;
}

}  // namespace loom::chip
