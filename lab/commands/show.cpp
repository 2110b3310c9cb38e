// halftone-lab show, explain and formats.
#include <array>
#include <cmath>
#include <iomanip>
#include <iostream>
#include <map>
#include <optional>
#include <sstream>

#include <nlohmann/json.hpp>

#include <halftone/amp/cast_policy.h>
#include <halftone/amp/training.h>
#include <halftone/autograd/ops.h>
#include <halftone/core/error.h>
#include <halftone/core/factory.h>
#include <halftone/core/math.h>
#include <halftone/lab/commands/commands.h>
#include <halftone/lab/identity.h>
#include <halftone/core/json_value.h>
#include <halftone/amp/policy.h>
#include <halftone/amp/probe.h>
#include <halftone/amp/resolved.h>

namespace halftone::lab {

// Finds the sites by one forward and backward pass of the workload; nothing is trained.

namespace {
/// A workload under a policy, after its first pass.
class Shown {
 public:
  Shown(const std::string& policy, Workload workload)
      : file_(policy::named_or_read(policy)),
        work_(std::move(workload)),
        optimizer_(optimizer_of(work_)),
        training_(policy::watched(file_), *work_.model, *optimizer_) {
    training_.backward(loss_of(work_, training_, example_of(work_)));
    session().require_all_rules_used();
    // A step finds states that the optimizer does not have.
    if (!file_.rules.states.empty()) training_.step();
  }
  const amp::Policy& file() const { return file_; }
  const amp::Policy& strategy() const { return training_.strategy(); }
  policy::Session& session() const { return policy::session_of(training_); }

 private:
  amp::Policy file_;
  Workload work_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  amp::Training training_;
};

void warn_of_short_weights(const Shown& shown) {
  if (shown.strategy().weights == f32 || shown.strategy().weights == f64) return;
  for (const policy::Rule& rule : shown.file().rules.rules)
    if (rule.roles.contains(policy::Role::weight)) {
      std::cout << "note: weights are " << shown.strategy().weights
                << " already, so those that a rule quantizes are rounded twice.\n";
      return;
    }
}
/// Returns weights, autocast and loss scale in a line without the strategy's name. The wire format
/// is left out because it is among the rules.
std::string line_of(amp::Policy strategy) {
  strategy.name = "strategy", strategy.wire = {};
  std::ostringstream text;
  text << strategy;
  return text.str();
}
void print_difference(const Shown& shown, const Shown& other, const std::string& json) {
  const std::string before = line_of(shown.strategy()), after = line_of(other.strategy());
  if (!json.empty()) {
    Json all = Json::parse(policy::resolved_difference_json(shown.session(), other.session()));
    if (before != after) all["strategy"] = {{"before", before}, {"after", after}};
    write_json(json, all.dump(2) + '\n');
  }
  if (json == "-") return;
  std::string text = policy::resolved_difference(shown.session(), other.session());
  if (before != after) text += "- " + before + "\n+ " + after + '\n';
  std::cout << (text.empty() ? "no site differs, and nothing else does\n" : text);
}
/// Prints the cast class of each operation in the pass, and the reason.
void print_reasons(const policy::Session& session) {
  std::map<std::string, CastClass> met;
  std::size_t longest = 0;
  for (const policy::ResolvedSite& site : session.resolved()) {
    met.emplace(site.site.op, site.asks);
    longest = std::max(longest, site.site.op.size());
  }
  std::cout << "\nwhy, by what operations ask for\n";
  for (const auto& [op, asks] : met) {
    const OpInfo* info = amp::CastPolicy::info(op);
    const std::string_view why = info ? info->reason : "";
    std::cout << "  " << std::left << std::setw(int(longest) + 2) << op << std::setw(15)
              << name(asks) << ' ' << (why.empty() ? "as its author says" : why) << '\n';
  }
}
}  // namespace

int run_show(const ShowOptions& options, const std::vector<NamedWorkload>& own) {
  require_json(options.json);
  const Shown shown(options.policy, make_workload(options.workload, 0, own));
  note_other_model(std::cerr, shown.file(), options.workload, own);
  if (!options.other.empty()) {
    const Shown other(options.other, make_workload(options.workload, 0, own));
    note_other_model(std::cerr, other.file(), options.workload, own);
    print_difference(shown, other, options.json);
    return 0;
  }
  write_json(options.json, policy::resolved_json(shown.session()));
  if (options.json == "-") return 0;
  std::cout << shown.strategy() << "\npolicy " << policy::hash(shown.file()) << ", on "
            << options.workload << "\n\n"
            << policy::resolved_table(shown.session());
  warn_of_short_weights(shown);
  print_reasons(shown.session());
  return 0;
}

Work add_show(CLI::App& app, const Context& context) {
  auto options = std::make_shared<ShowOptions>();
  options->workload = context.workload;
  add_policy(app, options->policy);
  add_workload(app, options->workload, context);
  app.add_option("--diff", options->other, "another policy: prints only its differences");
  add_json(app, options->json);
  return [options, &context] { return run_show(*options, context.own); };
}

// Writes the training loop by hand, because it ends in the middle of a training.

namespace {
/// step: of the skipped step, or the number of steps if none was skipped.
std::string json_of(int64_t step, bool skipped, const std::string& why) {
  Json json{{"format", 1}, {"step", step}, {"skipped", skipped}};
  json["why"] = why.empty() ? Json() : Json(why);
  return json.dump(1) + "\n";
}
// halftone-lab explain: trains until a step is skipped, then says why.

struct ExplainOptions {
  std::string policy, workload;
  int64_t steps = 200;
  double scale = 0;  // the initial loss scale; 0: the policy's
  uint64_t seed = 0;
  std::string json{};  // empty: none; -: standard output
};
/// Trains and prints to standard output. Returns the exit code: 0, also if no step was skipped.
int run_explain(const ExplainOptions& options, const std::vector<NamedWorkload>& own) {
  const amp::Policy file = policy::named_or_read(options.policy);
  require_json(options.json);
  std::ostream& words = words_next_to(options.json);
  name_workload(words, options.workload, own, false);
  note_other_model(std::cerr, file, options.workload, own);
  amp::Policy strategy = file;
  if (options.scale > 0) strategy.loss_scale.init_scale = options.scale;
  const Workload work = make_workload(options.workload, options.seed, own);
  const std::unique_ptr<optim::Optimizer> optimizer = optimizer_of(work);
  amp::Training training = training_of(strategy, work, *optimizer);
  std::optional<optim::LrScheduler> rates;
  if (work.schedule) rates.emplace(training.optimizer(), work.schedule(options.steps));
  data::DataLoader loader = work.train();
  if (loader.size() == 0)
    fail<UsageError>("explain", options.workload,
                     " has training data without a batch. Give it more, or a smaller batch_size.");
  int64_t step = 0;
  while (step < options.steps)
    for (const data::Batch& batch : loader) {
      training.zero_grad();
      begin_step(training, step);
      const Tensor loss = loss_of(work, training, batch);
      training.backward(loss);
      if (work.clip_norm > 0) training.clip_grad_norm(work.clip_norm);
      const bool stepped = bool(training.step());
      ++step;
      if (rates && stepped) rates->step();
      if (!stepped || !std::isfinite(loss.item())) {
        const auto found =
            policy::explain_overflow(training, [&] { return loss_of(work, training, batch); });
        PlainText text;
        if (found) text << *found;
        else text << "a second run of it is finite everywhere";
        words << "step " << step << (stepped ? ": " : " skipped: ") << text.str() << '\n';
        write_json(options.json, json_of(step, !stepped, text.str()));
        return exit_yes;
      }
      if (step == options.steps) break;
    }
  words << "no step of " << step << " was skipped";
  if (training.scaler().enabled())
    words << "; the loss scale is " << training.scaler().scale_value();
  words << '\n';
  write_json(options.json, json_of(step, false, ""));
  return exit_yes;
}
}  // namespace

Work add_explain(CLI::App& app, const Context& context) {
  auto options = std::make_shared<ExplainOptions>();
  options->workload = context.workload;
  add_policy(app, options->policy);
  add_workload(app, options->workload, context);
  app.add_option("--steps", options->steps, "the most steps")
      ->capture_default_str()
      ->check(whole_number(1, most_steps));
  app.add_option("--scale", options->scale, "initial loss scale; default: the policy's")
      ->check(positive_number());
  add_seed(app, options->seed);
  add_json(app, options->json);
  return [options, &context] { return run_explain(*options, context.own); };
}

}  // namespace halftone::lab

// Tables of number formats and quantizers. The signal-to-noise ratio is 10 log10(sum x^2 / sum (x -
// y)^2) over random x: standard normal, uniform on [-1, 1), Laplace.

namespace ht = halftone;
using ht::Json, ht::lab::FormatsOptions;

namespace {

struct Sample {
  const char* name;
  ht::Tensor x;
};

/// Returns samples in rows of 1024, which every named block size divides.
std::vector<Sample> samples_of(int64_t count) {
  ht::manual_seed(10);
  const ht::Shape shape{count / 1024, 1024};
  const ht::Tensor u = ht::rand(shape), sign = ht::rand(shape);
  std::vector<float> laplace = u.to_vector<float>();
  const std::vector<float> signs = sign.to_vector<float>();
  for (std::size_t i = 0; i < laplace.size(); ++i)
    laplace[i] = (signs[i] < 0.5f ? 1.0f : -1.0f) * ht::math::log(1.0f - laplace[i]);
  return {{"normal", ht::randn(shape)},
          {"uniform", u * 2 - 1},
          {"Laplace", ht::from_vector(laplace, shape)}};
}

double signal_to_noise(const ht::Tensor& x, const ht::Quantizer& quantizer) {
  const std::vector<float> before = x.to_vector<float>(),
                           after = ht::quantize(x, quantizer).to_vector<float>();
  double signal = 0, noise = 0;
  for (std::size_t i = 0; i < before.size(); ++i) {
    const double error = double(before[i]) - double(after[i]);
    signal += double(before[i]) * double(before[i]), noise += error * error;
  }
  return 10 * std::log10(signal / noise);
}

void print_ratios(const ht::Quantizer& quantizer, const std::vector<Sample>& samples) {
  for (const Sample& sample : samples) {
    const double ratio = signal_to_noise(sample.x, quantizer);
    if (std::isinf(ratio)) std::cout << std::setw(9) << "exact";
    else std::cout << std::setw(9) << std::fixed << std::setprecision(2) << ratio;
  }
  std::cout << std::defaultfloat << '\n';
}

void print_ratio_heads(const std::vector<Sample>& samples) {
  for (const Sample& sample : samples) std::cout << std::setw(9) << sample.name;
  std::cout << '\n';
}

void print_formats(const std::vector<ht::NamedFormat>& formats,
                   const std::vector<Sample>& samples) {
  std::cout << "formats: unscaled, to the nearest; signal to noise in dB\n"
            << std::left << std::setw(8) << "name" << std::right << std::setw(5) << "bits"
            << std::setw(12) << "significand" << std::setw(10) << "exponents" << std::setw(13)
            << "largest" << std::setw(13) << "smallest" << std::setw(10) << "beyond";
  print_ratio_heads(samples);
  for (const auto& [name, format] : formats) {
    const std::string exponents =
        std::to_string(format.min_exponent) + ".." + std::to_string(std::ilogb(format.max));
    std::cout << std::left << std::setw(8) << name << std::right << std::setw(5) << int(format.bits)
              << std::setw(12) << format.significand_bits << std::setw(10) << exponents
              << std::setprecision(6) << std::setw(13) << format.max << std::setw(13)
              << ht::number_at(format, 1) << std::setw(10)
              << (format.infinity ? "infinity" : "saturates");
    print_ratios({.grid = format}, samples);
  }
}

void print_quantizers(const std::vector<std::string_view>& names,
                      const std::vector<Sample>& samples) {
  std::cout << "quantizers: bits of a number with its part of the scale\n"
            << std::left << std::setw(13) << "name" << std::setw(65) << "what it does" << std::right
            << std::setw(6) << "bits";
  print_ratio_heads(samples);
  for (const std::string_view name : names) {
    const ht::Quantizer quantizer = *ht::quantizer_named(name);
    std::cout << std::left << std::setw(13) << name << std::setw(65) << ht::described(quantizer)
              << std::right << std::setprecision(4) << std::setw(6) << quantizer.bits_per_element();
    print_ratios(quantizer, samples);
  }
}

std::string json_of(const std::vector<ht::NamedFormat>& formats,
                    const std::vector<std::string_view>& names,
                    const std::vector<Sample>& samples) {
  const auto ratios = [&](const ht::Quantizer& quantizer) {
    Json list = Json::object();
    for (const Sample& sample : samples) {
      const double ratio = signal_to_noise(sample.x, quantizer);
      list[sample.name] = std::isinf(ratio) ? Json() : Json(ratio);
    }
    return list;
  };
  Json all{{"format", 1}, {"formats", Json::array()}, {"quantizers", Json::array()}};
  for (const auto& [name, format] : formats)
    all["formats"].push_back({{"name", name},
                              {"bits", int(format.bits)},
                              {"significand_bits", format.significand_bits},
                              {"largest", format.max},
                              {"smallest", ht::number_at(format, 1)},
                              {"infinity", bool(format.infinity)},
                              {"signal_to_noise_db", ratios({.grid = format})}});
  for (const std::string_view name : names) {
    const ht::Quantizer quantizer = *ht::quantizer_named(name);
    all["quantizers"].push_back({{"name", name},
                                 {"about", ht::described(quantizer)},
                                 {"bits", quantizer.bits_per_element()},
                                 {"signal_to_noise_db", ratios(quantizer)}});
  }
  return all.dump(1) + "\n";
}

/// Prints all numbers of a short format, in the order of their codes.
void print_numbers(const ht::NumberFormat& format) {
  const int64_t count = ht::count_of_numbers(format);
  if (count > 256) return;
  std::cout << "\nfrom 0 up:" << std::setprecision(9);
  for (int64_t i = 0; i < count; ++i)
    std::cout << (i % 8 ? " " : "\n  ") << ht::number_at(format, i);
  std::cout << '\n';
}

/// Counts numbers that rounding changes, and midpoints that do not round to the even neighbor.
int64_t wrong_numbers(const ht::NumberFormat& format) {
  const int64_t count = ht::count_of_numbers(format);
  int64_t wrong = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double number = ht::number_at(format, i);
    wrong += double(ht::round_to(format, float(number))) != number;
    if (i + 1 == count || format.significand_bits == 1) continue;
    const double next = ht::number_at(format, i + 1), middle = (number + next) / 2;
    wrong += double(ht::round_to(format, float(middle))) != (i % 2 == 0 ? number : next);
  }
  return wrong;
}

/// Signal to noise of standard normal numbers, derived without this library: the error of one
/// rounding assumes log-uniform significands; that of blocks uses the distribution of their largest
/// number.
struct Expected {
  std::string_view quantizer;
  double decibels, within;
};
constexpr std::array<Expected, 9> expected{{{"bf16", 55.59, 0.1},
                                            {"f16", 73.66, 0.1},
                                            {"e4m3", 31.51, 0.1},
                                            {"e5m2", 25.56, 0.1},
                                            {"mxfp8", 30.62, 0.15},
                                            {"mxfp6", 30.93, 0.15},
                                            {"mxfp6-e3m2", 25.37, 0.15},
                                            {"mxfp4", 18.78, 0.15},
                                            {"nvfp4", 20.44, 0.15}}};

int check_numbers(const std::vector<Sample>& samples) {
  int failures = 0;
  const auto say = [&](bool right) {
    failures += !right;
    std::cout << (right ? "  ok\n" : "  WRONG\n");
  };
  for (const auto& [name, format] : ht::named_formats()) {
    if (format.bits > 16) continue;
    const int64_t wrong = wrong_numbers(format);
    std::cout << std::left << std::setw(12) << name << std::right << std::setw(6)
              << ht::count_of_numbers(format)
              << " numbers and the midpoints between them, wrong: " << wrong;
    say(wrong == 0);
  }
  for (const Expected& row : expected) {
    const double ratio = signal_to_noise(samples[0].x, *ht::quantizer_named(row.quantizer));
    std::cout << std::left << std::setw(12) << row.quantizer << std::right << std::fixed
              << std::setprecision(2) << std::setw(6) << ratio << " dB, expected " << row.decibels
              << " +- " << row.within << std::defaultfloat;
    say(std::abs(ratio - row.decibels) <= row.within);
  }
  std::cout << (failures == 0 ? "all right\n" : "not all right\n");
  return failures == 0 ? 0 : 1;
}

}  // namespace

int halftone::lab::run_formats(const FormatsOptions& options) {
  if (options.samples < 1024)
    ht::fail<ht::UsageError>("halftone-lab formats", options.samples,
                             " samples are too few. Take at least 1024.");
  ht::lab::require_json(options.json);
  const std::vector<Sample> samples = samples_of(options.samples);
  if (options.check) return check_numbers(samples);
  std::vector<ht::NamedFormat> formats;
  std::vector<std::string_view> quantizers;
  for (const std::string& name : options.names) {
    if (const auto format = ht::number_format_named(name)) formats.push_back({name, *format});
    else if (ht::quantizer_named(name)) quantizers.push_back(name);
    else ht::quantize(samples[0].x, name);  // the error message says what is wrong with the name
  }
  if (options.names.empty()) {
    formats.assign(ht::named_formats().begin(), ht::named_formats().end());
    quantizers.assign(ht::ready_made_quantizers().begin(), ht::ready_made_quantizers().end());
  }
  ht::lab::write_json(options.json, json_of(formats, quantizers, samples));
  if (options.json == "-") return ht::lab::exit_yes;
  if (!formats.empty()) print_formats(formats, samples);
  if (!formats.empty() && !quantizers.empty()) std::cout << '\n';
  if (!quantizers.empty()) print_quantizers(quantizers, samples);
  if (options.names.size() == 1 && formats.size() == 1) print_numbers(formats[0].format);
  return 0;
}

namespace halftone::lab {

Work add_formats(CLI::App& app, const Context&) {
  auto options = std::make_shared<FormatsOptions>();
  app.add_option("names", options->names,
                 "formats (e4m3, e5m6, int4, ...) and quantizers (mxfp4, ...); default: all named "
                 "ones. A single short format also prints each of its numbers.");
  app.add_flag("--check", options->check,
               "compares with expected numbers; exit code 1 if one differs");
  app.add_option("--samples", options->samples, "random numbers to measure signal to noise")
      ->capture_default_str();
  add_json(app, options->json);
  return [options] { return run_formats(*options); };
}

}  // namespace halftone::lab
