// The highest rates of the machine: arithmetic by dtype, and memory traffic by the size of the
// arrays. They are the 100 % of bench/limit.h.
#pragma once

#include <string>
#include <vector>

#include <halftone/core/device.h>
#include <halftone/core/dtype.h>

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
/// Measures a GPU by products and passes of its backend (device_machine.cpp). Takes some seconds.
Machine measure_machine(Device device);

}  // namespace halftone::bench
