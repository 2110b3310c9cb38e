// Runs a pass again under an observer that searches for values that are not finite.
#include <halftone/policy/telemetry/overflow.h>

#include <cmath>
#include <ostream>

#include <halftone/autograd/ops.h>
#include <halftone/autograd/ops/cast.h>
#include <halftone/core/error.h>
#include <halftone/core/formats/survey.h>
#include <halftone/nn/module.h>
#include <halftone/policy/telemetry/observation.h>

namespace halftone::policy {

namespace {

SurveySums sums_of(const Tensor& x) {
  const Tensor row = new_survey_row(x.device());
  survey(x, x, nullptr, row);
  return Survey::from(row).sums;
}
int64_t bad_in(const SurveySums& sums) { return int64_t(sums.infinite + sums.nan); }

class OverflowSearch final : public Observer {
 public:
  bool begin_pass(int64_t) override { return true; }

  void tensor(const Seen& seen, const Tensor& before, const Tensor& after) override {
    if (found_ || !after.defined() || !is_floating(after.dtype())) return;
    const SurveySums now = sums_of(after);
    const bool backward = seen.role >= Role::grad_output;
    if (bad_in(now) == 0) {
      if (seen.role <= Role::bias || seen.role == Role::grad_output)
        largest_in_ = std::max(begins_anew(seen) ? 0.0 : largest_in_, now.largest);
      return;
    }
    const bool rounded = before.body() != after.body();
    const SurveySums came = rounded ? sums_of(before) : now;
    const bool arrives = seen.role <= Role::bias || seen.role == Role::grad_output ||
                         seen.role == Role::grad_output_weight;
    found_ = Overflow{.site = seen.site,
                      .op = std::string(seen.op),
                      .role = seen.role,
                      .dtype = after.dtype(),
                      .bad = bad_in(now),
                      .elements = after.numel(),
                      .largest_in = rounded ? came.largest : largest_in_,
                      .largest_out = now.largest,
                      .cast = rounded && bad_in(came) == 0,
                      .arrived = arrives && !(rounded && bad_in(came) == 0),
                      .backward = backward};
  }
  std::optional<Overflow>& found() { return found_; }

 private:
  /// Returns whether this is the first tensor that an operation takes.
  bool begins_anew(const Seen& seen) {
    const bool other = seen.site != at_ || seen.role == Role::grad_output;
    at_ = seen.site;
    return other;
  }
  std::optional<Overflow> found_{};
  std::string at_{};
  double largest_in_ = 0;
};

/// Sets gradients of leaves aside for a scope.
class HeldGradients {
 public:
  explicit HeldGradients(const std::vector<Tensor>& leaves) {
    for (const Tensor& x : leaves)
      if (x.meta()) held_.emplace_back(x.meta(), std::exchange(x.meta()->grad, Tensor{}));
  }
  ~HeldGradients() {
    for (auto& [leaf, gradient] : held_) leaf->grad = std::move(gradient);
  }
  HeldGradients(const HeldGradients&) = delete;
  HeldGradients& operator=(const HeldGradients&) = delete;

 private:
  std::vector<std::pair<std::shared_ptr<AutogradMeta>, Tensor>> held_{};
};

/// Restores buffers, random numbers and gradients at its end.
class Untouched {
 public:
  explicit Untouched(amp::Training& training)
      : buffers_(training.model()),
        gradients_(training.model().parameters()),
        random_(default_generator().state()) {
    default_generator().set_state(training.last_pass().random);
  }
  ~Untouched() { buffers_.restore(), default_generator().set_state(random_); }
  Untouched(const Untouched&) = delete;
  Untouched& operator=(const Untouched&) = delete;

 private:
  NoStatistics sink_{};
  StatisticsScope no_statistics_{&sink_};
  nn::BufferCopies buffers_;
  HeldGradients gradients_;
  RandomKey random_;
};

/// Runs the pass with a loss scale.
std::optional<Overflow> search(amp::Training& training, const std::function<Tensor()>& loss,
                               double scale) {
  const auto observer = std::make_shared<OverflowSearch>();
  const Observation observation("explain_overflow", training, observer, true);
  const std::shared_ptr<void> repeat = observation.session()->repeat_last_pass();
  const Untouched untouched(training);
  const Tensor plain = loss();
  if (!plain.defined() || plain.numel() != 1)
    fail<UsageError>("explain_overflow",
                     "the function returns no loss. Return a tensor of one "
                     "element, computed through training.forward().");
  const Tensor scaled = scale == 1 ? plain : plain * scale;
  std::optional<Overflow>& found = observer->found();
  if (const SurveySums sums = sums_of(scaled.detach()); !found && bad_in(sums) > 0)
    found = Overflow{.site = {},
                     .op = {},
                     .role = Role::output,
                     .dtype = scaled.dtype(),
                     .bad = 1,
                     .elements = 1,
                     .largest_in = std::abs(plain.item()),
                     .backward = std::isfinite(plain.item())};
  if (!found) scaled.backward();
  if (found) found->loss_scale = scale;
  if (!found) {
    // Gradients of leaves are sums over their uses, which no operation has seen.
    for (const auto& [name, x] : training.model().named_parameters()) {
      if (!x.grad().defined()) continue;
      const SurveySums sums = sums_of(x.grad());
      if (bad_in(sums) == 0) continue;
      return Overflow{.site = name,
                      .op = "sum of gradients",
                      .role = Role::grad_weight,
                      .dtype = x.grad().dtype(),
                      .bad = bad_in(sums),
                      .elements = x.numel(),
                      .largest_out = sums.largest,
                      .arrived = true,
                      .backward = true,
                      .loss_scale = scale};
    }
  }
  return found;
}
}  // namespace

std::optional<Overflow> explain_overflow(amp::Training& training,
                                         const std::function<Tensor()>& loss) {
  const Tensor& used = training.last_pass().scale;
  const double scale = used.defined() ? used.item() : 1;
  std::optional<Overflow> found = search(training, loss, scale);
  if (!found || !found->backward || !training.scaler().enabled()) return found;
  for (double smaller = scale / 2; smaller >= 0x1p-24; smaller /= 2)
    if (!search(training, loss, smaller)) {
      found->enough = smaller;
      break;
    }
  return found;
}

std::ostream& operator<<(std::ostream& out, const Overflow& o) {
  const PlainNumbers plain(out);
  out << (o.site.empty() ? "the loss" : o.site);
  if (!o.site.empty()) out << ", " << name(o.role);
  out << ": " << o.bad << " of " << o.elements << (o.elements == 1 ? " value is" : " values are");
  if (o.dtype == f16) out << " beyond f16's 65504, or not a number";
  else out << " not finite in " << o.dtype;
  if (o.cast) out << ", made so by the cast";
  else if (o.arrived && !o.backward) out << " as they came: look at the data and the weights";
  else if (o.arrived) out << ", in the sum of gradients that arrives";
  if (o.largest_in > 0)
    out << "; largest finite magnitude "
        << (o.cast ? "before it " : "of what it was computed from ") << o.largest_in;
  if (o.backward && o.loss_scale != 1) out << " at loss scale " << o.loss_scale;
  if (o.enough > 0) out << "; a loss scale of " << o.enough << " would do";
  else if (!o.backward) out << ". No loss scale changes that: it is in the forward pass";
  return out;
}

}  // namespace halftone::policy
