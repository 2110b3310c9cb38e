// Plain loops over a batch: a few megabytes, once per step, in the thread of the training loop.
#include <halftone/data/images/mixup.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <utility>
#include <vector>

#include <halftone/core/factory.h>
#include <halftone/core/math.h>
#include <halftone/core/memory.h>
#include <halftone/core/tensor.h>
#include <halftone/data/random_uniform.h>
#include <halftone/data/tensor_dataset.h>

namespace halftone::data {

namespace {
/// Returns a number other than 0, so that it has a logarithm.
double above_zero(Generator& random) { return 1 - uniform(random); }

double gamma_above_one(double alpha, Generator& random) {
  const double d = alpha - 1.0 / 3, c = 1 / std::sqrt(9 * d);
  for (;;) {
    const double normal = std::sqrt(-2 * elementary::log(above_zero(random))) *
                          elementary::cos(2 * std::numbers::pi * uniform(random));
    const double v = 1 + c * normal;
    if (v <= 0) continue;
    const double cube = v * v * v;
    if (elementary::log(above_zero(random)) < normal * normal / 2 + d - d * cube + d * elementary::log(cube))
      return d * cube;
  }
}
}  // namespace

double symmetric_beta(double alpha, Generator& random) {
  if (!(alpha > 0) || !std::isfinite(alpha))
    fail<UsageError>("mixup", "alpha is ", alpha, ". Give a positive number, such as 0.2.");
  if (alpha >= 1) {
    const double a = gamma_above_one(alpha, random), b = gamma_above_one(alpha, random);
    return a / (a + b);
  }
  for (;;) {  // x / (x + y) with x = u^(1/alpha), y = v^(1/alpha), if x + y <= 1
    const double log_x = elementary::log(above_zero(random)) / alpha,
                 log_y = elementary::log(above_zero(random)) / alpha;
    const double most = std::max(log_x, log_y);
    const double log_sum = most + elementary::log(elementary::exp(log_x - most) + elementary::exp(log_y - most));
    if (log_sum <= 0) return elementary::exp(log_x - log_sum);
  }
}

MixedBatch mixup(const Batch& batch, double alpha, Generator& random) {
  if (!batch.inputs.defined() || !batch.targets.defined() || batch.inputs.rank() == 0 ||
      batch.targets.rank() == 0 || batch.inputs.size(0) != batch.targets.size(0))
    fail<ShapeError>("mixup", "inputs and targets are not a batch. Pass [k, ...] and [k, ...].");
  if (batch.inputs.dtype() != f32)
    fail<DTypeError>("mixup", "the inputs must be f32: they are ", described(batch.inputs),
                     ". Mix before converting.");
  if (batch.inputs.device() != Device::cpu() || batch.targets.device() != Device::cpu())
    fail<DeviceError>("mixup", "the batch is on ", batch.inputs.device(),
                      ". Mix before moving it to a device.");
  if (!(alpha >= 0) || !std::isfinite(alpha))
    fail<UsageError>("mixup", "alpha is ", alpha, ". Give a number from 0, such as 0.2.");
  if (alpha == 0 || batch.inputs.size(0) == 0) return {batch.inputs, batch.targets, batch.targets};

  const MemoryScope scope(MemoryUse::input);
  const double share = symmetric_beta(alpha, random);
  std::vector<int64_t> others(static_cast<std::size_t>(batch.inputs.size(0)));
  std::iota(others.begin(), others.end(), int64_t(0));
  shuffle(others, random);
  const Tensor x = views::contiguous(batch.inputs.detach());
  const Tensor mixed = take_rows(x, others);
  const float* own = x.data<float>();
  float* y = mixed.data<float>();
  const auto weight = float(share);
  for (int64_t i = 0; i < x.numel(); ++i) y[i] = weight * own[i] + (1 - weight) * y[i];
  return {mixed, batch.targets, take_rows(views::contiguous(batch.targets.detach()), others),
          share};
}

}  // namespace halftone::data
