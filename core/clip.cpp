// Bounds by loops on the host: the same bits on every backend, and with any number of threads.
#include <halftone/core/clip.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <halftone/core/error.h>

namespace halftone {

namespace {

float bound_by_rms(double multiple, std::span<const float> values) {
  double sum = 0, count = 0;
  for (const float x : values)
    if (std::isfinite(x)) sum += double(x) * double(x), count += 1;
  return count > 0 ? float(multiple * std::sqrt(sum / count)) : 0;
}

float bound_by_quantile(double share, std::span<const float> values) {
  std::vector<float> magnitudes;
  for (const float x : values)
    if (std::isfinite(x)) magnitudes.push_back(std::abs(x));
  if (magnitudes.empty()) return 0;
  const double wanted = std::ceil(share * double(magnitudes.size()));
  const auto number = std::clamp(std::ptrdiff_t(wanted), std::ptrdiff_t(1), std::ssize(magnitudes));
  const auto at = magnitudes.begin() + (number - 1);
  std::nth_element(magnitudes.begin(), at, magnitudes.end());
  return *at;
}

}  // namespace

float clip_bound(const Clip& clip, std::span<const float> values) {
  if (clip.rms) return bound_by_rms(*clip.rms, values);
  if (clip.quantile) return bound_by_quantile(*clip.quantile, values);
  return std::numeric_limits<float>::infinity();
}

void clip_values(std::span<float> values, float bound) {
  for (float& x : values)
    if (std::isfinite(x) && std::abs(x) > bound) x = std::copysign(bound, x);
}

void check_clip(std::string_view op, const Clip& clip) {
  if (clip.rms && clip.quantile)
    fail<UsageError>(op, "numbers are clipped by rms and by quantile. Leave one out.");
  if (clip.rms && !(*clip.rms > 0 && std::isfinite(*clip.rms)))
    fail<UsageError>(op, "numbers are clipped at ", *clip.rms,
                     " root mean squares. Choose a positive number, such as 4.");
  if (clip.quantile && !(*clip.quantile > 0 && *clip.quantile <= 1))
    fail<UsageError>(op, "numbers are clipped at the quantile ", *clip.quantile,
                     ". Choose a number above 0 and up to 1, such as 0.999.");
}

}  // namespace halftone
