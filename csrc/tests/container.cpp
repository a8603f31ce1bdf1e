#include "tests/container.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <stdexcept>

#include "chip/hash.h"

namespace loom::tests {

namespace {

constexpr std::size_t kHeader = 64, kEntry = 32, kHash = 32, kAlign = 128, kMaxSections = 64;

template <class T>
T load(const Bytes& image, std::size_t at) {
  T value;
  std::memcpy(&value, image.data() + at, sizeof value);
  return value;
}

template <class T>
void store(Bytes& image, std::size_t at, T value) {
  std::memcpy(image.data() + at, &value, sizeof value);
}

std::uint32_t crc(const Bytes& image, std::size_t at, std::size_t size) {
  return chip::crc32(std::span(image).subspan(at, size));
}

}  // namespace

Container unpack(const Bytes& image) {
  if (image.size() < kHeader + kHash) throw std::runtime_error("image too short");
  Container c;
  c.header.assign(image.begin(), image.begin() + kHeader);
  const auto count = load<std::uint32_t>(image, 24);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t at = kHeader + kEntry * i;
    if (at + kEntry > image.size()) throw std::runtime_error("section table leaves the file");
    Section s;
    s.tag.assign(reinterpret_cast<const char*>(image.data()) + at, 4);
    s.flags = load<std::uint32_t>(image, at + 4);
    const auto offset = load<std::uint64_t>(image, at + 8), size = load<std::uint64_t>(image, at + 16);
    if (offset > image.size() || size > image.size() - offset)
      throw std::runtime_error("section leaves the file");
    const auto begin = image.begin() + static_cast<std::ptrdiff_t>(offset);
    s.body.assign(begin, begin + static_cast<std::ptrdiff_t>(size));
    c.sections.push_back(std::move(s));
  }
  return c;
}

Bytes pack(const Container& c) {
  Bytes image = c.header;
  image.resize(kHeader + kEntry * c.sections.size());
  for (std::size_t i = 0; i < c.sections.size(); ++i) {
    const Section& s = c.sections[i];
    const std::size_t offset = (image.size() + kAlign - 1) / kAlign * kAlign, at = kHeader + kEntry * i;
    image.resize(offset);
    image.insert(image.end(), s.body.begin(), s.body.end());
    std::memcpy(image.data() + at, s.tag.data(), 4);
    store<std::uint32_t>(image, at + 4, s.flags);
    store<std::uint64_t>(image, at + 8, offset);
    store<std::uint64_t>(image, at + 16, s.body.size());
    store<std::uint32_t>(image, at + 28, kAlign);
  }
  store<std::uint32_t>(image, 24, static_cast<std::uint32_t>(c.sections.size()));
  image.resize(image.size() + kHash);
  store<std::uint64_t>(image, 16, image.size());
  reseal(image);
  return image;
}

void reseal(Bytes& image) {
  if (image.size() < kHeader + kHash) return;
  const std::size_t end = image.size() - kHash;
  const std::size_t count =
      std::min<std::size_t>({load<std::uint32_t>(image, 24), kMaxSections, (end - kHeader) / kEntry});
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t at = kHeader + kEntry * i;
    const auto offset = load<std::uint64_t>(image, at + 8), size = load<std::uint64_t>(image, at + 16);
    if (offset <= end && size <= end - offset) store<std::uint32_t>(image, at + 24, crc(image, offset, size));
  }
  store<std::uint32_t>(image, 40, crc(image, kHeader, kEntry * count));
  store<std::uint32_t>(image, 44, crc(image, 0, 44));
  const auto digest = chip::sha256(std::span(image).first(end));
  std::copy(digest.begin(), digest.end(), image.end() - kHash);
}

}  // namespace loom::tests
