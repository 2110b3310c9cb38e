// Results do not depend on the number of threads, bit for bit: work is cut into fixed pieces, and
// partial results are joined in a fixed order.
#include <doctest/doctest.h>

#include <halftone/autograd/ops.h>
#include <halftone/core/backend.h>
#include <halftone/core/factory.h>

#include "threads.h"

namespace halftone::test::threads_test {

using test::Threads;

namespace {

using Bits = std::vector<double>;  // f64 holds every dtype exactly

Tensor numbers(const Shape& shape, DType dtype, uint64_t seed) {
  manual_seed(seed);
  return cast(rand(shape, f32) * 4.0 - 2.0, dtype);
}

/// Checks that the results of `work` on one thread equal those on two and on five, on both CPU
/// backends.
template <class Work> void check_threads(const Work& work) {
  for (const std::string_view backend : {"reference", "cpu"})
    for (const DType dtype : {f64, f32, bf16, f16}) {
      INFO(std::string(backend), ", ", std::string(name(dtype)));
      const CpuBackendScope scope(backend);
      const auto run = [&](int threads) {
        const Threads now(threads);
        Bits bits;
        for (const Tensor& result : work(dtype)) {
          const Bits values = result.template to_vector<double>();
          bits.insert(bits.end(), values.begin(), values.end());
        }
        return bits;
      };
      const Bits one = run(1);
      CHECK(one.size() > 0);
      CHECK(one == run(2));
      CHECK(one == run(5));
    }
}

using Results = std::vector<Tensor>;

/// f(x, ...) and the gradients of its inputs.
template <class F> Results with_gradients(const F& f, std::vector<Tensor> inputs) {
  for (Tensor& x : inputs) x.set_requires_grad();
  const Tensor y = f(inputs);
  y.backward(cast(full(y.shape(), 0.5), y.dtype()));
  Results results{y.detach()};
  for (const Tensor& x : inputs) results.push_back(x.grad());
  return results;
}

TEST_CASE("reductions over rows, columns, images and everything") {
  check_threads([](DType d) {
    const Tensor wide = numbers({3, 40000}, d, 1), tall = numbers({40000, 3}, d, 2),
                 image = numbers({4, 5, 60, 61}, d, 3);
    return Results{
        sum(wide),       sum(wide, {1}),     sum(tall, {0}),  mean(image, {0, 2, 3}),
        max(image, {2}), min(image, {0, 1}), max(tall, {0}),  min(wide, {1}),
        norm(wide),      var(tall, {0}),     cumsum(tall, 0), sum(transpose(wide, 0, 1), {0})};
  });
}

TEST_CASE("matrix products with gradients") {
  check_threads([](DType d) {
    const auto product = [](const std::vector<Tensor>& in) { return matmul(in[0], in[1]); };
    Results all = with_gradients(product, {numbers({130, 300}, d, 4), numbers({300, 170}, d, 5)});
    for (const Tensor& x :
         with_gradients(product, {numbers({6, 33, 40}, d, 6), numbers({6, 40, 50}, d, 7)}))
      all.push_back(x);
    return all;
  });
}

TEST_CASE("softmax, cross-entropy and norms with gradients") {
  check_threads([](DType d) {
    Results all = with_gradients([](const auto& in) { return softmax(in[0], 1); },
                                 {numbers({200, 130}, d, 8)});
    const auto keep = [&](const Results& more) { all.insert(all.end(), more.begin(), more.end()); };
    manual_seed(9);
    const Tensor targets = randint(0, 130, {200});
    keep(with_gradients([&](const auto& in) { return cross_entropy(in[0], targets); },
                        {numbers({200, 130}, d, 8)}));
    keep(
        with_gradients([](const auto& in) { return layer_norm(in[0], {130}, in[1], in[2]); },
                       {numbers({300, 130}, d, 10), numbers({130}, d, 11), numbers({130}, d, 12)}));
    keep(with_gradients(
        [](const auto& in) { return batch_norm(in[0], in[1], in[2], {}, {}, {.training = true}); },
        {numbers({4, 6, 40, 41}, d, 13), numbers({6}, d, 14), numbers({6}, d, 15)}));
    keep(
        with_gradients([](const auto& in) { return group_norm(in[0], 3, in[1], in[2]); },
                       {numbers({4, 6, 20, 21}, d, 13), numbers({6}, d, 14), numbers({6}, d, 15)}));
    return all;
  });
}

TEST_CASE("pooling and embedding with gradients") {
  check_threads([](DType d) {
    Results all = with_gradients(
        [](const auto& in) { return max_pool2d(in[0], {.kernel = 3, .stride = 2, .padding = 1}); },
        {numbers({3, 20, 21, 22}, d, 16)});
    const auto keep = [&](const Results& more) { all.insert(all.end(), more.begin(), more.end()); };
    keep(with_gradients([](const auto& in) { return avg_pool2d(in[0], {.kernel = 2}); },
                        {numbers({3, 20, 20, 22}, d, 17)}));
    manual_seed(18);
    const Tensor indices = randint(0, 50, {700});
    keep(with_gradients([&](const auto& in) { return embedding(indices, in[0]); },
                        {numbers({50, 40}, d, 19)}));
    return all;
  });
}

TEST_CASE("optimizer steps and gradient norms") {
  check_threads([](DType d) {
    Results all;
    const DType wide = d == f64 ? f64 : f32;
    std::vector<UpdateSlot> slots{
        {numbers({70000}, d, 20),
         numbers({70000}, d, 21),
         {zeros({70000}, wide), zeros({70000}, wide)}},
        {numbers({33}, d, 22), numbers({33}, d, 23), {zeros({33}, wide), zeros({33}, wide)}}};
    Backend& backend = backend_for(Device::cpu());
    backend.update(slots, {.rule = rule::Adam{.weight_decay = 0.1, .decoupled = true}, .lr = 0.01});
    backend.update(slots, {.rule = rule::Sgd{.momentum = 0.9}, .lr = 0.01, .steps = 1});
    std::vector<Tensor> gradients;
    for (const UpdateSlot& slot : slots)
      all.push_back(slot.parameter), all.push_back(slot.state[0]),
          gradients.push_back(slot.gradient);
    Tensor total = zeros({});
    backend.sum_of_squares(gradients, total);
    backend.scale_all(gradients, scalar(0.25));
    all.push_back(total), all.push_back(gradients[0]);
    return all;
  });
}

TEST_CASE("random numbers") {
  check_threads([](DType d) {
    manual_seed(24);
    Results all{rand({50001}, d), randn({50001}, d), randint(-5, 5, {50001})};
    all.push_back(dropout(ones({50001}, d), 0.3));
    return all;
  });
}

}  // namespace

}  // namespace halftone::test::threads_test
