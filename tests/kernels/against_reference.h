// Calls a kernel on every target of the program and on the reference backend, with the same
// numbers. Results must agree, and their bits must not depend on the order in which threads and
// blocks run.
#pragma once

#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include <halftone/core/backend.h>
#include <halftone/core/device.h>
#include <halftone/core/factory.h>
#include <halftone/core/files.h>
#include <halftone/core/tensor.h>

#include "emulator.h"

namespace halftone::test {

using Tensors = std::vector<Tensor>;
using KernelCall = std::function<void(Backend&, const Tensors& in, Tensors& out)>;

/// Where kernels run that are compared with the reference.
struct KernelTarget {
  std::string_view name;
  Device device;
  bool portable = false;
};

/// The CPU, with fast and with portable sums, and the GPU of the program: a real one, the emulated
/// one, or the interpreter of PTX. HALFTONE_TEST_BACKENDS selects some, as for the operations.
inline std::vector<KernelTarget> kernel_targets() {
  std::vector<KernelTarget> all{{"cpu", Device::cpu()}, {"portable", Device::cpu(), true}};
  for (const BackendStatus& status : backend_statuses())
    if (status.name == "cuda" && status.backend) all.push_back({"cuda", Device::cuda()});
  if (const char* const wanted = environment_variable("HALFTONE_TEST_BACKENDS")) {
    const std::string names = std::string(",") + wanted + ",";
    std::erase_if(all, [&](const KernelTarget& target) {
      return names.find("," + std::string(target.name) + ",") == std::string::npos;
    });
  }
  REQUIRE(!all.empty());
  return all;
}

/// Makes a target's kernels those of its device, for a scope.
class OnTarget {
 public:
  explicit OnTarget(const KernelTarget& target) : bits_(target.portable) {}

 private:
  CpuBackendScope cpu_{"cpu"};
  PortableBitsScope bits_;
};

/// Runs body(device) on every target, and on the reference.
template <class Body> void on_every_target(const Body& body) {
  for (const KernelTarget& target : kernel_targets()) {
    INFO(target.name);
    const OnTarget scope(target);
    body(target.device);
  }
  INFO("reference");
  const CpuBackendScope scope("reference");
  body(Device::cpu());
}

/// Returns whether the tests of what only a GPU does run here.
inline bool with_gpu() {
  for (const KernelTarget& target : kernel_targets())
    if (target.device.kind == DeviceKind::cuda) return true;
  return false;
}

/// Sizes for every target, and more for the CPU, which is much faster than an emulated GPU.
template <class T> std::vector<T> sizes(std::vector<T> all, const std::vector<T>& for_cpu) {
  if (!with_gpu()) all.insert(all.end(), for_cpu.begin(), for_cpu.end());
  return all;
}

/// Returns a copy of dense x on a device, in the same order of dimensions, `offset` elements into
/// its storage: vector loads are then not aligned.
inline Tensor placed(const Tensor& x, Device device, int64_t offset) {
  if (!x.defined()) return x;
  const int64_t n = x.numel();
  Tensor storage = empty({n + offset}, x.dtype(), device);
  Tensor flat = storage.view_as({n}, {1}, offset);
  backend_for(device).copy(x.view_as({n}, {1}, x.offset()).to(device), flat);
  return storage.view_as(x.shape(), x.strides(), offset);
}
inline Tensors placed(const Tensors& tensors, Device device, int64_t offset) {
  Tensors result;
  for (const Tensor& x : tensors) result.push_back(placed(x, device, offset));
  return result;
}

using Values = std::vector<double>;
inline std::vector<Values> values_after(const KernelCall& call, const Tensors& in,
                                        const Tensors& out, Device device, int64_t offset) {
  const Tensors inputs = placed(in, device, offset);
  Tensors outputs = placed(out, device, offset);
  call(backend_for(device), inputs, outputs);
  std::vector<Values> values;
  for (const Tensor& y : outputs)
    values.push_back(y.defined() ? y.to(Device::cpu()).to_vector<double>() : Values{});
  return values;
}

/// Instead of a number of epsilons, for kernels that give the reference's bits. nvcc can contract
/// nothing in them: each product and sum names its rounding (tests/ptx checks that).
inline constexpr double same = -1;

/// Returns "" or the place of a value that differs too much from the expected one. Allowed: a
/// rounding to the dtype and `epsilons` of the arithmetic at the size of the largest value (at
/// least 1).
inline std::string difference(const Values& got, const Values& wanted, DType dtype,
                              double epsilons) {
  double largest = 1;
  for (const double v : wanted)
    if (std::isfinite(v)) largest = std::max(largest, std::abs(v));
  const double inside = epsilons * epsilon(dtype == f64 ? f64 : f32) * largest;
  const double rounding = is_floating(dtype) ? epsilon(dtype) : 0.0;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (got[i] == wanted[i] &&
        (epsilons != same || std::signbit(got[i]) == std::signbit(wanted[i])))
      continue;
    if (std::isnan(got[i]) && std::isnan(wanted[i])) continue;
    const double bound =
        is_floating(dtype) && epsilons != same
            ? inside + rounding * std::abs(wanted[i]) + facts(dtype).smallest_subnormal
            : 0.0;
    if (epsilons == same || !(std::abs(got[i] - wanted[i]) <= bound))
      return "element " + std::to_string(i) + " is " + std::to_string(got[i]) + ", wanted " +
             std::to_string(wanted[i]);
  }
  return "";
}

inline bool same_bits(const Values& a, const Values& b) {
  return a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0;
}

/// `out` holds the results before the call: their dtypes, layouts, and values updated in place.
inline void check_against_reference(const Tensors& in, const Tensors& out, double epsilons,
                                    const KernelCall& call) {
  using emulation::ThreadOrder;
  std::vector<Values> wanted;
  {
    const CpuBackendScope reference("reference");
    wanted = values_after(call, in, out, Device::cpu(), 0);
  }
  for (const KernelTarget& target : kernel_targets()) {
    const OnTarget scope(target);
    const bool on_gpu = target.device.kind == DeviceKind::cuda;
    for (const int64_t offset : {0, 1}) {
      // If work waits in its stream, the test is about that: one run of each is enough.
      if ((emulation::deferred() || epsilons == same) && offset == 0) continue;
      std::vector<Values> first;
      for (const ThreadOrder order :
           {ThreadOrder::ascending, ThreadOrder::descending, ThreadOrder::shuffled}) {
        if (epsilons == same && order == ThreadOrder::descending) continue;
        if (on_gpu ? emulation::deferred() && order != ThreadOrder::shuffled
                   : order != ThreadOrder::ascending)
          continue;
        INFO(target.name, ", offset ", offset, ", thread order ", int(order));
        emulation::set_thread_order(order);
        emulation::set_block_order(uint64_t(order) * 7919);
        const std::vector<Values> got = values_after(call, in, out, target.device, offset);
        emulation::set_thread_order(ThreadOrder::ascending);
        emulation::set_block_order(0);
        if (first.empty()) first = got;
        for (std::size_t k = 0; k < out.size(); ++k) {
          if (!out[k].defined()) continue;
          INFO("result ", k);
          CHECK(difference(got[k], wanted[k], out[k].dtype(), epsilons) == "");
          CHECK(same_bits(got[k], first[k]));
        }
      }
    }
  }
}

inline DType statistics(DType dtype) { return dtype == f64 ? f64 : f32; }
inline constexpr DType floating_dtypes[] = {f64, f32, f16, bf16};

/// Random integers 0 .. bound - 1.
inline Tensor random_indices(int64_t count, int64_t bound) { return randint(0, bound, {count}); }

}  // namespace halftone::test
