// state_dict: round trips, conversion, in-place loading, and reports that list everything at once.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include <halftone/autograd/ops.h>
#include <halftone/core/backend.h>
#include <halftone/core/tensor.h>
#include <halftone/nn/models/models.h>
#include <halftone/nn/nn.h>
#include <halftone/optim/optimizers.h>

#include "../support.h"

namespace halftone::test::state_dict_test {

TEST_CASE("state_dict holds parameters and buffers, without history, sharing data") {
  nn::Sequential model(nn::Linear(2, 2), nn::BatchNorm1d(2));
  const nn::NamedTensors state = nn::state_dict(model);
  std::vector<std::string> names;
  for (const auto& [name, x] : state) names.push_back(name);
  CHECK(names == std::vector<std::string>{"0.bias", "0.weight", "1.bias", "1.num_batches_tracked",
                                          "1.running_mean", "1.running_var", "1.weight"});
  CHECK_FALSE(state.at("0.weight").requires_grad());
  nn::init::constant(model.parameters()[0], 7);
  CHECK(state.at("0.weight").to_vector<double>() == std::vector<double>(4, 7));
}

TEST_CASE("a file restores every value, also across dtypes") {
  const test::TemporaryDirectory directory;
  nn::Sequential saved(nn::Linear(3, 2), nn::BatchNorm1d(2));
  saved(rand({4, 3}));
  nn::save(saved, directory / "model.safetensors");
  CHECK(nn::load_safetensors(directory / "model.safetensors").metadata.at("format") == "pt");

  nn::Sequential same(nn::Linear(3, 2), nn::BatchNorm1d(2)),
      low(nn::Linear(3, 2), nn::BatchNorm1d(2));
  low.to(bf16);
  nn::load(same, directory / "model.safetensors");
  nn::load(low, directory / "model.safetensors");
  const nn::NamedTensors expected = nn::state_dict(saved), got = nn::state_dict(same),
                         rounded = nn::state_dict(low);
  for (const auto& [name, x] : expected) {
    CHECK(got.at(name).to_vector<double>() == x.to_vector<double>());
    const bool running = name.starts_with("1.running");
    CHECK(rounded.at(name).dtype() == (x.dtype() == i64 ? i64 : running ? f32 : bf16));
    CHECK(rounded.at(name).to_vector<double>()[0] ==
          doctest::Approx(x.to_vector<double>()[0]).epsilon(0.005));
  }
  CHECK(got.at("1.num_batches_tracked").item() == 1);
}

TEST_CASE("loading writes in place, under the handles of an optimizer, and bumps the version") {
  nn::Linear from_here(2, 2), to_here(2, 2);
  const Tensor handle = to_here.parameters()[0];
  const uint64_t version = handle.storage()->version();
  const nn::LoadReport report = nn::load_state_dict(to_here, nn::state_dict(from_here));
  CHECK(report.missing.empty());
  CHECK(report.unexpected.empty());
  CHECK(handle.to_vector<float>() == from_here.weight.to_vector<float>());
  CHECK(handle.storage()->version() > version);
  CHECK(handle.requires_grad());
}

TEST_CASE("everything that does not fit is reported together, and nothing changes") {
  nn::Sequential model = nn::models::mlp({3, 2, 4});
  const std::vector<double> before = model.parameters()[1].to_vector<double>();
  nn::NamedTensors state = nn::state_dict(nn::models::mlp({3, 2, 4}));
  state.erase("0.weight"), state.erase("2.bias");
  state["extra"] = ones({1}), state["head.bias"] = ones({2});
  state["0.bias"] = full({2}, 9);

  CHECK_THROWS_WITH_AS(
      nn::load_state_dict(model, state),
      "[load_state_dict] the state does not fit the module: Missing: 0.weight, 2.bias. Unexpected: "
      "extra, head.bias. Rename them, or pass .strict = false to load what agrees.",
      UsageError);
  state["2.weight"] = ones({2, 2});
  const char* all =
      "[load_state_dict] the state does not fit the module: Missing: 0.weight, 2.bias. Unexpected: "
      "extra, head.bias. "
      "Misshapen: 2.weight ([4, 2] here, [2, 2] given). Build the module with the sizes that were "
      "saved.";
  CHECK_THROWS_WITH_AS(nn::load_state_dict(model, state), all, ShapeError);
  CHECK_THROWS_WITH_AS(nn::load_state_dict(model, state, {.strict = false}), all, ShapeError);
  CHECK(model.parameters()[1].to_vector<double>() == before);
}

TEST_CASE("without strict, the matching entries are loaded and the rest reported") {
  nn::Linear layer(2, 2);
  const std::vector<double> bias = layer.bias.to_vector<double>();
  const nn::LoadReport report = nn::load_state_dict(
      layer, {{"weight", ones({2, 2})}, {"scale", ones({1})}}, {.strict = false});
  CHECK(report.missing == std::vector<std::string>{"bias"});
  CHECK(report.unexpected == std::vector<std::string>{"scale"});
  CHECK(layer.weight.to_vector<double>() == std::vector<double>(4, 1));
  CHECK(layer.bias.to_vector<double>() == bias);
}

TEST_CASE("names with a prefix: the error names it, and strip_prefix removes it") {
  const test::TemporaryDirectory directory;
  nn::Sequential saved(nn::Linear(3, 2), nn::BatchNorm1d(2)),
      model(nn::Linear(3, 2), nn::BatchNorm1d(2));
  for (const std::string prefix : {"model.", "module.", "_orig_mod.", "module._orig_mod."}) {
    nn::NamedTensors state;
    for (const auto& [name, x] : nn::state_dict(saved)) state[prefix + name] = x;
    const std::string message =
        test::message_of<UsageError>([&] { nn::load_state_dict(model, state); });
    CHECK(message.ends_with(" The names given begin with \"" + prefix +
                            "\": pass .strip_prefix = \"" + prefix + "\"."));
    CHECK(nn::load_state_dict(model, state, {.strip_prefix = prefix}).unexpected.empty());
    save_safetensors(directory / "x", state);
    CHECK(test::contains(test::message_of<UsageError>([&] { nn::load(model, directory / "x"); }),
                         "pass .strip_prefix = "));
    nn::init::constant(model.parameters()[0], 7);
    nn::load(model, directory / "x", {.strip_prefix = prefix});
    CHECK(model.parameters()[0].to_vector<float>() == saved.parameters()[0].to_vector<float>());
    state["0.weight"] = ones({2, 3});
    CHECK(test::message_of<UsageError>([&] {
            nn::load_state_dict(model, state, {.strip_prefix = prefix});
          }) == "[load_state_dict] \"0.weight\" is given with the prefix \"" + prefix +
                    "\" and without. Remove one of the two.");
  }
  // Names that only happen to agree at their end are no prefix.
  CHECK(!test::contains(test::message_of<UsageError>([&] {
                          nn::load_state_dict(model, {{"x.0.bias", ones({2})}});
                        }),
                        "strip_prefix"));
}

TEST_CASE("a file that does not fit is named") {
  const test::TemporaryDirectory directory;
  const auto path = directory / "other.safetensors";
  nn::save(nn::Linear(2, 2, {.bias = false}), path);
  nn::Linear layer(2, 2);
  CHECK_THROWS_WITH_AS(nn::load(layer, path),
                       ("[load_state_dict] " + path.string() +
                        " does not fit the module: Missing: bias. Rename them, "
                        "or pass .strict = false to load what agrees.")
                           .c_str(),
                       UsageError);
  CHECK_THROWS_AS(nn::load(layer, directory / "absent.safetensors"), FormatError);
}

TEST_CASE(
    "names from a file do not reach the terminal, and thousands of them make no long message") {
  nn::Linear layer(2, 2);
  nn::NamedTensors state = nn::state_dict(layer);
  state["\x1b[2J\u202e"] = zeros({1});
  CHECK(contains(message_of<UsageError>([&] { nn::load_state_dict(layer, state); }),
                 " Unexpected: \\x1b[2J\\u202e. Rename them"));
  for (int i = 0; i < 1'999; ++i) state["w" + std::to_string(i)] = zeros({1});
  const std::string message = message_of<UsageError>([&] { nn::load_state_dict(layer, state); });
  CHECK(contains(message, " and 1,980 more. Rename them"));
  CHECK(message.size() < 400);
  state = nn::state_dict(layer);
  state["bias"] = zeros({3});
  CHECK(contains(message_of<ShapeError>([&] { nn::load_state_dict(layer, state); }),
                 " Misshapen: bias ([2] here, [3] given). Build"));
}

/// Two names for one weight.
struct Tied final : nn::Module {
  nn::Linear in{2, 2}, out{2, 2};
  Tied() { out.weight = in.weight; }
  void describe(nn::Fields& field) override { field("in", in), field("out", out); }
};

TEST_CASE("a shared tensor takes one value: different ones under its names are refused") {
  Tied model;
  nn::NamedTensors state = nn::state_dict(model);
  for (auto& [name, x] : state) x = x.clone();
  state["in.bias"] = full({2}, 9);
  nn::load_state_dict(model, state);
  CHECK(model.in.bias.to_vector<double>() == std::vector<double>(2, 9));

  state["out.weight"] = full({2, 2}, 3), state["in.bias"] = full({2}, 8);
  for (const bool strict : {true, false})
    CHECK_THROWS_WITH_AS(
        nn::load_state_dict(model, state, {.strict = strict}),
        "[load_state_dict] the state does not fit the module: Different under two names of one "
        "tensor: in.weight (out.weight). Build a module that does not tie them, or give each "
        "tensor one value.",
        UsageError);
  CHECK(model.in.bias.to_vector<double>() == std::vector<double>(2, 9));
  state.erase("in.weight");
  nn::load_state_dict(model, state, {.strict = false});
  CHECK(model.in.weight.to_vector<double>() == std::vector<double>(4, 3));
}

TEST_CASE("values that the module's dtype cannot hold are refused; rounding is not") {
  const auto loads = [](double value, DType from, DType to) {
    nn::Linear layer(1, 1);
    layer.to(to);
    nn::NamedTensors state{{"weight", full({1, 1}, value, from)}, {"bias", zeros({1})}};
    const auto message = message_of<DTypeError>([&] { nn::load_state_dict(layer, state); });
    if (message.empty()) return std::string(std::isnan(value) ? "NaN" : "loaded");
    CHECK(layer.weight.item() != value);
    return message;
  };
  CHECK(loads(1e6, f32, f16) ==
        "[load_state_dict] the state does not fit the module: Out of range: weight (1e+06 given, "
        "f16 here). Load into a module of a wider dtype.");
  CHECK(loads(65519, f32, f16) == "loaded");  // rounds to 65504
  CHECK(contains(loads(-65520, f32, f16), "Out of range"));
  CHECK(contains(loads(1e39, f64, f32), "Out of range"));
  CHECK(contains(loads(1e39, f64, bf16), "Out of range"));
  CHECK(loads(1e-9, f32, f16) == "loaded");
  CHECK(loads(1e6, f32, bf16) == "loaded");
  CHECK(loads(1e6, i64, f32) == "loaded");
  CHECK(contains(loads(1e6, i64, f16), "Out of range"));
  CHECK(loads(std::numeric_limits<double>::infinity(), f32, f16) == "loaded");
  CHECK(loads(std::numeric_limits<double>::quiet_NaN(), f32, f16) == "NaN");

  nn::BatchNorm1d norm(1);  // counts batches in an i64
  nn::NamedTensors state = nn::state_dict(norm);
  state["num_batches_tracked"] = scalar(2.5);
  CHECK(contains(message_of<DTypeError>([&] { nn::load_state_dict(norm, state); }),
                 "num_batches_tracked (2.5 given, i64 here)"));
  state["num_batches_tracked"] = scalar(3);
  nn::load_state_dict(norm, state);
  CHECK(nn::state_dict(norm).at("num_batches_tracked").item() == 3);
}

TEST_CASE("nothing writes into an expanded tensor") {
  struct Expanded final : nn::Module {
    nn::Buffer table{views::expand(zeros({2, 1}), {2, 2})};
    void describe(nn::Fields& field) override { field("table", table); }
  } module;
  const nn::NamedTensors state{{"table", from({{1, 2}, {3, 4}}, f32)}};
  CHECK_THROWS_WITH_AS(
      nn::load_state_dict(module, state),
      "[load_state_dict] the state does not fit the module: Expanded: table. Elements of an "
      "expanded tensor share their memory. Make the parameter from a clone().",
      UsageError);

  const Tensor x = views::expand(zeros({1, 3}), {2, 3});
  const char* const message =
      "[write] [2, 3] f32 with strides [0, 1] has several elements in one place, as an expanded "
      "tensor has, and cannot be written. Write into a clone() of it.";
  CHECK_THROWS_WITH_AS(copy_into(x, ones({2, 3})), message, UsageError);
  CHECK_THROWS_WITH_AS(fill_with(x, 1), message, UsageError);
  CHECK_THROWS_WITH_AS(nn::init::normal(x), message, UsageError);
  CHECK_THROWS_WITH_AS(nn::init::orthogonal(x), message, UsageError);
  CHECK_THROWS_WITH_AS(mark_written(x), message, UsageError);
  CHECK(x.to_vector<double>() == std::vector<double>(6, 0));
  CHECK_THROWS_AS(copy_into(zeros({4}), ones({2, 2})), ShapeError);
  const Tensor leaf = views::expand(zeros({1, 3}), {2, 3}).set_requires_grad();
  CHECK(contains(message_of<UsageError>([&] { optim::Sgd({leaf}, {.lr = 1}); }),
                 "parameter 0, [2, 3] f32, is expanded"));

  const Tensor storage = zeros({12});
  CHECK(has_overlap(storage.view_as({3, 3}, {2, 1}, 0)));
  CHECK_FALSE(has_overlap(storage.view_as({3, 3}, {1, 4}, 0)));
  CHECK_FALSE(has_overlap(storage.view_as({2, 1, 3}, {6, 0, 1}, 0)));
  copy_into(storage.view_as({2, 2}, {6, 2}, 1), from({{1, 2}, {3, 4}}, f32));
  CHECK(storage.at({7}) == 3);
}

}  // namespace halftone::test::state_dict_test
