// state_dict: round trips, conversion, in-place loading, and reports that list everything at once.
#include <doctest/doctest.h>

#include <halftone/autograd/ops.h>
#include <halftone/nn/models/mlp.h>
#include <halftone/nn/nn.h>

#include "../temporary_directory.h"

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

}  // namespace halftone::test::state_dict_test
