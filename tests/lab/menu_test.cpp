// One format of a menu for each module: the choice within a budget against all choices, scores of
// one pass against a trial for each rule, and policies that run.
#include <doctest/doctest.h>

#include <cmath>
#include <sstream>

#include <halftone/autograd/ops.h>
#include <halftone/data/dataset.h>
#include <halftone/lab/menu.h>
#include <halftone/lab/statistics.h>
#include <halftone/nn/models/gpt.h>
#include <halftone/nn/nn.h>
#include <halftone/policy/policy.h>

namespace halftone::test::menu_test {
namespace {

using lab::MenuModule;
using Choice = std::vector<std::size_t>;

double score_of(const std::vector<MenuModule>& modules, const Choice& chosen) {
  double sum = 0;
  for (std::size_t i = 0; i < chosen.size(); ++i) sum += modules[i].options[chosen[i]].score;
  return sum;
}

/// Returns the least score of all choices within a budget.
double least_score(const std::vector<MenuModule>& modules, double bits) {
  double least = HUGE_VAL;
  Choice choice(modules.size());
  for (;;) {
    if (lab::mean_bits(modules, choice) <= bits + 1e-9)
      least = std::min(least, score_of(modules, choice));
    std::size_t i = 0;
    while (i < choice.size() && ++choice[i] == modules[i].options.size()) choice[i++] = 0;
    if (i == choice.size()) return least;
  }
}

TEST_CASE("a choice by hand") {
  // The second module is three times as sensitive, the third has three times the weight.
  const std::vector<MenuModule> modules{{1, {{16, 0}, {8, 1}, {4, 16}}},
                                        {1, {{16, 0}, {8, 3}, {4, 48}}},
                                        {3, {{16, 0}, {8, 1}, {4, 16}}}};
  CHECK(lab::choose_from_menu(modules, 16) == Choice{0, 0, 0});
  CHECK(lab::choose_from_menu(modules, 12) == Choice{0, 0, 1});  // 11.2; 24 of 80 bits saved
  CHECK(lab::choose_from_menu(modules, 9.6) == Choice{1, 0, 1});
  CHECK(lab::choose_from_menu(modules, 8) == Choice{1, 1, 1});
  CHECK(lab::choose_from_menu(modules, 5.6) == Choice{1, 1, 2});
  CHECK(lab::choose_from_menu(modules, 4) == Choice{2, 2, 2});
  CHECK_THROWS_WITH_AS(lab::choose_from_menu(modules, 3.9),
                       doctest::Contains("the menu's fewest are 4"), UsageError);
  // An option that costs more bits and loses more is never taken.
  CHECK(lab::choose_from_menu({{1, {{8, 2}, {6, 1}, {4, 3}}}}, 16) == Choice{1});
}

TEST_CASE("choices are within the budget, and no worse than all others by more than one module") {
  manual_seed(11);
  int exact = 0, cases = 0;
  for (int round = 0; round < 40; ++round) {
    std::vector<MenuModule> modules;
    double step = 0;
    for (int i = 0; i < 6; ++i) {
      const auto draw = rand({4}).to_vector<double>();
      MenuModule module{.weight = 0.2 + draw[0]};
      for (const double bits : {16.0, 8.25, 6.0, 4.25})
        module.options.push_back(
            {bits, std::exp2(-bits) * (1 + 100 * draw[1]) * (bits == 6 ? 0.5 + draw[2] : 1)});
      step = std::max(step, module.options[3].score);
      modules.push_back(module);
    }
    for (const double bits : {4.5, 6.0, 8.0, 12.0}) {
      const Choice chosen = lab::choose_from_menu(modules, bits);
      CHECK(lab::mean_bits(modules, chosen) <= bits + 1e-9);
      const double least = least_score(modules, bits), found = score_of(modules, chosen);
      CHECK(found >= least);
      CHECK(found <= least + step);
      ++cases, exact += found <= least * (1 + 1e-12);
    }
  }
  CHECK(exact > cases / 4);
}

lab::Workload small_gpt() {
  manual_seed(3);
  auto model = std::make_unique<nn::models::Gpt>(nn::models::GptOptions{
      .vocabulary = 23, .context = 16, .layers = 2, .heads = 2, .width = 32});
  const Tensor x = randint(0, 23, {32, 16}), y = randint(0, 23, {32, 16});
  return {.task = train::language_modeling(*model), .model = std::move(model), .train = [x, y] {
            return data::DataLoader(data::TensorDataset(x, y), {.batch_size = 8});
          }};
}

struct Fixture {
  policy::PolicyFile base = policy::file_of(amp::Strategy::named("fp32"));
  lab::Trial trial{small_gpt, amp::Strategy::named("fp32"), {.batches = 2, .warm_up = 5}};
  lab::Menu menu;
  std::ostringstream progress{};
  explicit Fixture(const std::vector<std::string>& formats)
      : menu((trial.set_base(base), lab::menu_of(trial, base, small_gpt(), formats))) {}
};

TEST_CASE("scores of one pass rank rules as one trial each does") {
  Fixture f({"mxfp8", "mxfp6", "mxfp4", "nvfp4"});
  REQUIRE(f.menu.paths.size() == 9);
  const auto alone = lab::measured_alone(f.trial, f.base, f.menu, f.progress);
  REQUIRE(alone.size() == 36);
  std::vector<double> scores, added, by_loss, moved;
  for (std::size_t i = 0; i < alone.size(); ++i) {
    CHECK(alone[i].refused == "");
    CHECK(alone[i].rule.name == f.menu.scores[i].path + " -> " + f.menu.scores[i].format);
    scores.push_back(f.menu.scores[i].added), added.push_back(alone[i].measured.added);
    by_loss.push_back(f.menu.scores[i].loss_change);
    moved.push_back(alone[i].measured.loss_moved);
  }
  const double rank = lab::spearman(scores, added);
  MESSAGE("Spearman's rank correlation: ", rank, ", of the loss ", lab::spearman(by_loss, moved));
  CHECK(rank > 0.9);
}

TEST_CASE("points of a frontier are policies that keep their budget") {
  Fixture f({"bf16", "mxfp8", "mxfp4"});
  const auto points = lab::menu_frontier(f.trial, f.base, f.menu, {5, 8, 12}, f.progress);
  REQUIRE(points.size() == 6);
  for (std::size_t i = 0; i < points.size(); ++i) {
    const lab::MenuPoint& point = points[i];
    CAPTURE(i);
    if (i < 3) CHECK(point.bits <= point.budget);
    CHECK(point.measured.bits == doctest::Approx(point.bits));
    CHECK(point.measured.added < 2 * point.predicted);
    CHECK(point.measured.added > 0.5 * point.predicted);
    CHECK(policy::parse(policy::write(point.policy)).name == point.policy.base.name);
  }
  CHECK(points[0].measured.added > points[1].measured.added);
  CHECK(points[1].measured.added > points[2].measured.added);
  CHECK(points[0].measured.added < points[5].measured.added);  // mxfp4 for all
}

}  // namespace
}  // namespace halftone::test::menu_test
