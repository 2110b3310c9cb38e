// States in 8 and 4 bits (core/formats/coded_form.h): their codes compared with torchao's, their
// bytes, and trainings that store them. Kernels are compared in tests/kernels/update_test.cpp.
#include <bit>
#include <cmath>
#include <map>
#include <random>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <halftone/amp/policy.h>
#include <halftone/amp/training.h>
#include <halftone/core/formats/coded_form.h>
#include <halftone/halftone.h>

#include "../pytorch/fixture.h"
#include "../support.h"

namespace halftone::test::state_forms_test {

using namespace halftone::optim;

namespace {

constexpr CodedForm all_forms[] = {CodedForm::dynamic8, CodedForm::linear8, CodedForm::dynamic4,
                                   CodedForm::e4m3, CodedForm::e4m3_expanded};

/// A state of some numbers, encoded by a backend.
Tensor encoded(Coding storage, const Tensor& x) {
  Tensor blocks = coded_zeros(storage.form, x.numel(), x.device());
  backend_for(x).encode_blocks(x, {}, storage, blocks);
  return blocks;
}
Tensor decoded(Coding storage, const Tensor& blocks, int64_t n) {
  Tensor x = empty({n}, f32, blocks.device());
  backend_for(x).decode_blocks(blocks, storage, x);
  return x;
}
Tensor there_and_back(Coding storage, const Tensor& x) {
  return decoded(storage, encoded(storage, x), x.numel());
}

Tensor trained_leaf(const Shape& shape, DType dtype = f32) {
  return (randn(shape) * 0.1).to(dtype).detach().set_requires_grad();
}

/// Steps along gradients that depend on the step's number only.
void take_steps(Optimizer& optimizer, int first, int count) {
  for (int t = first; t < first + count; ++t) {
    for (Tensor& x : optimizer.parameters()) {
      manual_seed(uint64_t(100 + t));
      x.set_grad(randn(x.shape(), x.dtype()));
    }
    optimizer.step();
  }
}

}  // namespace

TEST_CASE("coded states: codes, scales and numbers of torchao, to the bit") {
  const std::map<std::string, NamedTensors> cases = load_cases("state_forms");
  REQUIRE(cases.size() == 6);
  for (const auto& [name, tensors] : cases) {
    CAPTURE(name);
    const std::size_t space = name.find(' ');
    const Coding storage{*named<CodedForm>(name.substr(0, space)),
                         name.substr(space + 1) == "signed"};
    const CodedFormFacts form = facts(storage.form);
    const Tensor& x = tensors.at("x");
    const auto codes = tensors.at("codes").to_vector<uint8_t>();
    const auto scale = tensors.at("scale").to_vector<float>(),
               y = tensors.at("y").to_vector<float>();
    for (const char* backend : {"reference", "cpu"}) {
      CAPTURE(backend);
      const CpuBackendScope scope(backend);
      const Tensor blocks = encoded(storage, x);
      const auto bytes = blocks.to_vector<uint8_t>();
      for (int64_t b = 0; b < form.blocks(x.numel()); ++b) {
        const uint8_t* const block = bytes.data() + b * form.block_bytes();
        float own = 0;
        std::memcpy(&own, block, sizeof own);
        CHECK(own == scale[std::size_t(b)]);
        int64_t different = 0;
        for (int64_t i = 0; i < form.block; ++i) {
          const uint8_t byte = block[form.scale_bytes() + i / form.codes_in_byte];
          const int code = form.codes_in_byte == 1 ? byte : i % 2 != 0 ? byte & 15 : byte >> 4;
          different += code != codes[std::size_t(b * form.block + i)];
        }
        CHECK(different == 0);
      }
      const auto back = decoded(storage, blocks, x.numel()).to_vector<float>();
      for (std::size_t i = 0; i < y.size(); ++i) CHECK(back[i] == y[i]);
    }
  }
}

TEST_CASE("coded states: the cells give the code of the search for every kind of float") {
  std::mt19937 random(5);
  for (const CodedForm form : all_forms)
    for (const bool has_sign : {true, false}) {
      const Codec& codec = codec_of({form, has_sign});
      const float most = coded::is_e4m3(form) ? coded::e4m3_max : 1.0f;
      int64_t different = 0;
      const auto check = [&](float x) {
        if (!(std::abs(x) <= most)) return;  // NaN as well
        different += codec.code_of(x) != coded::code_of(form, codec.numbers, x);
      };
      for (int i = 0; i < 300'000; ++i) check(std::bit_cast<float>(uint32_t(random())));
      for (uint32_t cell = 0; cell <= codec.last; ++cell)  // where cells begin and end
        for (const uint32_t low : {0u, 1u, 0x7fffu, 0x8000u, 0xffffu})
          for (const uint32_t sign : {0u, 0x80000000u})
            check(std::bit_cast<float>(sign | cell << 16 | low));
      for (int i = 0; i + 1 < 256; ++i)  // and around the middles of neighbors
        for (int step = -3; step <= 3; ++step) {
          const float middle = (codec.numbers[i] + codec.numbers[i + 1]) / 2;
          check(std::bit_cast<float>(std::bit_cast<uint32_t>(middle) + uint32_t(step)));
        }
      CAPTURE(int(form));
      CHECK(different == 0);
    }
}

TEST_CASE("coded states: the largest number of a block is kept, others to a part of it") {
  manual_seed(3);
  const std::map<CodedForm, double> coarsest{{CodedForm::dynamic8, 0.0072},  // 0.9 / 64 / 2
                                             {CodedForm::linear8, 0.5 / 127},
                                             {CodedForm::dynamic4, 0.125},
                                             {CodedForm::e4m3, 1.0 / 28},
                                             {CodedForm::e4m3_expanded, 0.1}};
  for (const auto& [form, part] : coarsest)
    for (const int64_t n : {1, 127, 128, 129, 255, 256, 257, 1000}) {
      CAPTURE(int(form));
      CAPTURE(n);
      const Tensor x = randn({n});
      const auto before = x.to_vector<double>();
      const auto after = there_and_back({form, true}, x).to_vector<double>();
      const int64_t block = facts(form).block;
      for (int64_t i = 0; i < n; ++i) {
        double largest = 0;
        for (int64_t j = i / block * block; j < std::min(n, (i / block + 1) * block); ++j)
          largest = std::max(largest, std::abs(before[std::size_t(j)]));
        CHECK(std::abs(after[std::size_t(i)] - before[std::size_t(i)]) <= part * largest * 1.0001);
      }
    }
  // COAT: a block whose numbers lie close together uses the whole range of e4m3.
  const Tensor close = exp(rand({256}) * 2) * 1e-4;
  const auto error = [&](CodedForm form) {
    return mean(square((there_and_back({form, false}, close) - close) / close)).item();
  };
  CHECK(error(CodedForm::e4m3_expanded) < 0.2 * error(CodedForm::e4m3));
}

TEST_CASE("coded states: zeros, infinities and NaN") {
  for (const CodedForm form : all_forms) {
    CAPTURE(int(form));
    Tensor blocks = coded_zeros(form, 300, Device::cpu());
    for (const double x : decoded({form, true}, blocks, 300).to_vector<double>()) CHECK(x == 0);
    for (const bool has_sign : {true, false})
      if (form != CodedForm::dynamic4 || has_sign)  // the positive map of 4 bits has no 0
        for (const double x : there_and_back({form, has_sign}, zeros({300})).to_vector<double>())
          CHECK(x == 0);
    for (const double bad : {std::nan(""), HUGE_VAL}) {
      Tensor x = ones({300});
      x.data<float>()[7] = float(bad);
      const auto after = there_and_back({form, true}, x).to_vector<double>();
      CHECK(!std::isfinite(after[7]));
      CHECK(after[299] == doctest::Approx(1));  // of another block
    }
  }
}

TEST_CASE("coded states: large parameters only, with exact bytes") {
  const auto held = [] { return memory_report().now_of(MemoryUse::optimizer_state); };
  struct Case {
    CodedForm form;
    int64_t bytes;  // of a state of 5,000 elements
  };
  for (const auto& [form, bytes] : {Case{CodedForm::dynamic8, 20 * 260},
                                    {CodedForm::dynamic4, 40 * 68},
                                    {CodedForm::e4m3_expanded, 20 * 264}}) {
    manual_seed(1);
    const int64_t before = held();
    Tensor large = trained_leaf({50, 100}), small = trained_leaf({4095}),
           wide = trained_leaf({5000}, f64);
    AdamW optimizer({large, small, wide}, {.lr = 1e-2, .state_dtype = form});
    take_steps(optimizer, 0, 1);
    CHECK(held() - before == 2 * (bytes + 4095 * 4 + 5000 * 8));
    CHECK(optimizer.state_bytes(0, large, f32, 5000, {}) == 2 * bytes);
    CHECK(optimizer.state_bytes(0, small, f32, 4095, {}) == 2 * 4095 * 4);
    const NamedTensors state = optimizer.state_dict();
    const std::string suffix = "." + std::string(name(form));
    CHECK(state.at("state.0.exp_avg" + suffix).dtype() == u8);
    CHECK(state.contains("state.1.exp_avg"));
    CHECK(state.at("state.2.exp_avg").dtype() == f64);
  }
  // AdamW in 8 bits: at most 2.1 bytes for each element of both moments.
  const Tensor x = zeros({1'000'000}).set_requires_grad();
  CHECK(AdamW({x}, {.state_dtype = CodedForm::dynamic8}).state_bytes(0, x, f32, x.numel(), {}) <=
        2'100'000);
}

TEST_CASE("coded states: a step moves weights as decoded states would, for every optimizer") {
  const auto check = [](const std::string& what, const auto& make) {
    CAPTURE(what);
    for (const CodedForm form : all_forms) {
      CAPTURE(int(form));
      manual_seed(2);
      Tensor coded = trained_leaf({80, 70}), plain = coded.detach().clone().set_requires_grad();
      auto with = make(coded, std::optional<StateFormat>(form));
      auto without = make(plain, std::optional<StateFormat>());
      take_steps(with, 0, 1), take_steps(without, 0, 1);
      CHECK(coded.to_vector<float>() == plain.to_vector<float>());  // encoded after the update
      take_steps(with, 1, 3), take_steps(without, 1, 3);
      const double moved = max(abs(plain - coded)).item();
      CHECK(moved > 0);
      // Equidistant numbers lose small second moments: then a step is m / eps.
      if (form != CodedForm::linear8 || what != "AdamW") CHECK(moved < 3 * 1e-2);
    }
  };
  check("Sgd", [](const Tensor& x, auto format) {
    return Sgd({x}, {.lr = 1e-2, .momentum = 0.9, .state_dtype = format});
  });
  check("AdamW", [](const Tensor& x, auto format) {
    return AdamW({x}, {.lr = 1e-2, .eps = 1e-3, .state_dtype = format});
  });
  check("Lion", [](const Tensor& x, auto format) {
    return Lion({x}, {.lr = 1e-3, .state_dtype = format});
  });
  check("Muon", [](const Tensor& x, auto format) {
    return Muon({x}, {.lr = 1e-2, .state_dtype = format});
  });
  check("Lamb", [](const Tensor& x, auto format) {
    return Lamb({x}, {.lr = 1e-2, .eps = 1e-3, .state_dtype = format});
  });
}

TEST_CASE("coded states: saved, loaded, and continued to the bit") {
  for (const CodedForm form : all_forms) {
    CAPTURE(int(form));
    manual_seed(4);
    Tensor x = trained_leaf({64, 65}), y = x.detach().clone().set_requires_grad();
    AdamW first({x}, {.lr = 1e-2, .state_dtype = form, .amsgrad = true});
    take_steps(first, 0, 2);
    const TemporaryDirectory directory;
    save_safetensors(directory / "state", first.state_dict());
    take_steps(first, 2, 2);
    AdamW second({y}, {.lr = 1e-2, .amsgrad = true});  // the file says how its states are stored
    manual_seed(4);
    copy_into(y, trained_leaf({64, 65}).detach());
    AdamW again({y}, {.lr = 1e-2, .state_dtype = form, .amsgrad = true});
    take_steps(again, 0, 2);
    second.load_state_dict(load_safetensors(directory / "state").tensors);
    take_steps(second, 2, 2);
    CHECK(y.to_vector<float>() == x.to_vector<float>());
  }
  Tensor x = trained_leaf({64, 65});
  AdamW optimizer({x}, {.state_dtype = CodedForm::dynamic8});
  take_steps(optimizer, 0, 1);
  NamedTensors state = optimizer.state_dict();
  state["state.0.exp_avg.8bit"] = zeros({3, 260}, u8);
  CHECK_THROWS_WITH_AS(
      optimizer.load_state_dict(state),
      "[AdamW.load_state_dict] the state does not fit: state.0.exp_avg.8bit is [3, 260] instead of "
      "[17, 260]. Load what the same kind of optimizer saved for the same parameters.",
      UsageError);
}

TEST_CASE("coded states: what cannot be stored so is refused") {
  const Tensor x = zeros({5000}).set_requires_grad();
  CHECK_THROWS_WITH_AS(
      Adafactor({x}, {.state_dtype = CodedForm::dynamic8}),
      "[Adafactor] state_dtype is 8bit. Its averages are rows and columns, too small for blocks: "
      "use f32, bf16 or f16.",
      DTypeError);
  AdamW adamw({x});
  CHECK_THROWS_WITH_AS(adamw.set_state_formats({.by_name = {{"momentum_buffer", bf16}}}),
                       "[AdamW] the state \"momentum_buffer\" is unknown. Name one of exp_avg, "
                       "exp_avg_sq, max_exp_avg_sq.",
                       UsageError);
  CHECK(adamw.set_state_formats(
      {.others = CodedForm::dynamic8, .by_name = {{"exp_avg_sq", CodedForm::dynamic4}}}));
  take_steps(adamw, 0, 1);
  CHECK(adamw.state_dict().contains("state.0.exp_avg.8bit"));
  CHECK(adamw.state_dict().contains("state.0.exp_avg_sq.4bit"));

  NamedTensors state = adamw.state_dict();
  state["state.0.exp_avg.8bit"] = zeros({20, 260});
  CHECK_THROWS_WITH_AS(
      adamw.load_state_dict(state),
      "[AdamW.load_state_dict] the state does not fit: state.0.exp_avg.8bit is f32 "
      "instead of u8. Load what the same kind of optimizer saved for the same "
      "parameters.",
      UsageError);
  Adafactor adafactor({x});
  take_steps(adafactor, 0, 1);
  NamedTensors averages = adafactor.state_dict();
  averages.erase("state.0.variance");
  averages["state.0.variance.8bit"] = zeros({20, 260}, u8);
  CHECK_THROWS_WITH_AS(adafactor.load_state_dict(averages),
                       "[Adafactor.load_state_dict] the state does not fit: state.0.variance.8bit "
                       "is in a form that this optimizer does not have. Load what the same kind of "
                       "optimizer saved for the same parameters.",
                       UsageError);
}

TEST_CASE("coded states: a policy that the optimizer cannot follow is refused") {
  const auto read = [](const std::string& optimizer) {
    return policy::read_text(
        R"({"halftone_policy": 1, "name": "p", "extends": "fp32", "optimizer": )" + optimizer +
        "}");
  };
  nn::Linear model(80, 70);
  Lbfgs lbfgs(model.parameters());
  CHECK_THROWS_WITH_AS(
      amp::Training(read(R"({"states": {"exp_avg": {"stored": "8bit"}}})"), model, lbfgs),
      "[amp.apply] p stores exp_avg as 8bit, and Lbfgs has no choice of formats. Use an optimizer "
      "of optim/, or leave \"stored\" out.",
      UsageError);
  AdamW adamw(model.parameters());
  amp::Training training(read(R"({"state_dtype": "8bit", "states": {"exp_avg": "e4m3"}})"), model,
                         adamw);
  training.backward(mean(square(training.forward(model, ones({4, 80})))));
  CHECK_THROWS_WITH_AS(training.step(),
                       "[policy p] the policy has a grid for the state exp_avg, which is stored as "
                       "8bit. Leave the grid or the format out.",
                       UsageError);
}

TEST_CASE("coded states: in policy files, under every strategy, with predicted bytes") {
  for (const std::string_view name : amp::Policy::names()) {
    CAPTURE(name);
    const std::string file = R"({"halftone_policy": 1, "name": "coded", "extends": ")" +
                             std::string(name) +
                             R"(", "optimizer": {"state_dtype": "8bit",
                                "states": {"exp_avg": {"stored": "e4m3_expanded"}}}})";
    const amp::Policy policy = policy::read_text(file);
    CHECK(policy.states.at("exp_avg") == StateFormat(CodedForm::e4m3_expanded));
    CHECK(policy::read_text(policy::write(policy)).states == policy.states);
    manual_seed(6);
    nn::Linear model(80, 70);
    AdamW adamw(model.parameters(), {.lr = 1e-2});
    const int64_t predicted = amp::predicted_bytes(policy, model, adamw).optimizer_state;
    const int64_t before = memory_report().now_of(MemoryUse::optimizer_state);
    amp::Training training(policy, model, adamw);
    training.backward(mean(square(training.forward(model, ones({4, 80})))));
    training.step();
    CHECK(memory_report().now_of(MemoryUse::optimizer_state) - before >= predicted);
    CHECK(memory_report().now_of(MemoryUse::optimizer_state) - before <= predicted + 64);
    if (policy.weights != f64)
      CHECK(training.state_dict().contains("optimizer.state.1.exp_avg.e4m3_expanded") !=
            training.state_dict().contains("optimizer.state.0.exp_avg.e4m3_expanded"));
  }
  CHECK_THROWS_WITH(
      policy::read_text(
          R"({"halftone_policy": 1, "name": "p", "optimizer": {"states": {"exp_avg": {"stored": "5bit"}}}})"),
      "[policy text] /optimizer/states/exp_avg/stored: f32, bf16, f16, f64, 8bit, 8bit_linear, "
      "4bit, "
      "e4m3 or e4m3_expanded, got \"5bit\".");
}

}  // namespace halftone::test::state_forms_test
