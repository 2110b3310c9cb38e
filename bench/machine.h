// The highest rates of the machine: arithmetic by dtype, and memory traffic by the size of the
// arrays. They are the 100 % of struct Limit.
#pragma once

#include <csignal>
#include <map>
#include <string>
#include <vector>

#include <unistd.h>

#include <sys/prctl.h>
#include <sys/wait.h>

#include <halftone/amp/training.h>
#include <halftone/core/device.h>
#include <halftone/core/dtype.h>
#include <halftone/lab/workload_data.h>

namespace halftone::bench {

/// Rates of several threads together, the best of several short runs.
struct Machine {
  struct Traffic {
    double mebibytes;    // of all arrays together
    double copy, triad;  // y = x, and z = x + s y; GB/s, bytes read plus bytes written
  };
  int threads = 1;
  std::string instructions;      // of the CPU backend, "avx2"; HALFTONE_MAX_ISA caps them
  double f32 = 0;                // GFLOP/s of multiply-adds in registers
  double bf16 = 0;               // sums in f32; the rate of f32 if no instruction multiplies bf16
  double f16 = 0;                // 0: computed in f32
  std::vector<Traffic> traffic;  // by increasing size

  /// Returns GFLOP/s of products of a dtype; f64 at half the rate of f32.
  double arithmetic(DType dtype) const;
  /// Returns GB/s, the better of copy and triad, at the measured size nearest to `bytes`.
  double bandwidth(double bytes) const;
};

/// Measures the CPU. Takes about a second.
Machine measure_machine(int threads);
/// Measures a GPU by products and passes of its backend (train_step.cpp). Takes some seconds.
Machine measure_machine(Device device);

// The least time that a training step could take on a machine: its arithmetic at the machine's
// rate, plus its memory traffic at the machine's bandwidth. It is not a lower bound (a cache can
// save traffic between two passes, and both can overlap), but it means the same on every machine.
// docs/performance.md lists its terms.

/// The arithmetic and the traffic that a step needs at least.
struct StepNeeds {
  std::map<DType, double> gflop;  // of products, by the dtype they multiply
  double bytes = 0;               // each byte read or written, counted once
};

/// Runs one step of the training under observation. Bytes: the update reads and writes parameters,
/// all tensors stored with them, and the optimizer's state. Gradients are written and read. Forward
/// and backward each read the weights. Tensors kept from forward to backward are written and read.
/// Inputs are read twice.
StepNeeds needs_of_step(lab::SyntheticWorkload& work, amp::Training& training);

struct Limit {
  double arithmetic_ms = 0, memory_ms = 0;
  double ms() const { return arithmetic_ms + memory_ms; }
};
Limit limit_on(const Machine& machine, const StepNeeds& needs);

// Other busy programs, to measure on a shared machine.

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
