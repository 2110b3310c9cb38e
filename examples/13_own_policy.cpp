// Lesson 13: a casting policy of your own. You will change one entry of PyTorch's list at a time,
// write a policy that looks at the tensors, and see what each decision costs and brings.
#include <iostream>
#include <memory>

#include <halftone/halftone.h>

#include "laboratory.h"

namespace ht = halftone;
using ht::amp::CastClass;

namespace {

/// A policy that looks at tensors: small products stay f32, because casts would cost more.
struct LargeProductsOnly final : ht::amp::CastPolicy {
  ht::amp::CastDecision decide(const ht::OpInfo& op,
                               std::span<const ht::Tensor> inputs) const override {
    const ht::amp::CastDecision usual = CastPolicy::decide(op, inputs);
    if (usual.cast_class != CastClass::low_precision || inputs[0].numel() >= 4096) return usual;
    return CastClass::full_precision;
  }
};

}  // namespace

int main() {
  laboratory::Laboratory attention;
  attention.title("one decision at a time, from pytorch-cuda, bf16");
  attention.run("pytorch-cuda", ht::amp::CastPolicy().with(ht::bf16));
  for (const std::string_view op :
       {"softmax", "exp", "layer_norm", "sum", "cross_entropy", "cumsum"}) {
    ht::amp::CastPolicy policy;
    policy[op] = CastClass::low_precision;
    attention.run(std::string(op) + ", also in bf16", policy.with(ht::bf16));
  }
  for (const std::string_view op : {"linear", "matmul"}) {
    ht::amp::CastPolicy policy;
    policy[op] = CastClass::full_precision;
    attention.run(std::string(op) + " in f32", policy.with(ht::bf16));
  }

  attention.title("a policy that looks at the inputs; the same list, the other format");
  attention.run("large products only",
                {.policy = std::make_shared<LargeProductsOnly>(), .dtype = ht::bf16});
  attention.run("f16", ht::amp::CastPolicy().with(ht::f16));
  std::cout << R"(
Softmax in bf16 breaks nothing: kernels compute in f32 inside, and one more rounding of the result is small among
the others. Cumsum in bf16 does harm: it counts the tokens, and bf16 has no odd numbers beyond 256: from there on every other
token gets a wrong position, under each list that does this (flashlight-o1, all-low). exp makes the frequencies, and an
error of 2^-9 times a position of 384 is most of a radian. Cross-entropy in bf16 rounds the loss that you read, and no
gradient. Layer norm in bf16 would have improved the loss of some of these batches, and makes the gradient worse: judge a
policy by gradients, and by more than one seed. f16 has three more bits of fraction and is better if nothing leaves its
range: lesson 6.
)";
  return after_output();
}

// Conclusion. Few operations need f32, and they are not the ones that lists protect most: counters,
// positions and sums of many terms do, softmax does not. An entry of the list is data; test it.
//
// Exercises
// 1 (pencil). exp makes a frequency of 0.01 with a relative error of 2^-9. How large is the error
//   of the angle at position 384?
// 2 (predict). Layer norm in bf16: is its gradient worse because of the sums in its kernel, or
//   because of the rounding of its result? Read its cast class, then test with another entry.
// 3 (implement). A policy that runs linear layers in f32 if their input has fewer than 32 columns,
//   and a line of the table for it.
