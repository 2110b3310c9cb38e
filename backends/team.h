// Parallel regions while other programs use the cores.
#pragma once

#include <algorithm>
#include <cstdint>

namespace halftone {

/// Called before operations. A parallel region ends when its last thread has arrived, and a thread
/// that waits for a core arrives milliseconds late, hundreds of times in a training step. Every 60
/// ms this reads how long the process's threads were ready to run without a core. After fork() the
/// child's regions have one thread.
void look_around();

/// Returns whether threads of this process lack cores. Then the threads of a region take its tasks
/// in turn (reference::Tasks), the one that opens a region works alone at first, and a thread that
/// waits for others soon sleeps, so that a late one can use its core. Results do not depend on it.
/// HALFTONE_FIXED_TEAM=1: never.
bool crowded();

/// Returns for how many seconds a thread that opens a region works alone if threads lack cores:
/// about as long as it would wait, on average, for a late one.
double seconds_alone();

/// Linux wakes a thread up on the core of the one that wakes it, if all cores are in use; the two
/// would share that core. So while threads lack cores, the others of a region keep away from the
/// core of the thread that opened it. Returns the calling thread's core; -1 if no thread lacks one,
/// or inside of another region.
int core_to_leave();
/// Called by each thread of a region, with the core of the thread that opened it.
void leave_core(int core);

/// For tests: makes it crowded while it exists, and sets seconds_alone().
class PretendCrowded {
 public:
  explicit PretendCrowded(double alone = 0);
  ~PretendCrowded();
  PretendCrowded(const PretendCrowded&) = delete;
  PretendCrowded& operator=(const PretendCrowded&) = delete;
};

/// How much this process's threads lack cores.
enum class Crowd { none, some, much };

/// Decides it from measured waits. Two threads on two cores, with one busy loop: on average 0.4
/// to 1 of the two has no core. With programs that run now and then: up to 0.2. A program that
/// begins looks like the first case for up to four intervals, even on an idle machine, so `much`
/// takes six. It ends after a pause without waits: one second, or, since a team that works alone
/// does not wait, twice the last pause (at most eight seconds) if it began within a second of its
/// last end.
class CrowdRule {
 public:
  /// `time`: of a clock, in ns; `late`: the average number of threads without a core since the last
  /// call.
  Crowd judge(int64_t time, double late) {
    often_ = std::clamp(often_ + (late > enough ? 1 : -1), 0, often);
    const bool was_much = level_ == Crowd::much;
    if (late > enough || (was_much && late > little)) until_ = time + pause_;
    if (time >= until_) level_ = Crowd::none;
    else if (often_ == often) level_ = Crowd::much;
    else if (level_ == Crowd::none) level_ = Crowd::some;
    if (was_much && level_ == Crowd::none) ended_ = time;
    if (!was_much && level_ == Crowd::much) {
      pause_ = time - ended_ < pause ? std::min(2 * pause_, 8 * pause) : pause;
      until_ = time + pause_;
    }
    return level_;
  }

 private:
  static constexpr double enough = 0.4, little = 0.15;
  static constexpr int often = 6;
  static constexpr int64_t pause = 1'000'000'000;

  Crowd level_ = Crowd::none;
  int often_ = 0;  // calls with enough lateness, less those without
  int64_t until_ = 0, ended_ = -pause, pause_ = pause;
};

}  // namespace halftone
