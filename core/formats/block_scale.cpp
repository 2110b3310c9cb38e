// Bounds by simple loops on the host. Tests compare the kernels of backends with them.
#include <halftone/core/formats/block_scale.h>

#include <algorithm>
#include <limits>
#include <vector>

#include <halftone/core/error.h>

namespace halftone {

namespace {

float rms_of(double multiple, std::span<const float> values) {
  std::vector<double> squares;
  for (std::size_t i = 0; i < values.size(); i += squares_together) {
    const auto some = values.subspan(i, std::min<std::size_t>(squares_together, values.size() - i));
    squares.push_back(summed_by_lanes(
        std::ssize(some), [&](int64_t j) { return finite_square(some[std::size_t(j)]); }));
  }
  const double sum =
      summed_by_lanes(std::ssize(squares), [&](int64_t i) { return squares[std::size_t(i)]; });
  return bound_by_rms(multiple, sum,
                      std::ranges::count_if(values, [](float x) { return std::isfinite(x); }));
}

float quantile_of(double share, std::span<const float> values) {
  std::vector<float> magnitudes;
  for (const float x : values)
    if (std::isfinite(x)) magnitudes.push_back(std::abs(x));
  if (magnitudes.empty()) return 0;
  const auto at = magnitudes.begin() + (place_of_quantile(share, std::ssize(magnitudes)) - 1);
  std::nth_element(magnitudes.begin(), at, magnitudes.end());
  return *at;
}

}  // namespace

float clip_bound(const Clip& clip, std::span<const float> values) {
  if (clip.rms) return rms_of(*clip.rms, values);
  if (clip.quantile) return quantile_of(*clip.quantile, values);
  return std::numeric_limits<float>::infinity();
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
