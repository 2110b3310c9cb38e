// Operations on integers, by indices, sorting and rearranging against PyTorch, with the dtypes of
// their results. tests/fixtures/pytorch/operation_fixtures.py has the cases and the meaning of
// their attributes.
#include "operation_case.h"

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

TEST_CASE("pytorch: operations on integers, by indices, sorting and rearranging") {
  std::map<std::string, Operation> table = numbers();
  table.merge(movements());
  const auto cases = load_cases("operations");
  CHECK(cases.size() > 450);
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
