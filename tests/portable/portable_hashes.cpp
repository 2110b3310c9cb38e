// Prints a hash of results for everything that docs/same_bits.md promises, a line each.
// same_bits.sh runs it with several instruction sets, numbers of threads and environments, and
// compares.
//   portable_hashes operations   the operation table, forward and backward, in every dtype
//   portable_hashes shapes       products, convolutions and attention in shapes of every path
//   portable_hashes strategies   twelve strategies on a small MLP, five steps each
//   portable_hashes policies     six policy files on a small GPT, three steps each
//   portable_hashes workloads    five workloads, twenty steps each
#define DOCTEST_CONFIG_IMPLEMENT  // the operation table is written for doctest
#include <halftone/lab/run.h>
#include <halftone/lab/trial.h>

#include "ops/properties.h"
#include "ops/samples.h"

#include <cstdio>
#include <iostream>
#include <sstream>

namespace halftone::test::portable_hashes {
namespace {

void print(const std::string& name, const Tensors& tensors) {
  Tensors defined;
  for (const Tensor& x : tensors)
    if (x.defined()) defined.push_back(x);
  std::cout << name << ' ' << lab::hash_of(defined) << '\n';
}

void operations() {
  for (const OpSamples& samples : make_all_samples())
    for (const Case& test : samples.cases)
      for (const DType dtype : tested_dtypes) {
        manual_seed(7);
        const Outcome outcome = run_case(test, inputs_of(test, dtype));
        Tensors all = outcome.gradients;
        all.push_back(outcome.y);
        print(samples.name + ", " + test.name + ", " + std::string(name(dtype)), all);
      }
}

/// Prints the result of call(leaves) and its gradients.
template <class Call>
void pass(const std::string& name, std::initializer_list<Shape> shapes, const Call& call) {
  for (const DType dtype : {f32, bf16}) {
    manual_seed(11);
    Tensors leaves;
    for (const Shape& shape : shapes) {
      leaves.push_back(randn(shape).to(dtype));
      leaves.back().set_requires_grad();
    }
    const Tensor y = call(leaves);
    y.backward(randn(y.shape()).to(dtype));
    Tensors all{y.detach()};
    for (const Tensor& leaf : leaves) all.push_back(leaf.grad());
    print(name + ", " + std::string(halftone::name(dtype)), all);
  }
}

std::string text_of(const Shape& shape) {
  std::ostringstream out;
  out << shape;
  return out.str();
}

void shapes() {
  for (const int64_t m : {1, 3, 17, 64, 200})
    for (const int64_t n : {1, 33, 128})
      for (const int64_t k : {1, 50, 400, 1000})
        pass("linear " + text_of({m, n, k}), {{m, k}, {n, k}, {n}},
             [](const Tensors& x) { return linear(x[0], x[1], x[2]); });
  pass("matmul of batches", {{8, 33, 65}, {8, 65, 17}},
       [](const Tensors& x) { return matmul(x[0], x[1]); });
  struct Conv {
    Shape x, w;
    Conv2dOptions options;
  };
  for (const Conv& conv : {Conv{{2, 3, 16, 16}, {8, 3, 3, 3}, {.padding = {1, 1}}},
                           Conv{{4, 32, 9, 9}, {48, 32, 3, 3}, {.padding = {1, 1}}},
                           Conv{{2, 64, 8, 8}, {130, 64, 3, 3}, {.stride = {2, 2}}},
                           Conv{{1, 16, 12, 12}, {32, 16, 5, 5}, {.dilation = {2, 2}}},
                           Conv{{2, 16, 7, 7}, {16, 1, 3, 3}, {.groups = 16}},
                           Conv{{2, 256, 4, 4}, {256, 256, 1, 1}, {}}})
    pass("conv2d " + text_of(conv.x) + " " + text_of(conv.w), {conv.x, conv.w, {conv.w[0]}},
         [&](const Tensors& x) { return conv2d(x[0], x[1], x[2], conv.options); });
  for (const bool causal : {false, true})
    for (const int64_t length : {1, 7, 90, 300})
      pass("attention " + std::to_string(length) + (causal ? ", causal" : ""),
           {{2, 2, length, 24}, {2, 2, length, 24}, {2, 2, length, 40}}, [&](const Tensors& x) {
             return scaled_dot_product_attention(x[0], x[1], x[2], {.causal = causal});
           });
  for (const int64_t n : {1, 15, 100, 5000}) {
    pass("softmax " + std::to_string(n), {{3, n}},
         [](const Tensors& x) { return softmax(x[0], 1); });
    pass("layer_norm " + std::to_string(n), {{70, n}, {n}, {n}},
         [&](const Tensors& x) { return layer_norm(x[0], {n}, x[1], x[2]); });
    pass("sum of rows " + std::to_string(n), {{700, n}},
         [](const Tensors& x) { return sum(x[0], {0}); });
    pass("mean " + std::to_string(n), {{9, n}}, [](const Tensors& x) { return mean(x[0]); });
  }
}

void train(const std::string& workload, const std::vector<std::string>& policies, int64_t steps) {
  std::ostringstream progress;
  lab::Study study{.cells = lab::read_cells(policies, {.workload = workload, .steps = steps})};
  study.after = [&](const lab::RunResult& result) {
    std::printf("%s, %s, loss %a, weights %s\n", workload.c_str(), result.policy.c_str(),
                result.late_loss, result.weights_hash.c_str());
    std::fflush(stdout);
  };
  lab::run(study, {}, progress);
}

void strategies() {
  std::vector<std::string> all;
  for (const std::string_view name : amp::Policy::names()) all.emplace_back(name);
  train("residual_mlp", all, 5);
}

void policies() {
  train("gpt_tiny",
        {"mxfp8", "nvfp4", "te_current", "deepseek_v3", "ms_amp_o2", "quartet2", "stored_8bit"}, 3);
}

void workloads() {
  for (const char* workload :
       {"lenet", "gpt_tiny", "llama_moe", "vit_tiny", "resnet8", "lstm_text", "diffusion"})
    train(workload, {"fp32", "amp-bf16"}, 20);
}

}  // namespace
}  // namespace halftone::test::portable_hashes

int main(int count, char** arguments) {
  using namespace halftone::test::portable_hashes;
  const std::string_view part = count == 2 ? arguments[1] : "";
  try {
    if (part == "operations") operations();
    else if (part == "shapes") shapes();
    else if (part == "strategies") strategies();
    else if (part == "policies") policies();
    else if (part == "workloads") workloads();
    else {
      std::cerr << "usage: portable_hashes operations|shapes|strategies|policies|workloads\n";
      return 2;
    }
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
