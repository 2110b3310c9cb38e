// The number of threads of the CPU's parallel regions while other programs use its cores.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace halftone {

/// Called before operations. A parallel region ends when its last thread has arrived. A thread that
/// waits for a core arrives milliseconds late, hundreds of times in a training step. If this
/// process's threads wait for cores, the calling thread's regions get smaller teams
/// (omp_set_num_threads). Results do not depend on the team; oneDNN, whose results do, keeps the
/// full team. If the program sets another number, that becomes the full team; a number equal to the
/// smaller team's at that moment is not noticed. HALFTONE_FIXED_TEAM=1 switches this off. After
/// fork() the child's regions have one thread.
void fit_team();

/// Returns the most threads that a parallel region of the calling thread gets:
/// omp_get_max_threads(), but not more than OMP_THREAD_LIMIT, and one where OMP_MAX_ACTIVE_LEVELS
/// allows no further region. OpenMP may give fewer (OMP_DYNAMIC, other regions under the same
/// limit), so every kernel must be right for any team.
int region_threads();

/// The rule for the size. A team gives up as many threads as had no core on average, if that is
/// more than 0.4: a busy loop on one of two cores causes 0.5 to 1, occasional programs up to 0.2.
/// It tries its full size again after a pause of 0.1 s, which doubles with each failure up to 3.2
/// s.
class TeamSize {
 public:
  explicit TeamSize(int full = 0) : full_(full), now_(full) {}

  int full() const { return full_; }
  int now() const { return now_; }

  /// Returns the new size. `time`: of a clock, in ns; `late`: the average number of threads without
  /// a core since the last call.
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
