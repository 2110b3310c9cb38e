// How many threads the CPU's parallel regions take on a machine that other programs use, too.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace halftone {

/// Called before operations. A parallel region ends when its last thread has arrived, and a thread
/// that waits for a core arrives milliseconds late, hundreds of times in a training step. Where
/// this process's threads wait for cores, the calling thread's regions get smaller teams
/// (omp_set_num_threads). Results do not depend on it; oneDNN, whose results do, keeps the full
/// team. A number that the program sets counts as the full team from then on, unless it is the one
/// that a smaller team has at that moment. HALFTONE_FIXED_TEAM=1 switches all of this off. In a
/// process that fork() made of one with a team, regions are one thread's.
void fit_team();

/// The rule: as many threads fewer as had no core (a program that computes without end on one of
/// two cores gives 0.5 to 1, programs that now and then do something up to 0.2); then the full team
/// for a moment, after 0.1 s, 0.2 s and so on up to 3.2 s.
class TeamSize {
 public:
  explicit TeamSize(int full = 0) : full_(full), now_(full) {}

  int full() const { return full_; }
  int now() const { return now_; }

  /// `time`: of a clock, in ns; `late`: how many threads had no core, on average since the last
  /// call.
  int judge(int64_t time, double late) {
    if (late > 0.4 && now_ > 1) {
      now_ = std::max(1, now_ - std::max(1, int(std::lround(late))));
      retry_ = time + pause_, pause_ = std::min(2 * pause_, longest_pause);
    } else if (now_ < full_ && time >= retry_) {
      now_ = full_;
    } else if (now_ == full_ && time >= retry_ + longest_pause) {
      pause_ = shortest_pause;
    }
    return now_;
  }

 private:
  static constexpr int64_t shortest_pause = 100'000'000, longest_pause = 32 * shortest_pause;

  int full_, now_;
  int64_t retry_ = 0, pause_ = shortest_pause;
};

}  // namespace halftone
