// Operations on integers, by indices, sorting and rearranging against PyTorch, with the dtypes of
// their results. tests/fixtures/pytorch/operation_fixtures.py has the cases and the meaning of
// their attributes.
#include <bit>
#include <cstring>

#include <halftone/halftone.h>

#include "fixture.h"

namespace halftone::test::operations_test {
namespace {

Operation of_a(Tensor (*f)(const Tensor&)) {
  return [f](const Arguments& in) { return Results{f(in.a)}; };
}
Operation of_two(Tensor (*f)(const Tensor&, const Tensor&)) {
  return [f](const Arguments& in) { return Results{f(in.a, in.b)}; };
}
Operation over_dim(Tensor (*f)(const Tensor&, const Dims&, bool)) {
  return [f](const Arguments& in) { return Results{f(in.a, {in.n[0]}, in.n[1] != 0)}; };
}
template <class F> Operation result_of(F f) {
  return [f](const Arguments& in) { return Results{f(in)}; };
}
Dims dims_of(const Arguments& in) { return Dims(std::span<const int64_t>(in.n)); }
Operation padded(PadMode mode) {
  return result_of([mode](const Arguments& in) { return pad(in.a, dims_of(in), mode); });
}
Operation soft_loss(LossReduction reduction) {
  return result_of([reduction](const Arguments& in) {
    return cross_entropy(in.a, in.b,
                         {.label_smoothing = double(in.n[0]) / 10, .reduction = reduction});
  });
}

std::map<std::string, Operation> numbers() {
  return {
      {"add", of_two(&add)},
      {"sub", of_two(&sub)},
      {"mul", of_two(&mul)},
      {"div", of_two(&div)},
      {"floor_divide", of_two(&floor_divide)},
      {"remainder", of_two(&remainder)},
      {"maximum", of_two(&maximum)},
      {"minimum", of_two(&minimum)},
      {"eq", result_of([](const Arguments& in) { return in.a == in.b; })},
      {"lt", result_of([](const Arguments& in) { return in.a < in.b; })},
      {"ge", result_of([](const Arguments& in) { return in.a >= in.b; })},
      {"logical_and", of_two(&logical_and)},
      {"logical_or", of_two(&logical_or)},
      {"logical_xor", of_two(&logical_xor)},
      {"logical_not", of_a(&logical_not)},
      {"add_whole", result_of([](const Arguments& in) { return in.a + in.n[0]; })},
      {"mul_whole", result_of([](const Arguments& in) { return in.n[0] * in.a; })},
      {"greater_whole", result_of([](const Arguments& in) { return in.a > in.n[0]; })},
      {"subtracted_from", result_of([](const Arguments& in) { return in.n[0] - in.a; })},
      {"add_half", result_of([](const Arguments& in) { return 0.5 + in.a; })},
      {"less_half", result_of([](const Arguments& in) { return 0.5f > in.a; })},
      {"where_zero", result_of([](const Arguments& in) { return where(in.a, in.b, 0.0); })},
      {"sum", over_dim(&sum)},
      {"prod", over_dim(&prod)},
      {"max", over_dim(&max)},
      {"min", over_dim(&min)},
      {"any", over_dim(&any)},
      {"all", over_dim(&all)},
      {"argmax",
       result_of([](const Arguments& in) { return argmax(in.a, in.dim(0), in.n[1] != 0); })},
      {"argmin",
       result_of([](const Arguments& in) { return argmin(in.a, in.dim(0), in.n[1] != 0); })},
      {"cumsum", result_of([](const Arguments& in) { return cumsum(in.a, in.dim(0)); })},
      {"std", result_of([](const Arguments& in) { return halftone::std(in.a, in.n[0]); })},
      {"sign", of_a(&sign)},
      {"floor", of_a(&floor)},
      {"ceil", of_a(&ceil)},
      {"round", of_a(&round)},
      {"abs", of_a(&abs)},
      {"neg", of_a(&neg)},
      {"square", of_a(&square)},
      {"relu", of_a(&relu)},
      {"sin", of_a(&sin)},
      {"cos", of_a(&cos)},
      {"elu", result_of([](const Arguments& in) { return elu(in.a); })},
      {"elu_steep", result_of([](const Arguments& in) { return elu(in.a, 2.5); })},
      {"mish", of_a(&mish)},
      {"hardswish", of_a(&hardswish)},
      {"isnan", of_a(&isnan)},
      {"isfinite", of_a(&isfinite)},
      {"isinf", of_a(&isinf)},
  };
}

std::map<std::string, Operation> movements() {
  return {
      {"masked_fill", result_of([](const Arguments& in) { return masked_fill(in.a, in.b, 1); })},
      {"gather", result_of([](const Arguments& in) { return gather(in.a, in.dim(0), in.b); })},
      {"scatter_add",
       result_of([](const Arguments& in) { return scatter_add(in.a, in.dim(0), in.b, in.c); })},
      {"index_select",
       result_of([](const Arguments& in) { return index_select(in.a, in.dim(0), in.b); })},
      {"one_hot", result_of([](const Arguments& in) { return one_hot(in.a, in.n[0]); })},
      {"sort",
       [](const Arguments& in) {
         const Sorted sorted = sort(in.a, in.dim(0), in.n[1] != 0);
         return Results{sorted.values, sorted.indices};
       }},
      {"topk",
       [](const Arguments& in) {
         const Sorted top = topk(in.a, in.n[0], in.dim(1), in.n[2] != 0);
         return Results{top.values, top.indices};
       }},
      {"flip", result_of([](const Arguments& in) { return flip(in.a, dims_of(in)); })},
      {"tril", result_of([](const Arguments& in) { return tril(in.a, in.n[0]); })},
      {"triu", result_of([](const Arguments& in) { return triu(in.a, in.n[0]); })},
      {"split", [](const Arguments& in) { return split(in.a, in.n[0], in.dim(1)); }},
      {"chunk", [](const Arguments& in) { return chunk(in.a, in.n[0], in.dim(1)); }},
      {"pad_constant", result_of([](const Arguments& in) { return pad(in.a, dims_of(in)); })},
      {"pad_reflect", padded(PadMode::reflect)},
      {"pad_replicate", padded(PadMode::replicate)},
      {"pad_circular", padded(PadMode::circular)},
      {"max_pool", result_of([](const Arguments& in) {
         return max_pool2d(in.a, {.kernel = in.n[0],
                                  .stride = Pair(in.n[1]),
                                  .padding = in.n[2],
                                  .dilation = in.n[3],
                                  .ceil_mode = in.n[4] != 0});
       })},
      {"instance_norm",
       result_of([](const Arguments& in) { return instance_norm(in.a, in.b, in.c); })},
      {"instance_norm_plain", result_of([](const Arguments& in) { return instance_norm(in.a); })},
      {"soft_mean", soft_loss(LossReduction::mean)},
      {"soft_sum", soft_loss(LossReduction::sum)},
      {"soft_none", soft_loss(LossReduction::none)},
      {"soft_weighted", result_of([](const Arguments& in) {
         return cross_entropy(in.a, in.b, {.weight = in.c.detach(), .label_smoothing = 0.1});
       })},
  };
}

std::map<std::string, Operation> rarer_functions() {
  return {
      {"tan", of_a(&tan)},
      {"asin", of_a(&asin)},
      {"acos", of_a(&acos)},
      {"atan", of_a(&atan)},
      {"sinh", of_a(&sinh)},
      {"cosh", of_a(&cosh)},
      {"exp2", of_a(&exp2)},
      {"erfinv", of_a(&erfinv)},
      {"trunc", of_a(&trunc)},
      {"frac", of_a(&frac)},
      {"logit", result_of([](const Arguments& in) { return logit(in.a); })},
      {"logit_eps",
       result_of([](const Arguments& in) { return logit(in.a, double(in.n[0]) / 10); })},
      {"atan2", of_two(&atan2)},
      {"logaddexp", of_two(&logaddexp)},
      {"fmod", of_two(&fmod)},
      {"xlogy", of_two(&xlogy)},
      {"fmod_whole", result_of([](const Arguments& in) { return fmod(in.a, in.n[0]); })},
      {"fmod_half", result_of([](const Arguments& in) { return fmod(in.a, -2.5); })},
      {"xlogy_of_number", result_of([](const Arguments& in) { return xlogy(2, in.a); })},
  };
}

Operation reduced(ScatterReduction how) {
  return result_of([how](const Arguments& in) {
    return scatter_reduce(in.a, in.dim(0), in.b, in.c, how, in.n[1] != 0);
  });
}

std::map<std::string, Operation> several_indices() {
  return {
      {"index_first", result_of([](const Arguments& in) { return in.a[in.b]; })},
      {"index_second", result_of([](const Arguments& in) {
         return in.a[{Tensor{}, in.b}];
       })},
      {"index_pair", result_of([](const Arguments& in) {
         return in.a[{in.b, in.c}];
       })},
      {"index_apart", result_of([](const Arguments& in) {
         return index(in.a, {in.b, Tensor{}, in.c});
       })},
      {"index_last_two", result_of([](const Arguments& in) {
         return index(in.a, {Tensor{}, in.b, in.c});
       })},
      {"index_put",
       result_of([](const Arguments& in) { return index_put(in.a, {in.b}, in.c, in.n[0] != 0); })},
      {"index_put_pair", result_of([](const Arguments& in) {
         return index_put(in.a, {in.b, from({0, -1})}, in.c);
       })},
      {"index_fill",
       result_of([](const Arguments& in) { return index_fill(in.a, in.dim(0), in.b - 1, 1); })},
      {"index_copy",
       result_of([](const Arguments& in) { return index_copy(in.a, in.dim(0), in.b, in.c); })},
      {"masked_scatter",
       result_of([](const Arguments& in) { return masked_scatter(in.a, in.b, in.c); })},
      {"take_along_dim",
       result_of([](const Arguments& in) { return take_along_dim(in.a, in.b, in.dim(0)); })},
      {"slices", result_of([](const Arguments& in) {
         return in.a.slice(0, 1).slice(1, {}, -1).slice(-1, -1);
       })},
      {"repeat_interleave",
       result_of([](const Arguments& in) { return repeat_interleave(in.a, in.n[0], in.dim(1)); })},
      {"repeat_interleave_all",
       result_of([](const Arguments& in) { return repeat_interleave(in.a, in.n[0]); })},
      {"repeat_interleave_each",
       result_of([](const Arguments& in) { return repeat_interleave(in.a, in.b, in.dim(0)); })},
      {"reduce_sum", reduced(ScatterReduction::sum)},
      {"reduce_mean", reduced(ScatterReduction::mean)},
      {"reduce_amax", reduced(ScatterReduction::amax)},
      {"reduce_amin", reduced(ScatterReduction::amin)},
      {"reduce_prod", reduced(ScatterReduction::prod)},
  };
}

UnfoldOptions windows(const Arguments& in, std::size_t first) {
  const auto pair = [&](std::size_t i) { return Pair(in.n[first + i], in.n[first + i + 1]); };
  return {.kernel = pair(0), .dilation = pair(2), .padding = pair(4), .stride = pair(6)};
}
Operation sampled(Interpolation mode) {
  return result_of([mode](const Arguments& in) {
    return grid_sample(
        in.a, in.b, {.mode = mode, .padding = GridPadding(in.n[0]), .align_corners = in.n[1] != 0});
  });
}

std::map<std::string, Operation> more_shapes() {
  return {
      {"unbind", [](const Arguments& in) { return unbind(in.a, in.dim(0)); }},
      {"movedim", result_of([](const Arguments& in) {
         return movedim(in.a, {0, -1}, {-1, 0});
       })},
      {"unflatten", result_of([](const Arguments& in) {
         return unflatten(in.a, 1, {2, -1});
       })},
      {"hstack", result_of([](const Arguments& in) {
         return hstack({in.a, in.b});
       })},
      {"vstack", result_of([](const Arguments& in) {
         return vstack({in.a, in.b});
       })},
      {"unfold",
       result_of([](const Arguments& in) { return unfold(in.a, in.dim(0), in.n[1], in.n[2]); })},
      {"pixel_unshuffle",
       result_of([](const Arguments& in) { return pixel_unshuffle(in.a, in.n[0]); })},
      {"unfold_images",
       result_of([](const Arguments& in) { return unfold(in.a, windows(in, 0)); })},
      {"fold", result_of([](const Arguments& in) {
         return fold(in.a, {in.n[0], in.n[1]}, windows(in, 2));
       })},
      {"grid_nearest", sampled(Interpolation::nearest)},
      {"grid_bilinear", sampled(Interpolation::bilinear)},
  };
}

TEST_CASE("pytorch: operations on integers, by indices, sorting and rearranging") {
  std::map<std::string, Operation> table = numbers();
  table.merge(movements());
  table.merge(rarer_functions());
  table.merge(several_indices());
  table.merge(more_shapes());
  const auto cases = load_cases("operations");
  CHECK(cases.size() > 780);
  for (const std::string_view backend : {"reference", "cpu"}) {
    const CpuBackendScope scope(backend);
    for (const auto& [name, tensors] : cases) {
      CAPTURE(backend);
      CAPTURE(name);
      const std::string op = name.substr(0, name.find('/'));
      if (op.starts_with("einsum_")) {
        const std::string equation = op.substr(7);
        check_case(tensors,
                   result_of([&](const Arguments& in) { return einsum(equation, in.a, in.b); }));
        continue;
      }
      REQUIRE_MESSAGE(table.contains(op), "there is no operation ", op);
      check_case(tensors, table.at(op));
    }
  }
}

}  // namespace
}  // namespace halftone::test::operations_test

// Losses, elementwise functions, reductions and embeddings against PyTorch, including kinks,
// ties and ignored targets. tests/fixtures/pytorch/function_fixtures.py has the same
// options.

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

// LSTM and GRU layers against PyTorch: outputs, last states, gradients of inputs, states and all
// weights. tests/fixtures/pytorch/recurrent_fixtures.py has the same options.

namespace halftone::test::recurrent_test {
namespace {

const std::pair<std::string, nn::RecurrentOptions> layouts[]{
    {"plain", {}},
    {"states", {}},
    {"no_bias", {.bias = false}},
    {"batch_first", {.batch_first = true}},
    {"two_layers", {.layers = 2}},
    {"bidirectional", {.bidirectional = true}},
    {"everything", {.layers = 3, .batch_first = true, .bidirectional = true}},
    {"lengths", {}},
    {"lengths_states", {}},
    {"lengths_everything", {.layers = 3, .batch_first = true, .bidirectional = true}}};

/// A floating tensor of the case, undefined if it does not exist; a leaf if its gradient is stored.
Tensor leaf_of(const NamedTensors& stored, const std::string& name, DType dtype) {
  if (!stored.contains(name)) return {};
  Tensor x = cast(stored.at(name), dtype);
  if (stored.contains("d" + name)) x.set_requires_grad();
  return x;
}

template <class Layer>
void compare_layer(const std::map<std::string, NamedTensors>& cases, const std::string& name,
                   Layer layer, DType dtype) {
  CAPTURE(name);
  CAPTURE(facts(dtype).name);
  const NamedTensors& stored = cases.at(name);
  layer.to(dtype);
  nn::load_state_dict(layer, cases.at(name + "/state"));
  const Tensor x = leaf_of(stored, "x", dtype), h0 = leaf_of(stored, "h0", dtype),
               c0 = leaf_of(stored, "c0", dtype), lengths = find(stored, "lengths");
  NamedTensors outputs;
  if constexpr (std::same_as<Layer, nn::Lstm>) {
    const nn::LstmOutput result = layer(x, h0, c0, lengths);
    outputs = {{"y", result.y}, {"h", result.h}, {"c", result.c}};
  } else {
    const nn::GruOutput result = layer(x, h0, lengths);
    outputs = {{"y", result.y}, {"h", result.h}};
  }
  // The longest path of a rounding error: through all steps of all layers, 5 terms in each sum.
  const double allowed = tolerance(dtype, 5 * 5 * layer.options.layers, 1);
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
  std::size_t compared = 0;
  for (const std::string_view backend : {"reference", "cpu"}) {
    const CpuBackendScope scope(backend);
    CAPTURE(backend);
    for (const auto& [name, options] : layouts)
      for (const DType dtype : {f64, f32}) {
        compare_layer(cases, "lstm_" + name, nn::Lstm(3, 4, options), dtype);
        compare_layer(cases, "gru_" + name, nn::Gru(3, 4, options), dtype);
        compared += 2;
        for (const char* nonlinearity : {"tanh", "relu"}) {
          const std::string of_rnn = std::string(nonlinearity) + "_" + name;
          if (!cases.contains(of_rnn)) continue;
          compare_layer(cases, of_rnn, nn::Rnn(3, 4, options, nonlinearity), dtype);
          ++compared;
        }
      }
  }
  // A case consists of three (itself, its state, its gradients), and was compared four times.
  CHECK(4 * cases.size() == 3 * compared);
}

}  // namespace halftone::test::recurrent_test

// Interpolation against PyTorch, also in bf16: tests/fixtures/pytorch/function_fixtures.py has the
// same options.

namespace halftone::test::resize_test {
namespace {

Call interpolate_with(InterpolateOptions options) {
  return [options](const Inputs& in) { return interpolate(in["x"], options); };
}

}  // namespace

TEST_CASE("pytorch: interpolation") {
  const auto cases = load_cases("interpolate");
  const std::pair<std::string, InterpolateOptions> sizes[]{
      {"doubled", {.scale_factor = 2.0}},
      {"to_size", {.size = Pair{7, 9}}},
      {"smaller", {.size = Pair{2, 3}}},
      {"factors", {.scale_factor = Factors{1.5, 2.75}}},
      {"shrunk", {.scale_factor = Factors{0.6, 0.45}}},
      {"to_one", {.size = 1}}};
  Calls table{{"nearest_many", interpolate_with({.size = Pair{31, 50}})}};
  for (const auto& [name, size] : sizes) {
    InterpolateOptions options = size;
    table["nearest_" + name] = interpolate_with(options);
    options.mode = Interpolation::bilinear;
    table["bilinear_" + name] = interpolate_with(options);
    options.align_corners = true;
    table["corners_" + name] = interpolate_with(options);
  }
  CHECK(forgotten(cases, table) == "");
  compare_all(cases, table);
  for (const auto& [name, compute] : table) {
    CAPTURE(name);
    compare_case(cases.at(name), compute, bf16);
  }
}

}  // namespace halftone::test::resize_test

// Attention against PyTorch's (tests/fixtures/pytorch/attention_fixtures.py).

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

Tensor padded(const Inputs& in) {
  return layer_of(in)(in["x"], AttentionOptions{.mask = in["_m"]}, in["_p"]);
}
/// Two rows of keys: all of the first are seen, and those of the second from `first` up to `end`.
Tensor hidden_but(int64_t size, int64_t first, int64_t end) {
  const Tensor keys = arange(size);
  return stack({keys < 0, logical_or(keys < first, keys >= end)});
}
nn::TransformerEncoderLayer encoder_layer(nn::TransformerEncoderLayerOptions options) {
  options.dim_feedforward = 16, options.dropout = 0;
  return {12, 3, options};
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
    {"mha_padding", padded},
    {"mha_padding_mask", padded},
    {"mha_padding_added_mask", padded},
    {"mha_added_padding", padded},
    {"mha_added_padding_mask", padded},
    {"mha_widths",
     [](const Inputs& in) {
       return with_inputs(nn::MultiheadAttention(12, 3, {.kdim = 8, .vdim = 10}), in)(
           in["q"], in["k"], in["v"]);
     }},
    {"mha_kdim",
     [](const Inputs& in) {
       return with_inputs(nn::MultiheadAttention(12, 3, {.bias = false, .kdim = 8}), in)(
           in["q"], in["k"], in["v"], {}, hidden_but(7, 2, 7));
     }},
    {"encoder_layer", [](const Inputs& in) { return with_inputs(encoder_layer({}), in)(in["x"]); }},
    {"encoder_layer_norm_first",
     [](const Inputs& in) {
       auto layer =
           encoder_layer({.activation = "gelu", .layer_norm_eps = 1e-3, .norm_first = true});
       return with_inputs(std::move(layer), in)(in["x"], {}, hidden_but(5, 0, 3));
     }},
    {"encoder_layer_no_bias",
     [](const Inputs& in) {
       return with_inputs(encoder_layer({.bias = false}), in)(in["x"], {.causal = true});
     }},
    {"encoder",
     [](const Inputs& in) {
       nn::TransformerEncoder encoder(
           2, 12, 3, {.dim_feedforward = 16, .dropout = 0, .norm_first = true}, true);
       return with_inputs(std::move(encoder), in)(in["x"], {.causal = true}, hidden_but(5, 0, 3));
     }},
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

TEST_CASE("MultiheadAttention: padding, other widths, errors") {
  manual_seed(0);
  nn::MultiheadAttention layer(4, 2);
  nn::init::normal(layer.out_proj.bias);
  Tensor x = randn({2, 3, 4}).set_requires_grad();
  const Tensor padding = stack({arange(3) >= 2, arange(3) >= 0});
  // All keys of the second row are hidden: as PyTorch without need_weights.
  const std::vector<float> bias = layer.out_proj.bias.to_vector<float>();
  const float none = -std::numeric_limits<float>::infinity();
  for (const Tensor& mask : {Tensor{}, arange(3) >= 0, zeros({3, 3})})
    for (const Tensor& hidden : {padding, where(padding, none, zeros({2, 3}))}) {
      const Tensor y = layer(x, {.mask = mask}, hidden);
      CHECK(y[1][2].to_vector<float>() == bias);
      CHECK(y[0][2].to_vector<float>() != bias);
      x.set_grad(Tensor{}), sum(y * y).backward();
      for (const double value : x.grad().to_vector<double>()) CHECK(std::isfinite(value));
      CHECK(largest_magnitude(x.grad()[1]) == 0);
    }
  const Tensor mask = zeros({3, 3}).set_requires_grad();
  sum(square(layer(x, {.mask = mask}, padding))).backward();
  CHECK(largest_magnitude(mask.grad()) > 0);
  CHECK_THROWS_WITH_AS(layer(x, {.mask = mask, .causal = true}, padding),
                       doctest::Contains("causal and a mask are both given"), UsageError);
  CHECK_THROWS_WITH_AS(layer(x, AttentionOptions{}, zeros({3, 2})),
                       "[MultiheadAttention] key_padding_mask is [3, 2] f32. It must be [2, 3].",
                       ShapeError);
  CHECK_THROWS_AS(layer(x, AttentionOptions{}, zeros({2, 3}, i64)), DTypeError);
  CHECK_THROWS_WITH_AS(layer(x[0]),
                       "[MultiheadAttention] query is [3, 4] f32, of rank 2. It must have rank 3.",
                       ShapeError);
  CHECK_THROWS_WITH_AS(nn::MultiheadAttention(4, 2, {.vdim = -3}),
                       "[MultiheadAttention] vdim is -3. Use 1 or more.", UsageError);
  const nn::MultiheadAttention wide(4, 2, {.kdim = 4, .vdim = 30});
  CHECK(wide.named_parameters()[0].first == "q_proj_weight");
  CHECK(wide.v_proj_weight.shape() == Shape{4, 30});
  CHECK(largest_magnitude(wide.v_proj_weight) > 0.9 * std::sqrt(6.0 / 34));
  CHECK_FALSE(wide.in_proj_weight.defined());
  CHECK_THROWS_AS(wide(x), ShapeError);
}

TEST_CASE("transformer encoders: names, modes, dropout, errors") {
  manual_seed(0);
  nn::TransformerEncoder encoder(2, 8, 2, {.dim_feedforward = 16, .dropout = 0.5}, true);
  std::vector<std::string> names;
  for (const auto& [name, tensor] : encoder.layers[1].named_parameters()) names.push_back(name);
  CHECK(names == std::vector<std::string>{"self_attn.in_proj_weight", "self_attn.in_proj_bias",
                                          "self_attn.out_proj.weight", "self_attn.out_proj.bias",
                                          "linear1.weight", "linear1.bias", "linear2.weight",
                                          "linear2.bias", "norm1.weight", "norm1.bias",
                                          "norm2.weight", "norm2.bias"});
  CHECK(encoder.named_parameters()[12].first == "layers.1.self_attn.in_proj_weight");
  CHECK(encoder.named_parameters().back().first == "norm.bias");
  CHECK(encoder.layers[0].linear1.weight.to_vector<float>() !=
        encoder.layers[1].linear1.weight.to_vector<float>());
  const Tensor x = randn({2, 3, 8});
  CHECK(encoder(x).to_vector<float>() != encoder(x).to_vector<float>());
  encoder.eval();
  CHECK(encoder(x).to_vector<float>() == encoder(x).to_vector<float>());
  CHECK(amp::autocast(bf16, [&] { return encoder.layers[0](x).dtype(); }) == f32);  // as a norm's
  nn::Sequential model(nn::Linear(8, 8), std::move(encoder), nn::Linear(8, 2));
  CHECK(model(x).shape() == Shape{2, 3, 2});
  CHECK_THROWS_WITH_AS(
      nn::TransformerEncoderLayer(8, 2, {.activation = "tanh"}),
      "[TransformerEncoderLayer] activation is \"tanh\". Use \"relu\" or \"gelu\".", UsageError);
  CHECK_THROWS_WITH_AS(nn::TransformerEncoder(0, 8, 2),
                       "[TransformerEncoder] the number of layers is 0. Use 1 or more.",
                       UsageError);
  CHECK_THROWS_AS(nn::TransformerEncoderLayer(8, 3), ShapeError);
}

}  // namespace halftone::test::attention_test

// Number formats compared with other implementations: gfloat (rounding), ml_dtypes and PyTorch
// (codes and casts), torchao (MX), TransformerEngine's order of operations (NVFP4), DeepSeek-V3's
// tiles. No difference is allowed: tests/fixtures/pytorch/number_format_fixtures.py.

namespace halftone::test::number_formats_test {
namespace {

using Cases = std::map<std::string, NamedTensors>;

const Cases& fixtures() {
  static const Cases cases = load_cases("number_formats");
  return cases;
}
const Tensor& stored(const std::string& name, const std::string& tensor) {
  REQUIRE_MESSAGE(fixtures().contains(name), "there is no case ", name);
  return fixtures().at(name).at(tensor);
}

uint32_t comparable(float x) { return x != x ? 0x7fc00000u : std::bit_cast<uint32_t>(x); }

/// FNV-1a over the words, as in the script.
int64_t checksum(const std::vector<float>& values) {
  uint64_t total = 0xcbf29ce484222325u;
  for (const float value : values) total = (total ^ comparable(value)) * 0x100000001b3u;
  return int64_t(total);
}

/// Returns how many of the stored numbers, which are the first ones, differ.
int64_t differences(const std::vector<float>& got, const Tensor& wanted) {
  const std::vector<float> want = wanted.to_vector<float>();
  REQUIRE(got.size() >= want.size());
  int64_t count = 0;
  for (std::size_t i = 0; i < want.size(); ++i) count += comparable(got[i]) != comparable(want[i]);
  return count;
}
void check_all(const std::string& name, const std::vector<float>& got) {
  INFO(name);
  CHECK(differences(got, stored(name, "y")) == 0);
  CHECK(checksum(got) == stored(name, "sum").data<int64_t>()[0]);
}

std::vector<uint32_t> words(std::size_t count, uint64_t seed) {
  std::vector<uint32_t> all;
  for (std::size_t i = 1; i <= count; ++i) {
    uint64_t z = seed + i * 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    all.push_back(uint32_t((z ^ (z >> 31)) >> 32));
  }
  return all;
}

/// 65536 floats: one half near 1, one half random patterns.
std::vector<float> floats_to_round() {
  const auto near = words(32768, 2), exponents = words(32768, 3), anywhere = words(32768, 1);
  std::vector<float> all;
  for (std::size_t i = 0; i < near.size(); ++i)
    all.push_back(std::bit_cast<float>((near[i] & 0x807fffffu) | (107 + exponents[i] % 40) << 23));
  for (const uint32_t word : anywhere) {
    const float x = std::bit_cast<float>(word);
    all.push_back(x != x ? 0.0f : x);
  }
  return all;
}

TEST_CASE("pytorch: number formats round as gfloat rounds") {
  const std::vector<float> x = floats_to_round();
  REQUIRE(checksum(x) == stored("rounding", "sum").data<int64_t>()[0]);
  const std::vector<uint32_t> random = words(65536, 4);
  for (const char* name : {"bf16", "f16", "tf32", "e5m6", "e5m2", "e4m3", "e3m2", "e2m3", "e2m1"})
    for (const char* way :
         {"nearest_even", "nearest_away", "toward_zero", "up", "down", "stochastic"}) {
      const NumberFormat format = *number_format_named(name);
      const Rounding rounding = *halftone::named<Rounding>(way);
      std::vector<float> y;
      for (std::size_t i = 0; i < x.size(); ++i)
        y.push_back(round_to(format, x[i], rounding, random[i]));
      check_all(std::string(name) + ' ' + way, y);
    }
}

TEST_CASE("pytorch: codes and casts are those of ml_dtypes and PyTorch") {
  for (const char* name : {"e5m2", "e4m3", "e3m2", "e2m3", "e2m1", "e8m0"}) {
    INFO(std::string(name));
    const NumberFormat format = *number_format_named(name);
    const bool scale = format == formats::e8m0;  // no sign, no 0
    const std::vector<float> values =
        stored(std::string("codes ") + name, "values").to_vector<float>();
    const int64_t half = int64_t(values.size()) / (scale ? 1 : 2);
    int64_t numbers = scale ? 1 : 0, wrong = 0;
    for (int64_t code = 0; code < half; ++code) {
      if (!std::isfinite(values[std::size_t(code)])) continue;
      wrong += number_at(format, numbers++) != double(values[std::size_t(code)]);
      wrong += !scale && values[std::size_t(code + half)] != -values[std::size_t(code)];
    }
    CHECK(wrong == 0);
    CHECK(numbers == count_of_numbers(format));
    std::vector<float> y;
    for (const float x : stored(std::string("codes ") + name, "x").to_vector<float>())
      y.push_back(round_to(format, x));
    CHECK(differences(y, stored(std::string("codes ") + name, "y")) == 0);
    if (fixtures().contains(std::string("torch ") + name))
      CHECK(differences(y, stored(std::string("torch ") + name, "y")) == 0);
  }
}

template <class Body> void each_backend(const Body& body) {
  for (const std::string_view backend : {"reference", "cpu"}) {
    INFO("backend ", std::string(backend));
    const CpuBackendScope scope(backend);
    body();
  }
}
std::vector<float> result_of(const Tensor& x, const Quantizer& quantizer) {
  return quantized(x, {.quantizer = quantizer}).to_vector<float>();
}

TEST_CASE("pytorch: MX equals torchao's, under its four rules") {
  each_backend([] {
    for (const char* name : {"mxfp8", "mxfp8-e5m2", "mxfp6", "mxfp6-e3m2", "mxfp4"})
      for (const char* rule : {"floor", "ceil", "rceil", "even"}) {
        Quantizer quantizer = *quantizer_named(name);
        quantizer.scaling.rule = *halftone::named<ScaleRule>(rule);
        check_all(std::string(name) + ' ' + rule, result_of(stored("mx", "x"), quantizer));
      }
  });
}

TEST_CASE("pytorch: the exponents of MX's scales are torchao's") {
  const std::vector<float> x = stored("mx", "x").to_vector<float>();
  for (const char* name : {"mxfp8", "mxfp8-e5m2", "mxfp6", "mxfp6-e3m2", "mxfp4"})
    for (const char* rule : {"floor", "ceil", "rceil", "even"}) {
      INFO(std::string(name), " ", std::string(rule));
      Quantizer quantizer = *quantizer_named(name);
      quantizer.scaling.rule = *halftone::named<ScaleRule>(rule);
      const QuantizeNumbers n = numbers_of(quantizer);
      const Tensor& wanted = stored(std::string(name) + ' ' + rule, "exponents");
      int64_t wrong = 0;
      for (int64_t block = 0; block < wanted.numel(); ++block) {
        float amax = 0;
        for (int64_t i = 0; i < 32; ++i)
          amax = std::max(amax, std::abs(x[std::size_t(block * 32 + i)]));
        wrong += scale_exponent(n, amax) + 127 != int(wanted.data<uint8_t>()[block]);
      }
      CHECK(wrong == 0);
    }
}

TEST_CASE("pytorch: NVFP4 rounds in TransformerEngine's order") {
  each_backend([] {
    for (const char* name : {"plain", "large", "small", "zero"})
      for (const int rows : {1, 16}) {
        Quantizer quantizer = *quantizer_named("nvfp4");
        quantizer.scaling.rows = rows;
        const std::string stem = std::string("nvfp4 ") + name;
        check_all(stem + ' ' + std::to_string(rows), result_of(stored(stem, "x"), quantizer));
      }
  });
}

TEST_CASE("pytorch: tiles with f32 scales") {
  each_backend([] {
    for (const int rows : {1, 128}) {
      Quantizer quantizer = *quantizer_named("fp8_block");
      quantizer.scaling.rows = rows;
      const Tensor x = stored("mx", "x").view_as({128, 128}, {128, 1}, stored("mx", "x").offset());
      check_all("fp8_block " + std::to_string(rows), result_of(x, quantizer));
    }
  });
}

}  // namespace

}  // namespace halftone::test::number_formats_test
