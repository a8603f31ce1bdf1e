// Writes down what the clock sees, in columns; does nothing without a trace to fill.
#pragma once

#include <string>
#include <unordered_map>

#include "chip/chip.h"
#include "chip/program.h"

namespace loom::chip {

/// Tracks of a trace: the units of a core, then what the chip has once.
enum class Track : std::uint8_t { MNILU, MNISU, L1LU, PT, SFU, L1SU, DDR, RING, LAUNCH };
inline constexpr const char* kTrackNames[] = {"MNILU", "MNISU", "L1LU", "PT",    "SFU",
                                              "L1SU",  "DDR",   "ring", "launch"};

inline Track track_of(Unit u) {
  constexpr Track tracks[kUnits] = {Track::MNILU, Track::MNISU, Track::L1LU,
                                    Track::PT,    Track::SFU,   Track::L1SU};
  return tracks[static_cast<int>(u)];
}

class Recorder {
 public:
  Recorder(Trace* trace, std::size_t limit) : trace_(trace), limit_(limit) {
    if (trace_) trace_->tracks.assign(std::begin(kTrackNames), std::end(kTrackNames));
  }
  bool on() const { return trace_ != nullptr; }

  std::int32_t name(const std::string& text) {
    const auto [at, added] = known_.try_emplace(text, static_cast<std::int32_t>(trace_->names.size()));
    if (added) trace_->names.push_back(text);
    return at->second;
  }

  void span(std::int64_t core, Track track, double begin, double end, SpanKind kind,
            const std::string& what) {
    if (!(end > begin) || !room(trace_->core.size())) return;
    trace_->core.push_back(static_cast<std::int16_t>(core));
    trace_->track.push_back(static_cast<std::uint8_t>(track));
    trace_->begin.push_back(begin);
    trace_->end.push_back(end);
    trace_->kind.push_back(static_cast<std::uint8_t>(kind));
    trace_->what.push_back(name(what));
  }

  struct End {
    std::int64_t core = 0;
    Track track = Track::MNILU;
    double time = 0;
  };
  void flow(const End& sent, const End& seen, const std::string& channel) {
    if (!room(trace_->flow_sent.size())) return;
    trace_->flow_from_core.push_back(static_cast<std::int16_t>(sent.core));
    trace_->flow_from_track.push_back(static_cast<std::uint8_t>(sent.track));
    trace_->flow_sent.push_back(sent.time);
    trace_->flow_to_core.push_back(static_cast<std::int16_t>(seen.core));
    trace_->flow_to_track.push_back(static_cast<std::uint8_t>(seen.track));
    trace_->flow_seen.push_back(seen.time);
    trace_->flow_channel.push_back(name(channel));
  }

 private:
  bool room(std::size_t used) {
    if (used < limit_) return true;
    trace_->truncated = true;
    return false;
  }

  Trace* trace_;
  std::size_t limit_;
  std::unordered_map<std::string, std::int32_t> known_;
};

}  // namespace loom::chip
