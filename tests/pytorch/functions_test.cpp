// Losses, elementwise functions, reductions and embeddings against PyTorch, including kinks,
// ties and ignored targets. tests/fixtures/pytorch/function_fixtures.py has the same
// options.
#include "fixture.h"

namespace halftone::test::functions_test {
namespace {

Call cross_entropy_with(CrossEntropyOptions options) {
  return [options](const Inputs& in) {
    CrossEntropyOptions s = options;
    s.weight = in["_w"];
    return cross_entropy(in["x"], in["t"], s);
  };
}
Call nll_loss_with(CrossEntropyOptions options) {
  return [options](const Inputs& in) {
    CrossEntropyOptions s = options;
    s.weight = in["_w"];
    return nll_loss(in["x"], in["t"], s);
  };
}

/// f(x) for a function of one tensor.
template <class F> Call of_x(F f) {
  return [f](const Inputs& in) { return f(in["x"]); };
}

}  // namespace

TEST_CASE("pytorch: losses") {
  const auto cases = load_cases("loss");
  Calls table{
      {"ce_weight", cross_entropy_with({})},
      {"ce_smoothing", cross_entropy_with({.label_smoothing = 0.1})},
      {"ce_ignored", cross_entropy_with({})},
      {"ce_all_ignored_sum", cross_entropy_with({.reduction = LossReduction::sum})},
      {"ce_all_ignored_mean", cross_entropy_with({})},
      {"ce_large_logits", cross_entropy_with({})},
      {"ce_one_sample", cross_entropy_with({})},
      {"kl_batchmean",
       [](const Inputs& in) {
         return kl_div(in["x"], in["t"], false, LossReduction::sum) / double(in["x"].shape()[0]);
       }},
      {"kl_zero_targets",
       [](const Inputs& in) { return kl_div(in["x"], in["_t"], false, LossReduction::none); }},
      {"bce_of_certainties",
       [](const Inputs& in) {
         return binary_cross_entropy(in["x"], in["_t"], LossReduction::none);
       }},
  };
  const std::pair<std::string, LossReduction> reductions[]{
      {"mean", LossReduction::mean}, {"sum", LossReduction::sum}, {"none", LossReduction::none}};
  for (const auto& [name, how] : reductions) {
    table["ce_" + name] = cross_entropy_with({.reduction = how});
    table["ce_everything_" + name] =
        cross_entropy_with({.label_smoothing = 0.2, .ignore_index = 3, .reduction = how});
    table["nll_" + name] = nll_loss_with({.ignore_index = 3, .reduction = how});
    table["bce_" + name] = [how](const Inputs& in) {
      return bce_with_logits(in["x"], in["t"], how);
    };
    table["smooth_l1_" + name] = [how](const Inputs& in) {
      return smooth_l1(in["x"], in["t"], 0.5, how);
    };
    table["huber_" + name] = [how](const Inputs& in) { return huber(in["x"], in["t"], 0.5, how); };
    table["kl_" + name] = [how](const Inputs& in) { return kl_div(in["x"], in["t"], false, how); };
    table["kl_log_target_" + name] = [how](const Inputs& in) {
      return kl_div(in["x"], in["t"], true, how);
    };
    table["bce_of_probabilities_" + name] = [how](const Inputs& in) {
      return binary_cross_entropy(in["x"], in["t"], how);
    };
    if (how == LossReduction::sum) continue;
    table["ce_segments_" + name] = cross_entropy_with({.label_smoothing = 0.1, .reduction = how});
    table["ce_images_" + name] = cross_entropy_with({.ignore_index = 0, .reduction = how});
    table["nll_images_" + name] = nll_loss_with({.reduction = how});
  }
  CHECK(forgotten(cases, table) == "");
  compare_all(cases, table);
}

TEST_CASE("pytorch: elementwise functions, reductions, embeddings") {
  const auto cases = load_cases("elementwise");
  const Calls table{
      {"gelu_erf", of_x([](const Tensor& x) { return gelu_erf(x); })},
      {"gelu_tanh", of_x([](const Tensor& x) { return gelu(x); })},
      {"softplus", of_x([](const Tensor& x) { return softplus(x); })},
      {"softplus_options", of_x([](const Tensor& x) { return softplus(x, 2.5, 6); })},
      {"silu", of_x([](const Tensor& x) { return silu(x); })},
      {"leaky_relu", of_x([](const Tensor& x) { return leaky_relu(x, 0.125); })},
      {"relu", of_x([](const Tensor& x) { return relu(x); })},
      {"abs", of_x([](const Tensor& x) { return abs(x); })},
      {"clamp", of_x([](const Tensor& x) { return clamp(x, -2, 3); })},
      {"log_softmax", of_x([](const Tensor& x) { return log_softmax(x, 1); })},
      {"softmax", of_x([](const Tensor& x) { return softmax(x, -1); })},
      {"logsumexp", of_x([](const Tensor& x) { return logsumexp(x, 0); })},
      {"amax_ties", of_x([](const Tensor& x) { return max(x, {2}); })},
      {"amax_ties_two_dims", of_x([](const Tensor& x) {
         return max(x, {0, 2}, true);
       })},
      {"amin_ties_all", of_x([](const Tensor& x) { return min(x); })},
      {"maximum_ties", [](const Inputs& in) { return maximum(in["a"], in["b"]); }},
      {"minimum_broadcast", [](const Inputs& in) { return minimum(in["a"], in["b"]); }},
      {"norm_with_zero_row", of_x([](const Tensor& x) { return norm(x, {1}); })},
      {"var", of_x([](const Tensor& x) {
         return var(x, {0, 2});
       })},
      {"var_biased", of_x([](const Tensor& x) { return var(x, {1}, 0, true); })},
      {"cumsum", of_x([](const Tensor& x) { return cumsum(x, 1); })},
      {"pow_at_zero", [](const Inputs& in) { return pow(in["a"], in["b"]); }},
      {"embedding", [](const Inputs& in) { return embedding(in["i"], in["t"]); }},
      {"log2", of_x([](const Tensor& x) { return log2(x); })},
      {"log10", of_x([](const Tensor& x) { return log10(x); })},
      {"prelu", [](const Inputs& in) { return prelu(in["x"], in["w"]); }},
      {"prelu_channels", [](const Inputs& in) { return prelu(in["x"], in["w"]); }},
      {"prod", of_x([](const Tensor& x) { return prod(x); })},
      {"prod_of_rows", of_x([](const Tensor& x) { return prod(x, {1}, true); })},
      {"prod_zeros", of_x([](const Tensor& x) { return prod(x, {1}); })},
      {"dot", [](const Inputs& in) { return dot(in["a"], in["b"]); }},
      {"cosine", [](const Inputs& in) { return cosine_similarity(in["a"], in["b"]); }},
      {"cosine_broadcast",
       [](const Inputs& in) { return cosine_similarity(in["a"], in["b"], -1); }},
      {"cosine_eps", [](const Inputs& in) { return cosine_similarity(in["a"], in["b"], 0, 0.1); }},
      {"embedding_padding", [](const Inputs& in) { return embedding(in["i"], in["t"], 4); }},
  };
  CHECK(forgotten(cases, table) == "");
  compare_all(cases, table);
}

}  // namespace halftone::test::functions_test
