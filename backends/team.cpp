// Linux counts how long each thread was ready to run without a core.
#include <halftone/backends/team.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <ctime>
#include <system_error>
#include <thread>
#include <utility>

#include <dirent.h>
#include <fcntl.h>
#include <omp.h>
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <halftone/core/device.h>
#include <halftone/core/files.h>

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

/// Makes the waits of this process's OpenMP threads short while it is held. A thread of libgomp
/// that waits spins 300,000 times before it sleeps, and takes the core of one that has work; but it
/// spins 100 times if libgomp manages more threads than there are cores. So a region of sleeping
/// threads is held open.
class ShortWaits {
 public:
  /// Called by one thread at a time.
  void hold(bool wanted) {
    if (wanted == (number_.load() % 2 != 0)) return;
    const int number = number_.fetch_add(1) + 1;
    if (wanted) start(number, std::max(0, omp_get_num_procs() - omp_get_max_threads()) + 2);
    else number_.notify_all();
  }
  /// A child of fork() has no threads that sleep.
  void forget() { number_ = 0; }

 private:
  void start(int number, int threads) {
    try {
      std::thread([this, number, threads] {
        omp_set_dynamic(0);
#pragma omp parallel num_threads(threads)
        number_.wait(number);
      }).detach();
    } catch (const std::system_error&) {  // no thread is left: waits stay long
    }
  }

  std::atomic<int> number_{0};  // of the changes; odd: held
};

/// Reads the waits once per interval, for all threads that ask.
class Waiting {
 public:
  void look() {
    const int64_t time = now();
    if (time < next_look_.load(std::memory_order_relaxed) || looking_.test_and_set()) return;
    look(time);
    looking_.clear();
  }
  Crowd crowd() const { return crowd_.load(std::memory_order_relaxed); }
  double alone() const { return alone_.load(std::memory_order_relaxed); }
  void pretend(int scopes, double alone) {
    while (looking_.test_and_set()) continue;
    pretended_ += scopes;
    alone_ = pretended_ > 0 ? alone : usually_alone;
    crowd_ = pretended_ > 0 ? Crowd::much : Crowd::none;
    short_waits_.hold(pretended_ > 0);
    looking_.clear();
  }
  void forget_threads() { short_waits_.forget(), crowd_ = Crowd::none; }

 private:
  void look(int64_t time) {
    const auto [waited, threads] = waits();
    const int64_t elapsed = time - last_look_, interval = (60 + 2 * threads) * millisecond;
    // After a longer gap, in which the program did something else, this call only starts an
    // interval.
    const bool counts = elapsed > 0 && elapsed < 10 * interval;
    const double late = counts ? double(waited - waited_) / double(elapsed) : 0;
    const Crowd found = rule_.judge(time, late);
    crowd_ = pretended_ > 0 ? Crowd::much : found;
    short_waits_.hold(crowd() == Crowd::much);
    last_look_ = time, waited_ = waited;
    next_look_ = time + interval;
  }

  static constexpr double usually_alone = 0.5e-3;

  std::atomic<int64_t> next_look_{0};
  std::atomic<double> alone_{usually_alone};
  std::atomic<Crowd> crowd_{Crowd::none};
  std::atomic_flag looking_{};
  CrowdRule rule_;
  ShortWaits short_waits_;
  int pretended_ = 0;
  int64_t last_look_ = 0, waited_ = 0;
};

Waiting& waiting() {
  static Waiting all;
  return all;
}

/// A child of fork() has no OpenMP threads; a region with more than one thread would wait for them.
void stand_alone_after_fork() {
  omp_set_num_threads(1);
  waiting().forget_threads();
}

}  // namespace

void look_around() {
  static const bool fixed = [] {
    pthread_atfork(nullptr, nullptr, stand_alone_after_fork);
    return environment_variable("HALFTONE_FIXED_TEAM") != nullptr;
  }();
  if (!fixed) waiting().look();
}

bool crowded() { return waiting().crowd() == Crowd::much; }

double seconds_alone() { return waiting().alone(); }

int core_to_leave() {
  return waiting().crowd() == Crowd::none || omp_in_parallel() ? -1 : sched_getcpu();
}

void leave_core(int core) {
  thread_local int left = -1;
  thread_local cpu_set_t before;
  if (core == left || omp_get_thread_num() == 0) return;
  if (core < 0) {
    sched_setaffinity(0, sizeof before, &before), left = -1;
    return;
  }
  if (sched_getcpu() != core || core >= CPU_SETSIZE) return;
  if (left < 0 && sched_getaffinity(0, sizeof before, &before) != 0) return;
  cpu_set_t others = before;
  CPU_CLR(core, &others);
  if (CPU_COUNT(&others) > 0 && sched_setaffinity(0, sizeof others, &others) == 0) left = core;
}

PretendCrowded::PretendCrowded(double alone) { waiting().pretend(1, alone); }
PretendCrowded::~PretendCrowded() { waiting().pretend(-1, 0); }

int cpu_threads() {
  if (omp_get_active_level() >= omp_get_max_active_levels()) return 1;
  return std::min(omp_get_max_threads(), omp_get_thread_limit());
}

}  // namespace halftone
