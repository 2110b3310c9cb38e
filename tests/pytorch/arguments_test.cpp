// Unusual arguments, and operations that consist of others, against PyTorch:
// tests/fixtures/pytorch/argument_fixtures.py has the same operations by name.
#include "operation_case.h"

namespace halftone::test::arguments_test {
namespace {

using Table = std::map<std::string, Operation>;

template <class F> Operation result_of(F f) {
  return [f](const Arguments& in) { return Results{f(in)}; };
}
Results both(const Sorted& sorted) { return {sorted.values, sorted.indices}; }
Dims dims_of(const Arguments& in) { return Dims(std::span<const int64_t>(in.n)); }
DType dtype_of(const Arguments& in) {
  return std::array{f64, f32, f16, bf16, i64, i32, u8}[std::size_t(in.n[0])];
}

Table numbers() {
  return {
      {"clamp_low", result_of([](const Arguments& in) { return clamp(in.a, -1); })},
      {"clamp_high", result_of([](const Arguments& in) { return clamp(in.a, {}, 1); })},
      {"clamp_tensors", result_of([](const Arguments& in) { return clamp(in.a, in.b, in.c); })},
      {"clamp_low_tensor", result_of([](const Arguments& in) { return clamp(in.a, in.b); })},
      {"clamp_high_tensor", result_of([](const Arguments& in) { return clamp(in.a, {}, in.b); })},
      {"clamp_low_3", result_of([](const Arguments& in) { return clamp(in.a, 3); })},
      {"clamp_whole", result_of([](const Arguments& in) { return clamp(in.a, -2, 5); })},
      {"clamp_fraction", result_of([](const Arguments& in) { return clamp(in.a, {}, 2.5); })},
      {"pow_3", result_of([](const Arguments& in) { return pow(in.a, 3); })},
      {"pow_half", result_of([](const Arguments& in) { return pow(abs(in.a), 0.5); })},
      {"two_to_the", result_of([](const Arguments& in) { return pow(2, in.a); })},
      {"pow", result_of([](const Arguments& in) { return pow(in.a, in.b); })},
      {"matmul", result_of([](const Arguments& in) { return matmul(in.a, in.b); })},
      {"erf", result_of([](const Arguments& in) { return erf(in.a); })},
      {"logsigmoid", result_of([](const Arguments& in) { return logsigmoid(in.a); })},
      {"selu", result_of([](const Arguments& in) { return selu(in.a); })},
      {"glu", result_of([](const Arguments& in) { return glu(in.a, in.dim(0)); })},
      {"lerp_03", result_of([](const Arguments& in) { return lerp(in.a, in.b, 0.3); })},
      {"lerp_08", result_of([](const Arguments& in) { return lerp(in.a, in.b, 0.8); })},
      {"lerp", result_of([](const Arguments& in) { return lerp(in.a, in.b, in.c); })},
      {"nan_to_num", result_of([](const Arguments& in) { return nan_to_num(in.a); })},
      {"nan_to_num_given",
       result_of([](const Arguments& in) { return nan_to_num(in.a, 1, 2, 3); })},
  };
}

Table reductions() {
  Table table{
      {"sum_dtype", result_of([](const Arguments& in) { return sum(in.a, dtype_of(in)); })},
      {"sum_dim_dtype",
       result_of([](const Arguments& in) { return sum(in.a, 1, false, dtype_of(in)); })},
      {"cumsum_dtype",
       result_of([](const Arguments& in) { return cumsum(in.a, 0, dtype_of(in)); })},
      {"prod_dtype",
       result_of([](const Arguments& in) { return prod(in.a, 1, false, dtype_of(in)); })},
      {"mean_dtype",
       result_of([](const Arguments& in) { return mean(in.a, 0, false, dtype_of(in)); })},
      {"softmax_dtype",
       result_of([](const Arguments& in) { return softmax(in.a, 1, dtype_of(in)); })},
      {"log_softmax_dtype",
       result_of([](const Arguments& in) { return log_softmax(in.a, 1, dtype_of(in)); })},
      {"logsumexp", result_of([](const Arguments& in) { return logsumexp(in.a, dims_of(in)); })},
      {"logsumexp_keep",
       result_of([](const Arguments& in) { return logsumexp(in.a, dims_of(in), true); })},
      {"max", [](const Arguments& in) { return both(max_with_indices(in.a, in.dim(0))); }},
      {"min", [](const Arguments& in) { return both(min_with_indices(in.a, in.dim(0))); }},
      {"median", [](const Arguments& in) { return both(median(in.a, in.dim(0))); }},
      {"median_all", result_of([](const Arguments& in) { return median(in.a); })},
      {"cumprod", result_of([](const Arguments& in) { return cumprod(in.a, in.dim(0)); })},
      {"prod", result_of([](const Arguments& in) { return prod(in.a, 1); })},
      {"prod_all", result_of([](const Arguments& in) { return prod(in.a); })},
      {"quantiles", result_of([](const Arguments& in) {
         return quantile(in.a, std::vector<double>{0.1, 0.5, 0.9}, 0);
       })},
  };
  const double infinity = std::numeric_limits<double>::infinity();
  for (const auto& [name, p] : std::map<std::string, double>{{"0", 0},
                                                             {"0.5", 0.5},
                                                             {"1", 1},
                                                             {"1.5", 1.5},
                                                             {"2", 2},
                                                             {"3", 3},
                                                             {"inf", infinity},
                                                             {"-inf", -infinity},
                                                             {"-1", -1},
                                                             {"-2", -2}})
    table["norm_" + name] =
        result_of([p](const Arguments& in) { return vector_norm(in.a, p, {1}, true); });
  for (const auto& [name, q] :
       std::map<std::string, double>{{"0.0", 0}, {"0.3", 0.3}, {"0.5", 0.5}, {"1.0", 1}}) {
    table["quantile_" + name] = result_of([q](const Arguments& in) { return quantile(in.a, q); });
    table["quantile_rows_" + name] =
        result_of([q](const Arguments& in) { return quantile(in.a, q, 1, true); });
  }
  return table;
}

Table losses() {
  Table table{
      {"bce_both", result_of([](const Arguments& in) {
         return bce_with_logits(in.a, in.b, {.weight = in.c, .pos_weight = in.c * 3});
       })},
      {"gaussian_full", result_of([](const Arguments& in) {
         return gaussian_nll_loss(in.a, in.b, in.c, {.full = true});
       })},
      {"gaussian_eps", result_of([](const Arguments& in) {
         return gaussian_nll_loss(in.a, in.b, in.c, {.eps = 0.5});
       })},
      {"triplet_options", result_of([](const Arguments& in) {
         return triplet_margin_loss(in.a, in.b, in.c,
                                    {.margin = 0.5, .p = 3, .eps = 1e-3, .swap = true});
       })},
      {"triplet_vector",
       result_of([](const Arguments& in) { return triplet_margin_loss(in.a, in.b, in.c); })},
      {"normalize", result_of([](const Arguments& in) { return normalize(in.a); })},
      {"normalize_1_0", result_of([](const Arguments& in) { return normalize(in.a, 1, 0); })},
      {"cross_entropy", result_of([](const Arguments& in) {
         return cross_entropy(
             in.a, from({0, 2}),
             {.label_smoothing = double(in.n[0]) / 10, .reduction = LossReduction::none});
       })},
  };
  for (const auto& [name, how] :
       std::map<std::string, LossReduction>{{"mean", LossReduction::mean},
                                            {"sum", LossReduction::sum},
                                            {"none", LossReduction::none}}) {
    table["bce_weight_" + name] = result_of([how](const Arguments& in) {
      return bce_with_logits(in.a, in.b, {.weight = in.c, .reduction = how});
    });
    table["bce_positive_" + name] = result_of([how](const Arguments& in) {
      return bce_with_logits(in.a, in.b, {.pos_weight = in.c, .reduction = how});
    });
    table["gaussian_" + name] = result_of([how](const Arguments& in) {
      return gaussian_nll_loss(in.a, in.b, in.c, {.reduction = how});
    });
    table["triplet_" + name] = result_of([how](const Arguments& in) {
      return triplet_margin_loss(in.a, in.b, in.c, {.reduction = how});
    });
  }
  return table;
}

PoolOptions pool_of(const Arguments& in) {
  return {.kernel = in.n[0],
          .stride = Pair(in.n[1]),
          .padding = in.n[2],
          .count_include_pad = in.n[3] != 0,
          .ceil_mode = true};
}
Operation resized(Interpolation mode, bool corners) {
  return result_of([=](const Arguments& in) {
    return interpolate(in.a, {.size = Pair(in.n[0]), .mode = mode, .align_corners = corners});
  });
}

Table images() {
  return {
      {"conv2d_same", result_of([](const Arguments& in) {
         return conv2d(in.a, in.b, in.c, {.padding = "same", .dilation = in.n[0], .groups = 2});
       })},
      {"conv1d_same", result_of([](const Arguments& in) {
         return conv1d(in.a, in.b, in.c, {.padding = "same", .dilation = in.n[0]});
       })},
      {"conv2d_valid", result_of([](const Arguments& in) {
         return conv2d(in.a, in.b, {}, {.stride = 2, .padding = "valid"});
       })},
      {"conv1d", result_of([](const Arguments& in) { return conv1d(in.a, in.b, in.c); })},
      {"conv_transpose2d",
       result_of([](const Arguments& in) { return conv_transpose2d(in.a, in.b, in.c); })},
      {"conv_transpose1d", result_of([](const Arguments& in) {
         return conv_transpose1d(
             in.a, in.b, in.c,
             {.stride = 2, .padding = 1, .output_padding = 1, .dilation = 2, .groups = 2});
       })},
      {"avg_ceil", result_of([](const Arguments& in) { return avg_pool2d(in.a, pool_of(in)); })},
      {"avg_pool1d", result_of([](const Arguments& in) { return avg_pool1d(in.a, pool_of(in)); })},
      {"max_pool1d", result_of([](const Arguments& in) { return max_pool1d(in.a, pool_of(in)); })},
      {"max_pool2d",
       result_of([](const Arguments& in) { return max_pool2d(in.a, {.kernel = 2}); })},
      {"avg_pool2d",
       result_of([](const Arguments& in) { return avg_pool2d(in.a, {.kernel = 2}); })},
      {"adaptive_avg", result_of([](const Arguments& in) {
         return adaptive_avg_pool2d(in.a, {2, 3});
       })},
      {"adaptive_max", result_of([](const Arguments& in) {
         return adaptive_max_pool2d(in.a, {in.n[0], in.n[1]});
       })},
      {"interpolate_nearest", resized(Interpolation::nearest, false)},
      {"interpolate_linear", resized(Interpolation::bilinear, false)},
      {"interpolate_corners", resized(Interpolation::bilinear, true)},
      {"interpolate_factor", result_of([](const Arguments& in) {
         return interpolate(in.a, {.scale_factor = 1.7, .mode = Interpolation::bilinear});
       })},
      {"pixel_shuffle", result_of([](const Arguments& in) { return pixel_shuffle(in.a, 2); })},
      {"instance_norm",
       [](const Arguments& in) {
         const Tensor mean = in.b.clone(), variance = in.c.clone();
         return Results{instance_norm(in.a, {}, {}, mean, variance, {.momentum = 0.2}), mean,
                        variance};
       }},
      {"instance_norm_eval", result_of([](const Arguments& in) {
         return instance_norm(in.a, {}, {}, in.b, in.c, {.use_input_stats = false});
       })},
  };
}

Table movements() {
  return {
      {"scatter",
       result_of([](const Arguments& in) { return scatter(in.a, in.dim(0), in.b, in.c); })},
      {"scatter_value",
       result_of([](const Arguments& in) { return scatter(in.a, in.dim(0), in.b, 1); })},
      {"index_add",
       result_of([](const Arguments& in) { return index_add(in.a, in.dim(0), in.b, in.c, 2); })},
      {"take_along",
       result_of([](const Arguments& in) { return take_along_dim(in.a, in.b, in.dim(0)); })},
      {"take", result_of([](const Arguments& in) { return take_along_dim(in.a, in.b); })},
      {"nonzero", result_of([](const Arguments& in) { return nonzero(in.a); })},
      {"masked_select", result_of([](const Arguments& in) { return masked_select(in.a, in.b); })},
      {"unique",
       [](const Arguments& in) {
         const Unique different = unique(in.a);
         return Results{different.values, different.inverse, different.counts};
       }},
      {"tile", result_of([](const Arguments& in) { return tile(in.a, dims_of(in)); })},
      {"roll_flat", result_of([](const Arguments& in) { return roll(in.a, {in.n[0]}); })},
      {"roll", result_of([](const Arguments& in) {
         return roll(in.a, {in.n[0], 1}, {0, -1});
       })},
      {"diagonal", result_of([](const Arguments& in) {
         return diagonal(in.a, in.n[0], in.dim(1), in.dim(2));
       })},
      {"outer", result_of([](const Arguments& in) { return outer(in.a, in.b); })},
      {"squeeze", result_of([](const Arguments& in) { return squeeze(in.a); })},
      {"meshgrid_ij",
       [](const Arguments& in) {
         return meshgrid({in.a, in.b, in.c});
       }},
      {"meshgrid_xy",
       [](const Arguments& in) {
         return meshgrid({in.a, in.b, in.c}, "xy");
       }},
      {"linspace", result_of([](const Arguments& in) { return linspace(-1, 2.5, in.n[0]); })},
      {"eye", result_of([](const Arguments& in) { return eye(in.n[0], in.n[1]); })},
  };
}

Results of_letters(const std::string& equation, const Arguments& in) {
  std::vector<Tensor> operands;
  for (const Tensor* x : {&in.a, &in.b, &in.c})
    if (x->defined()) operands.push_back(*x);
  return {einsum(equation, operands)};
}

}  // namespace

TEST_CASE("pytorch: arguments, and operations that consist of others") {
  Table table = numbers();
  for (Table& more : std::array{reductions(), losses(), images(), movements()}) table.merge(more);
  const auto cases = load_cases("arguments");
  CHECK(cases.size() > 500);
  std::set<std::string> unused;
  for (const auto& [name, operation] : table) unused.insert(name);
  for (const std::string_view backend : {"reference", "cpu"}) {
    const CpuBackendScope scope(backend);
    for (const auto& [name, tensors] : cases) {
      CAPTURE(backend);
      CAPTURE(name);
      const std::string op = name.substr(0, name.rfind('/'));
      unused.erase(op);
      if (op.starts_with("einsum_")) {
        check_case(tensors, [&](const Arguments& in) { return of_letters(op.substr(7), in); });
        continue;
      }
      REQUIRE_MESSAGE(table.contains(op), "there is no operation ", op);
      check_case(tensors, table.at(op));
    }
  }
  CHECK(unused.empty());
}

}  // namespace halftone::test::arguments_test
