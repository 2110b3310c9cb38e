// A progress display for training loops: one line that redraws itself where standard output is a
// terminal, and a plain line every so many steps where it is a file or a pipe.
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>

class Progress {
 public:
  /// `interval`: steps between two lines where the output is not a terminal.
  Progress(int64_t epochs, int64_t steps_per_epoch, int64_t interval = 100)
      : epochs_(epochs),
        steps_(steps_per_epoch),
        interval_(interval),
        live_(isatty(STDOUT_FILENO)) {}

  void begin_epoch() {
    ++epoch_;
    step_ = samples_ = 0;
    loss_ = correct_ = 0;
    epoch_start_ = drawn_ = Clock::now();
  }

  /// One step is done: the mean loss of its samples and how many of them were right.
  void step(int64_t samples, double loss, double correct) {
    ++step_;
    samples_ += samples;
    loss_ += loss * double(samples);
    correct_ += correct;
    const Clock::time_point now = Clock::now();
    const bool last = step_ == steps_;
    if (live_ ? last || now - drawn_ > std::chrono::milliseconds(100)
              : last || step_ % interval_ == 0) {
      drawn_ = now;
      draw(now);
    }
  }

  /// Prints a line of its own, below the live one.
  void note(const std::string& text) {
    std::printf("%s%s\n", live_ ? "\n" : "", text.c_str());
    std::fflush(stdout);
  }

 private:
  using Clock = std::chrono::steady_clock;

  void draw(Clock::time_point now) {
    const double seconds = std::chrono::duration<double>(now - epoch_start_).count();
    const auto left = double((epochs_ - epoch_) * steps_ + steps_ - step_);
    const auto eta = int64_t(left * seconds / double(step_) + 0.5);  // training only, no evaluation
    const auto samples = double(samples_);
    // "\r" returns to the line's beginning, "\33[K" erases what a longer line left behind.
    std::printf(
        "%sepoch %ld/%ld  step %*ld/%ld  loss %.4f  accuracy %5.2f %%  %.0f images/s  "
        "ETA %ld:%02ld%s",
        live_ ? "\r" : "", long(epoch_), long(epochs_), digits(), long(step_), long(steps_),
        loss_ / samples, 100 * correct_ / samples, samples / seconds, long(eta / 60),
        long(eta % 60), live_ ? "\33[K" : "\n");
    std::fflush(stdout);
  }
  int digits() const { return int(std::to_string(steps_).size()); }

  int64_t epochs_, steps_, interval_;
  bool live_;
  int64_t epoch_ = 0, step_ = 0, samples_ = 0;
  double loss_ = 0, correct_ = 0;  // sums over the epoch's samples
  Clock::time_point epoch_start_{}, drawn_{};
};
