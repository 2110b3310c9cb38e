// Attention against PyTorch's (tests/fixtures/pytorch/attention_fixtures.py).
#include <halftone/nn/layers.h>

#include "fixture.h"

namespace halftone::test::attention_test {
namespace {
Tensor sdpa(const Inputs& in, const AttentionOptions& options) {
  return scaled_dot_product_attention(in["q"], in["k"], in["v"], options);
}
/// A layer of 12 features and 3 heads with a case's weights, which receive the gradients.
nn::MultiheadAttention layer_of(const Inputs& in) {
  nn::MultiheadAttention layer(12, 3);
  const auto take = [&](nn::Parameter& to, const char* name) {
    static_cast<Tensor&>(to) = in[name];
  };
  take(layer.in_proj_weight, "in_w"), take(layer.in_proj_bias, "in_b");
  take(layer.out_proj.weight, "out_w"), take(layer.out_proj.bias, "out_b");
  return layer;
}

const Calls attentions{
    {"sdpa", [](const Inputs& in) { return sdpa(in, {}); }},
    {"sdpa_causal", [](const Inputs& in) { return sdpa(in, {.causal = true}); }},
    {"sdpa_scale", [](const Inputs& in) { return sdpa(in, {.scale = 0.7}); }},
    {"sdpa_condition", [](const Inputs& in) { return sdpa(in, {.mask = in["_m"]}); }},
    {"sdpa_added", [](const Inputs& in) { return sdpa(in, {.mask = in["m"]}); }},
    {"mha", [](const Inputs& in) { return layer_of(in)(in["x"]); }},
    {"mha_causal",
     [](const Inputs& in) { return layer_of(in)(in["x"], AttentionOptions{.causal = true}); }},
    {"mha_cross", [](const Inputs& in) { return layer_of(in)(in["q"], in["k"], in["v"]); }},
};
}  // namespace

TEST_CASE("pytorch: attention") {
  const auto cases = load_cases("attention");
  CHECK(forgotten(cases, attentions) == "");
  compare_all(cases, attentions);
}

TEST_CASE("MultiheadAttention: names, first values, dropout") {
  manual_seed(0);
  nn::MultiheadAttention layer(64, 4, {.dropout = 0.5});
  CHECK(layer.named_parameters().size() == 4);
  CHECK(layer.named_parameters()[2].first == "out_proj.weight");
  CHECK(largest_magnitude(layer.in_proj_weight) <= std::sqrt(6.0 / (64 + 192)));
  CHECK(largest_magnitude(layer.in_proj_weight) > 0.9 * std::sqrt(6.0 / (64 + 192)));
  CHECK(largest_magnitude(layer.in_proj_bias) == 0);
  const Tensor x = randn({1, 6, 64});
  CHECK(layer(x).to_vector<float>() != layer(x).to_vector<float>());
  layer.eval();
  CHECK(layer(x).to_vector<float>() == layer(x).to_vector<float>());
  CHECK_FALSE(nn::MultiheadAttention(4, 2, {.bias = false}).in_proj_bias.defined());
  CHECK_THROWS_WITH_AS(nn::MultiheadAttention(6, 0),
                       "[MultiheadAttention] heads is 0. Use 1 or more.", UsageError);
  CHECK_THROWS_AS(nn::MultiheadAttention(6, 4), ShapeError);
}

}  // namespace halftone::test::attention_test
