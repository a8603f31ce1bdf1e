// The container of a binary taken apart and put together again, so that a mutant's checksums are right and
// only its content is wrong. Layout: docs/spyrecode.md.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace loom::tests {

using Bytes = std::vector<std::uint8_t>;

struct Section {
  std::string tag;  // four bytes
  std::uint32_t flags = 1;
  Bytes body;
};

struct Container {
  Bytes header;  // 64 bytes; sizes and checksums are filled in by pack()
  std::vector<Section> sections;
};

/// Takes a well-formed image apart. Throws std::runtime_error for anything else.
Container unpack(const Bytes& image);

/// The image of these sections, with every offset, size and checksum right.
Bytes pack(const Container&);

/// Makes the checksums of an image of any content right, as far as its section table can be followed.
void reseal(Bytes& image);

}  // namespace loom::tests
