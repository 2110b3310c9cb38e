// A step whose work on the device is recorded once and then run again as a whole: small models
// spend most of a step on starting kernels one by one. Mirrors torch.cuda.make_graphed_callables
// and CUDAGraph.
//
//   CapturedStep step([&](const std::vector<Tensor>& batch) {
//     optimizer.zero_grad();
//     Tensor loss = cross_entropy(model(batch[0]), batch[1]);
//     loss.backward();
//     optimizer.step();
//     return loss;
//   });
//   for (auto [images, labels] : loader) loss = step({images, labels});
//
// Before the first call: optimizer.publish_rates(), so that learning rates lie on the device.
//
// The step gives the bits that it gives uncaptured. What it may not do: read a value back to the
// host, copy from the host, or decide on the host what to compute; no autocast region may stand
// open around it (one inside is fine); and what it writes must live on: zero_grad() belongs inside.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <halftone/core/random.h>
#include <halftone/core/tensor.h>

namespace halftone {

class Backend;
class CapturedWork;

struct CapturedStepOptions {
  /// Calls that run the step as it is before it is recorded: state that is made on the first steps
  /// must be there. At least 1.
  int warm_up = 2;
};

class CapturedStep {
 public:
  using Step = std::function<Tensor(const std::vector<Tensor>&)>;

  explicit CapturedStep(Step step, CapturedStepOptions options = {});
  ~CapturedStep();
  CapturedStep(CapturedStep&&) noexcept;
  CapturedStep& operator=(CapturedStep&&) noexcept;

  /// Runs the step on these inputs; exactly one step per call. Once it is captured the result is
  /// one tensor, which the next call overwrites: clone() what is to be kept. Where the device
  /// cannot record (the CPU), every call runs the step. Throws ShapeError for inputs of other
  /// shapes or dtypes than it was captured with.
  Tensor operator()(const std::vector<Tensor>& inputs);

  bool captured() const { return work_ != nullptr; }

 private:
  void capture(const std::vector<Tensor>& inputs, Backend& backend);
  void copy_inputs(const std::vector<Tensor>& inputs, Backend& backend);

  Step step_;
  CapturedStepOptions options_;
  int calls_ = 0;
  std::unique_ptr<CapturedWork> work_;
  std::vector<Tensor> inputs_;  // what the recorded work reads
  Tensor result_;
  std::vector<std::function<void()>> host_work_;  // what a replay repeats on the host
  RandomKey key_{};                               // the generator's when recording began
  uint64_t numbers_ = 0;                          // by how much a step moves it
  uint64_t replays_ = 0;
};

/// Whether this thread is recording a step.
bool recording_step();
/// For what takes part in steps and keeps books on the host: while this thread records a step,
/// every later replay calls `work` first. Else nothing happens.
void repeat_on_replay(std::function<void()> work);

}  // namespace halftone
