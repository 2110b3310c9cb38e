// LSTM and GRU layers against PyTorch: outputs, last states, gradients of inputs, states and all
// weights. tests/fixtures/pytorch/recurrent_fixtures.py has the same options.
#include <halftone/nn/rnn.h>
#include <halftone/nn/state_dict.h>

#include "fixture.h"

namespace halftone::test::recurrent_test {
namespace {

const std::pair<std::string, nn::RecurrentOptions> layouts[]{
    {"plain", {}},
    {"states", {}},
    {"no_bias", {.bias = false}},
    {"batch_first", {.batch_first = true}},
    {"two_layers", {.layers = 2}},
    {"bidirectional", {.bidirectional = true}},
    {"everything", {.layers = 3, .batch_first = true, .bidirectional = true}}};

/// A floating tensor of the case, undefined if it does not exist; a leaf if its gradient is stored.
Tensor leaf_of(const NamedTensors& stored, const std::string& name, DType dtype) {
  if (!stored.contains(name)) return {};
  Tensor x = cast(stored.at(name), dtype);
  if (stored.contains("d" + name)) x.set_requires_grad();
  return x;
}

template <class Layer>
void compare_layer(const std::map<std::string, NamedTensors>& cases, const std::string& name,
                   const nn::RecurrentOptions& options, DType dtype) {
  CAPTURE(name);
  CAPTURE(facts(dtype).name);
  const NamedTensors& stored = cases.at(name);
  Layer layer(3, 4, options);
  layer.to(dtype);
  nn::load_state_dict(layer, cases.at(name + "/state"));
  const Tensor x = leaf_of(stored, "x", dtype), h0 = leaf_of(stored, "h0", dtype),
               c0 = leaf_of(stored, "c0", dtype);
  NamedTensors outputs;
  if constexpr (std::same_as<Layer, nn::Lstm>) {
    const nn::LstmOutput result = layer(x, h0, c0);
    outputs = {{"y", result.y}, {"h", result.h}, {"c", result.c}};
  } else {
    const nn::GruOutput result = layer(x, h0);
    outputs = {{"y", result.y}, {"h", result.h}};
  }
  // The longest path of a rounding error: through all steps of all layers, 5 terms in each sum.
  const double allowed = tolerance(dtype, 5 * 5 * options.layers, 1);
  Tensor total = scalar(0, dtype);
  for (const auto& [key, y] : outputs) {
    CAPTURE(key);
    CHECK(difference(y, stored.at(key), allowed) == "");
    total = total + sum(y * cast(stored.at("d" + key), dtype));
  }
  total.backward();
  const auto compare_gradient = [&](const Tensor& leaf, const Tensor& want) {
    CHECK(difference(leaf.grad(), want, allowed * std::max(1.0, largest_magnitude(want))) == "");
  };
  compare_gradient(x, stored.at("dx"));
  if (h0.defined()) compare_gradient(h0, stored.at("dh0"));
  if (c0.defined()) compare_gradient(c0, stored.at("dc0"));
  for (const auto& [key, parameter] : layer.named_parameters()) {
    CAPTURE(key);
    compare_gradient(parameter, cases.at(name + "/gradients").at(key));
  }
}

}  // namespace

TEST_CASE("pytorch: recurrent layers") {
  const auto cases = load_cases("recurrent");
  CHECK(cases.size() == 2 * 3 * std::size(layouts));
  for (const std::string_view backend : {"reference", "cpu"}) {
    const CpuBackendScope scope(backend);
    CAPTURE(backend);
    for (const auto& [name, options] : layouts)
      for (const DType dtype : {f64, f32}) {
        compare_layer<nn::Lstm>(cases, "lstm_" + name, options, dtype);
        compare_layer<nn::Gru>(cases, "gru_" + name, options, dtype);
      }
  }
}

}  // namespace halftone::test::recurrent_test
