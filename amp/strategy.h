// The memory strategies of mixed precision, as data: the dtype of the weights, the tensors that
// store their lost bits, the dtype of autocast, and the loss scaling. training.h applies them.
//
//   name             weights         companion          gradients  autocast  loss scale   at rest
//   fp64             f64             -                  f64        -         -            2x
//   fp32             f32             -                  f32        -         -            1x
//   amp-bf16         f32             -                  f32        bf16      -            1x
//   amp-fp16         f32             -                  f32        f16       dynamic      1x
//   o1-fp16          f32             -                  f32        f16       dynamic      1x
//   o2-fp16/-bf16    short, BN f32   f32 master         short      -         dynamic/-    1.5x
//   o3-fp16          f16             -                  f16        -         static 1     0.5x
//   full-bf16        bf16            -                  bf16       -         -            0.5x
//   full-bf16-sr     bf16            random numbers     bf16       -         -            0.5x
//   full-bf16-kahan  bf16            bf16 compensation  bf16       -         -            1x
//   split-bf16       upper halves    lower halves       bf16       -         -            1x  (*)
//
// (*) Upper halves are the weights rounded to nearest, as TransformerEngine's. IPEX cuts them off:
// .form = WeightForm::split. docs/strategies_compared.md has measurements of both.
//
// Optimizer state is f32; f64 for fp64, bf16 for full-bf16*; state_dtype selects another. (f16
// state underflows: the square of a gradient below 2e-4 is 0 there.)
#pragma once

#include <iosfwd>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <halftone/amp/cast_policy.h>
#include <halftone/core/loss_scale.h>
#include <halftone/core/update_rules.h>
#include <halftone/distributed/wire.h>
#include <halftone/nn/module.h>
#include <halftone/optim/optimizer.h>

namespace halftone::amp {

using halftone::HysteresisRule, halftone::LossScale, halftone::LossScaleOptions, halftone::next;

class SessionSource;  // amp/session.h

struct Strategy {
  std::string name;
  DType weights = f32;  // of the model's parameters
  /// Batch-norm modules (affine or not) stay f32.
  bool keep_batch_norm = false;
  WeightForm form = WeightForm::plain;
  std::optional<DType> autocast{};  // the dtype of regions, if there are any
  std::string policy = "pytorch-cuda";
  bool scales_loss = false;
  LossScaleOptions loss_scale{};
  std::optional<DType>
      state_dtype{};  // of the optimizer's state, if its options do not set it: else f32

  // --- choices that do not depend on the name
  /// Masters are updated in one pass from short gradients. False, or if the optimizer does not
  /// update through the backend: as apex, with additional f32 gradients.
  bool fused_master = true;
  /// Sums several micro-batches in f32, for any dtype of the parameters.
  bool accumulate_in_f32 = false;
  /// Restores buffers (running statistics of batch norm) after a skipped step: the forward pass
  /// changed them before the skip was known.
  bool hold_statistics = false;
  uint64_t seed = 0;  // of stochastic rounding, also by rules of a policy file
  /// The wire format of gradients in a sum of several batches: Training::train_together().
  distributed::WireFormat wire{};

  // --- settings that no name sets
  /// Replaces the preset `policy`; a subclass may use the tensors.
  std::shared_ptr<const CastPolicy> own_policy{};
  /// Makes a model's session for a policy file's rules (policy/policy_file.h).
  std::shared_ptr<const SessionSource> session{};

  /// Throws UsageError for unknown names, with the nearest known one.
  static Strategy named(std::string_view name);
  static std::span<const std::string_view> names();
};

/// Prints one line, as in the table above.
std::ostream& operator<<(std::ostream& out, const Strategy& strategy);

// The cost of a strategy, before it is chosen: the bytes of weights and optimizer tensors.
// Predicted from shapes; the ledger counts the same bytes in training.

struct StrategyBytes {
  int64_t parameter = 0;
  int64_t companion = 0;  // masters, remainders, compensation
  int64_t gradient = 0;   // between backward and step
  int64_t optimizer_state = 0;

  int64_t total() const { return parameter + companion + gradient + optimizer_state; }
};

/// Predicts for a model under any strategy, or none; with the optimizer's own options, except for a
/// state dtype in them. Frozen parameters have no gradients and no state. For several ranks that
/// share out the optimizer (distributed/collectives.h), returns the bytes of the rank with the most; its
/// gradients are then sums, f32 (f64), of its part.
StrategyBytes predicted_bytes(const Strategy& strategy, nn::Module& model,
                              optim::Optimizer& optimizer, int ranks = 1);

}  // namespace halftone::amp
