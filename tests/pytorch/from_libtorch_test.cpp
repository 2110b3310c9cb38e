// The ports of docs/from_libtorch.md, whose blocks are pieces of this file
// (tests/style/page_is_the_lesson.sh). libtorch 2.15 printed the losses, in one thread, for the
// programs that the page has, from the same weights and inputs.
#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <vector>

#include <halftone/halftone.h>

#include "support.h"

namespace halftone::test::from_libtorch_test {
namespace {

namespace ht = halftone;
using ht::Tensor;

struct Net final : ht::nn::Layer {
  ht::nn::Linear first{8, 32}, last{32, 4};
  Tensor forward(const Tensor& x) const override { return last(ht::relu(first(x))); }
  void describe(ht::nn::Fields& field) override { field("first", first), field("last", last); }
};

Tensor pattern(const ht::Shape& shape) {
  return ht::reshape(ht::cast(ht::arange(ht::numel_of(shape)) * 37 % 101 - 50, ht::f32) / 250,
                     shape);
}
void fill(const ht::nn::Module& model) {
  for (const Tensor& p : model.parameters()) ht::copy_into(p, pattern(p.shape()));
}

struct Example {
  Tensor x = pattern({64, 8}) * 8, labels = ht::argmax(ht::slice(x, 1, 0, 4), 1);
  Net model;
  std::vector<double> losses{};
  Example() { fill(model); }
  void add(const Tensor& loss) { losses.push_back(loss.item()); }
  /// Compares the first, the tenth and the last loss with libtorch's.
  void check(const std::array<double, 3>& libtorch, DType dtype) const {
    const double limit = dtype == f32 ? 16 * epsilon(f32) : epsilon(dtype) / 4;
    CHECK(std::abs(losses.front() - libtorch[0]) <= limit);
    CHECK(std::abs(losses.at(9) - libtorch[1]) <= limit);
    CHECK(std::abs(losses.back() - libtorch[2]) <= limit);
  }
  /// From now on rounds the gradients of the weights, as the casts of libtorch's autocast do.
  void round_gradients(DType dtype) const {
    for (const Tensor& p : model.parameters())
      register_hook(p, [=](const Tensor& dy) { return ht::cast(ht::cast(dy, dtype), ht::f32); });
  }
};

TEST_CASE("from libtorch: tensors") {
  const Tensor a = ht::reshape(ht::arange(0., 6.), {2, 3});
  const Tensor b = ht::full({3}, 0.5);
  const Tensor c = ht::matmul(a * 2 + b, ht::transpose(a, 0, 1));
  const Tensor middle = ht::slice(c, 1, 1, 2), largest = ht::max(c, {1});

  CHECK(c.sum().item() == 181);
  CHECK(middle.mean().item() == 70);
  CHECK(largest.to_vector<float>() == std::vector{34.f, 106.f});
}

TEST_CASE("from libtorch: gradients") {
  Tensor w = ht::from({1., 2., 3.});
  w.set_requires_grad();
  ((w * w).sum() + w.prod()).backward();
  const Tensor z = (w * w * w).sum();
  const Tensor dz = ht::autograd::grad(z, std::vector{w}, {.create_graph = true})[0];
  const Tensor second = ht::autograd::grad(dz.sum(), std::vector{w})[0];

  CHECK(w.grad().to_vector<float>() == std::vector{8.f, 7.f, 8.f});
  CHECK(second.to_vector<float>() == std::vector{6.f, 12.f, 18.f});
}

TEST_CASE_FIXTURE(Example, "from libtorch: a module and a loop") {
  ht::optim::Sgd sgd(model.parameters(), {.lr = 0.1, .momentum = 0.9});
  for (int step = 0; step < 20; ++step) {
    sgd.zero_grad();
    const Tensor loss = ht::cross_entropy(model(x), labels);
    loss.backward();
    sgd.step();
    add(loss);
  }
  check({1.44179523, 0.193648666, 0.00220696232}, f32);
}

TEST_CASE_FIXTURE(Example, "from libtorch: a loader") {
  ht::optim::Sgd sgd(model.parameters(), {.lr = 0.1});
  const ht::data::DataLoader loader(ht::data::TensorDataset(x, labels), {.batch_size = 16});
  for (int epoch = 0; epoch < 3; ++epoch)
    for (auto [inputs, targets] : loader) {
      sgd.zero_grad();
      const Tensor loss = ht::cross_entropy(model(inputs), targets);
      loss.backward();
      sgd.step();
      add(loss);
    }
  check({1.40085673, 0.899801791, 0.785356522}, f32);
}

TEST_CASE_FIXTURE(Example, "from libtorch: autocast") {
  round_gradients(bf16);
  ht::optim::Sgd sgd(model.parameters(), {.lr = 0.1});
  for (int step = 0; step < 20; ++step) {
    sgd.zero_grad();
    const Tensor loss =
        ht::amp::autocast(ht::bf16, [&] { return ht::cross_entropy(model(x), labels); });
    loss.backward();
    sgd.step();
    add(loss);
  }
  check({1.44200099, 0.870848298, 0.477801979}, bf16);
}

TEST_CASE_FIXTURE(Example, "from libtorch: a loss scale") {
  round_gradients(f16);
  std::vector<double> scales;
  ht::optim::Sgd sgd(model.parameters(), {.lr = 0.1});
  ht::amp::GradScaler scaler({.init_scale = 16777216, .growth_interval = 4});
  for (int step = 0; step < 20; ++step) {
    sgd.zero_grad();
    const Tensor loss =
        ht::amp::autocast(ht::f16, [&] { return ht::cross_entropy(model(x), labels); });
    scaler.scale(loss).backward();
    scaler.step(sgd);
    scaler.update();
    add(loss), scales.push_back(std::log2(scaler.scale_value()));
  }
  check({1.44181454, 1.21845186, 0.774062097}, f16);
  CHECK(scales == std::vector<double>{23, 22, 21, 20, 19, 18, 18, 18, 18, 19,
                                      18, 18, 18, 18, 19, 18, 18, 18, 18, 19});
}

TEST_CASE_FIXTURE(Example, "from libtorch: AdamW, clipping, a schedule") {
  ht::optim::AdamW adamw(model.parameters(), {.lr = 0.01, .weight_decay = 0.1});
  ht::optim::LrScheduler schedule(adamw, ht::optim::LrSchedule::step_decay(5, 0.5));
  for (int step = 0; step < 20; ++step) {
    adamw.zero_grad();
    const Tensor loss = ht::cross_entropy(model(x), labels);
    loss.backward();
    const Tensor norm = ht::optim::clip_grad_norm(model.parameters(), 0.5);
    adamw.step();
    schedule.step();
    add(loss);
    if (step == 0) CHECK(std::abs(norm.item() - 0.904812515) <= 16 * epsilon(f32));
  }
  check({1.44179523, 0.700352073, 0.513413012}, f32);
}

TEST_CASE_FIXTURE(Example, "from libtorch: save, load, evaluate") {
  const TemporaryDirectory folder;
  const auto path = folder / "net.safetensors";
  const auto make = [] {
    return ht::nn::Sequential{ht::nn::Linear(8, 32), ht::nn::BatchNorm1d(32), ht::nn::Relu(),
                              ht::nn::Dropout(0.5), ht::nn::Linear(32, 4)};
  };
  auto saved = make();
  fill(saved);
  {
    const ht::NoGrad no_grad;
    saved(x);  // moves the running statistics
  }
  ht::nn::save(saved, path);
  auto loaded = make();
  ht::nn::load(loaded, path);
  const ht::train::Evaluation evaluation(loaded);  // eval() and no gradients, until the scope ends
  const Tensor y = loaded(x);
  const Tensor right = (ht::argmax(y, 1) == labels).sum();

  CHECK(std::abs(ht::cross_entropy(y, labels).item() - 1.42761707) <= 16 * epsilon(f32));
  CHECK(right.item() == 7);
}

TEST_CASE_FIXTURE(Example, "from libtorch: bf16 weights with masters") {
  ht::optim::Sgd sgd(model.parameters(), {.lr = 0.1});
  auto training = ht::amp::apply(ht::amp::Policy::named("o2-bf16"), model, sgd);
  for (int step = 0; step < 20; ++step) {
    training.zero_grad();
    const Tensor loss = ht::cross_entropy(training.forward(model, x), labels);
    training.backward(loss);
    training.step();
    add(loss);
  }
  check({1.44200099, 0.870848298, 0.477801979}, bf16);
}

}  // namespace
}  // namespace halftone::test::from_libtorch_test
