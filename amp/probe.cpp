// Probes, updates, flips, overflows.
#include <halftone/amp/probe.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <ostream>
#include <tuple>

#include <nlohmann/json.hpp>

#include <halftone/amp/master_weights.h>
#include <halftone/autograd/ops.h>
#include <halftone/autograd/ops/cast.h>
#include <halftone/core/backend.h>
#include <halftone/core/captured_step.h>
#include <halftone/core/error.h>
#include <halftone/core/factory.h>
#include <halftone/core/files.h>
#include <halftone/core/formats/survey.h>
#include <halftone/nn/module.h>

namespace halftone::policy {

// Rows are made when a sampled step first meets a tensor, stay on its device, and are read on
// request.

namespace {
/// Returns the quantizer equivalent to a native cast.
const Quantizer* native_quantizer(DType dtype) {
  static const Quantizer bfloat{.grid = formats::bf16}, half{.grid = formats::f16};
  return dtype == bf16 ? &bfloat : dtype == f16 ? &half : nullptr;
}
double scale_wanted(const Quantizer& quantizer, double largest) {
  return double(scale_of_tensor(numbers_of(quantizer), float(largest)));
}
}  // namespace

class Probe::Recorder final : public Observer {
 public:
  Recorder(amp::Training& training, ProbeOptions options)
      : training_(training),
        options_(std::move(options)),
        path_("probe", options_.path),
        parts_(parts_of(training.model())),
        updates_probe_(training.model()) {
    if (options_.every < 1 || options_.first < 0)
      fail<UsageError>("probe", "every is ", options_.every, " and first ", options_.first,
                       ". Use 1 or more, and 0 or more.");
  }

  bool begin_pass(int64_t step) override {
    sampled_ = !recording_step() && step >= options_.first && step <= options_.last &&
               (step - options_.first) % options_.every == 0;
    if (!sampled_) return false;
    if (step != step_) step_ = step, present_.clear();
    const amp::GradScaler& scaler = training_.scaler();
    loss_scale_ = scaler.enabled() ? training_.scaler().scale_tensor() : Tensor{};
    if (options_.updates) updates_probe_.ask(step);
    return true;
  }

  Tensor row_for(const Seen& seen, Device device) override {
    Waiting* const row = waiting_for(seen, seen.quantizer, described(*seen.quantizer), device);
    return row ? row->survey : Tensor{};
  }
  void scale_used(const Seen& seen, const Tensor& scale) override {
    if (Waiting* const row = waiting_for(seen, seen.quantizer, {}, scale.device()))
      row->scale = scale.clone();
  }
  void tensor(const Seen& seen, const Tensor& before, const Tensor& after) override {
    if (!before.defined() || !is_floating(before.dtype())) return;
    if (seen.quantizer) {
      if (seen.role == Role::weight && options_.updates)
        if (Waiting* const row = waiting_for(seen, seen.quantizer, {}, after.device()))
          keep_weight(*row, after);
      return;
    }
    const Quantizer* const cast =
        before.dtype() != after.dtype() ? native_quantizer(after.dtype()) : nullptr;
    const std::size_t rows = waiting_.size();
    Waiting* const row =
        waiting_for(seen, nullptr, cast ? std::string(name(after.dtype())) : "", before.device());
    if (!row) return;
    if (!cast) return count_once(before, *row, waiting_.size() > rows);
    const QuantizeCall call{.quantizer = *cast};
    survey(before, after, &call, row->survey);
    row->quantizer = *cast;
    if (seen.role == Role::weight && options_.updates) keep_weight(*row, after);
  }
  void end_step() override {
    if (!sampled_ || !options_.updates) return;
    compare_weights();
    for (UpdateRow& row : updates_probe_.collect()) updates_.push_back(std::move(row));
    sampled_ = false;
  }

  const std::vector<ProbeRow>& rows() {
    compare_weights();
    for (Waiting& row : waiting_) {
      row.given.survey = Survey::from(row.survey);
      if (row.scale.defined()) {
        row.given.scale = row.scale.item();
        row.given.ideal = scale_wanted(*row.quantizer, row.given.survey.sums.largest);
      }
      if (row.loss_scale.defined()) row.given.loss_scale = row.loss_scale.item();
      rows_.push_back(std::move(row.given));
    }
    waiting_.clear(), present_.clear(), compared_ = 0;
    return rows_;
  }
  const std::vector<UpdateRow>& updates() const { return updates_; }
  /// Returns the samples of finished steps.
  WeightHistory& history() { return weights_; }
  void clear() {
    waiting_.clear(), present_.clear(), rows_.clear(), updates_.clear();
    compared_ = 0;
  }

 private:
  /// A whole storage that was counted recently, and its row.
  struct Counted {
    std::weak_ptr<Storage> storage{};
    uint64_t version = 0;
    int64_t offset = 0, elements = 0, of_storage = 0;
    Tensor row{};
  };
  struct Waiting {
    ProbeRow given{};
    std::optional<Quantizer> quantizer{};
    Tensor survey{}, scale{}, loss_scale{};
    Tensor weight{};  // as forward uses it, until it was compared with earlier samples
  };

  /// Keeps the weight of the first pass of a step.
  static void keep_weight(Waiting& row, const Tensor& weight) {
    if (!row.weight.defined()) row.weight = weight.detach();
  }
  void compare_weights() {
    for (; compared_ < waiting_.size(); ++compared_) {
      Waiting& row = waiting_[compared_];
      if (!row.weight.defined()) continue;
      row.given.flips = weights_.add(row.given.site, row.given.input, *row.quantizer,
                                     row.weight.to(Device::cpu()).to_vector<float>());
      row.weight = Tensor{};
    }
  }

  /// The result of one operation is the input of the next one: counts a tensor only once.
  void count_once(const Tensor& x, Waiting& row, bool is_new) {
    if (is_new)
      for (const Counted& c : counted_)
        if (c.storage.lock() == x.storage() && c.version == x.storage()->version() &&
            c.offset == x.offset() && c.elements == x.numel() && c.elements == c.of_storage) {
          row.survey = c.row.clone();
          return;
        }
    survey(x, x, nullptr, row.survey);
    if (!is_new) return;
    counted_[next_counted_++ % counted_.size()] = {x.storage(),
                                                   x.storage()->version(),
                                                   x.offset(),
                                                   x.numel(),
                                                   x.storage()->bytes() / size_of(x.dtype()),
                                                   row.survey.clone()};
  }

  Waiting* waiting_for(const Seen& seen, const Quantizer* quantizer, const std::string& what,
                       Device device) {
    if (!options_.roles.empty() &&
        std::ranges::find(options_.roles, seen.role) == options_.roles.end())
      return nullptr;
    const std::string_view path = std::string_view(seen.site).substr(0, seen.site.rfind('/'));
    if (!path_.matches(path, parts_)) return nullptr;
    const auto key = std::tuple(seen.site, seen.role, seen.input);
    if (const auto known = present_.find(key); known != present_.end())
      return &waiting_[known->second];
    present_[key] = waiting_.size();
    Waiting& fresh = waiting_.emplace_back();
    fresh.given.step = step_, fresh.given.site = seen.site, fresh.given.role = seen.role;
    fresh.given.input = seen.input, fresh.given.quantizer = what;
    if (quantizer) fresh.quantizer = *quantizer;
    fresh.survey = new_survey_row(device), fresh.loss_scale = loss_scale_;
    return &fresh;
  }

  amp::Training& training_;
  ProbeOptions options_;
  PathPattern path_;
  ModelParts parts_;
  UpdateProbe updates_probe_;
  bool sampled_ = false;
  int64_t step_ = -1;
  Tensor loss_scale_{};
  std::map<std::tuple<std::string, Role, std::size_t>, std::size_t> present_;  // of this step
  std::array<Counted, 8> counted_{};
  std::size_t next_counted_ = 0;
  std::vector<Waiting> waiting_;
  std::size_t compared_ = 0;  // waiting rows whose weights were compared with earlier samples
  WeightHistory weights_{};
  std::vector<ProbeRow> rows_;
  std::vector<UpdateRow> updates_;
};

Probe::Probe(amp::Training& training, ProbeOptions options, int64_t steps)
    : recorder_(std::make_shared<Recorder>(training, std::move(options))),
      observation_("probe", training, recorder_, false, steps) {}
Probe::~Probe() = default;
const std::vector<ProbeRow>& Probe::rows() const { return recorder_->rows(); }
const std::vector<UpdateRow>& Probe::updates() const { return recorder_->updates(); }
void Probe::clear() { recorder_->clear(); }
NamedTensors Probe::history() const { return recorder_->history().state(); }
void Probe::load_history(const NamedTensors& history) { recorder_->history().load(history); }

void Probe::save(const std::filesystem::path& path) const {
  files::replace("probe.save", path, json_lines(rows(), updates()));
}

// Uses the existing session, or adds one without rules.

Observation::Observation(std::string_view where, amp::Training& training,
                         std::shared_ptr<Observer> observer, bool replaces, int64_t steps) {
  if (!training.region().session)
    training.set_session(Session::for_observers(training.model(), steps));
  const std::shared_ptr<Session> session = training.region().session;
  before_ = session->observe(std::move(observer));
  if (before_ && !replaces) {
    session->observe(std::move(before_));
    fail<UsageError>(where, "the training is being observed already. Destroy that probe first.");
  }
  session_ = session;
}

Observation::~Observation() {
  if (const std::shared_ptr<Session> session = session_.lock())
    session->observe(std::move(before_));
}

// Runs a pass again under an observer that searches for values that are not finite.

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

// The results of a probe: as JSON lines for programs, as two short lists for people.

// --- for files

namespace {
// Infinities and NaN become null, because JSON has neither.
nlohmann::ordered_json object_of(const ProbeRow& row) {
  const SurveySums& s = row.survey.sums;
  nlohmann::ordered_json line{{"step", row.step}, {"site", row.site}, {"role", name(row.role)}};
  if (row.input > 0) line["input"] = row.input;
  line["quantizer"] = row.quantizer;
  if (row.scale != 0) line["scale"] = row.scale, line["ideal"] = row.ideal;
  line["loss_scale"] = row.loss_scale;
  each_sum(
      [&](const char* key, SumKind kind, double value) {
        if (kind == SumKind::count) line[key] = int64_t(value);
      },
      s);
  nlohmann::ordered_json binades = nlohmann::ordered_json::object();
  for (int i = 0; i < Survey::binades; ++i)
    if (const double count = row.survey.binade[std::size_t(i)]; count > 0)
      binades[std::to_string(i + Survey::lowest_exponent)] = int64_t(count);
  line["binades"] = std::move(binades);
  each_sum(
      [&](const char* key, SumKind kind, double value) {
        if (kind != SumKind::count && kind != SumKind::by_error) line[key] = value;
      },
      s);
  if (row.quantizer.empty()) return line;
  each_sum(
      [&](const char* key, SumKind kind, double value) {
        if (kind == SumKind::by_error && value != 0) line[key] = value;
      },
      s);
  const ErrorParts parts = row.survey.error_parts();
  line["error_parts"] = {{"scale", parts.scale},
                         {"dead_zone", parts.dead_zone},
                         {"grid", parts.grid},
                         {"saturation", parts.saturation}};
  if (is_gradient(row.role)) line["norm_to_noise"] = row.survey.norm_to_noise();
  if (row.flips.count > 0)
    line["flips"] = {{"count", int64_t(row.flips.count)},
                     {"flipped", int64_t(row.flips.flipped)},
                     {"returned", int64_t(row.flips.returned)}};
  return line;
}

nlohmann::ordered_json object_of(const UpdateRow& row) {
  nlohmann::ordered_json line{{"step", row.step}, {"parameter", row.parameter}};
  if (!row.state.empty()) line["state"] = row.state;
  line["form"] = row.form, line["dtype"] = name(row.dtype);
  const auto sums = [](const UpdateSums& s) {
    return nlohmann::ordered_json{{"count", int64_t(s.count)},
                                  {"lost", int64_t(s.lost)},
                                  {"du", s.du},
                                  {"uu", s.uu},
                                  {"ww", s.ww}};
  };
  line["stored"] = sums(row.stored), line["seen"] = sums(row.seen);
  nlohmann::ordered_json bins = nlohmann::ordered_json::object();
  for (int i = 0; i < UpdateRow::bins; ++i)
    if (const double count = row.by_ulp[std::size_t(i)]; count > 0)
      bins[std::to_string(i + UpdateRow::lowest_bin)] = int64_t(count);
  line["by_ulp"] = std::move(bins);
  return line;
}
}  // namespace

std::string json_lines(const std::vector<ProbeRow>& rows, const std::vector<UpdateRow>& updates) {
  std::string text;
  const auto replace = nlohmann::ordered_json::error_handler_t::replace;
  for (const ProbeRow& row : rows) text += object_of(row).dump(-1, ' ', false, replace) + "\n";
  for (const UpdateRow& row : updates) text += object_of(row).dump(-1, ' ', false, replace) + "\n";
  return text;
}

// --- for people

namespace {
struct Merged {
  const ProbeRow* row;
  Survey survey;
};

/// Merges the rows of one tensor in several steps.
std::vector<Merged> merged(const std::vector<ProbeRow>& rows) {
  std::vector<Merged> result;
  std::map<std::tuple<std::string, Role, std::size_t>, std::size_t> places;
  for (const ProbeRow& row : rows) {
    const auto [place, is_new] = places.try_emplace({row.site, row.role, row.input}, result.size());
    if (is_new) result.push_back({&row, row.survey});
    else result[place->second].survey.merge(row.survey);
  }
  return result;
}

void print_rows(std::ostream& out, std::string_view title, const std::vector<Merged>& rows) {
  std::size_t width = 4;
  for (const Merged& m : rows)
    width = std::max(width, m.row->site.size() + 1 + name(m.row->role).size());
  const auto cell = [&](std::string text, std::size_t wide) {
    text.insert(0, text.size() < wide ? wide - text.size() : 0, ' ');
    out << text;
  };
  out << title << '\n';
  for (const Merged& m : rows) {
    std::string where = m.row->site + ' ' + std::string(name(m.row->role));
    where.resize(std::max(where.size(), width), ' ');
    out << "  " << where;
    PlainText underflow, saturated, sqnr;
    underflow << std::round(1e4 * m.survey.underflow()) / 100 << " %";
    saturated << std::round(1e4 * m.survey.saturation()) / 100 << " %";
    sqnr << std::round(10 * m.survey.sqnr()) / 10 << " dB";
    cell(underflow.str(), 10), cell(saturated.str(), 10), cell(sqnr.str(), 11);
    out << "  " << m.row->quantizer << '\n';
  }
}
}  // namespace

std::ostream& operator<<(std::ostream& out, const Probe& probe) {
  std::vector<Merged> rounded = merged(probe.rows());
  std::erase_if(rounded, [](const Merged& m) { return m.row->quantizer.empty(); });
  const auto ten = [&](auto&& worse) {
    std::ranges::stable_sort(rounded, worse);
    return std::vector(rounded.begin(),
                       rounded.begin() + std::ptrdiff_t(std::min<std::size_t>(10, rounded.size())));
  };
  if (rounded.empty()) {
    out << "nothing was rounded in the sampled steps\n";
  } else {
    print_rows(out, "most underflow (x != 0 that became 0; saturated; signal to noise)",
               ten([](const Merged& a, const Merged& b) {
                 return a.survey.underflow() > b.survey.underflow();
               }));
    print_rows(out, "least signal to noise", ten([](const Merged& a, const Merged& b) {
                 return a.survey.sqnr() < b.survey.sqnr();
               }));
  }
  std::map<std::string, UpdateSums> sums;
  for (const UpdateRow& row : probe.updates()) sums[row.state].add(row.stored);
  for (const auto& [state, all] : sums) {
    PlainText text;
    text << "updates" << (state.empty() ? "" : " of " + state + ", on its grid") << ": "
         << 100 * all.lost_share() << " % lost, effective descent " << all.effective_descent()
         << ", |u| / |w| " << all.update_ratio();
    out << text.str() << '\n';
  }
  return out;
}

// Copies before a step, sums after it.

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

// Compares samples number by number.

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

// One pass over the rows.

void WorstRows::add(const std::vector<ProbeRow>& rows, const std::vector<UpdateRow>& updates) {
  for (const UpdateRow& row : updates)
    if (row.state.empty()) stored.add(row.stored);
  for (const ProbeRow& row : rows) {
    if (row.quantizer.empty()) continue;
    const std::string place = row.site + ' ' + std::string(name(row.role));
    if (const double share = row.survey.underflow(); share > underflow)
      underflow = share, underflow_at = place;
    if (const double decibels = row.survey.sqnr(); decibels < sqnr)
      sqnr = decibels, sqnr_at = place;
  }
}

}  // namespace halftone::policy
