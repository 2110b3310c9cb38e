// The highest rates of a GPU, measured through its backend: products of large matrices and passes
// over large arrays. Unlike the CPU's figures these include the losses of the library and the
// kernels.
#include <algorithm>
#include <chrono>
#include <functional>

#include <halftone/halftone.h>

#include "machine.h"

namespace halftone::bench {

namespace {
using Clock = std::chrono::steady_clock;
constexpr int rounds = 8, at_a_time = 10;
constexpr double long_enough = 2e-3;  // seconds of one call; its start costs little in comparison

/// Returns the seconds of one call, the best of eight rounds of ten calls.
double least_seconds(Backend& backend, const std::function<void()>& call) {
  call();
  double least = 1e30;
  for (int round = 0; round < rounds; ++round) {
    backend.synchronize();
    const Clock::time_point start = Clock::now();
    for (int i = 0; i < at_a_time; ++i) call();
    backend.synchronize();
    least =
        std::min(least, std::chrono::duration<double>(Clock::now() - start).count() / at_a_time);
  }
  return least;
}

/// Returns GFLOP/s of square products, whose size grows until one takes long enough.
double products_of(Device device, DType dtype) {
  Backend& backend = backend_for(device);
  for (int64_t n = 128;; n *= 2) {
    const Tensor a = full({n, n}, 0.5, dtype, device), b = full({n, n}, 0.25, dtype, device);
    Tensor c = empty({n, n}, dtype, device);
    const double seconds = least_seconds(backend, [&] { backend.matmul(a, b, {}, c); });
    if (seconds > long_enough || n == 16384)
      return 2e-9 * double(n) * double(n) * double(n) / seconds;
  }
}

Machine::Traffic traffic_of(Device device, double mebibytes) {
  Backend& backend = backend_for(device);
  const auto array = [&](int arrays) {
    return full({int64_t(mebibytes * 1048576 / (4.0 * arrays))}, 0.5, f32, device);
  };
  const Tensor x = array(2), u = array(3), v = array(3);
  Tensor y = empty_like(x), w = empty_like(u);
  const double copied = least_seconds(backend, [&] { backend.copy(x, y); });
  const double added = least_seconds(
      backend, [&] { backend.binary(call_of<BinaryFormulas>(formula::Add{}), u, v, w); });
  const double bytes = mebibytes * 1048576;
  return {.mebibytes = mebibytes, .copy = 1e-9 * bytes / copied, .triad = 1e-9 * bytes / added};
}
}  // namespace

Machine measure_machine(Device device) {
  Machine machine{.instructions = std::string(backend_for(device).name()), .traffic = {}};
  machine.f32 = products_of(device, f32), machine.bf16 = products_of(device, bf16);
  machine.f16 = products_of(device, f16);
  // Sizes grow until a pass takes long enough, so that the last one measures memory and not a
  // cache.
  for (double mebibytes = 1; mebibytes <= 4096; mebibytes *= 4) {
    machine.traffic.push_back(traffic_of(device, mebibytes));
    if (mebibytes * 1048576 / (machine.traffic.back().copy * 1e9) > long_enough) break;
  }
  return machine;
}

}  // namespace halftone::bench
