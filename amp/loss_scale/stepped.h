// Whether a step was taken. On a GPU the update itself decides whether the gradients overflowed.
// The answer stays on the device until the program asks for it, so that the host does not wait
// in each step.
//
//   training.step();                           // waits for nothing
//   if (training.step()) schedule.step();      // on a GPU, waits
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <utility>

#include <halftone/optim/optimizer.h>

namespace halftone::amp {

class Stepped {
 public:
  /// A known answer.
  explicit Stepped(bool stepped) : stepped_(stepped) {}
  /// An answer in device memory: f32 scalar, not 0 if the step was skipped.
  explicit Stepped(Tensor skip) : skip_(std::move(skip)) {}

  /// Returns whether the weights were updated. The first call reads the device.
  operator bool() const {
    if (skip_.defined()) stepped_ = skip_.item() == 0, skip_ = {};
    return stepped_;
  }
  /// Returns whether the host has the answer, so that reading it does not wait.
  bool known() const { return !skip_.defined(); }
  /// Returns the scalar that the answer will be read from; undefined if the answer is known.
  const Tensor& skip() const { return skip_; }

 private:
  mutable Tensor skip_{};
  mutable bool stepped_ = true;
};

/// Where the decision to skip a step is made.
enum class Decision {
  where_free,  // on the CPU by the host, since reading costs nothing; on a GPU by the update
  in_update,   // by the update, also on the CPU, as on a GPU; for tests
};

/// Returns whether the host decides: `decision` permits it, and it can read `flag` without waiting.
bool host_decides(Decision decision, const Tensor& flag);

/// Steps the optimizer unless control.skip is not 0, and returns whether it did. If the host
/// decides, it does not call the optimizer for a skipped step; otherwise the update decides.
Stepped step(optim::Optimizer& optimizer, const optim::StepControl& control,
             Decision decision = Decision::where_free);

/// Returns the position of the first gradient with an infinity or NaN; undefined gradients are not
/// counted. Reads from the device, gradient by gradient.
std::optional<std::size_t> first_not_finite(std::span<const Tensor> gradients);

}  // namespace halftone::amp
