// Bounds of every count in a program; the same numbers as torch_loom/spyrecode/limits.py.
#pragma once

#include <cstdint>

namespace loom::chip::limits {

inline constexpr std::int64_t kStringBytes = 65535, kStrings = 65536, kArgs = 4096, kSymbols = 4096;
inline constexpr std::int64_t kSlots = 16384, kExprs = 65536, kTokens = 256, kDepth = 32, kGuards = 4096;
inline constexpr std::int64_t kBlocks = 8192, kChannels = 4096, kPhases = 64, kCores = 1024, kCorelets = 8;
inline constexpr std::int64_t kLxBytes = std::int64_t{1} << 32;
inline constexpr std::int64_t kNesting = 32, kInstructions = 1 << 18, kRegisters = 1024, kRank = 8;
inline constexpr std::int64_t kGathers = 8, kQueues = 4096, kSegments = 1 << 20;
inline constexpr std::int64_t kVecRegisters = 8192, kVecOps = 8192, kVecPorts = 256;
inline constexpr std::int64_t kRingCounters = 1 << 16;  // ring channels * cores
inline constexpr std::int64_t kFileBytes = 1 << 28;
inline constexpr std::int64_t kLetExprs = kExprs - kSlots - kGuards;

}  // namespace loom::chip::limits
