// Mixup (Zhang et al. 2018, arXiv:1710.09412): each image is blended with another one of its batch.
// The loss is blended alike, which equals the cross-entropy with soft targets without them:
//   MixedBatch mixed = mixup(batch, 0.2, random);
//   Tensor y = model(mixed.inputs);
//   loss = mixed.share * cross_entropy(y, mixed.targets)
//        + (1 - mixed.share) * cross_entropy(y, mixed.other_targets);
#pragma once

#include <halftone/core/random.h>
#include <halftone/data/dataset.h>

namespace halftone::data {

struct MixedBatch {
  Tensor inputs;                  // share * inputs + (1 - share) * other inputs
  Tensor targets, other_targets;  // i64 [k]
  double share = 1;               // on [0, 1]
};

/// Mixes a batch. batch.inputs: f32 [k, ...] on the CPU; targets: [k, ...]. The share is drawn from
/// Beta(alpha, alpha), once per batch; alpha 0 mixes nothing. The others are a permutation of the
/// batch. With random = key.generator_for(step) a step does not depend on steps before it. Throws
/// ShapeError or DTypeError for other batches, UsageError for a negative alpha.
MixedBatch mixup(const Batch& batch, double alpha, Generator& random);

/// Draws from Beta(alpha, alpha), alpha > 0 (Jöhnk 1964, in logarithms below 1; two gamma draws of
/// Marsaglia and Tsang 2000 otherwise).
double symmetric_beta(double alpha, Generator& random);

}  // namespace halftone::data
