// Who computed what: for the question "why is it slow here?". Products, convolutions and attention
// are counted by who did them, an own kernel or one of NVIDIA's libraries; backend_statuses() and
// halftone-info show the counts. With HALFTONE_CUDA_LOG set, each call that a library declined is
// said once on standard error, with the reason, and the counts when the program ends, with the
// number of own kernels that were started.
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
/// Since the program began. Work that is recorded counts once, its replays do not.
int64_t calls(Family family, By by);
void count_kernel();
/// Own kernels that were started since the program began; recorded ones once.
int64_t kernels_started();
/// "; calls so far: matmul 12 by cuBLASLt, 3 by own kernels; conv ..."; empty before the first.
std::string calls_summary();

/// Whether HALFTONE_CUDA_LOG is set: descriptions of declined calls are worth making.
bool log_wanted();
/// For tests: as if it were.
void set_log_wanted(bool wanted);
/// "[cuda] cuDNN declined conv of ...: why". A call that was said before is not said again.
void say_declined(By by, Family family, const std::string& call, std::string_view why);
/// What was said so far.
std::vector<std::string> declined_calls();

}  // namespace halftone::cuda
