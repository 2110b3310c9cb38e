// E8. One linear layer of K inputs under policies with different accumulators, compared with f64.
// Operands are bf16 numbers, so that only sums are rounded.
#include <cmath>

#include <halftone/lab/experiments/experiments.h>
#include <halftone/lab/setting.h>
#include <halftone/lab/table.h>

namespace halftone::lab {
namespace e08 {

constexpr int64_t rows = 8, columns = 32;

struct Sum {
  const char* name;
  const char* accumulate;  // the rule's accumulate
  double expected;         // relative error at K = 4096, positive terms
};
constexpr Sum sums[]{
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

Operands operands(int64_t k, bool positive) {
  manual_seed(8);
  const auto drawn = [&](int64_t n) {
    return quantize(positive ? rand({n, k}) : randn({n, k}), "bf16");
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

}  // namespace halftone::lab
