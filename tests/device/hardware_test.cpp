// Products of f8 numbers by the GPU itself have the bits of the emulated ones with its sums.
#include <array>
#include <optional>
#include <string>
#include <vector>

#include <halftone/halftone.h>
#include <halftone/amp/policy_reader.h>
#include <halftone/amp/probe.h>
#include <halftone/core/pending.h>

#include "../policy/policy_cases.h"
#include "device_cases.h"

namespace halftone::test::hardware_test {
namespace {

/// The GPU, if it multiplies f8 numbers.
std::optional<Device> f8_device() {
  const std::optional<Device> gpu = gpu_or_skip();
  if (!gpu || backend_for(*gpu).f8_sums()) return gpu;
  MESSAGE("skipped: this GPU does not multiply f8 numbers, or cuBLASLt is missing");
  return {};
}

std::string sums_of(Device gpu) { return policy::json_of(*backend_for(gpu).f8_sums()).dump(); }

std::string policy_of(const std::string& compute, const std::string& more = {},
                      const std::string& rounding = "stochastic", bool powers = true) {
  const std::string sums = sums_of(Device::cuda()), power = powers ? "true" : "false";
  return R"({"halftone_policy": 1, "name": "p", "extends": "amp-bf16", "quantizers": {
    "forward": {"format": "e4m3", "scale": {"per": "tensor", "power_of_two": )" +
         power + R"(}},
    "delayed": {"like": "forward", "scale": {"per": "tensor", "power_of_two": )" +
         power + R"(, "from": "history", "history": 4}},
    "backward": {"format": "e5m2", "rounding": ")" +
         rounding + R"(", "scale": {"per": "tensor", "power_of_two": )" + power + R"(}}},
    "rules": [
    {"match": {"op": "linear"}, "accumulate": )" +
         sums + R"(, "compute": )" + compute + R"(, "input": "delayed", "weight": "forward",
     "grad_output": "backward")" +
         more + "}]}";
}

/// The same with this scale for every operand, along the sum of each product.
std::string policy_along_sums(const std::string& compute, const std::string& scale,
                              const std::string& more = {}) {
  return R"({"halftone_policy": 1, "name": "p", "extends": "amp-bf16", "quantizers": {
    "forward": {"format": "e4m3", "scale": )" +
         scale + R"(}, "backward": {"like": "forward", "format": "e5m2", "rounding": "stochastic"}},
    "rules": [{"match": {"op": "linear"}, "accumulate": )" +
         sums_of(Device::cuda()) + R"(, "compute": )" + compute + R"(,
     "input": "forward", "weight": "forward", "grad_output": "backward", "input.backward": "forward",
     "weight.backward": "forward", "grad_output.weight": "backward")" +
         more + "}]}";
}

struct Trained {
  std::vector<Tensor> losses, gradients;
};

/// The input is on the grid of bf16, to which the hardware's operation casts it. rows, in, hidden,
/// out: sizes of which the hardware wants multiples of 16, or others.
Trained trained(const std::string& policy, Device gpu, const std::array<int64_t, 4>& sizes) {
  manual_seed(11);
  const auto [rows, in, hidden, out] = sizes;
  nn::Sequential model(nn::Linear(in, hidden), nn::Gelu(), nn::Linear(hidden, out));
  Tensor x = cast(cast(randn({2, rows, in}), bf16), f32), target = randn({2, rows, out});
  model.to(gpu), x = x.to(gpu), target = target.to(gpu);
  optim::Sgd optimizer(model.parameters(), optim::SgdOptions{.lr = 0.05});
  amp::Training training = amp::apply(policy::read_text(policy, "p.json"), model, optimizer);
  manual_seed(12);
  Trained result;
  const auto loss_now = [&] {
    const Tensor error = training.forward(model, x) - target;
    return mean(error * error);
  };
  for (int step = 0; step < 3; ++step) {
    training.zero_grad();
    for (int batch = 0; batch < (step == 0 ? 1 : 2); ++batch) {  // the third step keeps its weights
      const Tensor loss = loss_now();
      training.backward(loss);
      result.losses.push_back(loss.detach().clone());
    }
    for (const Tensor& p : model.parameters()) result.gradients.push_back(p.grad().clone());
    training.step();
    const NoGrad no_grad;
    result.losses.push_back(loss_now());
    CHECK(equal_bits(result.losses.back(), loss_now()));
  }
  return result;
}

/// Compares trainings of several sizes by hardware with emulated ones.
void check_trainings(Device gpu, const std::string& hardware, const std::string& emulated) {
  for (const std::array<int64_t, 4>& sizes :
       {std::array<int64_t, 4>{16, 64, 96, 32}, std::array<int64_t, 4>{7, 20, 33, 10},
        std::array<int64_t, 4>{1, 130, 16, 1}}) {
    INFO(sizes[0], " x ", sizes[1], " x ", sizes[2], " x ", sizes[3]);
    const Trained here = trained(hardware, gpu, sizes), there = trained(emulated, gpu, sizes);
    for (std::size_t i = 0; i < here.losses.size(); ++i) {
      INFO("step ", i);
      CHECK(equal_bits(here.losses[i], there.losses[i]));
    }
    for (std::size_t i = 0; i < here.gradients.size(); ++i) {
      INFO("gradient ", i);
      CHECK(equal_bits(here.gradients[i], there.gradients[i]));
    }
  }
}

// A bias is read in bf16 by the hardware.
const std::string by_emulation = R"("f32", "result": "bf16")", its_bias = R"(, "bias": "bf16")";

TEST_CASE("products in hardware have the bits of the emulated ones with the GPU's sums") {
  if (const std::optional<Device> gpu = f8_device())
    for (const bool powers : {true, false}) {
      CAPTURE(powers);
      check_trainings(*gpu, policy_of(R"("hardware")", "", "stochastic", powers),
                      policy_of(by_emulation, its_bias, "stochastic", powers));
    }
}

TEST_CASE("products in hardware with a scale for each row have the bits of the emulated ones") {
  const std::optional<Device> gpu = f8_device();
  if (!gpu) return;
  const std::string scale = R"({"per": "row", "format": "e8m0"})";
  check_trainings(*gpu, policy_along_sums(R"("hardware")", scale),
                  policy_along_sums(by_emulation, scale, its_bias));
}

TEST_CASE("products in hardware of blocks of 32 have the bits of the emulated ones") {
  const std::optional<Device> gpu = f8_device();
  if (!gpu) return;
  const std::string scale = R"({"per": "block", "rule": "rceil"})";
  const std::string hardware = policy_along_sums(R"("hardware")", scale);
  if (backend_for(*gpu).f8_blocks())
    return check_trainings(*gpu, hardware, policy_along_sums(by_emulation, scale, its_bias));
  CHECK(message_of<UsageError>([&] {
          trained(hardware, *gpu, {16, 16, 16, 16});
        }) ==
        "[policy p] 0/linear.0: cuda:0 has no products of blocks in hardware, and \"input\" is "
        "e4m3, blocks of 1x32 with e8m0 scales (rceil). Use a GPU of sm_100, or \"compute\": "
        "\"f32\".");
}

/// x times another batch of matrices; the weight is for the optimizer.
struct Batches final : nn::Module {
  Tensor other{};
  nn::Parameter weight{ones({2})};
  Tensor operator()(const Tensor& x) const {
    const CallScope scope(this);
    return matmul(x, other);
  }
  void describe(nn::Fields& field) override { field("weight", weight); }
};

TEST_CASE("matrices of a batch in hardware have the bits of the emulated products") {
  const std::optional<Device> gpu = f8_device();
  if (!gpu) return;
  const auto results = [&](const std::string& compute, const Shape& a_shape, const Shape& b_shape) {
    manual_seed(5);
    Batches model;
    model.to(*gpu);
    optim::Sgd optimizer(model.parameters(), optim::SgdOptions{.lr = 0.05});
    const std::string grid =
        R"({"format": "e4m3", "scale": {"per": "tensor", "power_of_two": true}})";
    const std::string policy = R"({"halftone_policy": 1, "name": "p", "extends": "amp-bf16",
      "rules": [{"match": {"op": "matmul"}, "accumulate": )" +
                               sums_of(*gpu) + R"(, "compute": )" + compute + R"(, "input": )" +
                               grid + R"(, "grad_output": )" + grid + "}]}";
    amp::Training training = amp::apply(policy::read_text(policy, "p.json"), model, optimizer);
    const auto operand = [&](const Shape& shape) {
      return cast(cast(randn(shape), bf16), f32).to(*gpu).set_requires_grad();
    };
    const Tensor a = operand(a_shape);
    model.other = operand(b_shape);
    const Tensor y = training.forward(model, a);
    training.backward(sum(y * y));
    return std::vector<Tensor>{y, a.grad(), model.other.grad()};
  };
  for (const auto& [a, b] : {std::pair<Shape, Shape>{{2, 3, 32, 48}, {2, 3, 48, 16}},
                             {{5, 7, 20}, {5, 20, 33}},
                             {{3, 7, 20}, {20, 16}},
                             {{3, 4, 16}, {1, 16, 8}}}) {
    INFO(a, " x ", b);
    const std::vector<Tensor> here = results(R"("hardware")", a, b),
                              there = results(by_emulation, a, b);
    for (std::size_t i = 0; i < here.size(); ++i) CHECK(equal_bits(here[i], there[i]));
  }
  CHECK(message_of<UsageError>([&] {
          results(R"("hardware")", {2, 3, 4, 16}, {3, 16, 8});
        }).starts_with("[matmul] a product in hardware has one operand of f8 numbers, and a copy"));
}

TEST_CASE("scales of rows may be any floats") {
  const std::optional<Device> gpu = f8_device();
  if (!gpu) return;
  const Tensor a = randn({33, 70}).to(*gpu), b = randn({45, 70}).to(*gpu),
               bias = randn({45}).to(bf16).to(*gpu);
  const Quantizer quantizer{.grid = formats::e4m3, .scaling = Scaling::per_row()},
      whole{.grid = formats::e4m3, .scaling = Scaling::per_tensor()};
  for (const Quantizer* const left : {&quantizer, &whole}) {
    const F8Operand x = quantized_f8(a, {.quantizer = *left}),
                    w = quantized_f8(b, {.quantizer = quantizer});
    CHECK(w.factor.shape() == Shape{45});
    Tensor y = empty({33, 45}, f32, *gpu);
    Backend& backend = backend_for(*gpu);
    backend.matmul_accumulating(waiting_operand(x, f32),
                                views::transpose(waiting_operand(w, f32), 0, 1), bias,
                                *backend.f8_sums(), y);
    const auto values = [](const F8Operand& operand) {
      return waiting_operand(operand, f32).to(f64);
    };
    const Tensor exact = matmul(values(x), transpose(values(w), 0, 1)) + bias.to(f64);
    const Tensor largest = matmul(abs(values(x)), transpose(abs(values(w)), 0, 1));
    // A GPU that drops what is 13 bits below the largest product of a step loses most.
    CHECK(max(abs(y.to(f64) - exact) / largest).item() < 0x1p-11);
  }
  const F8Operand x = quantized_f8(a, {.quantizer = quantizer});
  Tensor y = empty({70, 70}, f32, *gpu);
  CHECK_THROWS_WITH_AS(
      backend_for(*gpu).matmul_accumulating(views::transpose(waiting_operand(x, f32), 0, 1),
                                            waiting_operand(x, f32), {},
                                            *backend_for(*gpu).f8_sums(), y),
      "[matmul] the factors of [70, 33] f8_e4m3 or [33, 70] f8_e4m3 belong to rows of another "
      "dimension than the sum's. Quantize the operand for this product.",
      UnsupportedError);
}

/// Reads every tensor that it sees.
struct Reader final : policy::Observer {
  bool begin_pass(int64_t) override { return true; }
  void tensor(const policy::Seen&, const Tensor& before, const Tensor& after) override {
    read += max(abs(before)).item() + max(abs(after)).item();
  }
  double read = 0;
};

TEST_CASE(
    "an observer that reads operands, and a captured step, leave products in hardware as they "
    "are") {
  const std::optional<Device> gpu = f8_device();
  if (!gpu) return;
  enum class By : uint8_t { none, reader, probe };
  const auto losses = [&](By observed, bool captured) {
    manual_seed(11);
    nn::Sequential model(nn::Linear(32, 48), nn::Relu(), nn::Linear(48, 16));
    model.to(*gpu);
    optim::Sgd optimizer(model.parameters(), optim::SgdOptions{.lr = 0.05});
    amp::Training training =
        amp::apply(policy::read_text(policy_of(R"("hardware")", {}, "nearest_even"), "p.json"),
                   model, optimizer);
    optimizer.publish_rates();
    const auto reader = std::make_shared<Reader>();
    std::optional<policy::Probe> probe;
    if (observed == By::reader) training.region().session->observe(reader);
    if (observed == By::probe) probe.emplace(training);
    CapturedStep step([&](const std::vector<Tensor>& batch) {
      training.zero_grad();
      const Tensor y = training.forward(model, batch[0]), loss = mean(y * y);
      training.backward(loss);
      training.step();
      return loss;
    });
    std::vector<Tensor> all;
    for (int i = 0; i < 5; ++i) {
      const Tensor batch = randn({16, 32}).to(*gpu);
      all.push_back(captured ? step({batch}).clone() : [&] {
        training.zero_grad();
        const Tensor y = training.forward(model, batch), loss = mean(y * y);
        training.backward(loss);
        training.step();
        return loss.detach().clone();
      }());
    }
    if (observed == By::reader) CHECK(reader->read > 0);
    if (probe) CHECK_FALSE(probe->rows().empty());
    return all;
  };
  const std::vector<Tensor> plain = losses(By::none, false);
  for (const auto& [observed, captured] :
       {std::pair(By::reader, false), std::pair(By::probe, false), std::pair(By::none, true)}) {
    const std::vector<Tensor> other = losses(observed, captured);
    for (std::size_t i = 0; i < plain.size(); ++i) {
      INFO("step ", i, captured ? ", captured" : "");
      CHECK(equal_bits(plain[i], other[i]));
    }
  }
}

TEST_CASE("the numbers of an operand in hardware wait, with their factor") {
  const std::optional<Device> gpu = f8_device();
  if (!gpu) return;
  const Tensor x = randn({33, 18}).to(*gpu);
  for (const char* format : {"e4m3", "e5m2"}) {
    Quantizer quantizer{.grid = *number_format_named(format), .scaling = Scaling::per_tensor()};
    const QuantizeCall call{.quantizer = quantizer};
    const F8Operand operand = quantized_f8(transpose(x, 0, 1), call);
    CHECK(operand.numbers.shape() == Shape{18, 33});
    const Tensor waiting = waiting_operand(operand, f32);
    const auto seen = f8_operand(views::transpose(waiting, 0, 1));
    REQUIRE(seen);
    CHECK(equal_bits(views::contiguous(seen->numbers).to(f32),
                     views::contiguous(views::transpose(operand.numbers, 0, 1)).to(f32)));
    CHECK(equal_bits(views::contiguous(waiting),
                     quantized(views::contiguous(transpose(x, 0, 1)), call)));
    CHECK_FALSE(f8_operand(waiting));  // it was read
  }
}

TEST_CASE("a GPU that adds otherwise, and operands that no GPU multiplies, are errors") {
  const std::optional<Device> gpu = f8_device();
  if (!gpu) return;
  const auto refusal = [&](std::string policy, const std::string& from, const std::string& to) {
    policy.replace(policy.find(from), from.size(), to);
    return message_of<UsageError>([&] { trained(policy, *gpu, {16, 16, 16, 16}); });
  };
  const std::string sums = sums_of(*gpu);
  const std::string rows = policy_along_sums(R"("hardware")", R"({"per": "row"})");
  CHECK(
      refusal(rows, R"("weight.backward": "forward", )", "") ==
      "[policy p] 0/linear.0: \"weight.backward\" is as used, e4m3, rows with f32 scales, and the "
      "scales of backward run along another dimension. Give it a quantizer of its own.");
  CHECK(refusal(policy_along_sums(R"("hardware")", R"({"per": "block"})"), R"("weight": "forward")",
                R"("weight": "e4m3")") ==
        "[policy p] 0/linear.0: \"input\" and \"weight\" have blocks on one side only, and no GPU "
        "multiplies these. Use blocks of 32 for both.");
  CHECK(
      refusal(policy_of(R"("hardware")"), sums, R"("a100-mma")") ==
      "[policy p] 0/linear.0: cuda:0 adds as " + sums +
          ", and \"accumulate\" says otherwise. Name this one, or use \"compute\": \"f32\", which "
          "emulates any.");
}

}  // namespace
}  // namespace halftone::test::hardware_test
