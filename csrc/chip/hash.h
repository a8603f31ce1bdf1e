// Checksums of the container: CRC-32 (zlib polynomial) and SHA-256.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace loom::chip {

std::uint32_t crc32(std::span<const std::uint8_t> data);
std::array<std::uint8_t, 32> sha256(std::span<const std::uint8_t> data);

}  // namespace loom::chip
