// Lesson 10: autocast. You will see which operation runs in which dtype and why, what the cast
// cache saves, which numbers the casts destroy, and that gradients are f32 although the products
// ran in bf16.
#include <iostream>

#include <halftone/halftone.h>

#include "output.h"

namespace ht = halftone;

namespace {

void title(const char* text) { std::cout << "\n--- " << text << "\n\n"; }

/// Prints an operation inside a region: "f32 -> bf16" and so on.
void show(const char* what, const ht::Tensor& result) {
  std::printf("  %-44s %s\n", what, std::string(ht::name(result.dtype())).c_str());
}

void dtypes_of_operations() {
  title("one region, f32 inputs: the dtype of each operation's result");
  const ht::Tensor x = ht::randn({4, 8}), w = ht::randn({3, 8}).set_requires_grad();
  const ht::amp::Autocast region(ht::bf16);
  const ht::Tensor y = ht::linear(x, w);
  show("linear(f32, f32)     fast, safe in few bits", y);
  show("relu(bf16)           in its input's dtype", ht::relu(y));
  show("softmax(bf16)        needs range: f32", ht::softmax(y, 1));
  show("sum(bf16)            long sums: f32", ht::sum(y));
  show("bf16 + f32           the wider of the two", y + ht::ones({3}));
  const ht::amp::Autocast off = ht::amp::Autocast::disabled();
  show("linear(f32, f32)     in a disabled region", ht::linear(x, w));
  try {
    ht::linear(y, w);
  } catch (const ht::DTypeError& error) {
    std::cout << "  linear(bf16, f32)    in that region: " << error.what() << '\n';
  }
}

void backward_follows() {
  title("backward needs no region: the casts were recorded");
  ht::Tensor x = ht::randn({4, 8}), w = ht::randn({3, 8}).set_requires_grad();
  const ht::Tensor loss =
      ht::amp::autocast(ht::bf16, [&] { return ht::mean(ht::square(ht::linear(x, w))); });
  loss.backward();
  std::cout
      << "  loss " << loss.dtype() << ", weight " << w.dtype() << ", its gradient "
      << w.grad().dtype()
      << ": the product of bf16 matrices wrote it in f32, so nothing was rounded in between\n";
}

void cache() {
  title("a weight that is used ten times is cast once");
  const ht::Tensor x = ht::randn({4, 8});
  ht::Tensor w = ht::randn({8, 8}).set_requires_grad();
  ht::amp::PrecisionLog log;
  {
    const ht::amp::Autocast region(ht::bf16);
    ht::Tensor y = x;
    {
      const ht::NoGrad no_grad;  // training also uses an entry made here
      ht::linear(x, w);
    }
    for (int i = 0; i < 10; ++i) y = ht::linear(y, w);
    const ht::amp::CacheCounters& counted = ht::amp::active_cast_cache()->counters();
    std::cout << "  casts " << counted.misses << ", found in the cache " << counted.hits
              << " times\n";
    ht::fill_with(w, 1);  // like an optimizer: writes in place, and announces it
    ht::linear(x, w);
    std::cout << "  after the weight was updated: casts " << counted.misses
              << " (the old copy would be wrong)\n";
  }
}

void what_casts_destroy() {
  title("a log of a region: which inputs were cast, and what was lost");
  ht::manual_seed(0);
  ht::nn::Sequential model = ht::nn::models::mlp({32, 64, 10});
  const ht::Tensor x = ht::randn({16, 32}) * 1e-6, labels = ht::randint(0, 10, {16});
  for (const ht::DType dtype : {ht::bf16, ht::f16}) {
    ht::amp::PrecisionLog log;
    ht::amp::autocast(dtype, [&] { return ht::cross_entropy(model(x), labels); });
    std::cout << "  inputs of about 1e-6 under " << dtype << ":\n" << log << '\n';
  }
  std::cout
      << "f16's smallest number is 6e-8, so some inputs become 0; bf16 has f32's range: none do.\n";
}

void the_policy() {
  title("what decides: a policy, which is a table");
  std::cout << ht::amp::CastPolicy();
  try {
    ht::amp::CastPolicy policy;
    policy["sofmax"] = ht::amp::CastClass::low_precision;
  } catch (const ht::UsageError& error) { std::cout << '\n' << error.what() << '\n'; }
}

}  // namespace

int main() {
  ht::manual_seed(0);
  dtypes_of_operations();
  backward_follows();
  cache();
  what_casts_destroy();
  the_policy();
  return after_output();
}

// Conclusion. A region is a policy and a dtype. It decides for each operation, casts with a cache,
// and leaves backward alone. PrecisionLog shows what was cast and what the casts destroyed.
//
// Exercises
// 1 (predict). Nest a region of f16 in one of bf16 and call linear with the same weight in both.
//   How many casts does the cache make, and which dtype has the sum of the two results?
// 2 (predict). Break 1 of docs/exercises.md: a cache that does not compare versions.
// 3 (implement). A function that runs a model under a region and returns the names of all
//   operations that ran in f32, from PrecisionLog.
