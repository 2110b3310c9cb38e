// The handler does what a handler may: it stores a number.
#include <halftone/train/stop_signals.h>

#include <atomic>

namespace halftone::train {

namespace {
std::atomic<int> noted = 0;
static_assert(std::atomic<int>::is_always_lock_free);  // what a handler may touch

void note(int signal) { noted.store(signal, std::memory_order_relaxed); }

/// Unless the process was started with the signal ignored, as nohup and scripts do.
void install(int signal, struct sigaction& before) {
  struct sigaction action {};
  action.sa_handler = note;
  action.sa_flags = int(SA_RESETHAND | SA_RESTART);  // the second one meets the default
  sigemptyset(&action.sa_mask);
  sigaction(signal, nullptr, &before);
  if (before.sa_handler != SIG_IGN) sigaction(signal, &action, nullptr);
}
}  // namespace

StopSignals::StopSignals() {
  noted = 0;
  install(SIGINT, interrupt_);
  install(SIGTERM, terminate_);
}

StopSignals::~StopSignals() {
  sigaction(SIGINT, &interrupt_, nullptr);
  sigaction(SIGTERM, &terminate_, nullptr);
}

int StopSignals::received() { return noted.load(std::memory_order_relaxed); }

}  // namespace halftone::train
