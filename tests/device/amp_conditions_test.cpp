// Conditions of autocast and of the loss scale that matter only with a GPU: dtypes per device, and
// what must be copied between devices if an optimizer has parameters on both.
#include <limits>

#include <halftone/amp/grad_scaler.h>
#include <halftone/core/captured_step.h>

#include "device_cases.h"

namespace halftone::test::amp_conditions_test {
namespace {

using amp::Autocast;
using amp::GradScaler;
using amp::Region;

constexpr double infinity = std::numeric_limits<double>::infinity();

Tensor leaf(Device device) { return ones({2}, f32, device).set_requires_grad(); }

TEST_CASE("a region has a dtype for each kind of device, and one for both if it names one") {
  const auto gpu = gpu_or_skip();
  if (!gpu) return;
  const Tensor here = ones({2, 2}), there = ones({2, 2}, f32, *gpu);
  const auto check = [&](const Region& region, std::optional<DType> cpu,
                         std::optional<DType> cuda) {
    const Autocast scope(region);
    CHECK(amp::autocast_dtype() == cpu);
    CHECK(amp::autocast_dtype(*gpu) == cuda);
    CHECK(matmul(here, here).dtype() == cpu.value_or(f32));
    CHECK(matmul(there, there).dtype() == cuda.value_or(f32));
  };
  check({.dtype = bf16, .cuda_dtype = f16}, bf16, f16);
  check({.dtype = bf16}, bf16, bf16);
  check({.dtype = std::nullopt, .cuda_dtype = f16}, std::nullopt, f16);
}

/// One parameter on each device, in both orders, and losses of them at a scale of 8.
struct Divided {
  Tensor here = leaf(Device::cpu()), there;
  optim::Sgd sgd;
  GradScaler scaler{{.init_scale = 8}, {.losses = 2}};
  Divided(Device gpu, bool gpu_first)
      : there(leaf(gpu)),
        sgd(gpu_first ? std::vector{there, here} : std::vector{here, there}, 0.5) {}
  void backward(double of_here, double of_there) {
    here.set_grad({}), there.set_grad({});
    scaler.scale(sum(here) * of_here, 0).backward();
    scaler.scale(sum(there) * of_there, 1).backward();
  }
};

TEST_CASE("an optimizer with parameters on two devices is checked and scaled on both") {
  const auto gpu = gpu_or_skip();
  if (!gpu) return;
  for (const bool gpu_first : {false, true})
    for (const bool unscales : {false, true}) {
      CAPTURE(gpu_first);
      CAPTURE(unscales);
      Divided run(*gpu, gpu_first);
      const auto step = [&](double of_here, double of_there) {
        run.backward(of_here, of_there);
        if (unscales) run.scaler.unscale(run.sgd);
        const bool stepped = run.scaler.step(run.sgd);
        const auto first = run.scaler.first_overflow(run.sgd);
        CHECK(first.has_value() == !stepped);
        if (first) CHECK(*first == std::size_t((of_here == infinity) == gpu_first));
        run.scaler.update();
        return stepped;
      };
      CHECK_FALSE(step(infinity, 1));
      CHECK_FALSE(step(1, infinity));
      CHECK(run.scaler.scale_value() == 2);
      CHECK(step(2, 4));
      CHECK(run.here.at({0}) == 0);
      CHECK(run.there.at({0}) == -1);
    }
}

TEST_CASE("losses on two devices are collected into one step, and each has its own overflow") {
  const auto gpu = gpu_or_skip();
  if (!gpu) return;
  for (const bool gpu_first : {false, true}) {
    Divided run(*gpu, gpu_first);
    const auto step = [&](double of_here, double of_there) {
      run.scaler.scale(sum(run.here) * of_here, 0).backward();
      run.scaler.collect(run.sgd, 0);
      run.scaler.scale(sum(run.there) * of_there, 1).backward();
      run.scaler.collect(run.sgd, 1);
      const bool stepped = run.scaler.step(run.sgd);
      run.scaler.update();
      run.sgd.zero_grad();
      return stepped;
    };
    CHECK_FALSE(step(infinity, 1));
    CHECK(run.scaler.scale_value(0) == 4);
    CHECK(run.scaler.scale_value(1) == 8);
    CHECK_FALSE(step(1, infinity));
    CHECK(run.scaler.scale_value(0) == 4);
    CHECK(run.scaler.scale_value(1) == 4);
    CHECK(step(2, 4));
    CHECK(run.here.at({0}) == 0);
    CHECK(run.there.at({0}) == -1);
  }
}

TEST_CASE("an overflow that is reported on one device reaches losses whose scale is on another") {
  const auto gpu = gpu_or_skip();
  if (!gpu) return;
  for (const bool reported_there : {false, true}) {
    Divided run(*gpu, false);
    Tensor other = leaf(Device::cpu());
    optim::Sgd plain({other}, 0.5);
    run.backward(1, 1);
    run.scaler.collect(run.sgd, 0);
    run.scaler.report(plain, ones({}, f32, reported_there ? *gpu : Device::cpu()));
    run.scaler.update();
    CHECK(run.scaler.scale_value(0) == 4);
    CHECK(run.scaler.scale_value(1) == 4);
  }
}

TEST_CASE("gradients on the GPU: no result is known or read before it is asked for") {
  const auto gpu = gpu_or_skip();
  if (!gpu) return;
  Tensor w = leaf(*gpu);
  optim::Sgd sgd({w}, 0.5);
  GradScaler scaler({.init_scale = 8});
  scaler.scale(sum(w) * infinity).backward();
  const int64_t before = backend_for(*gpu).waits();
  scaler.unscale(sgd);
  const amp::Stepped stepped = scaler.step(sgd);
  CHECK(stepped.skip().device() == *gpu);
  CHECK(backend_for(*gpu).waits() == before);
  CHECK_FALSE(stepped);
  const std::vector<Tensor> gradients{w.grad()};
  const int64_t looked = backend_for(*gpu).waits();
  CHECK(amp::first_not_finite(gradients) == 0);
  CHECK(backend_for(*gpu).waits() > looked);  // the flag is on the device of the gradients
}

TEST_CASE(
    "the scale's state moves to the GPU as a whole, as workspace, and its value is read there") {
  const auto gpu = gpu_or_skip();
  if (!gpu) return;
  const auto bytes = [&] { return memory_report(*gpu).now_of(MemoryUse::workspace); };
  const int64_t before = bytes(), before_total = memory_report(*gpu).total_now;
  amp::DeviceLossScale scale({.init_scale = 8, .growth_interval = 1});
  CHECK(scale.present().device() == Device::cpu());
  scale.move_to(*gpu);
  CHECK(bytes() == before + 4 + 8 + 4);
  CHECK(memory_report(*gpu).total_now == before_total + 4 + 8 + 4);
  CHECK(scale.present().device() == *gpu);
  CHECK(scale.present().item() == 8);
  scale.next(zeros({}));  // found on the CPU
  CHECK(scale.present().item() == 16);
  scale.next(ones({}, f32, *gpu));
  CHECK(scale.read().scale == 8);
  CHECK(scale.read().growth_tracker == 0);
}

TEST_CASE("a returned scale does not change, also with a captured step that reads the scale") {
  const auto gpu = gpu_or_skip();
  if (!gpu) return;
  amp::DeviceLossScale scale({.init_scale = 8});
  scale.move_to(*gpu);
  CapturedStep step([&](const std::vector<Tensor>& in) { return in[0] * scale.present(); });
  const Tensor x = full({}, 3, f32, *gpu);
  for (int i = 0; i < 4; ++i) CHECK(step({x}).item() == 24);
  CHECK(step.captured());
  const Tensor handed_out = scale.present();
  scale.set(2);
  CHECK(step({x}).item() == 6);
  CHECK(handed_out.item() == 8);
  CHECK(scale.present().item() == 2);
}

TEST_CASE("gradients made under a scale on the CPU are converted to one on the GPU") {
  const auto gpu = gpu_or_skip();
  if (!gpu) return;
  Tensor w = leaf(*gpu);
  optim::Sgd sgd({w}, 0.5);
  GradScaler scaler({.init_scale = 8});
  scaler.scale(sum(w)).backward();
  scaler.rescale(sgd, full({}, 2));
  CHECK(w.grad().at({0}) == 8 * 8 / 2);
}

}  // namespace
}  // namespace halftone::test::amp_conditions_test
