// Maps words for precisions, such as Lightning's, to strategies.
#include <halftone/train/precision.h>

#include <algorithm>
#include <vector>

#include <halftone/core/error.h>
#include <halftone/policy/policy_file.h>

namespace halftone::train {

namespace {
struct Word {
  std::string_view precision, strategy;
};
constexpr Word words[] = {{"64-true", "fp64"},      {"32-true", "fp32"},
                          {"16-mixed", "amp-fp16"}, {"bf16-mixed", "amp-bf16"},
                          {"16-true", "o3-fp16"},   {"bf16-true", "full-bf16"}};
}  // namespace

amp::Strategy strategy_for(std::string_view precision) {
  const auto word = std::ranges::find(words, precision, &Word::precision);
  if (word != std::end(words)) return amp::Strategy::named(word->strategy);
  if (precision.ends_with(".json")) return policy::load(precision);
  const auto names = amp::Strategy::names();
  if (std::ranges::find(names, precision) != names.end()) return amp::Strategy::named(precision);
  std::vector<std::string_view> known;
  for (const Word& w : words) known.push_back(w.precision);
  known.insert(known.end(), names.begin(), names.end());
  fail_unknown_name("Trainer", "precision", precision, known);
}

}  // namespace halftone::train
