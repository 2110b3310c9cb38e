// Mixup (Zhang et al. 2018) as a callback, like timm's Mixup: blends each training batch with a
// permutation of itself. Class numbers become shares of two classes.
#pragma once

#include <halftone/train/callbacks.h>

namespace halftone::train {

struct MixupOptions {
  double alpha = 0.2;  // a batch's share is drawn from Beta(alpha, alpha); 0: no mixup
  uint64_t seed = 0;
};

/// For tasks whose loss accepts probabilities, such as classification(). The blending depends only
/// on the seed, the epoch and the batch's place in it, so a resumed training sees the same batches.
class Mixup final : public Callback {
 public:
  /// `classes`: the number of classes. Throws UsageError for fewer than 2, and for an alpha that is
  /// negative or not finite.
  explicit Mixup(int64_t classes, MixupOptions options = {});
  /// Blends inputs [n, ...] f32, and turns class numbers [n] into blended probabilities f32 [n,
  /// classes]. Both stay on their device. Throws what data::mixup() and one_hot() throw, and
  /// UsageError for a label that is no class, such as the -100 of an ignored sample.
  void on_batch_start(Trainer& trainer, data::Batch& batch) override;

 private:
  void require_classes(const Tensor& labels) const;

  int64_t classes_;
  MixupOptions options_;
};

}  // namespace halftone::train
