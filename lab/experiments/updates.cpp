// E3. Minimizes 200 parabolas (w - target)^2 / 2 of curvature L = 1, with targets uniform in
// +-[0.5, 2], by gradient descent from 0 without noise, until nothing moves.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include <halftone/lab/experiments/experiments.h>
#include <halftone/lab/table.h>
#include <halftone/lab/trial.h>
#include <halftone/lab/workload.h>
#include <halftone/amp/probe.h>

namespace halftone::lab {
namespace e03 {

constexpr int64_t count = 200;
constexpr double rates[]{0.25, 0.1, 0.05, 0.025, 0.0125};

Tensor targets() {
  manual_seed(3);
  const std::vector<double> u = rand({2 * count}).to_vector<double>();
  std::vector<double> values;
  for (std::size_t i = 0; i < std::size_t(count); ++i)
    values.push_back((u[2 * i + 1] < 0.5 ? -1 : 1) * (0.5 + 1.5 * u[2 * i]));
  return from_vector(values, {count});
}

/// Returns the rms of the errors over the second half of the steps.
double rms_error(const amp::Policy& policy, double rate) {
  Weights model(zeros({count}));
  optim::Sgd sgd(model.parameters(), {.lr = rate});
  amp::Training training(policy, model, sgd);
  const Tensor wanted = targets();
  const auto steps = int64_t(16 / rate);
  std::vector<double> errors;
  for (int64_t step = 0; step < steps; ++step) {
    const NoGrad no_grad;
    const Tensor error = model.w - wanted;  // the gradient
    model.w.set_grad(error);
    training.step();
    if (2 * step < steps) continue;
    for (const double e : error.to_vector<double>()) errors.push_back(e);
  }
  return root_mean_square(errors);
}

/// Returns the same for weights rounded to nearest, computed in f64 without any rounding: a weight
/// moves up number by number until its update is at most half a spacing.
double expected_floor(double rate) {
  std::vector<double> errors;
  for (const double target : targets().to_vector<double>()) {
    double w = 0.25, spacing = 0x1p-9;  // below 0.25 everything moves
    while (rate * (std::abs(target) - w) > spacing / 2) {
      w += spacing;
      if (w == 0.5 || w == 1) spacing *= 2;
    }
    errors.push_back(std::abs(target) - w);
  }
  return root_mean_square(errors);
}

/// Returns the slope of a line through (log2 rate, log2 error).
double slope(std::span<const double> errors) {
  double x = 0, y = 0, xx = 0, xy = 0;
  const auto n = double(errors.size());
  for (std::size_t i = 0; i < errors.size(); ++i) {
    const double a = std::log2(rates[i]), b = std::log2(errors[i]);
    x += a / n, y += b / n, xx += a * a / n, xy += a * b / n;
  }
  return (xy - x * y) / (xx - x * x);
}

void run(Findings& found) {
  const amp::Policy exact = policy_of("f32", "fp32", ""),
                    nearest = policy_of("nearest", "fp32", R"("optimizer":
                        {"parameters": "bf16"})"),
                    stochastic = policy_of("stochastic", "fp32", R"("optimizer":
                        {"parameters": {"format": "bf16", "rounding": "stochastic"}})");
  Table table({"rate x L", "f32", "bf16 nearest", "x rate x L", "expected", "bf16 stochastic"});
  std::vector<double> floors, noises, exacts, expected;
  for (const double rate : rates) {
    exacts.push_back(rms_error(exact, rate)), floors.push_back(rms_error(nearest, rate)),
        noises.push_back(rms_error(stochastic, rate)), expected.push_back(expected_floor(rate));
    table.row({number(rate), number(exacts.back(), 2), number(floors.back(), 3),
               fixed(floors.back() * rate, 5), number(expected.back(), 3),
               number(noises.back(), 3)});
  }
  found.out() << "root mean square of w - target:\n" << table;
  // Half a spacing is 2^-9 for |w| from 1/2 to 1, 2^-8 from 1 to 2. So error x rate x L is near
  // 0.0034 for these targets, and less where a weight overshoots in the last step. Published:
  // 0.0025 to 0.0031, from 200 other targets; the choice of targets changes it by 10 % (log-uniform
  // ones: 0.0024 to 0.0029). So the published range is the wide bar here, and the floor computed
  // for these targets is the strict one.
  for (std::size_t i = 0; i < floors.size(); ++i) {
    const std::string what = "nearest, rate " + number(rates[i]) + ", error ";
    found.within(what + "x rate x L", floors[i] * rates[i], 0.0025 * 0.9, 0.0031 * 1.1);
    found.within(what + "over expected", floors[i] / expected[i], 0.98, 1.02);
  }
  found.within("nearest, slope of log error over log rate", slope(floors), -1.15, -0.85);
  found.at_most("f32, largest error", *std::ranges::max_element(exacts), 1e-3);
  // Without noise in the gradients, the error of stochastic rounding does not fall with the rate.
  // At spacing s, a step of rate * e errs with the variance rate * |e| * s. This is stationary if 2
  // rate sigma^2 = rate s E|e|, so sigma = 0.4 s at every rate; s is 2^-8 and 2^-7.
  const double predicted = 0.4 * std::sqrt((0x1p-16 + 2 * 0x1p-14) / 3);
  found.within("stochastic, largest error over 0.4 of a spacing",
               *std::ranges::max_element(noises) / predicted, 0.8, 1.25);
  found.within("stochastic, slope of log error over log rate", slope(noises), -0.15, 0.15);
}

}  // namespace e03

const Experiment found::e3{
    "E3",
    "With weights rounded to nearest the error at which training stops grows as the learning rate "
    "shrinks: half a spacing over the rate (Zamirai et al. 2020, theorem 1).",
    e03::run};

// E5. Adam's average of squared gradients, v, on the bf16 grid: 1,024 weights whose gradients are
// 0, or standard normal numbers, from v = 1.

namespace e05 {

constexpr int64_t count = 1024;

struct Adam {
  Weights model;
  optim::Adam adam;
  amp::Training training;
  Adam(const amp::Policy& policy, double beta2)
      : model(zeros({count})),
        adam(model.parameters(), {.lr = 1e-3, .betas = {0.9, beta2}}),
        training(policy, model, adam) {
    step(zeros({count}));
    optim::NamedTensors state = adam.state_dict();
    state["state.0.exp_avg_sq"] = ones({count});
    adam.load_state_dict(state);
  }
  void step(const Tensor& gradient) {
    model.w.set_grad(gradient);
    training.step();
  }
  std::vector<double> v() const {
    return adam.state_dict().at("state.0.exp_avg_sq").to_vector<double>();
  }
};

double mean_of(const std::vector<double>& x) {
  double sum = 0;
  for (const double v : x) sum += v;
  return sum / double(x.size());
}

/// Computes the same in f64 without random draws. v is a Markov chain on the numbers of the grid
/// from 1 to 8, and the distribution of a squared normal number gives its transitions. Returns the
/// mean after 2^doublings steps from v = 1; beta2 is 0.999.
double expected_v(int doublings) {
  constexpr std::size_t n = 3 * 128;
  std::vector<double> numbers;
  for (int exponent = 0; exponent < 3; ++exponent)
    for (int i = 0; i < 128; ++i) numbers.push_back(std::exp2(exponent) * (1 + i / 128.0));
  std::vector<std::vector<double>> step(n, std::vector<double>(n)), product;
  for (std::size_t i = 0; i < n; ++i) {
    double below = 0;
    for (std::size_t j = i; j < n; ++j) {  // never below i: 0.001 v is less than half a spacing
      const double end = j + 1 < n ? (numbers[j] + numbers[j + 1]) / 2 : HUGE_VAL;
      const double up_to = std::erf(std::sqrt((end - 0.999 * numbers[i]) / 0.001 / 2));
      step[i][j] = up_to - below, below = up_to;
    }
  }
  for (; doublings > 0; --doublings) {
    product.assign(n, std::vector<double>(n));
    for (std::size_t i = 0; i < n; ++i)
      for (std::size_t k = i; k < n; ++k)
        for (std::size_t j = k; j < n; ++j) product[i][j] += step[i][k] * step[k][j];
    step.swap(product);
  }
  double mean = 0;
  for (std::size_t j = 0; j < n; ++j) mean += step[0][j] * numbers[j];
  return mean;
}

struct CastPolicy {
  const char* name;
  amp::Policy strategy;
};

/// Returns v under a policy after `steps` steps without gradients.
double decayed(const CastPolicy& policy, double beta2, int64_t steps) {
  Adam run(policy.strategy, beta2);
  const Tensor zero = zeros({count});
  for (int64_t i = 0; i < steps; ++i) run.step(zero);
  return mean_of(run.v());
}

void without_gradients(Findings& found, std::span<const CastPolicy> policies) {
  Table table({"gradients 0", "steps", "exact", "f32", "nearest", "stochastic"});
  std::vector<double> slow, fast;
  for (const auto& [beta2, steps] : {std::pair{0.999, 10000}, {0.99, 1000}, {0.95, 200}}) {
    std::vector<double> v;
    for (const CastPolicy& policy : policies) v.push_back(decayed(policy, beta2, steps));
    table.row({"beta2 " + number(beta2), std::to_string(steps), number(std::pow(beta2, steps), 3),
               number(v[0], 3), number(v[1], 3), number(v[2], 3)});
    if (beta2 == 0.999) slow = v;
    if (beta2 == 0.95) fast = v;
  }
  found.out() << "v, from 1, in the mean:\n" << table;
  found.exactly("nearest, beta2 0.999, v after 10,000 zero gradients", slow[1], 1);
  found.within("f32, the same", slow[0], 4.4e-5, 4.6e-5);
  found.within("stochastic, the same over f32", slow[2] / slow[0], 0.5, 2);
  found.within("nearest, beta2 0.95, after 200, over f32", fast[1] / fast[0], 0.5, 2);
}

/// Mean v after 1,024, 4,096 and 16,384 steps of standard normal gradients, and the number of
/// decreases of a v.
struct Course {
  std::vector<double> means{};
  int64_t falls = 0;
};

Course course(const CastPolicy& policy, double beta2) {
  manual_seed(5);
  Adam run(policy.strategy, beta2);
  Course seen;
  std::vector<double> before = run.v();
  for (int64_t step = 1; step <= 16384; ++step) {
    run.step(randn({count}));
    if (step % 64 == 0) {
      const std::vector<double> after = run.v();
      for (std::size_t i = 0; i < after.size(); ++i) seen.falls += after[i] < before[i];
      before = after;
    }
    if (step == 1024 || step == 4096 || step == 16384) seen.means.push_back(mean_of(before));
  }
  return seen;
}

void with_gradients(Findings& found, std::span<const CastPolicy> policies) {
  Table table({"gradients of variance 1", "1024", "4096", "16384 steps"});
  const auto row = [&](const std::string& name, const std::vector<double>& v) {
    table.row({name, number(v[0], 3), number(v[1], 3), number(v[2], 3)});
  };
  std::vector<Course> slow;
  for (const CastPolicy& policy : policies) {
    slow.push_back(course(policy, 0.999));
    row(std::string("beta2 0.999, ") + policy.name, slow.back().means);
  }
  const std::vector<double> expected{expected_v(10), expected_v(12), expected_v(14)};
  row("beta2 0.999, nearest, expected in f64", expected);
  const Course fast = course(policies[1], 0.95);
  row("beta2 0.95, nearest", fast.means);
  found.out() << table;
  // The bar is not "a stationary mean of 3.53": v decreases in no step, so it has no stationary
  // mean. It grows slowly with the largest g^2 so far; the chain in f64 is at 3.5 after 95,000
  // steps, at 3.9 after 131,072.
  found.exactly("nearest, beta2 0.999, how often a v fell", double(slow[1].falls), 0);
  for (std::size_t i = 0; i < expected.size(); ++i)
    found.within("nearest, mean over expected, " + std::to_string(1024 << 2 * i) + " steps",
                 slow[1].means[i] / expected[i], 0.97, 1.03);
  found.at_least("nearest, after 16,384 steps", slow[1].means[2], 2);
  found.within("stochastic, the same", slow[2].means[2], 0.95, 1.05);
  found.within("nearest, beta2 0.95, the same", fast.means[2], 0.9, 1.1);
}

void run(Findings& found) {
  const CastPolicy policies[]{
      {"f32", policy_of("f32", "fp32", "")},
      {"nearest", policy_of("nearest", "fp32", R"("optimizer": {"states":
          {"exp_avg_sq": "bf16"}})")},
      {"stochastic", policy_of("stochastic", "fp32", R"("optimizer": {"states":
          {"exp_avg_sq": {"format": "bf16", "rounding": "stochastic"}}})")}};
  without_gradients(found, policies);
  with_gradients(found, policies);
}

}  // namespace e05

const Experiment found::e5{
    "E5",
    "Adam's v in bf16 with beta2 = 0.999 never decays: 0.1 % is less than half a spacing. beta2 = "
    "0.95 is harmless, and stochastic rounding fixes it (modeled in arXiv 2603.16731).",
    e05::run};

// E6. Stores weights on bf16's grid with k extra bits, 16 of which give f32. The models are an MLP
// that learns a teacher, and an embedding with an MLP on top, for words with the frequencies of a
// language (Zipf). The optimizer is SGD as in recommendation models, from which the question comes:
// Split-SGD-BF16 (Kalamkar et al. 2020, arXiv 2005.04680) found that 8 bits are too few for DLRM.
// Errors are divided by those of f32 with the same seed.

namespace e06 {

constexpr int64_t steps = 2000, words = 2000, bag = 8, width = 16;
constexpr int extra_bits[]{0, 4, 8, 12, 16};

amp::Policy kept_with(int bits) {
  if (bits == 16) return policy_of("f32 weights", "amp-bf16", "");
  return policy_of("short weights", "amp-bf16",
                   R"("optimizer": {"parameters": "e8m)" + std::to_string(7 + bits) + "\"}");
}

/// The mean of a bag of words' vectors, through an MLP.
struct BagOfWords final : nn::Module {
  nn::Embedding table{words, width};
  nn::Sequential mlp = nn::models::mlp({width, 64, 1});
  Tensor forward(const Tensor& picks) const { return mlp(mean(table(picks), {1})); }
  void describe(nn::Fields& field) override { field("table", table), field("mlp", mlp); }
};

/// Draws word i with a probability proportional to 1 / (i + 1).
Tensor rare_words(int64_t count) {
  const Tensor u = rand({count, bag});
  return minimum(exp(u * std::log(double(words) + 1)) - 1.0, full({}, double(words - 1))).to(i64);
}

double train(int bits, bool embedding, uint64_t seed) {
  manual_seed(seed);
  nn::Sequential teacher = nn::models::mlp({32, 128, 8}), student = nn::models::mlp({32, 128, 8});
  BagOfWords known, learns;
  nn::Module& model = embedding ? static_cast<nn::Module&>(learns) : student;
  optim::Sgd sgd(model.parameters(), {.lr = embedding ? 0.5 : 0.05, .momentum = 0.9});
  amp::Training training(kept_with(bits), model, sgd);
  const auto schedule = optim::LrSchedule::cosine(steps);
  const double rate = sgd.lr();
  const auto loss_of = [&](int64_t count) {
    const Tensor x = embedding ? rare_words(count) : randn({count, 32});
    Tensor wanted;
    {
      const NoGrad no_grad;
      wanted = embedding ? known.forward(x) * 8.0 : teacher(x);
    }
    if (!embedding) return mse(training.forward(student, x), wanted);
    const auto forward = [&](const Tensor& picks) { return learns.forward(picks); };
    return mse(training.forward(forward, x), wanted);
  };
  for (int64_t step = 0; step < steps; ++step) {
    sgd.set_lr(rate * schedule.at(step));
    training.zero_grad();
    training.backward(loss_of(64));
    training.step();
  }
  const NoGrad no_grad;
  manual_seed(1000 + seed);
  return loss_of(4096).item();
}

void run(Findings& found) {
  Table table({"error over f32", "k = 0", "4", "8", "12", "16"});
  constexpr int seeds = 9;
  for (const bool embedding : {false, true}) {
    std::vector<std::string> cells{embedding ? "embedding of rare words, MLP" : "MLP"};
    std::vector<double> f32_errors;
    for (int seed = 1; seed <= seeds; ++seed)
      f32_errors.push_back(train(16, embedding, uint64_t(seed)));
    for (const int bits : extra_bits) {
      std::vector<double> ratios;
      for (int seed = 1; seed <= seeds; ++seed)
        ratios.push_back(bits == 16 ? 1
                                    : train(bits, embedding, uint64_t(seed)) /
                                          f32_errors[std::size_t(seed - 1)]);
      std::ranges::sort(ratios);
      const double middle = ratios[ratios.size() / 2];
      cells.push_back(fixed(middle, 4));
      const std::string what =
          std::string(embedding ? "embedding" : "MLP") + ", k = " + std::to_string(bits);
      if (bits == 0) found.at_least(what, middle, 1.05);
      if (bits == 8 || bits == 12) found.within(what, middle, 0.995, 1.005);
    }
    table.row(cells);
  }
  found.out() << table;
}

}  // namespace e06

const Experiment found::e6{
    "E6",
    "How many bits must a weight have beyond bf16's? 8 are enough for an MLP. For a table of rare "
    "words, 8 were found to be too few (Split-SGD-BF16, arXiv 2005.04680); this measures it.",
    e06::run};

// E12. The second product of attention in steps, O = P V with P = exp(S - max S), with the result
// rounded to bf16's grid: 64 heads, 8 queries, 64 keys, 64 columns of values between 2 and 4 in
// magnitude. Operands are bf16 numbers, sums f32; the bias is that of the last rounding alone.

namespace e12 {

constexpr int64_t heads = 64, queries = 8, keys = 64, width = 64;

struct Setting {
  const char* name;
  bool repeated;     // every key occurs twice, with other values
  double sharpness;  // standard deviation of the scores
};
constexpr Setting settings[]{{"flat", false, 1},
                             {"flat, keys twice", true, 1},
                             {"sharp", false, 100},
                             {"sharp, keys twice", true, 100}};

struct Values final : nn::Module {
  nn::Parameter w;
  explicit Values(const Tensor& initial) : w(initial) {}
  void describe(nn::Fields& field) override { field("w", w); }
  Tensor operator()(const Tensor& p) const {
    const CallScope here = call_scope("values");
    return matmul(p, w);
  }
};

/// Returns a survey of the rounding of O. The error of a value is e = y - x.
Survey attention(const Setting& setting, bool one_sign, const char* rounding) {
  manual_seed(12);
  const Tensor q = randn({heads, queries, width}) * setting.sharpness,
               some_keys = randn({heads, setting.repeated ? keys / 2 : keys, width}),
               k = setting.repeated ? cat({some_keys, some_keys}, 1) : some_keys,
               size = rand({heads, keys, width}) * 2 + 2,
               sign =
                   one_sign ? full(size.shape(), -1) : cast(rand(size.shape()) > 0.5, f32) * 2 - 1;
  Values values(quantize(size * sign, "bf16"));
  optim::Sgd sgd(values.parameters(), {.lr = 0});
  amp::Training training(
      policy_of(rounding, "fp32",
                std::string(R"("rules": [{"match": {"op": "matmul", "path": "values"},
                    "input": "bf16", "weight": "bf16",
                    "output": {"format": "bf16", "rounding": ")") +
                    rounding + R"("}}])"),
      values, sgd);
  policy::Probe probe(training, {.roles = {policy::Role::output}, .updates = false});
  const Tensor o = training.forward(
      [&](const Tensor& scores) {
        const Tensor p = exp(scores - max(scores, {-1}, true));
        return values(p);
      },
      matmul(q, transpose(k, 1, 2)) / std::sqrt(double(width)));
  training.backward(sum(o));
  training.step();
  Survey all;
  for (const policy::ProbeRow& row : probe.rows())
    if (row.site == "values/matmul.0") all.merge(row.survey);
  return all;
}

/// Returns the bounds of t, or nullopt if the claim makes no prediction. One sharp weight of 1
/// loses all small terms next to it, which biases nearest towards 0 (t = 9). Signs that cancel hide
/// the effect of truncation.
std::optional<std::pair<double, double>> expected(const Setting& setting, bool one_sign,
                                                  std::string_view rounding) {
  const bool sharp = setting.sharpness > 1;
  if (rounding == "stochastic") return std::pair{-3.0, 3.0};
  if (rounding == "toward_zero")
    return one_sign ? std::optional(std::pair{10.0, HUGE_VAL}) : std::nullopt;
  if (!one_sign || !sharp) return std::pair{-3.0, 3.0};
  // Two numbers of one binade add up to a number of the next, which in half of the cases is halfway
  // between two of its numbers. The small rest has the same sign and breaks all ties away from 0.
  return setting.repeated ? std::optional(std::pair{-HUGE_VAL, -10.0}) : std::nullopt;
}

struct Check {
  std::string what;
  double t, least, most;
};

void run(Findings& found) {
  std::vector<Check> checks;
  constexpr const char* roundings[]{"nearest_even", "stochastic", "toward_zero"};
  for (const bool one_sign : {true, false}) {
    Table table({one_sign ? "values below 0: bias, t" : "values of both signs: bias, t",
                 "nearest even", "", "stochastic", "", "toward zero", ""});
    for (const Setting& setting : settings) {
      std::vector<std::string> cells{setting.name};
      for (const char* rounding : roundings) {
        const Survey survey = attention(setting, one_sign, rounding);
        if (const auto bar = expected(setting, one_sign, rounding))
          checks.push_back({std::string(one_sign ? "below 0, " : "both signs, ") + setting.name +
                                ", " + rounding + ", t",
                            survey.bias_t(), bar->first, bar->second});
        cells.push_back(number(survey.bias(), 2)), cells.push_back(fixed(survey.bias_t(), 1));
      }
      table.row(cells);
    }
    found.out() << table;
  }
  for (const Check& c : checks) found.within(c.what, c.t, c.least, c.most);
}

}  // namespace e12

const Experiment found::e12{
    "E12",
    "If attention's largest weights repeat and values have one sign, round-to-nearest of its "
    "result to bf16 is biased (Qiu and Yao 2025, arXiv 2510.04212); stochastic rounding is not.",
    e12::run};

// E14. gpt_tiny (lab/workload.h), 100 steps of AdamW at a constant rate, with weights in
// f32 and with weights on bf16's grid, rounded to nearest. A probe observes every tenth step. A
// rate of 0.01 is left out: there the model learns worse (a loss of 3.1 against 2.5), the two runs
// diverge, and 20 % of the updates are lost while the f32 run's histogram predicts 29 %.

namespace e14 {

constexpr int64_t steps = 100;

struct Run {
  policy::UpdateSums sums{};
  std::array<double, policy::UpdateRow::bins> by_ulp{};
  double loss = 0;  // mean of the last ten steps
};

Run train(const amp::Policy& strategy, double lr) {
  Workload workload = make_workload("gpt_tiny", 14);
  workload.lr = lr;
  const std::unique_ptr<optim::Optimizer> optimizer = optimizer_of(workload);
  amp::Training training(strategy, *workload.model, *optimizer);
  // No site has this path, so the probe observes only updates.
  policy::Probe probe(training, {.every = 10, .path = "updates_alone"});
  Run run;
  train_steps(workload, training, steps, [&](int64_t step, const Tensor& loss) {
    if (step >= steps - 10) run.loss += loss.item() / 10;
  });
  for (const policy::UpdateRow& row : probe.updates()) {
    run.sums.add(row.stored);
    for (std::size_t i = 0; i < run.by_ulp.size(); ++i) run.by_ulp[i] += row.by_ulp[i];
  }
  return run;
}

/// Returns the share of the f32 weights' updates below half a spacing of bf16, which is 2^16 times
/// f32's.
double predicted_lost(const Run& run) {
  double below = 0, all = 0;
  for (int i = 0; i < policy::UpdateRow::bins; ++i) {
    all += run.by_ulp[std::size_t(i)];
    if (i + policy::UpdateRow::lowest_bin < 16 - 1) below += run.by_ulp[std::size_t(i)];
  }
  return below / all;
}

void run(Findings& found) {
  const amp::Policy f32_policy = policy_of("f32", "fp32", ""),
                    nearest =
                        policy_of("nearest", "fp32", R"("optimizer": {"parameters": "bf16"})");
  Table table({"rate", "lost in f32", "lost in bf16", "predicted", "effective descent", "loss, f32",
               "loss, bf16"});
  std::vector<double> lost;
  std::vector<std::pair<std::string, double>> beyond;
  for (const double lr : {1e-3, 3e-4, 1e-4, 1e-5, 1e-6}) {
    const Run wide = train(f32_policy, lr), narrow = train(nearest, lr);
    const double predicted = predicted_lost(wide);
    lost.push_back(narrow.sums.lost_share());
    beyond.push_back({number(lr), lost.back() - predicted});
    table.row({number(lr), percent(wide.sums.lost_share()), percent(lost.back()),
               percent(predicted), fixed(narrow.sums.effective_descent(), 3), fixed(wide.loss, 3),
               fixed(narrow.loss, 3)});
  }
  found.out() << table;
  for (std::size_t i = 1; i < lost.size(); ++i)
    found.at_least("lost at " + beyond[i].first + " beyond those at " + beyond[i - 1].first,
                   lost[i] - lost[i - 1], 0);
  found.at_least("lost at the smallest rate", lost.back(), 0.95);
  for (const auto& [rate, difference] : beyond)
    found.within("lost at " + rate + ", less those predicted", difference, -0.05, 0.05);
}

}  // namespace e14

const Experiment found::e14{
    "E14",
    "Small learning rates are invisible in bf16: the share of updates that are lost rises as the "
    "rate falls, and the histogram of log2(|update| / spacing) of an f32 run predicts it "
    "(Zamirai et al. 2020, arXiv 2010.06192).",
    e14::run};

}  // namespace halftone::lab
