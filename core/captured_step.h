// A step whose work on the device is recorded once and then run again as a whole: small models
// spend most of a step on launching kernels one by one. Mirrors torch.cuda.make_graphed_callables
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
// Before the first call, call optimizer.publish_rates(): it stores learning rates on the device.
//
// The captured step gives the same bits. It must not read values back, copy from the host, or
// decide on the host what to compute. No autocast region may be open around it (one inside is
// fine). Tensors that it writes must outlive it: call zero_grad() inside.
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
  /// Number of calls that run the step directly before it is recorded. State that the first steps
  /// create must exist by then. At least 1.
  int warm_up = 2;
};

class CapturedStep {
 public:
  using Step = std::function<Tensor(const std::vector<Tensor>&)>;

  explicit CapturedStep(Step step, CapturedStepOptions options = {});
  ~CapturedStep();
  CapturedStep(CapturedStep&&) noexcept;
  CapturedStep& operator=(CapturedStep&&) noexcept;

  /// Runs the step on these inputs; one step per call. After the capture the result is one tensor,
  /// which the next call overwrites: clone() it to keep it. If the device cannot record (the CPU),
  /// every call runs the step. Throws ShapeError if shapes or dtypes of inputs differ from those of
  /// the capture, and UsageError for another number of inputs or none.
  Tensor operator()(const std::vector<Tensor>& inputs);

  bool captured() const { return work_ != nullptr; }

 private:
  void capture(const std::vector<Tensor>& inputs, Backend& backend);
  void copy_inputs(const std::vector<Tensor>& inputs, Backend& backend);

  Step step_;
  CapturedStepOptions options_;
  int calls_ = 0;
  std::unique_ptr<CapturedWork> work_;
  std::vector<Tensor> inputs_;  // the tensors that the recorded work reads
  Tensor result_;
  std::vector<std::function<void()>> host_work_;  // work of the host that each replay repeats
  RandomKey key_{};                               // the generator's when recording began
  uint64_t numbers_ = 0;                          // its increase in one step
  uint64_t replays_ = 0;
};

/// Returns whether this thread is recording a step.
bool recording_step();
/// For objects that count steps on the host: while this thread records a step, registers `work`,
/// which every later replay calls first. Otherwise does nothing.
void repeat_on_replay(std::function<void()> work);

}  // namespace halftone
