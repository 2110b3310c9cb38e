// The handler does only what is allowed in a handler: it stores a number.
#include <halftone/train/stop_signals.h>

#include <array>
#include <atomic>
#include <mutex>

#include <signal.h>

namespace halftone::train {

namespace {
std::atomic<int> noted = 0;
static_assert(std::atomic<int>::is_always_lock_free);  // allowed in a handler

void note(int signal) { noted.store(signal, std::memory_order_relaxed); }

using Action = struct sigaction;
constexpr std::array kinds{SIGINT, SIGTERM, SIGHUP};
std::mutex mutex;  // guards the variables below
int living = 0;
std::array<Action, kinds.size()> before;
Action pipe_before;

/// Does nothing if the process was started with the signal ignored, as nohup and scripts do.
void install(int signal, Action& as_it_was) {
  Action action{};
  action.sa_handler = note;
  action.sa_flags = int(SA_RESETHAND | SA_RESTART);  // a second signal gets the default action
  sigemptyset(&action.sa_mask);
  sigaction(signal, nullptr, &as_it_was);
  if (as_it_was.sa_handler != SIG_IGN) sigaction(signal, &action, nullptr);
}

void ignore_pipe() {
  Action ignore{};
  ignore.sa_handler = SIG_IGN;
  sigemptyset(&ignore.sa_mask);
  sigaction(SIGPIPE, nullptr, &pipe_before);
  if (pipe_before.sa_handler == SIG_DFL) sigaction(SIGPIPE, &ignore, nullptr);
}
}  // namespace

StopSignals::StopSignals() {
  const std::lock_guard lock(mutex);
  if (living++ > 0) return;
  noted = 0;
  for (std::size_t i = 0; i < kinds.size(); ++i) install(kinds[i], before[i]);
  ignore_pipe();
}

StopSignals::~StopSignals() {
  const std::lock_guard lock(mutex);
  if (--living > 0) return;
  for (std::size_t i = 0; i < kinds.size(); ++i) sigaction(kinds[i], &before[i], nullptr);
  sigaction(SIGPIPE, &pipe_before, nullptr);
}

int StopSignals::received() { return noted.load(std::memory_order_relaxed); }

bool StopSignals::any() {
  const std::lock_guard lock(mutex);
  return living > 0;
}

const char* StopSignals::meaning(int signal) {
  if (signal == SIGINT) return "interrupted (SIGINT)";
  return signal == SIGHUP ? "the terminal is gone (SIGHUP)" : "terminated (SIGTERM)";
}

}  // namespace halftone::train
