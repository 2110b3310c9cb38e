// Other busy programs, to measure on a shared machine.
#pragma once

#include <csignal>
#include <vector>

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace halftone::bench {

/// Runs processes that compute without end while it exists.
class BusyProcesses {
 public:
  explicit BusyProcesses(int count) {
    for (int i = 0; i < count; ++i) {
      const pid_t process = fork();
      if (process == 0) compute_for_ever();
      if (process > 0) processes_.push_back(process);
    }
  }
  ~BusyProcesses() {
    for (const pid_t process : processes_) kill(process, SIGKILL), waitpid(process, nullptr, 0);
  }
  BusyProcesses(const BusyProcesses&) = delete;
  BusyProcesses& operator=(const BusyProcesses&) = delete;

 private:
  [[noreturn]] static void compute_for_ever() {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (volatile unsigned count = 0;;) count = count + 1;
  }

  std::vector<pid_t> processes_;
};

}  // namespace halftone::bench
