// Numbers that make every computation overflow: they are refused before that, by halftone's error
// that names the operation.
#include <doctest/doctest.h>

#include <climits>
#include <cmath>
#include <functional>
#include <limits>

#include <halftone/autograd/ops.h>
#include <halftone/data/data_loader.h>
#include <halftone/data/dataset.h>
#include <halftone/data/transforms.h>
#include <halftone/optim/optim.h>

#include "../support.h"

namespace halftone::test::hostile_sizes_test {
namespace {
constexpr int64_t huge = std::numeric_limits<int64_t>::max();
constexpr double infinity = std::numeric_limits<double>::infinity();
const double not_a_number = std::numeric_limits<double>::quiet_NaN();

/// "[op] ...", or "nothing" if nothing was thrown.
std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) { return error.what(); }
  return "nothing";
}
}  // namespace

TEST_CASE("hostile sizes: shapes") {
  const Tensor x = zeros({2, 3}), image = zeros({1, 1, 4, 4}), one = zeros({1});
  for (const int64_t size : {huge, huge - 7, huge / 2 + 1, huge / 4}) {
    CAPTURE(size);
    CHECK(refusal([&] { pad(x, {size, size}); }).starts_with("["));
    CHECK(refusal([&] { pad(x, {0, size}); }).starts_with("["));
    CHECK(refusal([&] { expand(one, {size, size}); }).starts_with("[shape]"));
    CHECK(refusal([&] { reshape(x, {size, size}); }).starts_with("["));
    CHECK(refusal([&] { reshape(x, {size}); }).starts_with("[reshape]"));
    CHECK(refusal([&] { empty({size}); }).starts_with("["));
    CHECK(refusal([&] { empty({size, size}); }).starts_with("[shape]"));
    CHECK(refusal([&] { randn({size}); }).starts_with("["));
    CHECK(refusal([&] {
            empty_channels_last({1, size, size, 1}, f32, {});
          }).starts_with("[shape]"));
    CHECK(refusal([&] { arange(size); }).starts_with("[arange]"));
    CHECK(refusal([&] { adaptive_avg_pool2d(image, {size, 1}); }).starts_with("["));
    CHECK(refusal([&] { interpolate(image, {.size = Pair(size, size)}); }).starts_with("["));
  }
  CHECK(
      refusal([&] {
        pad(x, {huge, 1});
      }) ==
      "[pad] padding [9223372036854775807, 1] for [2, 3] f32. Give pairs (before, after) from the "
      "last dimension backwards; negative ones cut away no more than there is.");
  CHECK(refusal([&] { expand(one, {huge}); }) ==
        "[expand] too many bytes for [9223372036854775807] f32. Use a smaller shape.");
  CHECK(refusal([&] {
          interpolate(image, {.scale_factor = Factors(1e300, 1)});
        }).starts_with("[interpolate] scale_factor 1e+300"));
  CHECK(refusal([&] {
          interpolate(image, {.scale_factor = Factors(infinity, 1)});
        }).starts_with("[interpolate] scale_factor inf"));
  // A step that is never taken may have any length.
  CHECK(slice(x, 1, 1, 3, huge).shape() == Shape{2, 1});
  CHECK(slice(x, 1, -huge - 1, huge).shape() == Shape{2, 3});
  const Tensor wide = expand(one, {huge / 8});
  CHECK(refusal([&] {
          cat({wide, wide, wide, wide, wide, wide, wide, wide, wide});
        }).starts_with("[cat] sizes of "));
}

TEST_CASE("hostile sizes: geometry of convolutions and pools") {
  const Tensor x = zeros({1, 1, 4, 4}), w = zeros({1, 1, 2, 2}), none{};
  for (const int64_t size : {huge, huge / 2 + 1}) {
    CAPTURE(size);
    CHECK(refusal([&] { conv2d(x, w, none, {.padding = size}); }).starts_with("["));
    CHECK(refusal([&] { conv2d(x, w, none, {.dilation = size}); }).starts_with("[conv2d]"));
    CHECK(refusal([&] { conv2d(x, w, none, {.groups = size}); }).starts_with("[conv2d]"));
    CHECK(refusal([&] {
            conv_transpose2d(x, w, none, {.stride = size});
          }).starts_with("[conv_transpose2d]"));
    CHECK(refusal([&] {
            conv_transpose2d(x, w, none, {.padding = size});
          }).starts_with("[conv_transpose2d]"));
    CHECK(refusal([&] { conv_transpose2d(x, w, none, {.dilation = size}); }).starts_with("["));
    CHECK(refusal([&] {
            conv_transpose2d(x, zeros({1, 3, 2, 2}), none, {.groups = size});
          }).starts_with("[conv_transpose2d]"));
    CHECK(refusal([&] { max_pool2d(x, {.kernel = size}); }).starts_with("[max_pool2d]"));
    CHECK(refusal([&] { avg_pool2d(x, {.kernel = size, .padding = size / 2}); }).starts_with("["));
    CHECK(refusal([&] {
            avg_pool2d(x, {.kernel = 2, .padding = size});
          }).starts_with("[avg_pool2d]"));
  }
  CHECK(refusal([&] { conv2d(x, w, none, {.stride = huge}); }).starts_with("[conv2d] stride"));
  constexpr int64_t largest = 2147483647;
  CHECK(refusal([&] {
          conv2d(x, w, none, {.dilation = largest});
        }).starts_with("[conv2d] the output would be"));
  const Tensor wide = expand(zeros({1, 1, 1, 1}), {1, 1, int64_t(1) << 40, int64_t(1) << 20});
  CHECK(refusal([&] {
          conv_transpose2d(wide, w, none, {.stride = largest});
        }).starts_with("[conv_transpose2d] sizes are beyond 64 bits with strides [2147483647"));
}

TEST_CASE("hostile sizes: a dimension is named once") {
  const Tensor x = ones({2, 3, 4});
  const auto twice = [](std::string_view op, const std::function<void()>& call) {
    CHECK(
        refusal(call).starts_with("[" + std::string(op) + "] dimension 1 is given twice in [1, "));
  };
  for (const int64_t again : {1, -2}) {
    const Dims dims{1, again};
    twice("sum", [&] { sum(x, dims); });
    twice("mean", [&] { mean(x, dims, true); });
    twice("var", [&] { var(x, dims); });
    twice("max", [&] { max(x, dims); });
    twice("min", [&] { min(x, dims); });
    twice("prod", [&] { prod(x, dims); });
    twice("norm", [&] { norm(x, dims); });
    CHECK(refusal([&] { permute(x, {1, again, 0}); }).starts_with("[permute]"));
  }
  CHECK(sum(x, {0, 2}).shape() == Shape{3});
  CHECK(sum(x, {-1, 0}, true).shape() == Shape{1, 3, 1});
  CHECK(sum(scalar(2), {0}).item() == 2);
}

TEST_CASE("hostile sizes: no gradients of f8") {
  for (const DType dtype : {f8_e4m3, f8_e5m2, i64, boolean}) {
    CAPTURE(dtype);
    Tensor x = zeros({2}, dtype);
    CHECK(refusal([&] {
            x.set_requires_grad(true);
          }).starts_with("[set_requires_grad] f64, f32, f16 and bf16 tensors have gradients"));
    CHECK_FALSE(x.requires_grad());
    x.set_requires_grad(false);
  }
}

TEST_CASE("hostile sizes: options of optimizers and schedules are finite") {
  const std::vector<Tensor> p{zeros({2}).set_requires_grad(true)};
  for (const double bad : {infinity, -infinity, not_a_number, -1.0}) {
    CAPTURE(bad);
    CHECK(refusal([&] { optim::Sgd(p, {.lr = bad}); }).starts_with("[Sgd] lr is "));
    CHECK(refusal([&] { optim::Sgd(p, {.momentum = bad}); }).starts_with("[Sgd] momentum"));
    CHECK(refusal([&] { optim::Sgd(p, {.weight_decay = bad}); }).starts_with("[Sgd] weight"));
    CHECK(refusal([&] { optim::Adam(p, {.lr = bad}); }).starts_with("[Adam] lr is "));
    CHECK(refusal([&] { optim::Adam(p, {.betas = {bad, 0.9}}); }).starts_with("[Adam] beta1"));
    CHECK(refusal([&] { optim::AdamW(p, {.lr = bad}); }).starts_with("[AdamW] lr is "));
    CHECK(refusal([&] { optim::AdamW(p, {.eps = bad}); }).starts_with("[AdamW] eps"));
    CHECK(refusal([&] { optim::AdamW(p, {.weight_decay = bad}); }).starts_with("[AdamW] weight"));
    CHECK(refusal([&] { optim::Rmsprop(p, {.lr = bad}); }).starts_with("[Rmsprop] lr is "));
    CHECK(refusal([&] { optim::Rmsprop(p, {.alpha = bad}); }).starts_with("[Rmsprop] alpha"));
    optim::AdamW adamw(p, {.lr = 0.5});
    CHECK(refusal([&] { adamw.set_lr(bad); }).starts_with("[AdamW] lr is "));
    CHECK(adamw.lr() == 0.5);
    using optim::LrSchedule;
    CHECK(refusal([&] { LrSchedule::constant(bad); }).starts_with("[LrSchedule.constant]"));
    CHECK(refusal([&] { LrSchedule::step_decay(3, bad); }).starts_with("[LrSchedule.step_decay]"));
    CHECK(refusal([&] { LrSchedule::linear(3, bad); }).starts_with("[LrSchedule.linear] last"));
    CHECK(refusal([&] { LrSchedule::cosine(3, bad); }).starts_with("[LrSchedule.cosine] last"));
    CHECK(
        refusal([&] { LrSchedule::multi_step({3}, bad); }).starts_with("[LrSchedule.multi_step]"));
    CHECK(refusal([&] { LrSchedule::exponential(bad); }).starts_with("[LrSchedule.exponential]"));
    CHECK(refusal([&] { LrSchedule::polynomial(3, bad); }).starts_with("[LrSchedule.polynomial]"));
    CHECK(refusal([&] {
            LrSchedule::cosine_restarts(3, 1, bad);
          }).starts_with("[LrSchedule.cosine_restarts]"));
    CHECK(
        refusal([&] { LrSchedule::one_cycle(9, 0.3, bad); }).starts_with("[LrSchedule.one_cycle]"));
    const LrSchedule own([&](int64_t step) { return step == 1 ? bad : 1; });
    optim::LrScheduler scheduler(adamw, own);
    CHECK(refusal([&] { scheduler.step(); }).starts_with("[LrScheduler] the factor at step 1 is "));
    CHECK(adamw.lr() == 0.5);
  }
  CHECK(
      refusal([&] { optim::Sgd(p, {.dampening = not_a_number}); }).starts_with("[Sgd] dampening"));
}

namespace {
/// Returns this size, but has no samples.
struct Pretender final : data::Dataset {
  int64_t samples;
  explicit Pretender(int64_t n) : samples(n) {}
  int64_t size() const override { return samples; }
  data::Batch batch(std::span<const int64_t> indices) const override {
    return {zeros({int64_t(indices.size())}), zeros({int64_t(indices.size())})};
  }
};
}  // namespace

TEST_CASE("hostile sizes: loaders") {
  const data::TensorDataset four(zeros({4, 1}), zeros({4}));
  CHECK(refusal([&] { data::DataLoader(four, {.prefetch = INT_MAX}); }) ==
        "[DataLoader] prefetch is 2147483647. Use 0 for no thread, or a number of batches up "
        "to 65536.");
  int64_t batches = 0;
  for (const auto& batch : data::DataLoader(four, {.workers = 1024, .prefetch = 65536}))
    batches += batch.inputs.size(0);
  CHECK(batches == 4);
  const std::string negative =
      "[DataLoader] the dataset says that it has -3 samples. Let size() return 0 or more.";
  data::DataLoader loader{Pretender(-3)};
  CHECK(refusal([&] { loader.size(); }) == negative);
  CHECK(refusal([&] { loader.begin(); }) == negative);
  CHECK(refusal([&] { loader.resume(0, 0); }) == negative);
  CHECK(refusal([] {
          data::DataLoader(Pretender(huge)).begin();
        }).starts_with("[DataLoader] there is no memory for the order of "));
  CHECK(refusal([] {
          data::DataLoader(Pretender(huge), {.batch_size = huge}).begin();
        }).starts_with("[DataLoader] there is no memory"));
}

TEST_CASE("hostile sizes: images") {
  const Tensor image = zeros({2, 2, 3}, u8);
  for (const int64_t size : {huge, int64_t(1) << 31, int64_t(-1)}) {
    CAPTURE(size);
    CHECK(refusal([&] { data::resize_image(image, size, size); }).starts_with("["));
    CHECK(refusal([&] { data::crop_image(image, 0, 0, size, size); }).starts_with("["));
  }
  for (const int64_t at : {huge, -huge}) {
    CAPTURE(at);
    const std::string result = refusal([&] { data::crop_image(image, at, at, 2, 2); });
    CHECK((result == "nothing" || result.starts_with("[")));
  }
}

}  // namespace halftone::test::hostile_sizes_test
