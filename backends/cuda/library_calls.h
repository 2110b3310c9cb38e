// Counts which implementation computed what, for the question "why is it slow here?". Products,
// convolutions and attention are counted by implementation, an own kernel or one of NVIDIA's
// libraries; backend_statuses() and halftone-info show the counts. With HALFTONE_CUDA_LOG set, each
// call that a library declined is printed once to standard error, with the reason. At the end of
// the program the counts are printed, with the number of own kernels that were started.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace halftone::cuda {

enum class Family {
  matmul,
  conv,
  conv_backward_data,
  conv_backward_weights,
  attention,
  attention_backward
};
enum class By { own_kernel, cublaslt, cudnn };

void count_call(Family family, By by);
/// Returns the calls since the program began. Recorded work counts once; its replays do not count.
int64_t calls(Family family, By by);
void count_kernel();
/// Returns the own kernels that were started since the program began; recorded ones count once.
int64_t kernels_started();
/// Returns "; calls so far: matmul 12 by cuBLASLt, 3 by own kernels; conv ..."; empty before the
/// first.
std::string calls_summary();

/// Returns whether HALFTONE_CUDA_LOG is set, so that descriptions of declined calls are needed.
bool log_wanted();
/// For tests: replaces the environment variable.
void set_log_wanted(bool wanted);
/// Prints "[cuda] cuDNN declined conv of ...: why". Does not print the same call again.
void say_declined(By by, Family family, const std::string& call, std::string_view why);
/// Returns the printed calls.
std::vector<std::string> declined_calls();

}  // namespace halftone::cuda
