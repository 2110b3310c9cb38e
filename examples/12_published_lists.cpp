// Lesson 12: published casting lists. You will see an attention block under the lists of PyTorch,
// apex, Paddle and flashlight, how to judge a list by the gradients, and which entries of two lists
// differ in their effect.
#include <iostream>
#include <string>

#include <halftone/halftone.h>

#include "laboratory.h"

namespace ht = halftone;

namespace {

const char* word(ht::amp::CastClass cast_class) {
  switch (cast_class) {
    case ht::amp::CastClass::low_precision: return "16 bits";
    case ht::amp::CastClass::full_precision: return "f32";
    case ht::amp::CastClass::widest_input: return "widest";
    case ht::amp::CastClass::banned: return "banned";
    case ht::amp::CastClass::as_is: break;
  }
  return "as it is";
}

/// Prints the classes of a few operations under every list: 16 bits, f32, the widest input, as it
/// is.
void print_classes() {
  std::printf("%-16s", "");
  const char* const ops[] = {"linear", "matmul", "softmax", "layer_norm", "exp", "sum", "cumsum"};
  for (const char* op : ops) std::printf(" %-11.11s", op);
  std::printf("\n");
  for (const std::string_view name : ht::amp::CastPolicy::preset_names()) {
    const ht::amp::CastPolicy policy = ht::amp::CastPolicy::preset(name);
    std::printf("%-16s", std::string(name).c_str());
    for (const char* op : ops) std::printf(" %-11.11s", word(policy[op].cast_class));
    std::printf("\n");
  }
}

}  // namespace

int main() {
  std::printf("the class of an operation under each list\n\n");
  print_classes();
  laboratory::Laboratory attention;
  attention.title("an attention block under each list, bf16");
  attention.run("no autocast (f32)", {.enabled = false});
  for (const std::string_view name : ht::amp::CastPolicy::preset_names())
    attention.run(std::string(name), ht::amp::CastPolicy::preset(name).with(ht::bf16));
  std::cout << R"(
loss and gradient: the error against f64, median over twenty seeds. worse: in how many of them the error is larger
than under pytorch-cuda. Most lists agree on this block, because they agree on its operations. pytorch-cpu leaves softmax,
norms and sums in 16 bits: the same gradient for a third of the cast bytes. flashlight-o1 runs cumsum in bf16, among others,
and the gradient is more than ten times as wrong in every seed. casts and KiB cast are the price, in one pass.
)";
  return after_output();
}

// Conclusion. A casting list is a table from operations to dtypes, and most of its entries do not
// matter for a given model. Judge a list by gradients, against f64, over several seeds: the loss
// alone is near the right one by chance.
//
// Exercises
// 1 (predict). Which row changes most if the block has 200 tokens in place of 384? Change `tokens`
//   in laboratory.h. (The largest whole number of bf16 without gaps below it is 256.)
// 2 (implement). Add a column with the error of the weight gradient of `query` alone. Which list is
//   worst there?
// 3 (design). Which operations of your own model would you look at first, given the table of
//   classes?
