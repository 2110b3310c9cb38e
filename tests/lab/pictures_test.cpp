// Data of pictures: shares of bins, and steps of a workload.
#include <doctest/doctest.h>

#include <array>
#include <vector>

#include <halftone/autograd/ops.h>
#include <halftone/core/factory.h>
#include <halftone/data/dataset.h>
#include <halftone/lab/draw/svg.h>
#include <halftone/lab/workload.h>

#include "support.h"

namespace halftone::test::pictures_test {
namespace {

TEST_CASE("a distribution is in percent, from the first to the last bin that can be seen") {
  const std::array<double, 6> counts{0, 1, 0, 298, 1, 0};
  const lab::svg::Curve all = lab::distribution("x", counts, -10, 2);
  REQUIRE(all.points.size() == 5);
  CHECK(all.points.front().x == -9);
  CHECK(all.points.front().y == doctest::Approx(100.0 / 300));
  CHECK(all.points[1].y == 0);  // a gap inside is a zero
  CHECK(all.points.back().x == -5);
  CHECK(all.points.back().y == 0);  // the staircase ends at 0
  const lab::svg::Curve seen = lab::distribution("x", counts, -10, 2, 0.01);
  REQUIRE(seen.points.size() == 2);
  CHECK(seen.points[0].x == -7);
  CHECK(seen.points[0].y == doctest::Approx(100 * 298.0 / 300));
  CHECK(lab::distribution("x", std::array<double, 2>{}, 0, 0).points.empty());
  CHECK(lab::distribution("x", std::span<const double>(), 0, 0).points.empty());
}

TEST_CASE("train_steps goes over the data as often as it takes, and refuses none") {
  lab::Workload work = lab::make_workload("mlp_tiny");
  const data::Batch batch = lab::example_of(work);
  work.train = [&] {
    return data::DataLoader(data::TensorDataset(batch.inputs, batch.targets),
                            {.batch_size = batch.inputs.size(0) / 2});
  };
  const auto optimizer = lab::optimizer_of(work);
  amp::Training training(amp::Strategy::named("fp32"), *work.model, *optimizer);
  std::vector<int64_t> steps;
  double first = 0, last = 0;
  lab::train_steps(work, training, 5, [&](int64_t step, const Tensor& loss) {
    steps.push_back(step);
    (step == 0 ? first : last) = loss.item();
  });
  CHECK(steps == std::vector<int64_t>{0, 1, 2, 3, 4});
  CHECK(last < first);
  work.train = [] {
    return data::DataLoader(data::TensorDataset(zeros({0, 784}), zeros({0}, i64)));
  };
  CHECK(contains(message_of<UsageError>([&] { lab::train_steps(work, training, 1); }),
                 "the training data have no batch"));
}

}  // namespace
}  // namespace halftone::test::pictures_test
