// E2. A student of 32-128-8 learns a teacher of the same shape from fresh Gaussian batches of 64,
// under a cosine schedule. The teacher's weights have the variance 2 / inputs, the student's
// initial weights 1 / inputs: the share of lost updates depends on the size of the weights. Eleven
// policies differ in the rounding of the weight update. At every tenth step an f32 copy of the
// optimizer computes what the update should have been.
#include <algorithm>
#include <cmath>

#include <halftone/core/backend.h>
#include <halftone/lab/experiments/experiments.h>
#include <halftone/lab/setting.h>
#include <halftone/lab/table.h>

namespace halftone::lab {
namespace e02 {

/// The result that is expected of a policy.
enum class Kind { reference, like_f32, nearest, truncates };

struct CastPolicy {
  const char* name;
  Kind kind;
  const char* extends;
  const char* more;  // more fields of its file
};
constexpr CastPolicy policies[]{
    {"f32", Kind::reference, "fp32", ""},
    {"bf16, f32 weights", Kind::like_f32, "amp-bf16", ""},
    {"f16, f32 weights, unscaled", Kind::like_f32, "amp-fp16", R"("loss_scale": "none")"},
    {"bf16, 24-bit weights", Kind::like_f32, "amp-bf16", R"("optimizer": {"parameters": "e8m15"})"},
    {"bf16, Kahan", Kind::like_f32, "full-bf16-kahan", R"("optimizer": {"state_dtype": "f32"})"},
    {"bf16, stochastic", Kind::like_f32, "amp-bf16",
     R"("optimizer": {"parameters": {"format": "bf16", "rounding": "stochastic"}})"},
    {"bf16, stochastic, states too", Kind::like_f32, "amp-bf16",
     R"("quantizers": {"sr": {"format": "bf16", "rounding": "stochastic"}},
        "optimizer": {"parameters": "sr",
                      "states": {"exp_avg": "sr", "exp_avg_sq": "sr", "momentum_buffer": "sr"}})"},
    {"bf16, nearest", Kind::nearest, "amp-bf16", R"("optimizer": {"parameters": "bf16"})"},
    {"bf16, nearest, states too", Kind::nearest, "amp-bf16",
     R"("optimizer": {"parameters": "bf16", "states": {"exp_avg": "bf16", "exp_avg_sq": "bf16",
                                                       "momentum_buffer": "bf16"}})"},
    {"f32, nearest weights alone", Kind::nearest, "fp32", R"("optimizer": {"parameters": "bf16"})"},
    {"bf16, towards zero", Kind::truncates, "amp-bf16",
     R"("optimizer": {"parameters": {"format": "bf16", "rounding": "toward_zero"}})"},
};

struct Setting {
  const char* name;
  double lr;
  int64_t steps;
  bool adam;
};
constexpr Setting settings[]{{"Adam, 1e-3", 1e-3, 1500, true},
                             {"Adam, 1e-4", 1e-4, 1500, true},
                             {"SGD, momentum, 1e-2", 1e-2, 1500, false},
                             {"Adam, 3e-3, 3000 steps", 3e-3, 3000, true}};

std::unique_ptr<optim::Optimizer> make_optimizer(const Setting& setting,
                                                 std::vector<Tensor> parameters) {
  if (!setting.adam)
    return std::make_unique<optim::Sgd>(std::move(parameters),
                                        optim::SgdOptions{.lr = setting.lr, .momentum = 0.9});
  return std::make_unique<optim::Adam>(std::move(parameters), optim::AdamOptions{.lr = setting.lr});
}

/// Computes the update in f32: the same optimizer, with the same gradient and states, on weights
/// that are 0.
class Twin {
 public:
  Twin(const Setting& setting, const std::vector<Tensor>& parameters) {
    for (const Tensor& p : parameters) weights_.push_back(zeros(p.shape()).set_requires_grad());
    optimizer_ = make_optimizer(setting, weights_);
  }
  /// Called before a step. `parameters` are the weights that the next forward pass would use.
  void look(const optim::Optimizer& optimizer, const std::vector<Tensor>& parameters) {
    optimizer_->load_state_dict(optimizer.state_dict());
    before_.clear();
    for (std::size_t i = 0; i < weights_.size(); ++i) {
      fill_with(weights_[i], 0);
      weights_[i].set_grad(parameters[i].grad().to(f32));
      before_.push_back(parameters[i].to_vector<double>());
    }
    optimizer_->step();
  }
  /// Called after the step.
  void compare(const std::vector<Tensor>& parameters) {
    double lost = 0, meant = 0, along = 0, square = 0;
    for (std::size_t i = 0; i < weights_.size(); ++i) {
      const std::vector<double> intended = weights_[i].to_vector<double>(),
                                after = parameters[i].to_vector<double>();
      for (std::size_t j = 0; j < after.size(); ++j) {
        const double applied = after[j] - before_[i][j];
        meant += intended[j] != 0, lost += intended[j] != 0 && applied == 0;
        along += applied * intended[j], square += intended[j] * intended[j];
      }
    }
    lost_ += lost / meant, descent_ += along / square, ++samples_;
    along_ += along, square_ += square;
  }
  double lost() const { return lost_ / samples_; }
  /// <applied, intended> / <intended, intended> (COLLAGE, arXiv 2405.03637). The first is the mean
  /// over steps, in which the small updates at the end of a schedule count as much as others. The
  /// second divides sums over steps, in which large updates dominate.
  double effective_descent() const { return descent_ / samples_; }
  double descent_of_sums() const { return along_ / square_; }

 private:
  std::vector<Tensor> weights_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::vector<std::vector<double>> before_;
  double lost_ = 0, descent_ = 0, samples_ = 0, along_ = 0, square_ = 0;
};

struct Result {
  double error = 0, over_f32 = 1, lost = 0, descent = 0, descent_of_sums = 0;
};

Result train(const CastPolicy& policy, const Setting& setting, uint64_t seed) {
  manual_seed(seed);
  nn::Sequential teacher = nn::models::mlp({32, 128, 8}), student = nn::models::mlp({32, 128, 8});
  for (const auto& [network, variance] : {std::pair{&teacher, 2.0}, {&student, 1.0}})
    for (const Tensor& p : network->parameters())
      if (p.rank() == 2) nn::init::normal(p, 0, std::sqrt(variance / double(p.size(1))));
  const auto optimizer = make_optimizer(setting, student.parameters());
  amp::Training training(policy_of(policy.name, policy.extends, policy.more), student, *optimizer);
  const std::vector<Tensor> parameters = student.parameters();
  Twin twin(setting, parameters);
  const auto answers = [&](const Tensor& x) {
    const NoGrad no_grad;
    return teacher(x);
  };
  const auto schedule = optim::LrSchedule::cosine(setting.steps);
  for (int64_t step = 0; step < setting.steps; ++step) {
    optimizer->set_lr(setting.lr * schedule.at(step));
    const Tensor x = randn({64, 32});
    training.zero_grad();
    training.backward(mse(training.forward(student, x), answers(x)));
    const bool looks = step % 10 == 5;
    if (looks) twin.look(*optimizer, parameters);
    training.step();
    if (looks) twin.compare(parameters);
  }
  const NoGrad no_grad;
  const Tensor x = randn({2048, 32});
  return {mse(training.forward(student, x), answers(x)).item(), 1, twin.lost(),
          twin.effective_descent(), twin.descent_of_sums()};
}

/// Returns one result per seed, with its error divided by that of the same seed under f32.
std::vector<Result> train_all(const CastPolicy& policy, const Setting& setting, int seeds,
                              const std::vector<Result>& f32_results) {
  std::vector<Result> all;
  for (int i = 0; i < seeds; ++i) {
    Result r = train(policy, setting, uint64_t(i + 1));
    r.over_f32 = f32_results.empty() ? 1 : r.error / f32_results[std::size_t(i)].error;
    all.push_back(r);
  }
  return all;
}

/// Returns the median of each number separately.
Result median(std::vector<Result> all) {
  Result middle;
  for (double Result::*what : {&Result::error, &Result::over_f32, &Result::lost, &Result::descent,
                               &Result::descent_of_sums}) {
    std::ranges::sort(all, {}, what);
    middle.*what = all[all.size() / 2].*what;
  }
  return middle;
}

void check(Findings& found, const std::string& what, Kind kind, const Result& r) {
  if (kind == Kind::like_f32) found.within(what + "error over f32", r.over_f32, 0.99, 1.01);
  if (kind == Kind::truncates) found.at_least(what + "effective descent", r.descent, 1.3);
  if (kind != Kind::nearest) return;
  found.at_least(what + "error over f32", r.over_f32, 1.1);
  // Published: 69 to 96 %. It is 66 to 98 % with initial weights that are smaller (uniform, the
  // default of layers) or larger (2 / inputs): the spacing grows with the weight.
  found.within(what + "lost updates", r.lost, 0.65, 0.98);
  found.at_most(what + "effective descent", r.descent, 0.6);
}

void run(Findings& found) {
  for (const Setting& setting : settings) {
    const int seeds = found.thorough() && setting.steps <= 1500 ? 3 : 1;
    Table table({setting.name, "error", "over f32", "lost", "effective descent", "of sums"});
    std::vector<Result> f32_results, results;
    for (const CastPolicy& policy : policies) {
      const std::vector<Result> all = train_all(policy, setting, seeds, f32_results);
      if (policy.kind == Kind::reference) f32_results = all;
      const Result& r = results.emplace_back(median(all));
      table.row({policy.name, number(r.error), fixed(r.over_f32, 4), percent(r.lost),
                 fixed(r.descent, 3), fixed(r.descent_of_sums, 3)});
    }
    found.out() << table << std::flush;
    for (std::size_t i = 0; i < results.size(); ++i)
      check(found, std::string(setting.name) + ", " + policies[i].name + ", ", policies[i].kind,
            results[i]);
  }
}

}  // namespace e02

const Experiment found::e2{
    "E2",
    "bf16 rounded to nearest breaks the update of weights, not forward and backward: most updates "
    "are lost. Each of f32 masters, 8 more bits, compensation or stochastic rounding fixes it "
    "(Zamirai et al. 2020).",
    e02::run};

}  // namespace halftone::lab
