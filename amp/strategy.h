// The memory strategies of mixed precision, as data: what dtype the weights have, what keeps their
// lost bits, what runs under autocast, what scales the loss. training.h carries one out.
//
//   name             weights         beside them        gradients  autocast  loss scale   at rest
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
// .form = WeightForm::split. docs/strategies_compared.md has both measured.
//
// Optimizer state is f32, of fp64 f64 and of full-bf16* bf16; state_dtype has the choice. (f16
// state underflows: the square of a gradient below 2e-4 is 0 there.)
#pragma once

#include <iosfwd>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <halftone/core/loss_scale.h>
#include <halftone/amp/cast_policy.h>
#include <halftone/core/weight_form.h>
#include <halftone/distributed/wire.h>

namespace halftone::amp {

using halftone::HysteresisRule, halftone::LossScale, halftone::LossScaleOptions, halftone::next;

class SessionSource;  // amp/session.h

struct Strategy {
  std::string name;
  DType weights = f32;  // of the model's parameters
  /// Batch-norm modules (affine or not) stay f32.
  bool keep_batch_norm = false;
  WeightForm form = WeightForm::plain;
  std::optional<DType> autocast{};  // what regions cast to, if there are any
  std::string policy = "pytorch-cuda";
  bool scales_loss = false;
  LossScaleOptions loss_scale{};
  std::optional<DType>
      state_dtype{};  // of the optimizer, where its options leave it open: else f32

  // --- choices that the name leaves open
  /// Masters are updated in one pass from short gradients. Off, or where the optimizer does not
  /// update through the backend: as apex, with f32 gradients beside.
  bool fused_master = true;
  /// Several micro-batches are summed in f32, whatever the parameters' dtype.
  bool accumulate_in_f32 = false;
  /// Buffers (running statistics of batch norm) of a skipped step are put back: the forward pass
  /// has changed them before anybody knew.
  bool hold_statistics = false;
  uint64_t seed = 0;  // of stochastic rounding, also by rules of a policy file
  /// What gradients are on their way to the sum of a step's batches: Training::train_together().
  distributed::WireFormat wire{};

  // --- what no name says
  /// In place of the preset `policy`; a subclass may look at tensors.
  std::shared_ptr<const CastPolicy> own_policy{};
  /// Makes what a policy file wants beyond all of this (policy/file/policy_file.h), for a model.
  std::shared_ptr<const SessionSource> session{};

  /// Throws UsageError for unknown names, with the nearest known one.
  static Strategy named(std::string_view name);
  static std::span<const std::string_view> names();
};

/// One line, as in the table above.
std::ostream& operator<<(std::ostream& out, const Strategy& strategy);

}  // namespace halftone::amp
