// Updates of values on grids by policy: states of the optimizer, and the spacing of a grid's
// numbers.
#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <limits>
#include <sstream>

#include <halftone/core/backend.h>
#include <halftone/policy/probe.h>

#include "session_cases.h"

namespace halftone::test::update_states_test {
namespace {
/// The only row of "0.weight" (the policies below have no other sites) with that state.
policy::UpdateRow row_of(const policy::Probe& probe, const std::string& state) {
  for (const policy::UpdateRow& row : probe.updates())
    if (row.state == state && row.parameter == "0.weight") return row;
  FAIL("no row of " << state);
  return {};
}

double bins_below(const policy::UpdateRow& row, int k) {
  double sum = 0;
  for (int i = 0; i < k - policy::UpdateRow::lowest_bin; ++i) sum += row.by_ulp[std::size_t(i)];
  return sum;
}
double bins_in_all(const policy::UpdateRow& row) {
  return bins_below(row, policy::UpdateRow::lowest_bin + policy::UpdateRow::bins);
}

TEST_CASE("updates of states on a grid are those of a simulation by hand") {
  Steps steps(policy_with("", R"(, "optimizer": {"states": {"exp_avg": "bf16"}})"));
  for (const uint64_t number : {0, 1, 2}) steps.step(number);
  const policy::Probe probe(steps.training, {.every = 1});
  const Tensor state = steps.adamw.state_dict().at("state.0.exp_avg");
  const std::vector<float> before = floats(state);
  steps.step(3);
  const std::vector<float> now = floats(state),
                           gradient = floats(steps.model.parameters()[0].grad());
  policy::UpdateSums wanted;
  double under_half = 0;
  for (std::size_t i = 0; i < before.size(); ++i) {
    const double u = double(0.9f * before[i] + 0.1f * gradient[i]) - double(before[i]);
    wanted.ww += double(before[i]) * before[i];
    ++wanted.count, wanted.lost += now[i] == before[i] ? 1 : 0;
    wanted.du += (double(now[i]) - before[i]) * u, wanted.uu += u * u;
    under_half += std::abs(u) < std::ldexp(1.0, std::ilogb(before[i]) - 8) ? 1 : 0;
  }
  const policy::UpdateRow row = row_of(probe, "exp_avg");
  CHECK(row.dtype == f32);
  check_sums(row.stored, wanted);
  CHECK(bins_below(row, -1) == under_half);
  CHECK(row_of(probe, "").stored.count > 0);  // that of the parameter, in the same row
  for (const policy::UpdateRow& other : probe.updates()) CHECK(other.state != "exp_avg_sq");
}

TEST_CASE(
    "a coarse grid loses what decays: e5m2 holds a second moment still that 0.999 would move") {
  Steps steps(policy_with("", R"(, "optimizer": {"states": {"exp_avg_sq": "e5m2"}})"));
  for (uint64_t number = 0; number < 60; ++number) steps.step(number);
  const policy::Probe probe(steps.training, {.every = 1});
  steps.step(60);
  const policy::UpdateRow row = row_of(probe, "exp_avg_sq");
  CHECK(row.stored.lost_share() > 0.8);
  CHECK(row.stored.effective_descent() < 0.5);
  CHECK(row.stored.lost_share() == row.seen.lost_share());
  std::ostringstream text;
  text << probe;
  CHECK(text.str().find("updates of exp_avg_sq, on its grid: ") != std::string::npos);
  CHECK(policy::json_lines({}, {row}).find(R"("state":"exp_avg_sq")") != std::string::npos);
}

TEST_CASE("by_ulp is in the spacing of an unscaled grid, and empty if scales change the spacing") {
  const auto bins = [](const std::string& grid) {
    Steps steps(policy_with("", R"(, "optimizer": {"parameters": )" + grid + "}"));
    steps.step(0);
    const policy::Probe probe(steps.training, {.every = 1});
    steps.step(1);
    const policy::UpdateRow row = row_of(probe, "");
    CHECK(row.stored.count > 0);
    return std::array{bins_in_all(row), bins_below(row, -2), row.stored.lost, row.stored.count};
  };
  const auto coarse = bins(R"("e4m3")");
  CHECK(coarse[0] == coarse[3]);
  CHECK(coarse[1] > 0);
  CHECK(coarse[1] <=
        coarse[2]);  // below a quarter of a unit nothing changes, also next to powers of two
  CHECK(bins(R"("bf16")")[1] < coarse[1]);
  CHECK(bins(R"("fp8_tensor")")[0] == 0);
}

TEST_CASE("a skipped step has no updates of states") {
  Steps steps(R"({"halftone_policy": 1, "name": "t", "extends": "amp-fp16", "rules": [],
                  "optimizer": {"states": {"exp_avg": "bf16"}}})");
  steps.step(0);
  const policy::Probe probe(steps.training, {.every = 1});
  steps.training.zero_grad();
  const Tensor y =
      steps.training.forward([&](const Tensor& in) { return steps.model(in); }, numbers({5, 6}, 1));
  steps.training.backward(mean(y * y));
  fill_with(steps.model.parameters()[0].grad(), std::numeric_limits<double>::infinity());
  steps.training.step();
  for (const policy::UpdateRow& row : probe.updates()) CHECK(row.state.empty());
}

}  // namespace
}  // namespace halftone::test::update_states_test
