// Training on a GPU: the losses of the CPU under every strategy, its bytes, and no waits.
#include <halftone/halftone.h>

#include "../train/trainer_cases.h"
#include "device_cases.h"

namespace halftone::test::training_test {
namespace {

/// The two runs differ by rounding, which each step passes on to the next.
double tolerance_of(const std::string& strategy) {
  if (strategy == "fp32") return 2e-4;
  return strategy.find("bf16") != std::string::npos ? 4 * epsilon(bf16) : 8 * epsilon(f16);
}

void check_losses(const std::string& kind, const std::string& strategy, Device gpu, int steps) {
  INFO(kind, ", ", strategy);
  const std::vector<double> here = DeviceCase(kind, strategy, Device::cpu()).losses(steps),
                            there = DeviceCase(kind, strategy, gpu).losses(steps);
  for (std::size_t i = 0; i < here.size(); ++i)
    CHECK(there[i] == doctest::Approx(here[i]).epsilon(tolerance_of(strategy)));
}

TEST_CASE("losses on the GPU are those on the CPU, under every strategy") {
  const auto gpu = gpu_or_skip();
  if (!gpu) return;
  for (const std::string_view strategy : amp::Policy::names())
    check_losses("mlp", std::string(strategy), *gpu, 5);
}

TEST_CASE("every kind of model trains on the GPU as on the CPU") {
  const auto gpu = gpu_or_skip();
  if (!gpu) return;
  for (const char* strategy : {"fp32", "amp-bf16", "amp-fp16"}) {
    check_losses("lenet", strategy, *gpu, 2);
    check_losses("gpt", strategy, *gpu, 3);
  }
  check_losses("resnet", "fp32", *gpu, 2);
}

TEST_CASE("the ledger of the GPU has the bytes of the CPU's, use by use") {
  const auto gpu = gpu_or_skip();
  if (!gpu) return;
  using Use = MemoryUse;
  for (const char* strategy : {"fp32", "amp-bf16", "o2-bf16", "full-bf16", "split-bf16"}) {
    INFO(std::string(strategy));
    const auto at_rest = [&](Device device) {
      DeviceCase run("lenet", strategy, device);
      run.losses(2);
      const MemoryReport report = memory_report(device);
      std::vector<int64_t> bytes;
      for (const Use use : {Use::parameter, Use::master_weight, Use::compensation, Use::gradient})
        bytes.push_back(report.now_of(use));
      return bytes;
    };
    CHECK(at_rest(*gpu) == at_rest(Device::cpu()));
  }
  CHECK(memory_report(*gpu).total_now == 0);
}

TEST_CASE("a hundred steps with loss scaling and clipping do not wait for the device once") {
  const auto gpu = gpu_or_skip();
  if (!gpu) return;
  DeviceCase run("gpt", "amp-fp16", *gpu);
  run.losses(2, true);
  Backend& backend = backend_for(*gpu);
  const int64_t before = backend.waits();
  for (int i = 0; i < 100; ++i) run.step(true);
  CHECK(backend.waits() == before);
  CHECK(std::isfinite(run.step(true).item()));
  CHECK(backend.waits() > before);
}

TEST_CASE("an overflow on the GPU skips the step and lowers the scale, as on the CPU") {
  const auto gpu = gpu_or_skip();
  if (!gpu) return;
  for (const Device device : {Device::cpu(), *gpu}) {
    CAPTURE(device.kind == DeviceKind::cuda);
    DeviceCase run("mlp", "amp-fp16", device);
    run.step();
    const double scale = run.training->scaler().scale_value();
    const optim::NamedTensors before = [&] {
      optim::NamedTensors copy;
      for (const auto& [name, x] : run.model->named_parameters()) copy[name] = x.clone();
      return copy;
    }();
    run.inputs = run.inputs * 1e30;  // infinite in f16
    run.step();
    CHECK(run.training->skipped_steps() == 1);
    CHECK(run.training->scaler().scale_value() == scale / 2);
    for (const auto& [name, x] : run.model->named_parameters())
      CHECK(equal_bits(x, before.at(name)));
  }
}

TEST_CASE("a state saved on the GPU continues on the CPU") {
  const auto gpu = gpu_or_skip();
  if (!gpu) return;
  DeviceCase there("mlp", "o2-bf16", *gpu), here("mlp", "o2-bf16", Device::cpu());
  there.losses(3);
  here.training->load_state_dict(there.training->state_dict());
  const double next = there.losses(1)[0];
  CHECK(here.losses(1)[0] == doctest::Approx(next).epsilon(tolerance_of("o2-bf16")));
}

TEST_CASE("a loader delivers its batches to the GPU") {
  const auto gpu = gpu_or_skip();
  if (!gpu) return;
  const data::TensorDataset numbers(arange(100), arange(100));
  int64_t sum_of_all = 0;
  for (auto [inputs, targets] : data::DataLoader(numbers, {.batch_size = 32, .device = *gpu})) {
    CHECK(inputs.device() == *gpu);
    for (const int64_t x : inputs.to_vector<int64_t>()) sum_of_all += x;
  }
  CHECK(sum_of_all == 4950);
}

}  // namespace
}  // namespace halftone::test::training_test

// A Trainer on a GPU: the bits of the loop by hand, no wait in a step, and a resumed run.

namespace halftone::test::trainer_test {
namespace {

using train::Trainer;
using train::TrainerOptions;

optim::NamedTensors on_host(const optim::NamedTensors& state) {
  optim::NamedTensors copy;
  for (const auto& [name, x] : state) copy[name] = x.clone().to(Device::cpu());
  return copy;
}

struct OnDevice {
  TrainerCase parts{};
  data::DataLoader loader;
  explicit OnDevice(Device device)
      : loader(trainer_loader({.batch_size = 16, .shuffle = true, .seed = 3, .device = device})) {
    parts.model.to(device);
  }
  optim::NamedTensors fit(TrainerOptions options, data::DataLoader validation) {
    Trainer trainer(parts.task(), parts.adamw, quiet(std::move(options)));
    trainer.fit(loader, std::move(validation));
    return on_host(trainer.training().state_dict());
  }
};

TEST_CASE("a Trainer on the GPU has the bits of the loop by hand there, resumed or not") {
  const auto gpu = test::gpu_or_skip();
  if (!gpu) return;
  for (const char* name : {"fp32", "amp-fp16", "o2-bf16"}) {
    CAPTURE(name);
    OnDevice hand(*gpu);
    amp::Training training =
        amp::apply(amp::Policy::named(name), hand.parts.model, hand.parts.adamw);
    optim::LrScheduler scheduler(training.optimizer(), optim::LrSchedule::cosine(10));
    for (int epoch = 0; epoch < 2; ++epoch)
      for (auto [inputs, labels] : hand.loader) {
        training.zero_grad();
        training.backward(cross_entropy(training.forward(hand.parts.model, inputs), labels));
        training.clip_grad_norm(0.5);
        if (training.step()) scheduler.step();
      }
    const auto expected = on_host(training.state_dict());
    const TemporaryDirectory directory;
    const auto options = [&](int64_t steps) {
      return TrainerOptions{.precision = name,
                            .max_steps = steps,
                            .clip_norm = 0.5,
                            .schedule = [](int64_t) { return optim::LrSchedule::cosine(10); },
                            .directory = directory.path(),
                            .resume = true};
    };
    OnDevice first(*gpu), second(*gpu);
    first.fit(options(7), first.loader);
    CHECK(same_state(second.fit(options(10), second.loader), expected));
  }
}

TEST_CASE("a Trainer's steps do not wait for the GPU, only its logging does") {
  const auto gpu = test::gpu_or_skip();
  if (!gpu) return;
  const Backend& backend = backend_for(*gpu);
  const auto hooks = std::make_shared<Hooks>();
  std::vector<int64_t> waits;
  hooks->step_end = [&](Trainer&) { waits.push_back(backend.waits()); };
  OnDevice run(*gpu);
  Trainer trainer(run.parts.task(), run.parts.adamw,
                  quiet({.precision = "16-mixed",
                         .max_steps = 16,  // an epoch has 18
                         .accumulate_batches = 2,
                         .clip_norm = 1,
                         .log_every_steps = 16,
                         .callbacks = {hooks}}));
  trainer.fit(run.loader.with_options({.batch_size = 2, .workers = 0, .device = *gpu}));
  REQUIRE(waits.size() == 16);
  for (std::size_t i = 2; i + 1 < waits.size(); ++i) CHECK(waits[i] == waits[1]);
  CHECK(waits[15] > waits[14]);
}

}  // namespace
}  // namespace halftone::test::trainer_test

// Products of short floats whose rows are not aligned. Large ones are copied into aligned matrices.
// A bias is added to an f32 sum where a library would round the product first.

namespace halftone::test {
namespace {

struct Passes {
  std::vector<float> y, dx, dweight, dbias;
};

Passes passes_of(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& dy,
                 Device device) {
  const auto leaf = [&](const Tensor& t) {
    Tensor copy = t.clone().to(device);
    return copy.set_requires_grad();
  };
  const Tensor in = leaf(x), w = leaf(weight), b = bias.defined() ? leaf(bias) : bias;
  const Tensor y = linear(in, w, b);
  y.backward(dy.to(device));
  return {y.to_vector<float>(), in.grad().to_vector<float>(), w.grad().to_vector<float>(),
          b.defined() ? b.grad().to_vector<float>() : std::vector<float>{}};
}

/// terms: products of random numbers in a sum. Results that are rounded once differ by at most a
/// unit of their last place, and by the errors of f32 sums.
void check_alike(const std::vector<float>& there, const std::vector<float>& here, DType dtype,
                 int64_t terms) {
  REQUIRE(there.size() == here.size());
  const double sums = double(terms) * epsilon(f32);
  int64_t wrong = 0;
  for (std::size_t i = 0; i < here.size(); ++i)
    wrong += !(std::abs(there[i] - here[i]) <= std::abs(here[i]) * epsilon(dtype) + sums);
  CHECK(wrong == 0);
}

TEST_CASE("a linear layer of odd sizes on the GPU rounds each result once") {
  const auto gpu = gpu_or_skip();
  if (!gpu) return;
  struct Sizes {
    int64_t rows, inputs, outputs;
  };
  // The second has enough products to be copied.
  for (const auto& [rows, inputs, outputs] : {Sizes{31, 70, 13}, Sizes{299, 515, 437}})
    for (const DType dtype : {bf16, f16})
      for (const bool has_bias : {false, true}) {
        if (rows > 100 && has_bias == (dtype == f16)) continue;  // half of them, for time
        INFO(rows, " x ", inputs, " x ", outputs, ", ", std::string(name(dtype)),
             std::string(has_bias ? ", with a bias" : ""));
        manual_seed(5);
        const Tensor x = randn({rows, inputs}).to(dtype), w = randn({outputs, inputs}).to(dtype),
                     dy = randn({rows, outputs}).to(dtype),
                     b = has_bias ? randn({outputs}).to(dtype) : Tensor{};
        const Passes here = passes_of(x, w, b, dy, Device::cpu()),
                     there = passes_of(x, w, b, dy, *gpu);
        check_alike(there.y, here.y, dtype, inputs);
        check_alike(there.dx, here.dx, dtype, outputs);
        check_alike(there.dweight, here.dweight, dtype, rows);
        check_alike(there.dbias, here.dbias, dtype, rows);
      }
}

TEST_CASE("a convolution of single pixels with odd channels on the GPU rounds each result once") {
  const auto gpu = gpu_or_skip();
  if (!gpu) return;
  for (const int64_t inputs : {3, 64})
    for (const DType dtype : {bf16, f16}) {
      INFO(inputs, " channels, ", std::string(name(dtype)));
      manual_seed(6);
      const Tensor x = randn({4, inputs, 8, 8}).to(dtype), w = randn({33, inputs, 1, 1}).to(dtype),
                   b = randn({33}).to(dtype);
      check_alike(conv2d(x.to(*gpu), w.to(*gpu), b.to(*gpu)).to_vector<float>(),
                  conv2d(x, w, b).to_vector<float>(), dtype, inputs);
    }
}

}  // namespace
}  // namespace halftone::test

// Tensors between host and GPU: same bytes, any layout, any size, and clear errors.

namespace halftone::test::transfer_test {
namespace {

std::vector<double> counted(int64_t n) {
  std::vector<double> values(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = double(i % 251) - 125;
  return values;
}

TEST_CASE("a tensor comes back from the GPU unchanged, in every dtype") {
  const auto gpu = gpu_or_skip();
  if (!gpu) return;
  for (int d = 0; d < dtype_count; ++d)
    for (const int64_t n : {0, 1, 7, 1000}) {
      const auto dtype = DType(d);
      INFO(std::string(name(dtype)), ", ", n);
      const Tensor x = from_vector(counted(n), {n}, dtype);
      CHECK(x.to(*gpu).to(Device::cpu()).to_vector<double>() == x.to_vector<double>());
    }
}

TEST_CASE("copies larger than a page-locked buffer arrive whole, and the source is free at once") {
  const auto gpu = gpu_or_skip();
  if (!gpu) return;
  const int64_t n = (int64_t(9) << 20) + 13;  // 36 MiB of f32: more than a buffer
  Tensor x = ones({n});
  const Tensor y = x.to(*gpu);
  backend_for(x).fill(2, x);  // must not show in y
  CHECK(sum(cast(y, f64)).item() == double(n));
}

TEST_CASE("views keep their layout in a copy") {
  const auto gpu = gpu_or_skip();
  if (!gpu) return;
  const Tensor x = from_vector(counted(120), {2, 3, 4, 5}, f32);
  const Tensor views[] = {views::permute(x, {3, 1, 0, 2}), views::channels_last(x),
                          views::slice(x, 3, 1, 2, 2),
                          views::expand(views::slice(x, 0, 0, 1), x.shape())};
  for (const Tensor& v : views) {
    const Tensor there = v.to(*gpu);
    CHECK(there.shape() == v.shape());
    CHECK(there.to_vector<float>() == v.to_vector<float>());
    if (v.is_dense()) CHECK(there.strides() == v.strides());
  }
}

TEST_CASE("tensors on two devices are refused by name") {
  const auto gpu = gpu_or_skip();
  if (!gpu) return;
  const Tensor a = ones({2, 3}), b = ones({2, 3}, f32, *gpu);
  CHECK_THROWS_WITH_AS(add(a, b), doctest::Contains("[add]"), DeviceError);
  CHECK_THROWS_WITH_AS(add(a, b), doctest::Contains("cuda:0"), DeviceError);
  const Tensor logits = zeros({2, 3}, f32, *gpu), targets = from({1, 2}, i64, *gpu);
  CHECK_THROWS_WITH_AS(cross_entropy(logits, targets, {.weight = ones({3})}),
                       "[cross_entropy] the input is on cuda:0, the class weight on cpu. Move them "
                       "to one device with to().",
                       DeviceError);
  CHECK_THROWS_WITH_AS(nll_loss(zeros({2, 3}), from({1, 2}, i64), {.weight = ones({3}, f32, *gpu)}),
                       "[nll_loss] the input is on cpu, the class weight on cuda:0. Move them to "
                       "one device with to().",
                       DeviceError);
  CHECK_THROWS_WITH_AS(batch_norm(ones({4, 3}, f32, *gpu), {}, {}, zeros({3}), ones({3})),
                       "[batch_norm] the input is on cuda:0, running_mean on cpu. Move them to one "
                       "device with to().",
                       DeviceError);
}

TEST_CASE("a GPU that does not exist is an error that says how many there are") {
  const auto gpu = gpu_or_skip();
  if (!gpu) return;
  CHECK_THROWS_WITH_AS(ones({2}, f32, Device::cuda(97)), doctest::Contains("there is no device 97"),
                       DeviceError);
}

TEST_CASE("an index that is out of range is reported at the next wait, and nothing is read there") {
  const auto gpu = gpu_or_skip();
  if (!gpu) return;
  const Tensor table = ones({4, 3}, f32, *gpu), bad = from({1, 9}, i64, *gpu);
  const Tensor rows = embedding(bad, table);
  CHECK_THROWS_WITH_AS(rows.to_vector<float>(),
                       doctest::Contains("index 9 is out of range for a table of 4 rows"),
                       UsageError);
  CHECK(ones({2}, f32, *gpu).to_vector<float>() == std::vector<float>{1, 1});  // no error left
  const Tensor logits = zeros({2, 5}, f32, *gpu), targets = from({1, -7}, i64, *gpu);
  CHECK_THROWS_WITH_AS(cross_entropy(logits, targets).item(),
                       doctest::Contains("target -7 is out of range for 5 classes"), UsageError);
}

TEST_CASE("without a GPU, asking for one says why there is none") {
  for (const BackendStatus& status : backend_statuses())
    if (status.name == "cuda" && status.backend) return;
  CHECK_THROWS_WITH_AS(ones({2}, f32, Device::cuda()),
                       doctest::Contains("[device] there is no GPU to use: "), DeviceError);
}

TEST_CASE("devices have names") {
  CHECK(device_named("cpu") == Device::cpu());
  CHECK(device_named("cuda") == Device::cuda(0));
  CHECK(device_named("cuda:3") == Device::cuda(3));
  for (const char* wrong : {"", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1 "})
    CHECK_THROWS_WITH_AS(device_named(wrong), doctest::Contains("Use cpu, cuda"), UsageError);
}

}  // namespace
}  // namespace halftone::test::transfer_test
