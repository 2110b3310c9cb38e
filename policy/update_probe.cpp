// Copies before a step, sums after it.
#include <halftone/policy/update_probe.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include <halftone/amp/weight_storage.h>
#include <halftone/core/backend.h>
#include <halftone/core/captured_step.h>
#include <halftone/core/number_format.h>

namespace halftone::policy {

namespace {
double ratio(double part, double whole) {
  return whole > 0 ? part / whole : std::numeric_limits<double>::quiet_NaN();
}

/// log2 of the spacing of a dtype at w.
int spacing_exponent(DType dtype, double w) {
  const auto exponent = [&](int significand_bits, int least) {
    return std::max(w == 0 ? least : std::ilogb(w), least) - (significand_bits - 1);
  };
  if (dtype == bf16) return exponent(8, -126);
  if (dtype == f16) return exponent(11, -14);
  return dtype == f64 ? exponent(53, -1022) : exponent(24, -126);
}
}  // namespace

void UpdateSums::add(const UpdateSums& other) {
  count += other.count, lost += other.lost, du += other.du, uu += other.uu, ww += other.ww;
}
double UpdateSums::lost_share() const { return ratio(lost, count); }
double UpdateSums::effective_descent() const { return ratio(du, uu); }
double UpdateSums::update_ratio() const { return std::sqrt(ratio(uu, ww)); }

UpdateProbe::UpdateProbe(amp::Training& training) : training_(training) {}

bool UpdateProbe::wants() const { return asked_ && !recording_step(); }

Tensor UpdateProbe::weight_of(const UpdateSlot& slot) {
  return amp::joined_weight(slot.form, slot.parameter, slot.companion)
      .to(slot.parameter.device())
      .clone();
}

void UpdateProbe::updating(const UpdateSlot& slot, const Tensor& weight, const Tensor& unrounded) {
  const std::vector<Tensor> own = training_.optimizer().parameters();
  for (const auto& [name, x] : training_.model().named_parameters())
    if (x.body() == slot.parameter.body() || x.storage() == slot.parameter.storage()) {
      watched_.push_back({name, slot.form, slot.parameter, slot.companion, weight, unrounded,
                          slot.parameter.clone()});
      return;
    }
}

std::vector<UpdateRow> UpdateProbe::collect() {
  std::vector<UpdateRow> rows;
  for (const Watched& at : watched_) {
    UpdateRow row{.step = step_,
                  .parameter = at.name,
                  .form = std::string(name(at.form)),
                  .dtype = at.parameter.dtype()};
    const auto before = at.weight.to_vector<double>(), wanted = at.unrounded.to_vector<double>(),
               forward = at.forward.to_vector<double>(),
               now = amp::joined_weight(at.form, at.parameter, at.companion).to_vector<double>(),
               forward_now = at.parameter.to_vector<double>();
    for (std::size_t i = 0; i < before.size(); ++i) {
      const double u = wanted[i] - before[i];
      const auto note = [&](UpdateSums& sums, double w, double after) {
        sums.ww += w * w;
        if (u == 0 || !std::isfinite(u)) return;
        ++sums.count, sums.lost += after == w ? 1 : 0;
        sums.du += (after - w) * u, sums.uu += u * u;
      };
      note(row.stored, before[i], now[i]);
      note(row.seen, forward[i], forward_now[i]);
      if (u == 0 || !std::isfinite(u)) continue;
      const int bin = std::ilogb(u) - spacing_exponent(row.dtype, forward[i]);
      ++row.by_ulp[std::size_t(std::clamp(bin - UpdateRow::lowest_bin, 0, UpdateRow::bins - 1))];
    }
    if (row.stored.count > 0) rows.push_back(std::move(row));
  }
  watched_.clear(), asked_ = false;
  return rows;
}

}  // namespace halftone::policy
