// Mixup (Zhang et al. 2018) as a callback: each training batch is blended with a permutation of
// itself, and its class numbers become shares of two classes. As timm's Mixup.
#pragma once

#include <halftone/train/callbacks/callback.h>

namespace halftone::train {

struct MixupOptions {
  double alpha = 0.2;  // of Beta(alpha, alpha), from which the share of a batch is drawn; 0: none
  uint64_t seed = 0;
};

/// For tasks whose loss takes probabilities, as classification() does. What a batch becomes depends
/// on the seed, the epoch and the batch's place in it, so a resumed training sees the same.
class Mixup final : public Callback {
 public:
  /// classes: how many there are. Throws UsageError for fewer than 2, and for an alpha that is
  /// negative or not finite.
  explicit Mixup(int64_t classes, MixupOptions options = {});
  /// Inputs [n, ...] f32 and class numbers [n] become blended inputs and probabilities f32
  /// [n, classes], on the device where they were. Throws what data::mixup() and one_hot() throw.
  void on_batch_start(Trainer& trainer, data::Batch& batch) override;

 private:
  int64_t classes_;
  MixupOptions options_;
};

}  // namespace halftone::train
