// halftone-lab compare and diff.
#include <halftone/lab/commands/commands.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <iterator>
#include <map>
#include <set>
#include <sstream>

#include <nlohmann/json.hpp>

#include <halftone/autograd/node.h>
#include <halftone/core/error.h>
#include <halftone/core/factory.h>
#include <halftone/core/files.h>
#include <halftone/core/formats/number_format.h>
#include <halftone/core/formats/survey.h>
#include <halftone/lab/identity.h>
#include <halftone/lab/table.h>
#include <halftone/lab/trial.h>
#include <halftone/amp/policy.h>
#include <halftone/amp/probe.h>

namespace halftone::lab {

// Runs one pass under the reference and one under the candidate, both observed. Keeps the
// reference's tensors and compares the candidate's with them, with the prediction of their formats,
// and with the same operation in f32.

namespace {

using policy::Role;
using policy::Seen;

constexpr std::size_t most_kept = 65536;
/// sqrt(3 / (96 ln 2)): the relative error of rounding to one bit, if significands are log-uniform.
const double unit_error = std::sqrt(3 / (96 * std::log(2.0)));

double predicted_error(int significand_bits) {
  return unit_error * std::ldexp(1, 1 - significand_bits);
}
int significand_bits_of(DType dtype) { return dtype == bf16 ? 8 : dtype == f16 ? 11 : 24; }

/// Returns at most 65,536 elements. Tensors of the same size give elements at the same indices.
std::vector<float> kept_of(const Tensor& x) {
  std::vector<float> all = x.to_vector<float>();
  if (all.size() <= most_kept) return all;
  std::vector<float> some(most_kept);
  for (std::size_t i = 0; i < most_kept; ++i)
    some[i] = all[std::size_t(double(i) * double(all.size()) / double(most_kept))];
  return some;
}

/// ||x - y|| / ||x||, in f64.
double relative_difference(std::span<const float> x, std::span<const float> y) {
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
    const double d = double(x[i]) - double(y[i]);
    difference += d * d, size += double(x[i]) * double(x[i]);
  }
  if (size > 0) return std::sqrt(difference / size);
  return difference > 0 ? std::numeric_limits<double>::infinity() : 0;
}
double relative_difference(const Tensor& x, const Tensor& y) {
  return relative_difference(x.to_vector<float>(), y.to_vector<float>());
}

struct Place {
  std::string site;
  Role role;
  std::size_t input;
  auto operator<=>(const Place&) const = default;
};
using Kept = std::map<Place, std::vector<float>>;

class Keeper final : public policy::Observer {
 public:
  explicit Keeper(Kept& to) : to_(to) {}
  bool begin_pass(int64_t) override { return true; }
  void tensor(const Seen& seen, const Tensor&, const Tensor& after) override {
    if (is_floating(after.dtype())) to_[{seen.site, seen.role, seen.input}] = kept_of(after);
  }

 private:
  Kept& to_;
};

/// The errors that reached one operation so far.
struct Operation {
  double operands = 0;  // sum of the squares of the operands' relative errors
  double backward = 0;  // the same for the operands that backward reads instead, and for the
                        // gradient
  std::vector<std::shared_ptr<Node>> shadows{};  // one per call of the operation; backward takes
                                                 // the last one first
};

class Comparer final : public policy::Observer {
 public:
  Comparer(Comparison& to, const Kept& reference, const CompareOptions& options)
      : to_(to), reference_(reference), options_(options) {}

  bool begin_pass(int64_t) override { return true; }

  Tensor row_for(const Seen&, Device device) override { return rounded_ = new_survey_row(device); }
  void scale_used(const Seen& seen, const Tensor& scale) override {
    scale_ = scale.item(), scaled_ = seen.quantizer;
  }

  void tensor(const Seen& seen, const Tensor& before, const Tensor& after) override {
    if (!is_floating(after.dtype())) return;
    Deviation row{
        .site = seen.site, .role = seen.role, .input = seen.input, .elements = after.numel()};
    if (const auto known = reference_.find({seen.site, seen.role, seen.input});
        known != reference_.end())
      row.twin = relative_difference(known->second, kept_of(after));
    const double error = rounding_of(seen, before, after, row);
    Operation& operation = operations_[seen.site];
    const bool forward =
        seen.role == Role::input || seen.role == Role::weight || seen.role == Role::bias;
    if (forward) operation.operands += error * error;
    else if (seen.role < Role::grad_input && seen.role != Role::output)
      operation.backward += error * error;
    if (seen.role == Role::output) finish_result(row, operation, after.dtype(), error);
    to_.rows.push_back(std::move(row));
    rounded_ = {}, scaled_ = nullptr;
  }

  void ran(std::string_view site, std::span<const Tensor> inputs, Computation& computation,
           const Tensor& y) override {
    Operation& operation = operations_[std::string(site)];
    local_ = Deviation::none;
    std::vector<Tensor> wide;
    for (const Tensor& x : inputs)
      wide.push_back(x.defined() && is_floating(x.dtype()) ? x.detach().to(f32) : x);
    try {
      std::shared_ptr<Node> shadow;
      const Tensor exact = computation.aside(wide, &shadow);
      operation.shadows.push_back(std::move(shadow));
      if (is_floating(y.dtype())) local_ = relative_difference(exact, y);
    } catch (const UnsupportedError&) {  // the operation must not run twice
    } catch (const DTypeError&) {        // the operation does not run in f32
    }
  }

  void differentiated(std::string_view site, const Tensor& dy,
                      std::span<const Tensor> gradients) override {
    Operation& operation = operations_[std::string(site)];
    if (operation.shadows.empty()) return;
    const std::shared_ptr<Node> shadow = std::move(operation.shadows.back());
    operation.shadows.pop_back();
    std::vector<Tensor> exact;
    try {
      if (shadow) exact = shadow->backward(dy.to(f32));
    } catch (const Error&) { return; }  // an operation without a gradient has no shadow either
    for (std::size_t i = 0; i < gradients.size() && i < exact.size(); ++i) {
      if (!gradients[i].defined() || !exact[i].defined()) continue;
      judge_gradient(site, i, relative_difference(exact[i], gradients[i]),
                     std::sqrt(operation.operands + operation.backward +
                               std::pow(own_error(gradients[i].dtype()), 2)));
    }
    operation.backward = 0;
  }

 private:
  static double own_error(DType dtype) { return predicted_error(significand_bits_of(dtype)); }

  /// Returns the relative error of this rounding; `row` gets its ratio to the prediction.
  double rounding_of(const Seen& seen, const Tensor& before, const Tensor& after, Deviation& row) {
    Survey survey;
    int bits = 0;  // 0: nothing predicts the error
    if (seen.quantizer && rounded_.defined()) {
      survey = Survey::from(rounded_);
      const bool has_significands = seen.quantizer->table.empty() && !seen.quantizer->own;
      if (has_significands) bits = seen.quantizer->grid.significand_bits;
    } else if (before.dtype() != after.dtype() && significand_bits_of(after.dtype()) < 24 &&
               before.dtype() == f32) {
      const Quantizer cast{.grid = after.dtype() == bf16 ? formats::bf16 : formats::f16};
      const QuantizeCall call{.quantizer = cast};
      const Tensor counted = new_survey_row(before.device());
      halftone::survey(before, after, &call, counted);
      survey = Survey::from(counted), bits = significand_bits_of(after.dtype());
    } else {
      return 0;
    }
    const SurveySums& s = survey.sums;
    if (s.sum_x2 == 0) return 0;
    const double error = std::sqrt(s.sum_e2 / s.sum_x2);
    if (bits > 0) row.rounding = error / predicted_error(bits);
    if (s.to_infinity > 0) row.rounding = std::numeric_limits<double>::infinity();
    if (row.rounding > options_.rounding) row.reason = reason_of(survey);
    return error;
  }

  /// Says why a rounding errs more than its format predicts.
  std::string reason_of(const Survey& survey) const {
    const SurveySums& s = survey.sums;
    const double ideal =
        scaled_ ? double(scale_of_tensor(numbers_of(*scaled_), float(s.largest))) : 0;
    if (s.to_infinity > 0) return percent(s.to_infinity / s.count) + " became infinite";
    if (scaled_ && (scale_ > 4 * ideal || scale_ < ideal / 4))
      return "a stale scale: " + number(scale_) + " where " + number(ideal) + " would be right";
    if (survey.saturation() > 1e-3) return percent(survey.saturation()) + " saturate";
    if (survey.underflow() > 1e-2) return percent(survey.underflow()) + " underflow to 0";
    if (std::abs(survey.bias()) > 1e-2) return "a bias of " + percent(survey.bias());
    return percent(s.subnormal / std::max(1.0, s.count - s.zeros)) + " are subnormal";
  }

  void finish_result(Deviation& row, const Operation& operation, DType dtype, double rounding) {
    row.local = local_;
    const double own = own_error(dtype);
    row.amplification = row.local / std::sqrt(operation.operands + rounding * rounding + own * own);
    judge(row);
  }

  void judge(Deviation& row) {
    if (row.amplification > options_.amplification && row.reason.empty())
      row.reason = "it errs " + number(row.amplification, 2) + " times as much as its operands";
    if (std::isnan(row.local)) row.amplification = Deviation::none;
  }

  /// Completes the row of the gradient that was noted last.
  void judge_gradient(std::string_view site, std::size_t input, double local, double expected) {
    for (auto row = to_.rows.rbegin(); row != to_.rows.rend(); ++row) {
      const bool leaves = row->role == Role::grad_input || row->role == Role::grad_weight;
      if (row->site != site || !leaves || row->input != input || !std::isnan(row->local)) continue;
      row->local = local, row->amplification = local / expected;
      return judge(*row);
    }
  }

  Comparison& to_;
  const Kept& reference_;
  const CompareOptions& options_;
  std::map<std::string, Operation> operations_{};
  Tensor rounded_{};
  const Quantizer* scaled_ = nullptr;
  double scale_ = 0, local_ = Deviation::none;
};

bool has_history(const amp::Policy& strategy) {
  const amp::Policy file = strategy;
  for (const policy::Rule& rule : file.rules.rules)
    for (const auto& [role, rounds] : rule.roles)
      if (rounds.quantizer.scaling.from_history) return true;
  return false;
}

/// Runs one pass of a new model under an observer. Returns the loss.
double watched_pass(const std::function<Workload()>& make, const amp::Policy& strategy,
                    std::shared_ptr<policy::Observer> observer, const CompareOptions& options) {
  const Workload work = make();
  const std::unique_ptr<optim::Optimizer> optimizer = optimizer_of(work);
  amp::Training training = amp::apply(strategy, *work.model, *optimizer);
  const data::Batch batch = example_of(work);
  const auto run = [&] { return loss_of(work, training, batch); };
  if (has_history(strategy)) {
    // The first pass only fills the history of scales with this batch's values; its step is
    // skipped.
    manual_seed(options.seed);
    training.backward(run());
    training.region().session->end_step(training.optimizer(), ones({}));
    training.zero_grad();
  }
  if (options.prepare) options.prepare(training);
  const policy::Observation observation("compare", training, std::move(observer));
  manual_seed(options.seed);
  const Tensor loss = run();
  training.backward(loss);
  return loss.item();
}
}  // namespace

Comparison compare(const std::function<Workload()>& make, const amp::Policy& reference,
                   const amp::Policy& candidate, const CompareOptions& options) {
  Kept kept;
  Comparison result;
  result.reference_loss =
      watched_pass(make, reference, std::make_shared<Keeper>(kept), {.seed = options.seed});
  result.candidate_loss =
      watched_pass(make, candidate, std::make_shared<Comparer>(result, kept, options), options);
  for (std::size_t i = 0; i < result.rows.size() && result.first < 0; ++i)
    if (!result.rows[i].reason.empty()) result.first = int(i);
  return result;
}

std::string table_of(const Comparison& comparison) {
  const auto cell = [](double x, int digits) { return std::isnan(x) ? "-" : number(x, digits); };
  Table table({"site", "role", "rounding", "local", "amplification", "twin", ""});
  for (std::size_t i = 0; i < comparison.rows.size(); ++i) {
    const Deviation& row = comparison.rows[i];
    // A tensor that was not rounded, with no rounded tensor before it, carries no information.
    if (std::isnan(row.rounding) && !(row.local > 0)) continue;
    const std::string mark = int(i) == comparison.first ? "<- first: " : "";
    table.row({row.site, std::string(policy::name(row.role)), cell(row.rounding, 2),
               cell(row.local, 2), cell(row.amplification, 2), cell(row.twin, 2),
               mark + row.reason});
  }
  std::ostringstream text;
  text << table << "\nloss " << number(comparison.candidate_loss, 6) << ", of the reference "
       << number(comparison.reference_loss, 6) << '\n';
  text << (comparison.first < 0 ? "nothing deviates: every rounding is as its format predicts, and "
                                  "no operation amplifies\n"
                                : "");
  return text.str();
}

std::string json_of(const Comparison& comparison, const ComparedNames& names, uint64_t seed) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const Deviation& row : comparison.rows)
    rows.push_back({{"site", row.site},
                    {"role", policy::name(row.role)},
                    {"input", row.input},
                    {"elements", row.elements},
                    {"rounding", row.rounding},
                    {"local", row.local},
                    {"amplification", row.amplification},
                    {"twin", row.twin},
                    {"reason", row.reason}});
  nlohmann::ordered_json file{{"format", 1},
                              {"policy", names.policy},
                              {"reference", names.reference},
                              {"workload", names.workload},
                              {"seed", seed},
                              {"reference_loss", comparison.reference_loss},
                              {"candidate_loss", comparison.candidate_loss},
                              {"first", nullptr},
                              {"rows", std::move(rows)}};
  if (comparison.first >= 0) file["first"] = comparison.first;
  return file.dump(1) + "\n";
}

Work add_compare(CLI::App& app, const Context& context) {
  struct Options {
    std::string policy, reference = "fp32", workload, json;
    uint64_t seed = 0;
  };
  auto options = std::make_shared<Options>();
  options->workload = context.workload;
  add_policy(app, options->policy);
  app.add_option("--reference", options->reference, "the policy to compare with")
      ->capture_default_str();
  add_workload(app, options->workload, context);
  add_seed(app, options->seed);
  add_json(app, options->json);
  return [options, &context] {
    const auto make = [&] { return make_workload(options->workload, options->seed, context.own); };
    require_json(options->json);
    std::ostream& words = words_next_to(options->json);
    name_workload(words, options->workload, context.own, false);
    const amp::Policy file = policy::named_or_read(options->policy);
    note_other_model(std::cerr, file, options->workload, context.own);
    const Comparison found =
        compare(make, policy::named_or_read(options->reference), file, {.seed = options->seed});
    write_json(
        options->json,
        json_of(found, {options->policy, options->reference, options->workload}, options->seed));
    words << table_of(found);
    return 0;
  };
}

// halftone-lab diff: two runs with traces, compared by place.

namespace {
constexpr const char* trace_name = "trace.jsonl";

struct Traced {
  Json summary{};
  std::vector<TraceRow> rows{};
};

Traced read_traced(const std::filesystem::path& folder) {
  const bool there = std::filesystem::exists(folder / trace_name);
  Traced run;
  if (there) run = {read_run("diff", folder).summary, read_trace("diff", folder / trace_name)};
  if (run.rows.empty())
    fail<UsageError>("diff", printable(folder.string()), there ? " has an empty " : " has no ",
                     trace_name,
                     ". Give the folder of a run of halftone-lab run --trace N --out DIR.");
  return run;
}

/// Returns "0, 2, 4"; of many steps the first ones.
std::string list_of(const std::set<int64_t>& steps) {
  std::vector<std::string> texts;
  for (const int64_t step : steps) texts.push_back(std::to_string(step));
  return listed(texts, 8);
}

/// Keeps only the rows of steps that both traces have, so that runs with other values of --trace
/// can be compared. Returns whether it removed rows. Throws UsageError if it would keep none.
bool keep_common_steps(Traced& there, Traced& here, std::set<int64_t>& common) {
  const std::set<int64_t> first = steps_of(there.rows), second = steps_of(here.rows);
  common.clear();
  std::ranges::set_intersection(first, second, std::inserter(common, common.end()));
  if (common.empty())
    fail<UsageError>("diff", "the traces have no step in common: ", list_of(first), " and ",
                     list_of(second), ". Trace both runs with the same --trace N.");
  for (Traced* run : {&there, &here})
    std::erase_if(run->rows, [&](const TraceRow& row) { return !common.contains(row.step); });
  return first != second;
}

Json json_of(const TraceRow& row) {
  return {{"step", row.step},
          {"site", row.site},
          {"role", policy::name(row.role)},
          {"input", row.input},
          {"hash", row.hash}};
}
}  // namespace

Work add_diff(CLI::App& app, const Context&) {
  struct Options {
    std::filesystem::path first, second;
    std::string json{};
  };
  auto options = std::make_shared<Options>();
  app.add_option("first", options->first, "the folder of a run with --trace")->required();
  app.add_option("second", options->second, "the folder of another")->required();
  add_json(app, options->json);
  return [options] {
    require_json(options->json);
    Traced there = read_traced(options->first), here = read_traced(options->second);
    std::set<int64_t> steps;
    const bool some = keep_common_steps(there, here, steps);
    std::ostream& words = words_next_to(options->json);
    const std::vector<std::string> settings = differences(there.summary, here.summary);
    for (const std::string& line : settings) words << "differs: " << printable(line) << '\n';
    if (some)
      words << "the traces have different steps. Compared: steps " << list_of(steps) << '\n';
    const auto difference = first_difference(there.rows, here.rows);
    Json json{{"format", 1},           {"equal", !difference}, {"tensors", here.rows.size()},
              {"steps", steps.size()}, {"all_steps", !some},   {"settings", settings},
              {"first", nullptr}};
    if (!difference) {
      words << "equal: " << here.rows.size() << " tensors\n";
    } else {
      words << "equal: the first " << difference->row
            << " tensors\nfirst difference: " << text_of(*difference) << '\n';
      json["first"] = {{"row", difference->row}};
      if (difference->there) json["first"]["there"] = json_of(*difference->there);
      if (difference->here) json["first"]["here"] = json_of(*difference->here);
    }
    write_json(options->json, json.dump(1) + "\n");
    return difference ? exit_no : exit_yes;
  };
}

}  // namespace halftone::lab
