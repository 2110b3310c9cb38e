// E12. The second product of attention in steps, O = P V with P = exp(S - max S), with the result
// rounded to bf16's grid: 64 heads, 8 queries, 64 keys, 64 columns of values between 2 and 4 in
// magnitude. Operands are bf16 numbers, sums f32; the bias is that of the last rounding alone.
#include <algorithm>
#include <cmath>
#include <optional>

#include <halftone/lab/experiments/experiments.h>
#include <halftone/lab/setting.h>
#include <halftone/lab/table.h>
#include <halftone/policy/probe.h>

namespace halftone::lab {
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

}  // namespace halftone::lab
