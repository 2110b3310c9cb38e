// Functions that consist of operations and have their own cast class: their dtypes under PyTorch's
// lists for CPU and GPU.
#include "cases.h"

namespace halftone::test::composed_test {
namespace {

DType under(const char* preset, const std::function<Tensor()>& f) {
  return amp::autocast(amp::CastPolicy::preset(preset).with(bf16), f).dtype();
}

TEST_CASE("einsum: as a whole on PyTorch's list for CUDA, only its products on the CPU's") {
  const Tensor a = randn(3, 4), short_a = cast(a, bf16);
  const auto of = [&](const char* equation, const Tensor& b) {
    return [=] { return einsum(equation, a, b); };
  };
  CHECK(under("pytorch-cuda", of("ij,ij->ij", a)) == bf16);
  CHECK(under("pytorch-cpu", of("ij,ij->ij", a)) == f32);
  CHECK(under("pytorch-cpu", of("ij,ij->ij", short_a)) == f32);
  for (const char* preset : {"pytorch-cuda", "pytorch-cpu"})
    for (const char* equation : {"ij,kj->ik", "ij,ij->"})
      CHECK(under(preset, of(equation, a)) == bf16);
  CHECK(under("pytorch-cpu", [&] { return einsum("ij->i", a); }) == f32);
  CHECK(under("pytorch-cpu", [&] { return einsum("ij,jk,kl->il", a, a.permute(1, 0), a); }) ==
        bf16);
}

TEST_CASE("running products, losses and norms have PyTorch's dtypes") {
  const Tensor x = rand({3, 4}, bf16);
  const auto dtypes = [&](const std::function<Tensor()>& f) {
    return std::pair(under("pytorch-cuda", f), under("pytorch-cpu", f));
  };
  using Pair = std::pair<DType, DType>;
  CHECK(dtypes([&] { return cumprod(x, 0); }) == Pair{f32, bf16});
  CHECK(dtypes([&] { return triplet_margin_loss(x, x, x); }) == Pair{f32, f32});
  CHECK(dtypes([&] { return bce_with_logits(x, x, {.weight = x, .pos_weight = x}); }) ==
        Pair{f32, f32});
  CHECK(dtypes([&] { return vector_norm(x, 1); }) == Pair{f32, bf16});
  CHECK(dtypes([&] { return normalize(x); }) == Pair{f32, bf16});
  CHECK(dtypes([&] { return softmax(x, 0, bf16); }) == Pair{bf16, bf16});
  CHECK(dtypes([&] { return logsigmoid(x); }) == Pair{bf16, bf16});
  CHECK(dtypes([&] { return glu(x); }) == Pair{bf16, bf16});
  CHECK(dtypes([&] {
          return index_add(x, 0, from({1}), x.reshape({3, 4})[0].unsqueeze(0));
        }) == Pair{bf16, bf16});
}

TEST_CASE("results that are computed in f32 inside are rounded once") {
  const Tensor x = randn({4, 3}, bf16), t = rand({4, 3}, bf16), w = rand({3}, bf16) + 0.5;
  const auto wide = [](const Tensor& y) { return cast(y, f32); };
  CHECK(same_bits(bce_with_logits(x, t, {.pos_weight = w}),
                  cast(bce_with_logits(wide(x), wide(t), {.pos_weight = wide(w)}), bf16)));
  CHECK(same_bits(lerp(x, t, 0.3), cast(lerp(wide(x), wide(t), 0.3), bf16)));
  CHECK(same_bits(cumprod(x, 0), cast(cumprod(wide(x), 0), bf16)));
  CHECK(same_bits(vector_norm(x, 3), cast(vector_norm(wide(x), 3), bf16)));
}

}  // namespace
}  // namespace halftone::test::composed_test
