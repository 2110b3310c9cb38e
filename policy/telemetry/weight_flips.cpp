// Compares samples number by number.
#include <halftone/policy/telemetry/weight_flips.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include <halftone/core/factory.h>

namespace halftone::policy {

namespace {
double share(double part, double whole) {
  return whole > 0 ? part / whole : std::numeric_limits<double>::quiet_NaN();
}
}  // namespace

void WeightFlips::merge(const WeightFlips& other) {
  count += other.count, flipped += other.flipped, returned += other.returned;
}
double WeightFlips::flipped_share() const { return share(flipped, count); }
double WeightFlips::oscillation() const { return share(returned, count); }

double half_spacing(const Quantizer& quantizer) {
  if (quantizer.table.size() < 2) return std::ldexp(0.5, -quantizer.grid.significand_bits);
  double least = 1;
  for (std::size_t i = 1; i < quantizer.table.size(); ++i) {
    const double low = quantizer.table[i - 1], high = quantizer.table[i];
    least = std::min(least, (high - low) / std::max(std::abs(low), std::abs(high)));
  }
  return least / 2;
}

WeightFlips flips_of(const std::vector<float>& a, const std::vector<float>& b,
                     const std::vector<float>& c, double half_spacing) {
  const auto spacing = float(half_spacing);
  // Without branches, so that compilers use vectors.
  const auto differ = [&](float p, float q) {
    const float larger = std::abs(p) > std::abs(q) ? std::abs(p) : std::abs(q);
    return int32_t(std::abs(p - q) > spacing * larger);
  };
  int64_t flipped = 0, returned = 0;
  constexpr std::size_t block = 4096;
  for (std::size_t begin = 0; begin < c.size(); begin += block) {
    const std::size_t end = std::min(c.size(), begin + block);
    int32_t moved = 0, back = 0;
    for (std::size_t i = begin; i < end; ++i) {
      const int32_t now = differ(b[i], c[i]);
      moved += now, back += now & differ(a[i], b[i]) & (1 - differ(a[i], c[i]));
    }
    flipped += moved, returned += back;
  }
  return {double(c.size()), double(flipped), double(returned)};
}

WeightFlips WeightHistory::add(const std::string& site, std::size_t input,
                               const Quantizer& quantizer, std::vector<float> values) {
  Samples& samples = samples_[{site, input}];
  WeightFlips flips;
  if (samples.older.size() == values.size() && samples.last.size() == values.size())
    flips = flips_of(samples.older, samples.last, values, half_spacing(quantizer));
  samples.older = std::move(samples.last), samples.last = std::move(values);
  return flips;
}

NamedTensors WeightHistory::state() const {
  NamedTensors state;
  for (const auto& [key, samples] : samples_) {
    const std::string name = '.' + std::to_string(key.second) + '.' + key.first;
    for (const auto& [kind, values] : {std::pair("older", &samples.older), {"last", &samples.last}})
      if (!values->empty())
        state[kind + name] = from_vector(*values, {int64_t(values->size())}, f32);
  }
  return state;
}

void WeightHistory::load(const NamedTensors& state) {
  samples_.clear();
  for (const auto& [name, x] : state) {
    const std::size_t kind = name.find('.'), site = name.find('.', kind + 1);
    if (site == std::string::npos) continue;
    std::size_t input = 0;
    const char* const end = name.data() + site;
    if (std::from_chars(name.data() + kind + 1, end, input).ptr != end) continue;
    Samples& samples = samples_[{name.substr(site + 1), input}];
    (name.starts_with("older") ? samples.older : samples.last) = x.to_vector<float>();
  }
}

}  // namespace halftone::policy
