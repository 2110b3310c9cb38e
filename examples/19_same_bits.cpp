// Lesson 19: the same bits. You will see six reasons why two machines compute different last bits
// from the same numbers, and portable bits, which remove all six: the hash at the end is the same
// on your machine, whatever its CPU and its number of threads.
#include <bit>
#include <cmath>
#include <cstdio>
#include <vector>

#include <halftone/halftone.h>
#include <omp.h>

#include "output.h"

namespace ht = halftone;

namespace {

/// The bits of an f32 as a hexadecimal number.
unsigned bits(float x) { return std::bit_cast<unsigned>(x); }
bool same_bits(const ht::Tensor& a, const ht::Tensor& b) {
  return ht::cast(a, ht::f64).to_vector<double>() == ht::cast(b, ht::f64).to_vector<double>();
}
const char* same_or_not(bool same) { return same ? "the same bits" : "other bits"; }

void order_of_a_sum() {
  ht::manual_seed(0);
  const auto x = ht::randn({1000}).to_vector<float>();
  float forward = 0, four[4]{};
  for (std::size_t i = 0; i < x.size(); ++i) forward += x[i], four[i % 4] += x[i];
  const float lanes = (four[0] + four[1]) + (four[2] + four[3]);
  std::printf("1. order: one chain %08x, four lanes as in SSE %08x\n", bits(forward), bits(lanes));
}

void fused_multiply_add() {
  const float a = 1 + 0x1p-12f, product = a * a, rounded_twice = product - 1;
  std::printf("2. fused: a a - 1 with two roundings %g, with one (std::fma) %g\n",
              double(rounded_twice), double(std::fma(a, a, -1.0f)));
}

void approximations() {
  int others = 0;
  for (float x = 0; x < 1; x += 0x1p-10f)
    others += ht::math::exp(x) != std::exp(x) || ht::math::tanh(x) != std::tanh(x);
  std::printf("3. approximations: exp or tanh differ from the C library's in %d of 1024 places\n",
              others);
}

void subnormals() {
  const ht::Tensor tiny = ht::full({1, 32}, std::ldexp(1.0, -130), ht::bf16),
                   ones = ht::full({32, 32}, 1, ht::bf16);
  const double sum = ht::matmul(tiny, ones).to_vector<float>()[0];
  std::printf(
      "4. subnormals: 32 times 2^-130 in a product of bf16 is %g; bf16 instructions give 0\n", sum);
}

/// A row of a product alone, and among 64.
void rows_of_a_batch() {
  ht::manual_seed(1);
  const ht::Tensor x = ht::randn({64, 300}), w = ht::randn({100, 300});
  const bool same =
      same_bits(ht::linear(ht::slice(x, 0, 0, 1), w), ht::slice(ht::linear(x, w), 0, 0, 1));
  std::printf("5. batch: a row alone and among 64 rows has %s\n", same_or_not(same));
}

/// Trains from one seed. Returns a hash of the weights (FNV-1a).
unsigned long long train(int threads) {
  omp_set_num_threads(threads);
  ht::manual_seed(2);
  // With braces, C++ makes the layers in this order. With parentheses, compilers differ.
  ht::nn::Sequential model{ht::nn::Linear(64, 128), ht::nn::Gelu(), ht::nn::LayerNorm(128),
                           ht::nn::Linear(128, 8)};
  const ht::Tensor x = ht::randn({256, 64}), y = ht::randn({256, 8});
  ht::optim::AdamW optimizer(model.parameters());
  auto training = ht::amp::apply(ht::amp::Policy::named("amp-bf16"), model, optimizer);
  for (int step = 0; step < 20; ++step) {
    training.zero_grad();
    training.backward(ht::mse(training.forward(model, x), y));
    training.step();
  }
  unsigned long long hash = 0xcbf29ce484222325u;
  for (const ht::Tensor& p : model.parameters())
    for (const float v : p.to_vector<float>()) hash = (hash ^ bits(v)) * 0x100000001b3u;
  return hash;
}

void run() {
  order_of_a_sum();
  fused_multiply_add();
  approximations();
  for (const bool portable : {false, true}) {
    ht::set_portable_bits(portable);
    std::printf("\n%s\n", portable ? "portable bits" : "the fastest order");
    subnormals();
    rows_of_a_batch();
    const auto one = train(1), two = train(2);
    std::printf(
        "6. threads: 20 steps of amp-bf16 with 1 and 2 threads give %s\n   weights %016llx\n",
        same_or_not(one == two), two);
  }
}

}  // namespace

int main() {
  run();
  return after_output();
}

// Conclusion. A last bit depends on the order of a sum, on fused multiply-adds, on how subnormals
// and elementary functions are computed, on threads, and on the number of rows. A library can fix
// all of them. Products of 16-bit numbers then cost what those of f32 cost; docs/same_bits.md has
// the orders and the price.
//
// Exercises
// 1 (pencil). In which of the six is the more exact result known, and in which are both results
//   equally good?
// 2 (predict). Run the program with HALFTONE_MAX_ISA=avx2 and with baseline. Which lines change?
// 3 (implement). Sum the thousand numbers of reason 1 so that every permutation of them gives the
//   same bits. (Hint: exact sums in integers, or sorting first.)
// 4 (design). A GPU runs thousands of threads in no fixed order. Which of the six can its library
//   fix cheaply, and for which does it pay?
