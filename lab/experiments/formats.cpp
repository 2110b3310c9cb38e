// E8. One linear layer of K inputs under policies with different accumulators, compared with f64.
// Operands are bf16 numbers, so that only sums are rounded.
#include <cmath>

#include <halftone/lab/experiments/experiments.h>
#include <halftone/lab/gate.h>
#include <halftone/lab/table.h>
#include <halftone/lab/trial.h>
#include <halftone/lab/workload.h>
#include <halftone/amp/probe.h>

namespace halftone::lab {
namespace e08 {

constexpr int64_t rows = 8, columns = 32;

struct Sum {
  std::string name;
  std::string accumulate;  // the rule's accumulate
  double expected;         // relative error at K = 4096, positive terms
};
const Sum sums[]{
    {"f32", R"({"format": "f32"})", 7e-7},
    {"14 bits, chunks of 128", R"({"format": "e8m13", "chunk": 128})", 2e-5},
    {"14 bits", R"({"format": "e8m13"})", 0},
    {"f16", R"({"format": "f16"})", 7e-2},
    {"bf16", R"({"format": "bf16"})", 0.75},
};

struct Operands {
  Tensor x, weight;
  std::vector<double> exact{};
};

Operands operands(int64_t k, bool positive, std::string_view format = "bf16") {
  manual_seed(8);
  const auto drawn = [&](int64_t n) {
    return quantize(positive ? rand({n, k}) : randn({n, k}), format);
  };
  Operands made{.x = drawn(rows), .weight = drawn(columns)};
  made.exact =
      matmul(cast(made.x, f64), transpose(cast(made.weight, f64), 0, 1)).to_vector<double>();
  return made;
}

/// Returns the mean relative error for positive terms, and the mean error over sqrt(K) for others.
double error(const Sum& sum, const Operands& given, bool positive) {
  nn::Sequential model(nn::Linear(given.x.size(1), columns, {.bias = false}));
  static_cast<nn::Linear&>(model[0]).weight = nn::Parameter(given.weight.clone());
  optim::Sgd sgd(model.parameters(), {.lr = 0});
  amp::Training training(
      policy_of(sum.name, "fp32",
                std::string(R"("rules": [{"match": {"op": "linear"}, "accumulate": )") +
                    sum.accumulate + "}]"),
      model, sgd);
  const NoGrad no_grad;
  const std::vector<double> y = training.forward(model, given.x).to_vector<double>();
  double total = 0;
  for (std::size_t i = 0; i < y.size(); ++i) {
    const double e = std::abs(y[i] - given.exact[i]);
    total += positive ? e / given.exact[i] : e / std::sqrt(double(given.x.size(1)));
  }
  return total / double(y.size());
}

void run(Findings& found) {
  std::vector<double> at_4096;
  for (const bool positive : {true, false}) {
    std::vector<std::string> heads{positive ? "positive: relative error" : "Gaussian: / sqrt(K)"};
    const int64_t lengths[]{256, 1024, 4096, 16384};
    std::vector<Operands> given;
    for (const int64_t k : lengths) {
      heads.push_back("K " + std::to_string(k)), given.push_back(operands(k, positive));
    }
    Table table(heads);
    for (const Sum& sum : sums) {
      std::vector<std::string> cells{sum.name};
      for (const Operands& of : given) {
        const double e = error(sum, of, positive);
        cells.push_back(number(e, 2));
        if (positive && of.x.size(1) == 4096) at_4096.push_back(e);
      }
      table.row(cells);
    }
    found.out() << table;
  }
  for (std::size_t i = 0; i < at_4096.size(); ++i)
    if (sums[i].expected != 0)
      found.within(std::string(sums[i].name) + ", positive, K 4096", at_4096[i],
                   sums[i].expected / 1.5, sums[i].expected * 1.5);
}

}  // namespace e08

const Experiment found::e8{"E8",
                           "What sums are kept in limits long products, not the operands: tensor "
                           "cores of 14 bits need f32 "
                           "every 128 terms (DeepSeek-V3, arXiv 2412.19437, 3.3.2).",
                           e08::run};

// E28. E8's layer under the sums of matrix units, for bf16 and e4m3 operands: of both signs, then
// for e4m3 positive ones.

namespace e28 {

constexpr int64_t lengths[]{64, 256, 1024, 4096, 16384};

/// Returns the error that rounding operands to e4m3 alone makes, in the units of e08::error().
double error_of_operands(int64_t k, bool positive) {
  manual_seed(8);
  const auto drawn = [&](int64_t n) { return positive ? rand({n, k}) : randn({n, k}); };
  const Tensor x = drawn(e08::rows), weight = drawn(e08::columns);
  const auto product = [&](const Tensor& a, const Tensor& b) {
    return matmul(cast(a, f64), transpose(cast(b, f64), 0, 1)).to_vector<double>();
  };
  const std::vector<double> exact = product(x, weight);
  const std::vector<double> rounded = product(quantize(x, "e4m3"), quantize(weight, "e4m3"));
  double total = 0;
  for (std::size_t i = 0; i < exact.size(); ++i)
    total += std::abs(rounded[i] - exact[i]) / (positive ? exact[i] : std::sqrt(double(k)));
  return total / double(exact.size());
}

/// Prints the errors, for e4m3 with those of the operands, and returns them at K = 4096, by the
/// units' order.
std::vector<double> table_of(Findings& found, std::string_view format, bool positive,
                             const std::vector<std::string>& units) {
  std::vector<std::string> heads{
      std::string(format) + (positive ? ", positive: relative error" : " operands: / sqrt(K)")};
  std::vector<std::string> alone{"rounding to e4m3 alone"};
  std::vector<e08::Operands> given;
  for (const int64_t k : lengths) {
    heads.push_back("K " + std::to_string(k));
    alone.push_back(number(error_of_operands(k, positive), 2));
    given.push_back(e08::operands(k, positive, format));
  }
  Table table(heads);
  std::vector<double> at_4096;
  for (const std::string& unit : units) {
    std::vector<std::string> cells{unit};
    const e08::Sum sum{unit, unit == "f32" ? R"({"format": "f32"})" : '"' + unit + '"', 0};
    for (const e08::Operands& of : given) {
      const double e = e08::error(sum, of, positive);
      cells.push_back(number(e, 2));
      if (of.x.size(1) == 4096) at_4096.push_back(e);
    }
    table.row(cells);
  }
  if (format == "e4m3") table.row(alone);
  found.out() << table;
  return at_4096;
}

void run(Findings& found) {
  const std::vector<double> longs = table_of(
      found, "bf16", false,
      {"f32", "v100-mma", "a100-mma", "h100-wgmma", "mi300-mfma", "avx512-bf16", "amx-bf16"});
  const std::vector<std::string> units{"f32", "l40-mma-f8", "h100-wgmma-f8", "b200-tcgen05-f8"};
  const std::vector<double> shorts = table_of(found, "e4m3", false, units);
  const std::vector<double> positive = table_of(found, "e4m3", true, units);
  // An H100 cuts the sum itself towards 0 in each step. A V100, which keeps as many bits as f32
  // has, cuts only the products, whose signs differ.
  found.within("bf16: an H100's error over that of sums in f32", longs[3] / longs[0], 3, 30);
  found.within("bf16: an H100's error over a V100's", longs[3] / longs[1], 2, 20);
  found.within("e4m3: an H100's error over a B200's", shorts[2] / shorts[3], 1e3, 1e6);
  found.within("e4m3: an H100's error over that of the operands",
               shorts[2] / error_of_operands(4096, false), 0.01, 0.3);
  found.within("e4m3, positive: an H100's error over that of the operands",
               positive[2] / error_of_operands(4096, true), 2, 200);
}

}  // namespace e28

const Experiment found::e28{"E28",
                            "How matrix units add matters for FP8 on an H100, whose sums have 13 "
                            "fraction bits (arXiv 2511.10909, 2412.19437), not for bf16.",
                            e28::run};

// E11. An MLP of 32-64-8 learns to classify; every 200 steps one batch is 100 times (or 65,536
// times) as large. The observed tensor is the input of the first layer: the batch, under the
// policy's scale for it.

namespace e11 {

constexpr int64_t period = 200;

struct Recipe {
  std::string name, format, scale;
  double outlier;
};

struct Course {
  double before = 0, during = 0, after = 0, later = 0;  // dB
  double saturated = 0, largest = 0;  // share with the outlier, and its largest magnitude
};

/// Returns the observed tensor after the policy's rounding, and the share of it that saturates.
std::pair<Tensor, double> rounded(const amp::Training& training, const Quantizer& quantizer,
                                  const Tensor& x) {
  QuantizeCall call{.quantizer = quantizer};
  if (!quantizer.scaling.from_history) return {quantized(x, call), 0};
  const optim::NamedTensors state = training.state_dict();
  const auto found = state.find("session.scale.0/linear.0.input");
  call.scale = found == state.end() ? ones({}) : found->second;
  int64_t saturated = 0;
  for (const double v : x.to_vector<double>())
    saturated += std::abs(v) * call.scale.item() > double(quantizer.grid.max);
  return {quantized(x, call), double(saturated) / double(x.numel())};
}

Course course(const Recipe& recipe) {
  const amp::Policy policy = policy_of(
      recipe.name, "fp32",
      R"("quantizers": {"q": {"format": ")" + recipe.format + R"(", "scale": )" + recipe.scale +
          R"(}}, "rules": [{"match": {"op": "linear"}, "input": "q", "weight": "q"}])");
  const Quantizer quantizer = policy.rules.rules[0].roles.at(policy::Role::input).quantizer;
  manual_seed(11);
  nn::Sequential model = nn::models::mlp({32, 64, 8});
  const nn::Sequential teacher = nn::models::mlp({32, 64, 8});
  optim::AdamW adamw(model.parameters(), {.lr = 1e-3});
  amp::Training training(policy, model, adamw);
  Course seen;
  for (int64_t step = 1; step < 2 * period; ++step) {
    const int64_t since = step - period;
    const Tensor x = randn({64, 32}) * (step % period == 0 ? recipe.outlier : 1);
    const auto [y, saturated] = rounded(training, quantizer, x);
    const double ratio = signal_to_noise(x, y);
    if (since < 0 && since >= -20) seen.before += ratio / 20;
    if (since == 0)
      seen.saturated = saturated, seen.during = ratio, seen.largest = max(abs(x)).item();
    if (since >= 1 && since <= 16) seen.after += ratio / 16;
    if (since >= 100) seen.later += ratio / 100;
    const Tensor labels = argmax(teacher(x), 1).detach();
    training.zero_grad();
    training.backward(cross_entropy(training.forward(model, x), labels));
    training.step();
  }
  return seen;
}

/// Computes the signal to noise of normal numbers with this standard deviation, rounded to nearest
/// on a grid. It integrates over magnitudes in f64 and uses only the spacings of the grid.
double expected(const NumberFormat& grid, double deviation) {
  double signal = 0, noise = 0;
  for (int i = 0; i < 400000; ++i) {
    const double z = (i + 0.5) * 2e-5, x = z * deviation, density = std::exp(-z * z / 2);
    const int exponent = std::max(std::ilogb(x), int(grid.min_exponent));
    const double spacing = std::ldexp(1.0, exponent + 1 - grid.significand_bits),
                 error = std::remainder(x, spacing);
    signal += density * x * x, noise += density * error * error;
  }
  return 10 * std::log10(signal / noise);
}

void run(Findings& found) {
  const auto history = [](int steps) {
    return R"({"per": "tensor", "from": "history", "history": )" + std::to_string(steps) + "}";
  };
  const std::string current = R"({"per": "tensor"})",
                    block = R"({"per": "block", "block": [1, 32], "format": "f32"})";
  const Recipe recipes[]{{"e4m3, history 16", "e4m3", history(16), 100},
                         {"e4m3, history 1024", "e4m3", history(1024), 100},
                         {"e4m3, current", "e4m3", current, 100},
                         {"e4m3, blocks of 32", "e4m3", block, 100},
                         {"e4m3, history 1024", "e4m3", history(1024), 65536},
                         {"int8, history 16", "int8", history(16), 100},
                         {"int8, history 1024", "int8", history(1024), 100},
                         {"int8, current", "int8", current, 100},
                         {"int8, blocks of 32", "int8", block, 100}};
  Table table(
      {"", "outlier", "before", "saturated", "with it", "16 steps after", "100 to 199 after"});
  std::vector<Course> seen;
  for (const Recipe& r : recipes) {
    const Course& c = seen.emplace_back(course(r));
    table.row({r.name, "x " + number(r.outlier, 6), fixed(c.before, 1), percent(c.saturated),
               fixed(c.during, 1), fixed(c.after, 1), fixed(c.later, 1)});
  }
  found.out() << "signal to noise in dB of the first layer's input:\n" << table;
  const auto lost = [&](std::size_t i) { return seen[i].before - seen[i].after; };
  for (const std::size_t i : {0u, 1u, 4u, 5u, 6u})
    found.at_least(recipes[i].name + " x " + number(recipes[i].outlier, 6) + ", saturated",
                   seen[i].saturated, 0.01);
  // For int8, a batch's ratio depends on its own largest number; batches differ by 2 dB.
  for (const std::size_t i : {2u, 3u, 7u, 8u})
    found.at_most(recipes[i].name + ", dB lost with and after the outlier",
                  std::max(seen[i].before - seen[i].during, lost(i)), i < 4 ? 0.5 : 3);
  // The bar for e4m3 is not "more than 20 dB". A scale that is 100 times too small costs 6.6 of its
  // 18 binades, and a floating-point format is equally exact in all but the last of them. The loss
  // begins where most numbers are subnormal: above x 10,000. A grid without exponents loses all of
  // 20 log10(100).
  for (const std::size_t i : {0u, 1u})
    found.within(recipes[i].name + " x 100, dB lost in 16 steps after", lost(i), -0.5, 0.5);
  for (const std::size_t i : {4u, 5u, 6u})
    found.at_least(
        recipes[i].name + " x " + number(recipes[i].outlier, 6) + ", dB lost in 16 steps", lost(i),
        20);
  found.within("int8, history 16, dB lost 100 steps after", seen[5].before - seen[5].later, -0.5,
               0.5);
  found.at_least("int8, history 1024, the same", seen[6].before - seen[6].later, 20);
  for (const std::size_t i : {1u, 4u, 6u}) {
    const NumberFormat grid = *number_format_named(recipes[i].format);
    found.within(recipes[i].name + " x " + number(recipes[i].outlier, 6) +
                     ", dB beyond those expected in f64",
                 seen[i].after - expected(grid, double(grid.max) / seen[i].largest), -0.5, 0.5);
  }
}

}  // namespace e11

const Experiment found::e11{
    "E11",
    "Delayed scaling fails on outliers; scaling from the tensor itself and blocks do not. The "
    "outlier saturates, and the history of largest magnitudes keeps it for all of its steps. "
    "(TransformerEngine's DelayedScaling is defined in this way.)",
    e11::run};

// E20. NVFP4 with Four Over Six (arXiv 2512.02010) against NVFP4: does the smaller error of each
// tensor become a smaller loss? First the squared error of normal numbers, then trainings of a
// small GPT from the same seeds. bf16 is in the table to show how much NVFP4 costs.

namespace e20 {

/// Returns the squared error of Four Over Six over that of NVFP4, on rows of normal numbers.
double error_ratio() {
  manual_seed(20);
  const Tensor x = randn({256, 1024});
  const Quantizer nvfp4 = *quantizer_named("nvfp4");
  Quantizer four_over_six = nvfp4;
  four_over_six.scaling.targets = {6, 4};
  four_over_six.scaling.scale_max = 256;
  const double plain = signal_to_noise(x, quantize(x, nvfp4)),
               chosen = signal_to_noise(x, quantize(x, four_over_six));
  return std::pow(10, (plain - chosen) / 10);
}

void run(Findings& found) {
  const double ratio = error_ratio();
  found.out() << "squared error of normal numbers, Four Over Six over NVFP4: " << fixed(ratio, 3)
              << "\n\n";
  found.at_most("squared error, over NVFP4's", ratio, 0.9);
  const PairedRuns runs(
      found, {.workload = "gpt_small", .steps = 200},
      {policy::named_or_read("nvfp4"), policy::named_or_read("nvfp4_four_over_six"),
       amp::Policy::named("amp-bf16")},
      found.thorough() ? 24 : 8);
  const Interval gain = runs.difference(1), cost = runs.difference(0, 2);
  found.out() << "nvfp4 against amp-bf16: " << signed_percent(cost) << '\n';
  found.at_most("loss of Four Over Six beyond NVFP4's, upper end of 95 %", gain.mean + gain.half,
                0.005);
  found.within("loss of NVFP4 beyond bf16's, mean", cost.mean, -0.005, 0.02);
}

}  // namespace e20

const Experiment found::e20{
    "E20",
    "Four Over Six lowers NVFP4's squared error by more than a tenth; the loss of a small GPT is "
    "not higher with it than with NVFP4 (arXiv 2512.02010 reports losses closer to bf16's).",
    e20::run};

// E21. Two ways to round gradients to NVFP4: stochastic rounding of each number, and
// MS-EDEN (Quartet II, arXiv 2601.22813), which rotates with random signs, rounds numbers to
// nearest, and moves the bias of each block into its scale. The forward passes are the same. First
// the squared error and the bias on normal numbers, then trainings of a small GPT. NVFP4's recipe
// rounds block scales to nearest, so the largest numbers of a block may saturate: its stochastic
// rounding is not exactly unbiased.

namespace e21 {

Quantizer ms_eden() {
  Quantizer quantizer = *quantizer_named("nvfp4");
  quantizer.hadamard = 32, quantizer.draws_signs = true;
  quantizer.scaling.targets = {6.0721f};
  quantizer.scaling.scale_max = 256;
  quantizer.scaling.scale_rounding = Rounding::stochastic, quantizer.scaling.corrected = true;
  return quantizer;
}

Quantizer stochastic() {
  Quantizer quantizer = *quantizer_named("nvfp4");
  quantizer.hadamard = 32, quantizer.draws_signs = true;
  quantizer.rounding = Rounding::stochastic;
  return quantizer;
}

struct Errors {
  double squared = 0;  // mean square error over mean square
  double bias = 0;     // of the mean of all draws, in standard errors of that mean
};

Errors errors_of(const Quantizer& quantizer) {
  constexpr int64_t draws = 64;
  manual_seed(21);
  const Tensor x = randn({64, 1024}, f64);
  const Tensor narrow = cast(x, f32);
  Tensor sum = zeros({64, 1024}, f64);
  Errors errors;
  double squares = 0;
  for (int64_t i = 0; i < draws; ++i) {
    const Tensor error = cast(quantize(narrow, quantizer), f64) - cast(narrow, f64);
    squares += halftone::sum(error * error).item();
    sum = sum + error;
  }
  errors.squared = squares / double(draws) / halftone::sum(x * x).item();
  // The projection on x finds shrinkage, which is the bias of rounding to nearest after a scale.
  const double along = halftone::sum(sum * cast(narrow, f64)).item() / double(draws);
  errors.bias = along / std::sqrt(errors.squared * halftone::sum(x * x).item() / double(draws));
  return errors;
}

/// quartet2.json with stochastic rounding of each number in backward.
amp::Policy with_stochastic_rounding() {
  return policy_of("stochastic", "amp-bf16", R"(
    "quantizers": {
      "forward": {"format": "e2m1", "scale": {"per": "block", "block": [1, 16], "format": "e4m3",
        "tensor_level": true, "scale_max": 256, "choose": {"from": [6, 4], "by": "mse"}}},
      "backward": {"format": "e2m1", "hadamard": {"size": 32, "signs": "step"},
        "rounding": "stochastic",
        "scale": {"per": "block", "block": [1, 16], "format": "e4m3", "tensor_level": true}}},
    "rules": [{"match": {"op": "linear", "except": "lm_head"}, "compute": "f32", "result": "bf16",
      "input": "forward", "weight": "forward", "grad_output": "backward",
      "weight.backward": "backward", "input.backward": "backward",
      "grad_output.weight": "backward"}],
    "loss_scale": "none", "seed": 17)");
}

void run(Findings& found) {
  const Errors eden = errors_of(ms_eden()), rounded = errors_of(stochastic());
  Table table({"normal numbers", "squared error", "shrinkage, in standard errors"});
  table.row({"MS-EDEN", fixed(eden.squared, 5), fixed(eden.bias, 2)});
  table.row({"stochastic", fixed(rounded.squared, 5), fixed(rounded.bias, 2)});
  found.out() << table << '\n';
  found.at_least("squared error, stochastic over MS-EDEN", rounded.squared / eden.squared, 2);
  found.within("shrinkage of MS-EDEN, in standard errors", eden.bias, -3, 3);
  found.at_most("shrinkage of stochastic rounding, in standard errors", rounded.bias, -3);

  const PairedRuns runs(found, {.workload = "gpt_small", .steps = 200},
                        {with_stochastic_rounding(), policy::named_or_read("quartet2"),
                         amp::Policy::named("amp-bf16")},
                        found.thorough() ? 24 : 8);
  const Interval gain = runs.difference(1);
  found.at_most("loss of MS-EDEN beyond stochastic rounding's, upper end of 95 %",
                gain.mean + gain.half, 0.02);
}

}  // namespace e21

const Experiment found::e21{
    "E21",
    "MS-EDEN has half of stochastic rounding's squared error, and no bias. A small GPT ends with "
    "the "
    "same loss within 2 % (Quartet II, arXiv 2601.22813, reports lower losses).",
    e21::run};

// E23. Weights that forward rounds to MXFP4 oscillate: late in a training more of the numbers that
// move to another point of the grid move back at once (TetraJet, arXiv 2502.20853). Rounding by an
// average of the weight over the steps (Q-EMA) prevents that. The experiment counts both in three
// phases, with a constant rate and with a rate that falls to 0, and compares the losses with those
// of unrounded weights.

namespace e23 {

constexpr int phases = 3;

struct Run {
  policy::WeightFlips flips[phases]{};
  double loss = 0;  // mean of the last tenth
};

Run train(const amp::Policy& strategy, const std::string& schedule, uint64_t seed, int64_t steps) {
  Workload work = make_workload("residual_mlp", seed);
  choose(work, {.schedule = schedule});
  const std::unique_ptr<optim::Optimizer> optimizer = optimizer_of(work);
  amp::Training training(policy::watched(strategy), *work.model, *optimizer);
  const double rate = work.lr;
  const optim::LrSchedule rates = work.schedule(steps);
  // Every step in a row, because a number flips back within a few steps.
  policy::Probe probe(training, {.every = 1, .roles = {policy::Role::weight}, .updates = true});
  Run run;
  train_steps(work, training, steps, [&](int64_t step, const Tensor& loss) {
    for (const policy::ProbeRow& row : probe.rows())
      run.flips[std::min<int64_t>(phases - 1, row.step * phases / steps)].merge(row.flips);
    probe.clear();
    optimizer->set_lr(rate * rates.at(step + 1));
    if (step >= steps - steps / 10) run.loss += loss.item() / double(steps / 10);
  });
  return run;
}

/// MXFP4 for the weights of linear layers, with more settings of the quantizer.
amp::Policy mxfp4_weights(const std::string& name, const std::string& more) {
  return policy_of(
      name, "fp32",
      R"("rules": [{"match": {"op": "linear"}, "weight": {"like": "mxfp4")" + more + "}}]");
}

struct Rounded {
  const char* name;
  amp::Policy strategy;
  double flips_back = 0, cost = 0;  // in the last phase; the loss over that of f32
};

void run(Findings& found) {
  const uint64_t seeds = found.thorough() ? 8 : 3;
  const int64_t steps = found.thorough() ? 3000 : 900;
  const amp::Policy f32 = amp::Policy::named("fp32");
  Table table({"rate", "weights", "phase", "flipped a step", "and back", "share of flips",
               "loss over f32's"});
  for (const char* schedule : {"constant", "cosine"}) {
    std::vector<double> losses;
    for (uint64_t seed = 0; seed < seeds; ++seed)
      losses.push_back(train(f32, schedule, seed, steps).loss);
    Rounded each[]{{"nearest", mxfp4_weights("mxfp4 weights", "")},
                   {"by average", mxfp4_weights("averaged", R"(, "average": 0.9983)")}};
    for (Rounded& rounded : each) {
      policy::WeightFlips all[phases]{};
      std::vector<double> costs;
      for (uint64_t seed = 0; seed < seeds; ++seed) {
        const Run own = train(rounded.strategy, schedule, seed, steps);
        for (int p = 0; p < phases; ++p) all[p].merge(own.flips[p]);
        costs.push_back(own.loss / losses[seed]);
      }
      rounded.cost = median(costs);
      double shares[phases]{};
      for (int p = 0; p < phases; ++p) {
        shares[p] = all[p].returned / all[p].flipped;
        table.row({schedule, rounded.name, std::to_string(p + 1), percent(all[p].flipped_share()),
                   fixed(100 * all[p].oscillation(), 3) + " %", percent(shares[p]),
                   p == phases - 1 ? fixed(rounded.cost, 2) : ""});
      }
      rounded.flips_back = all[phases - 1].oscillation();
      if (&rounded == each)
        found.at_least(
            std::string(schedule) + ", share of flips that go back, last phase over first",
            shares[phases - 1] / shares[0], 1);
    }
    found.at_most(std::string(schedule) + ", numbers that flip back, by average over nearest",
                  each[1].flips_back / each[0].flips_back, 0.67);
  }
  found.out() << table;
}

}  // namespace e23

const Experiment found::e23{
    "E23",
    "Late in a training a larger share of the MXFP4 weights that move to another point of their "
    "grid moves back, and rounding by an average prevents that (TetraJet, arXiv 2502.20853).",
    e23::run};

}  // namespace halftone::lab
