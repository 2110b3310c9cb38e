// E24. Does the loss follow the law of Kumar et al. (arXiv 2411.04330), in which fewer bits act as
// fewer parameters? Weights and inputs of linear layers are integers of 3, 4 and 12 bits, the
// models have 0.1 to 3 million parameters (waves_100k to waves_3m), and the law's rivals
// (lab/fit/law.h) are fitted to the same runs. The law must predict runs that were left out of its
// fit.
#include <ostream>

#include <nlohmann/json.hpp>

#include <halftone/lab/experiments/experiments.h>
#include <halftone/lab/experiments/paired.h>
#include <halftone/lab/fit.h>
#include <halftone/lab/setting.h>

namespace halftone::lab {
namespace e24 {

/// Integers with a scale for each 64 numbers of a row, for both operands of all linear layers.
/// Gradients are not rounded.
policy::PolicyFile integers(const std::string& weight, const std::string& input) {
  const auto quantizer = [](const std::string& format) {
    return R"({"format": ")" + format +
           R"(", "scale": {"per": "block", "block": [1, 64], "format": "f32"}})";
  };
  return policy::file_of(policy_of(weight + "_" + input, "amp-bf16",
                                   R"("quantizers": {"w": )" + quantizer(weight) + R"(, "x": )" +
                                       quantizer(input) +
                                       R"(}, "rules": [{"match": {"op": "linear"}, "compute": "f32",
             "result": "bf16", "weight": "w", "input": "x"}])"));
}

LawRow row_of(const RunResult& run) {
  const auto summary = nlohmann::json::parse(run.summary);
  LawRow row{.parameters = summary["parameters"], .tokens = summary["tokens"], .loss = run.loss};
  for (std::size_t i = 0; i < operand_roles; ++i) {
    const std::string role(operand_role_names[i]);
    const auto& operands = summary["operands"];
    row.operands[i] = {operands[role + "_bits"], operands[role + "_exponent"],
                       operands[role + "_fraction"], operands[role + "_block"]};
  }
  return row;
}

void run(Findings& found) {
  const std::vector<std::string> formats{"int3", "int4", "int12"};
  std::vector<std::string> workloads{"waves_100k", "waves_300k"};
  std::vector<int64_t> lengths{125, 250, 500};
  if (found.thorough())
    workloads.insert(workloads.end(), {"waves_1m", "waves_3m"}), lengths = {250, 500, 1000};
  std::vector<LawRow> rows;
  for (const std::string& weight : formats)
    for (const std::string& input : formats) {
      const PolicyOnDisk policy(integers(weight, input));
      for (const std::string& workload : workloads)
        for (const int64_t steps : lengths) {
          const RunOptions options{
              .workload = workload, .policies = {policy.path()}, .steps = steps};
          rows.push_back(row_of(all_runs(options).front()));
        }
    }
  const Fit fitted = fit(rows, {}, found.out());
  found.out() << text_of(fitted, rows);
  for (const Rival& rival : fitted.rivals) {
    if (rival.name == "tokens")
      found.at_most("squared error of left-out runs over that of a law without bits, upper end",
                    1 + rival.range.high, 1);
    if (rival.name == "additive")
      found.at_least("over that of the additive law, lower end", 1 + rival.range.low, 1.5);
  }
}

}  // namespace e24

const Experiment found::e24{
    "E24",
    "In the law of Kumar et al. (2024, arXiv 2411.04330) fewer bits of weights and inputs act as "
    "fewer parameters. It predicts runs of other sizes, lengths and bits better than a law without "
    "bits, but worse than a law in which bits cost the same at every size.",
    e24::run};

}  // namespace halftone::lab
