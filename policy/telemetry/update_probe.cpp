// Copies before a step, sums after it.
#include <halftone/policy/probe.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include <halftone/amp/master_weights.h>
#include <halftone/core/backend.h>
#include <halftone/core/captured_step.h>
#include <halftone/core/formats/survey.h>

namespace halftone::policy {

namespace {
double ratio(double part, double whole) {
  return whole > 0 ? part / whole : std::numeric_limits<double>::quiet_NaN();
}

/// The spacing of the numbers of a tensor: by its dtype, or by an unscaled grid.
struct Spacing {
  int significand_bits = 24, least_exponent = -126;
  explicit Spacing(const NumberFormat& grid)
      : significand_bits(grid.significand_bits), least_exponent(grid.min_exponent) {}
  explicit Spacing(DType dtype) {
    if (dtype == bf16) significand_bits = 8;
    if (dtype == f16) significand_bits = 11, least_exponent = -14;
    if (dtype == f64) significand_bits = 53;
  }
  /// Returns log2 of the distance to the next number at w.
  int exponent_at(float w) const {
    const int exponent =
        magnitude_bits(w) == 0 ? least_exponent : binade_of(w) + Survey::lowest_exponent;
    return std::max(exponent, least_exponent) - (significand_bits - 1);
  }
};

/// Returns the spacing; nothing if scales stretch the grid.
std::optional<Spacing> spacing_of(const std::optional<Quantizer>& grid, DType dtype) {
  if (!grid) return Spacing(dtype);
  if (grid->scaling.per != Scaling::Per::none || grid->hadamard != 0 || !grid->table.empty())
    return {};
  return Spacing(grid->grid);
}

/// A weight's elements in T on the host, in the order of its memory's shape.
template <class T> class Elements {
 public:
  explicit Elements(const Tensor& x) : values_(x.to(Device::cpu()).to_vector<T>()) {}
  T operator[](std::size_t i) const { return values_[i]; }
  std::size_t size() const { return values_.size(); }

 private:
  std::vector<T> values_;
};

template <class T>
void count(const Tensor& weight, const Tensor& unrounded, const Tensor& forward,
           const Tensor& stored_now, const Tensor& forward_now,
           const std::optional<Spacing>& spacing, UpdateRow& row) {
  const Elements<T> before(weight), wanted(unrounded), seen(forward), now(stored_now),
      seen_now(forward_now);
  UpdateSums stored, as_seen;
  for (std::size_t i = 0; i < before.size(); ++i) {
    const double w = double(before[i]), u = double(wanted[i]) - w, s = double(seen[i]);
    stored.ww += w * w, as_seen.ww += s * s;
    if (u == 0 || !std::isfinite(u)) continue;
    const double moved = double(now[i]) - w, seen_moved = double(seen_now[i]) - s;
    ++stored.count, stored.lost += moved == 0 ? 1 : 0;
    stored.du += moved * u, stored.uu += u * u;
    as_seen.lost += seen_moved == 0 ? 1 : 0, as_seen.du += seen_moved * u;
    const auto size = float(u);
    if (!spacing || magnitude_bits(size) == 0) continue;
    const int bin =
        binade_of(size) + Survey::lowest_exponent - spacing->exponent_at(float(seen[i]));
    ++row.by_ulp[std::size_t(std::clamp(bin - UpdateRow::lowest_bin, 0, UpdateRow::bins - 1))];
  }
  as_seen.count = stored.count, as_seen.uu = stored.uu;
  row.stored = stored, row.seen = as_seen;
}
}  // namespace

void UpdateSums::add(const UpdateSums& other) {
  count += other.count, lost += other.lost, du += other.du, uu += other.uu, ww += other.ww;
}
double UpdateSums::lost_share() const { return ratio(lost, count); }
double UpdateSums::effective_descent() const { return ratio(du, uu); }
double UpdateSums::update_ratio() const { return std::sqrt(ratio(uu, ww)); }

bool UpdateProbe::wants() const { return asked_ && !recording_step(); }

Tensor UpdateProbe::weight_of(const UpdateSlot& slot) {
  return amp::joined_weight(slot.form, slot.parameter, slot.companion)
      .to(slot.parameter.device())
      .clone();
}

void UpdateProbe::updating(const UpdateSlot& slot, const Tensor& weight, const Tensor& unrounded) {
  for (const auto& [name, x] : parameters_)
    if (x.body() == slot.parameter.body() || x.storage() == slot.parameter.storage()) {
      watched_.push_back({name, slot.form, slot.parameter, slot.companion, weight, unrounded,
                          slot.parameter.clone(), slot.state});
      Watched& at = watched_.back();
      for (std::size_t i = 0; i < at.states.size(); ++i)
        if (at.states[i].defined()) at.states_before[i] = at.states[i].clone();
      return;
    }
}

void UpdateProbe::rounding(std::string_view state, const Tensor& x, const Quantizer& quantizer) {
  for (Watched& at : watched_) {
    if (at.parameter.storage() == x.storage()) at.grid = quantizer;
    for (std::size_t i = 0; i < at.states.size(); ++i)
      if (at.states[i].defined() && at.states[i].storage() == x.storage())
        states_.push_back(
            {at.name, std::string(state), x, at.states_before[i], x.clone(), quantizer});
  }
}

std::vector<UpdateRow> UpdateProbe::collect() {
  std::vector<UpdateRow> rows;
  for (const Watched& at : watched_) {
    UpdateRow row{.step = step_,
                  .parameter = at.name,
                  .form = std::string(name(at.form)),
                  .dtype = at.parameter.dtype()};
    const Tensor stored_now = amp::joined_weight(at.form, at.parameter, at.companion);
    const auto spacing = spacing_of(at.grid, row.dtype);
    if (row.dtype == f64)
      count<double>(at.weight, at.unrounded, at.forward, stored_now, at.parameter, spacing, row);
    else count<float>(at.weight, at.unrounded, at.forward, stored_now, at.parameter, spacing, row);
    if (row.stored.count > 0) rows.push_back(std::move(row));
  }
  for (const WatchedState& at : states_) {
    UpdateRow row{.step = step_,
                  .parameter = at.parameter,
                  .state = at.name,
                  .form = std::string(name(WeightForm::plain)),
                  .dtype = at.state.dtype()};
    count<float>(at.before, at.unrounded, at.before, at.state, at.state,
                 spacing_of(at.grid, row.dtype), row);
    if (row.stored.count > 0) rows.push_back(std::move(row));
  }
  watched_.clear(), states_.clear(), asked_ = false;
  return rows;
}

}  // namespace halftone::policy
