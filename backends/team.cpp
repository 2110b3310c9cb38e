// Linux counts how long each thread was ready to run without a core.
#include <halftone/backends/team.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <ctime>
#include <utility>

#include <dirent.h>
#include <fcntl.h>
#include <omp.h>
#include <pthread.h>
#include <unistd.h>

#include <halftone/core/kernel_identity.h>
#include <halftone/core/environment.h>

namespace halftone {

namespace {

constexpr int64_t millisecond = 1'000'000;

/// Returns a clock in ns that advances in steps of 4 ms and needs no system call.
int64_t now() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC_COARSE, &time);
  return time.tv_sec * 1000 * millisecond + time.tv_nsec;
}

/// Returns the second number of a thread's schedstat, in ns; 0 if the system does not count it.
int64_t wait_in(const char* task) {
  char path[64], text[96] = "";
  std::snprintf(path, sizeof path, "/proc/self/task/%.20s/schedstat", task);
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  const ssize_t got = read(file, text, sizeof text - 1);
  close(file);
  long long ran = 0, waited = 0;
  return got > 0 && std::sscanf(text, "%lld %lld", &ran, &waited) == 2 ? waited : 0;
}

/// Returns the sum over this process's threads, and their number.
std::pair<int64_t, int> waits() {
  DIR* const tasks = opendir("/proc/self/task");
  if (!tasks) return {0, 0};
  int64_t sum = 0;
  int count = 0;
  while (const dirent* task = readdir(tasks))
    if (task->d_name[0] != '.') sum += wait_in(task->d_name), ++count;
  closedir(tasks);
  return {sum, count};
}

/// Reads the waits once per interval, for all threads that ask.
class Waiting {
 public:
  /// Returns the average number of threads without a core in the last interval, and the interval's
  /// number.
  std::pair<double, int64_t> late() {
    const int64_t time = now();
    if (time >= next_look_.load(std::memory_order_relaxed) && !looking_.test_and_set()) {
      look(time);
      looking_.clear();
    }
    return {late_.load(std::memory_order_relaxed), intervals_.load(std::memory_order_acquire)};
  }

 private:
  void look(int64_t time) {
    const auto [waited, threads] = waits();
    const int64_t elapsed = time - last_look_, interval = (60 + 2 * threads) * millisecond;
    // After a longer gap, in which the program did something else, this call only starts an
    // interval.
    const bool counts = elapsed > 0 && elapsed < 10 * interval;
    late_ = counts ? double(waited - waited_) / double(elapsed) : 0;
    last_look_ = time, waited_ = waited;
    next_look_ = time + interval;
    intervals_.fetch_add(1, std::memory_order_release);
  }

  std::atomic<int64_t> next_look_{0}, intervals_{0};
  std::atomic<double> late_{0};
  std::atomic_flag looking_{};
  int64_t last_look_ = 0, waited_ = 0;
};

Waiting& waiting() {
  static Waiting all;
  return all;
}

thread_local TeamSize team_size;
thread_local int64_t judged = 0;

/// Returns how many of these threads a region gets.
int within_limits(int threads) {
  if (omp_get_active_level() >= omp_get_max_active_levels()) return 1;
  return std::min(threads, omp_get_thread_limit());
}

/// A child of fork() has no OpenMP threads; a region with more than one thread would wait for them.
void stand_alone_after_fork() {
  omp_set_num_threads(1);
  team_size = TeamSize(1);
}

}  // namespace

void fit_team() {
  static const bool fixed = [] {
    pthread_atfork(nullptr, nullptr, stand_alone_after_fork);
    return environment_variable("HALFTONE_FIXED_TEAM") != nullptr;
  }();
  if (fixed) return;
  const auto [late, interval] = waiting().late();
  if (std::exchange(judged, interval) == interval || omp_in_parallel() != 0) return;
  const int threads = omp_get_max_threads();
  if (threads != team_size.now())
    team_size = TeamSize(threads);  // the program has set another number
  if (const int size = team_size.judge(now(), late); size != threads) omp_set_num_threads(size);
}

int region_threads() { return within_limits(omp_get_max_threads()); }

int cpu_threads() {
  const int threads = omp_get_max_threads();
  return within_limits(threads == team_size.now() ? team_size.full() : threads);
}

}  // namespace halftone
