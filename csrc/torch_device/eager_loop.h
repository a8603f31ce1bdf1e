// Recognises that recorded work repeats. A loop without reads should be cut where it was cut before, so that
// each of its rounds is the same graph; the place is a function of what was recorded, not of a counter.
#pragma once

#include <array>
#include <cstdint>
#include <unordered_map>

namespace loom::dev::eager {

class Repetition {
 public:
  /// Takes the structure of the next operator. Returns the length of the run that has just been repeated back
  /// to back since the last `restart`, 0 when there is none.
  std::size_t add(std::uint64_t structure) {
    const std::uint64_t at = count_++;
    const auto before = last_.find(structure);
    const std::uint64_t distance = before == last_.end() ? kWindow : at - before->second;
    if (period_ != 0 && period_ <= at && recent_[(at - period_) % kWindow] == structure) {
      ++matched_;
    } else {
      period_ = distance < kWindow ? distance : 0;
      matched_ = period_ != 0 ? 1 : 0;
    }
    recent_[at % kWindow] = structure;
    if (last_.size() > 4 * kWindow) last_.clear();
    last_[structure] = at;
    if (period_ == 0) return 0;
    // Short runs are taken several at a time.
    const std::uint64_t run = (kShortest + period_ - 1) / period_ * period_;
    return matched_ >= run ? run : 0;
  }

  /// What comes next is compared anew; the distance that was found stays the first guess.
  void restart() { matched_ = 0; }

 private:
  static constexpr std::uint64_t kWindow = 1024, kShortest = 16;
  std::array<std::uint64_t, kWindow> recent_{};
  std::unordered_map<std::uint64_t, std::uint64_t> last_;
  std::uint64_t count_ = 0, period_ = 0, matched_ = 0;
};

}  // namespace loom::dev::eager
