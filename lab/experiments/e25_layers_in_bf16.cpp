// E25. Which layers should stay in bf16 under NVFP4? The recipe (arXiv 2509.25149) leaves the last
// block and the head. One forward and backward pass (lab/menu/one_pass.h) ranks all modules; as
// many modules as the recipe leaves are left, those with the highest scores. Both, no module, and
// the modules with the lowest scores train a small GPT from the same seeds.
#include <algorithm>

#include <halftone/lab/experiments/experiments.h>
#include <halftone/lab/experiments/paired.h>
#include <halftone/lab/menu/one_pass.h>
#include <halftone/lab/search_space.h>
#include <halftone/lab/setting.h>
#include <halftone/lab/table.h>

namespace halftone::lab {
namespace e25 {

constexpr const char* workload = "gpt_small";

/// NVFP4 for every linear layer except some paths.
policy::PolicyFile nvfp4_except(const std::string& name, const std::vector<std::string>& paths) {
  std::string except;
  for (const std::string& path : paths) except += (except.empty() ? "\"" : ", \"") + path + "\"";
  return policy::file_of(policy_of(name, "amp-bf16",
                                   R"(
    "quantizers": {
      "rows": {"format": "e2m1",
        "scale": {"per": "block", "block": [1, 16], "format": "e4m3", "tensor_level": true}},
      "square": {"like": "rows",
        "scale": {"per": "block", "block": [16, 16], "format": "e4m3", "tensor_level": true}},
      "gradient": {"like": "rows", "rounding": "stochastic"},
      "turned": {"like": "rows", "hadamard": 16},
      "turned_gradient": {"like": "rows", "hadamard": 16, "rounding": "stochastic"}},
    "rules": [{"match": {"op": "linear", "except": [)" +
                                       (except.empty() ? "\"none\"" : except) +
                                       R"(]}, "compute": "f32", "result": "bf16",
      "input": "rows", "weight": "square", "grad_output": "gradient", "input.backward": "turned",
      "grad_output.weight": "turned_gradient"}], "loss_scale": "none", "seed": 17)"));
}

/// The modules with products, those first that add the largest error to the gradients under NVFP4.
std::vector<std::string> ranked_modules() {
  const policy::PolicyFile base = policy::file_of(amp::Strategy::named("amp-bf16"));
  Trial trial([] { return make_workload(workload, 25); }, amp::Strategy::named("fp32"));
  trial.set_base(base);
  std::vector<OnePassScore> scores =
      one_pass_scores(trial, base, sites_of(base, make_workload(workload, 25)), {"nvfp4"});
  std::ranges::stable_sort(scores, std::greater(), &OnePassScore::added);
  std::vector<std::string> paths;
  for (const OnePassScore& score : scores) paths.push_back(score.path);
  return paths;
}

std::string listed(const std::vector<std::string>& paths) {
  std::string text;
  for (const std::string& path : paths) text += (text.empty() ? "" : ", ") + path;
  return text;
}

void run(Findings& found) {
  const std::vector<std::string> ranked = ranked_modules();
  constexpr std::ptrdiff_t left = 5;  // the recipe's: four of the last block, and the head
  const std::vector<std::string> most(ranked.begin(), ranked.begin() + left),
      least(ranked.end() - left, ranked.end());
  found.out() << "most sensitive: " << listed(most) << "\nleast sensitive: " << listed(least)
              << "\n\n";
  const PolicyOnDisk all(nvfp4_except("none_left", {})),
      recipe(nvfp4_except("recipe", {"transformer.h.[-1].**", "lm_head"})),
      chosen(nvfp4_except("most_sensitive", most)), worst(nvfp4_except("least_sensitive", least));
  const PairedRuns runs(found, workload,
                        {"amp-bf16", all.path(), recipe.path(), chosen.path(), worst.path()},
                        found.thorough() ? 24 : 8, 200);
  const Interval gain = runs.difference(3, 1), beyond = runs.difference(3, 2),
                 of_least = runs.difference(4, 3);
  found.out() << "most sensitive left, against none left: " << signed_percent(gain)
              << "\nagainst the recipe: " << signed_percent(beyond)
              << "\nleast sensitive left, against most sensitive left: " << signed_percent(of_least)
              << '\n';
  found.at_most("loss of the most sensitive left beyond the recipe's, upper end of 95 %",
                beyond.mean + beyond.half, 0.005);
}

}  // namespace e25

const Experiment found::e25{
    "E25",
    "Under NVFP4, leaving those modules in bf16 that one pass scores highest trains no worse than "
    "leaving the recipe's last block and head (arXiv 2509.25149).",
    e25::run};

}  // namespace halftone::lab
