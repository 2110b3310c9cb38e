// Rows are made when a sampled step first meets a tensor, stay on its device, and are read on
// request.
#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <tuple>

#include <halftone/core/captured_step.h>
#include <halftone/core/files.h>
#include <halftone/policy/telemetry/probe.h>

namespace halftone::policy {

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
        lists_(list_sizes_of(ModelNames(training.model()).paths())),
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
    if (!path_.matches(path, lists_)) return nullptr;
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
  ListSizes lists_;
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

}  // namespace halftone::policy
