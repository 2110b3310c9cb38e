// Whether a step was taken, as an answer that costs nothing until somebody asks. On a GPU the
// update itself finds out whether the gradients overflowed, and a host that wanted to know at once
// would wait for it.
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
  /// An answer that is known.
  explicit Stepped(bool stepped) : stepped_(stepped) {}
  /// One that lies on a device: f32 scalar, other than 0 where the step was skipped.
  explicit Stepped(Tensor skip) : skip_(std::move(skip)) {}

  /// Whether the weights were updated; the first question reads the device.
  operator bool() const {
    if (skip_.defined()) stepped_ = skip_.item() == 0, skip_ = {};
    return stepped_;
  }
  /// Whether asking costs nothing.
  bool known() const { return !skip_.defined(); }
  /// What the answer will be read from; undefined if it is known.
  const Tensor& skip() const { return skip_; }

 private:
  mutable Tensor skip_{};
  mutable bool stepped_ = true;
};

/// Who decides whether a step is skipped.
enum class Decision {
  where_free,  // the host on the CPU, where reading is free; elsewhere the update
  in_update,   // the update, also on the CPU: what a GPU does, for tests
};

/// Whether the host may read `flag` without waiting, and is to use that.
bool host_decides(Decision decision, const Tensor& flag);

/// Steps, and says whether it did: where the host is to decide, it reads control.skip and leaves
/// the optimizer alone, else the update does.
Stepped step(optim::Optimizer& optimizer, const optim::StepControl& control,
             Decision decision = Decision::where_free);

/// The position of the first gradient with an infinity or NaN, undefined ones not counted. Reads
/// from the device, gradient by gradient.
std::optional<std::size_t> first_not_finite(std::span<const Tensor> gradients);

}  // namespace halftone::amp
