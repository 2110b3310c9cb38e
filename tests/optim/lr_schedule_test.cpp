// Schedules as tables, and the scheduler that applies them to groups.
#include <doctest/doctest.h>

#include <cmath>

#include <halftone/core/factory.h>
#include <halftone/optim/lr_schedule.h>
#include <halftone/optim/optimizers.h>

namespace halftone::test::lr_schedule_test {

using namespace halftone::optim;

namespace {

void check_table(const LrSchedule& schedule, const std::vector<double>& expected) {
  for (std::size_t step = 0; step < expected.size(); ++step)
    CHECK(schedule.at(int64_t(step)) == doctest::Approx(expected[step]).epsilon(1e-12));
}
Tensor leaf() { return ones({1}).set_requires_grad(); }

}  // namespace

TEST_CASE("schedules, step by step") {
  check_table(LrSchedule::constant(), {1, 1, 1});
  check_table(LrSchedule::constant(0.5), {0.5, 0.5});
  check_table(LrSchedule::step_decay(2), {1, 1, 0.1, 0.1, 0.01});
  check_table(LrSchedule::step_decay(3, 0.5), {1, 1, 1, 0.5, 0.5, 0.5, 0.25});
  check_table(LrSchedule::linear(4), {1, 0.75, 0.5, 0.25, 0, 0});
  check_table(LrSchedule::linear(2, 0.5), {1, 0.75, 0.5, 0.5});
  const double c = std::sqrt(0.5);
  check_table(LrSchedule::cosine(4), {1, (1 + c) / 2, 0.5, (1 - c) / 2, 0, 0, 0});
  check_table(LrSchedule::cosine(2, 0.2), {1, 0.6, 0.2, 0.2});
  check_table(LrSchedule::warm_up(4), {0.25, 0.5, 0.75, 1, 1, 1});
  check_table(LrSchedule::warm_up(2, LrSchedule::linear(2)), {0.5, 1, 1, 0.5, 0, 0});
  check_table(LrSchedule::warm_up(0, LrSchedule::step_decay(1, 0.5)), {1, 0.5, 0.25});
  check_table(LrSchedule([](int64_t step) { return double(step); }), {0, 1, 2});
}

TEST_CASE("schedules refuse invalid options") {
  CHECK_THROWS_WITH_AS(LrSchedule::cosine(0), "[LrSchedule.cosine] steps is 0. Use 1 or more.",
                       UsageError);
  CHECK_THROWS_WITH_AS(LrSchedule::linear(-1), "[LrSchedule.linear] steps is -1. Use 1 or more.",
                       UsageError);
  CHECK_THROWS_WITH_AS(LrSchedule::step_decay(0),
                       "[LrSchedule.step_decay] every is 0. Use 1 or more.", UsageError);
  CHECK_THROWS_WITH_AS(LrSchedule::warm_up(-1), "[LrSchedule.warm_up] steps is -1. Use 0 or more.",
                       UsageError);
}

TEST_CASE("the scheduler multiplies each group's own rate") {
  Sgd optimizer({{.parameters = {leaf()}, .options = {.lr = 1}},
                 {.parameters = {leaf()}, .options = {.lr = 0.5}}});
  LrScheduler scheduler(optimizer, LrSchedule::warm_up(2, LrSchedule::linear(2)));
  CHECK(optimizer.lr(0) == 0.5);
  CHECK(optimizer.lr(1) == 0.25);
  scheduler.step();
  CHECK(optimizer.lr(0) == 1);
  CHECK(optimizer.lr(1) == 0.5);
  for (int i = 0; i < 2; ++i) scheduler.step();
  CHECK(scheduler.steps() == 3);
  CHECK(optimizer.lr(0) == 0.5);
  CHECK(optimizer.lr(1) == 0.25);
}

TEST_CASE("a scheduler resumes with its earlier rates") {
  Sgd first({leaf()}, {.lr = 2}), second({leaf()}, {.lr = 7});
  LrScheduler a(first, LrSchedule::linear(4)), b(second, LrSchedule::linear(4));
  a.step();
  b.load_state_dict(a.state_dict());
  CHECK(b.steps() == 1);
  CHECK(second.lr() == 1.5);
  a.step(), b.step();
  CHECK(second.lr() == first.lr());

  CHECK_THROWS_WITH_AS(b.load_state_dict({{"step", scalar(1)}}),
                       "[LrScheduler.load_state_dict] the state has 1 entries. It must have `step` "
                       "and `base_lrs`, as "
                       "state_dict() writes them.",
                       UsageError);
  CHECK_THROWS_WITH_AS(
      b.load_state_dict({{"step", scalar(1)}, {"base_lrs", ones({2})}}),
      "[LrScheduler.load_state_dict] the state has 2 rates, the optimizer 1 groups. Load what was "
      "saved for the same groups.",
      UsageError);
}

}  // namespace halftone::test::lr_schedule_test
