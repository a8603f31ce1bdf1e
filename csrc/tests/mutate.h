// Mutants of real binaries: one of several kinds of damage, drawn from a seeded generator.
#pragma once

#include <random>
#include <string>
#include <vector>

#include "tests/container.h"

namespace loom::tests {

struct Mutant {
  std::string kind;
  Bytes image;
  bool sealed = true;  // checksums are right, so a reader has to look at the content
};

/// A mutant of corpus[which]; other members lend sections and instruction words.
Mutant mutate(const std::vector<Bytes>& corpus, std::size_t which, std::mt19937_64& random);

}  // namespace loom::tests
