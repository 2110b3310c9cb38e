// teams [one_core]: computes with several numbers of OpenMP threads, outside and inside of the
// caller's parallel regions, and compares every result with the reference. The tests that run it
// set OpenMP's environment (CMakeLists.txt). one_core: the process keeps one core.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <span>
#include <string_view>

#include <omp.h>
#include <sched.h>
#include <unistd.h>

#include <halftone/autograd/ops.h>
#include <halftone/core/backend.h>

#include "../support.h"
#include "onednn_geometries.h"

using namespace halftone;

namespace {

using Tensors = std::vector<Tensor>;

/// Whole numbers: every order of their sums gives the same result.
Tensor integers(const Shape& shape, DType dtype) { return cast(randint(-3, 4, shape), dtype); }

/// Appends f(inputs) and the gradients of the inputs.
void add(Tensors& results, const Tensors& inputs, const std::function<Tensor(const Tensors&)>& f) {
  Tensors leaves;
  for (const Tensor& x : inputs) leaves.push_back(x.detach().clone().set_requires_grad());
  const Tensor y = f(leaves);
  y.backward(y.detach());
  results.push_back(y.detach());
  for (const Tensor& x : leaves) results.push_back(x.grad());
}

/// One call of each kind of kernel that shares its work among threads. The numbers are made before,
/// because threads of the caller must find the same.
struct Work {
  Tensors matrices, batches, images, weights, heads, list;

  explicit Work(DType dtype)
      : matrices{integers({130, 70}, dtype), integers({70, 90}, dtype)},
        batches{integers({6, 20, 30}, dtype), integers({6, 30, 25}, dtype)},
        images{integers({2, 20, 12, 12}, dtype), integers({24, 20, 3, 3}, dtype)},
        weights{images[0], integers({5, 20, 1, 1}, dtype)},
        heads{cast(randn({2, 3, 70, 16}), dtype), cast(randn({2, 3, 70, 16}), dtype),
              cast(randn({2, 3, 70, 16}), dtype)},
        list{integers({70000}, dtype), integers({33}, dtype)} {}

  /// Results that are the same in any order of sums.
  Tensors exact() const {
    Tensors all;
    const auto product = [](const Tensors& in) { return matmul(in[0], in[1]); };
    add(all, matrices, product), add(all, batches, product);
    for (const int64_t stride : {1, 2})
      add(all, images, [&](const Tensors& in) {
        return conv2d(in[0], in[1], {}, {.stride = stride, .padding = 1});
      });
    add(all, weights, [](const Tensors& in) { return conv2d(in[0], in[1]); });
    all.push_back(sum(list[0])), all.push_back(sum(matrices[0], {0}));
    all.push_back(scalar(0, f32));
    backend_for(list[0]).sum_of_squares(list, all.back());
    return all;
  }
  /// Results that the CPU backend rounds otherwise than the reference, but alike on any team.
  Tensors rounded() const {
    Tensors all;
    add(all, heads,
        [](const Tensors& in) { return scaled_dot_product_attention(in[0], in[1], in[2]); });
    add(all, {matrices[0]}, [](const Tensors& in) { return softmax(in[0], 1); });
    return all;
  }
};

std::vector<std::vector<double>> values_of(const Tensors& results) {
  std::vector<std::vector<double>> values;
  for (const Tensor& x : results) values.push_back(x.to_vector<double>());
  return values;
}

/// Work, and the results that it must give.
struct Prepared {
  Work work;
  std::vector<std::vector<double>> exact, rounded;

  explicit Prepared(DType dtype) : work(dtype) {
    const test::Threads one(1);
    rounded = values_of(work.rounded());
    const CpuBackendScope scope("reference");
    exact = values_of(work.exact());
  }
  bool holds() const {
    return values_of(work.exact()) == exact && values_of(work.rounded()) == rounded;
  }
};

int failures = 0;
void expect(bool right, std::string_view where) {
  if (right) return;
  std::printf("wrong results: %.*s, %d threads, %d levels\n", int(where.size()), where.data(),
              omp_get_max_threads(), omp_get_max_active_levels());
  ++failures;
}

bool all_hold(std::span<const Prepared> all) {
  return std::all_of(all.begin(), all.end(), [](const Prepared& one) { return one.holds(); });
}

/// Calls from the threads of a region of the caller, which may open regions themselves.
bool hold_inside(std::span<const Prepared> all, int threads, int levels) {
  const int before = omp_get_max_active_levels();
  omp_set_max_active_levels(levels);
  bool right = true;
#pragma omp parallel num_threads(threads) reduction(&& : right)
  right = right && all_hold(all);
  omp_set_max_active_levels(before);
  return right;
}

void compare_geometries(std::mt19937& random) {
  for (const DType dtype : {f32, bf16})
    for (std::size_t p = 0; p < test::primitive_names().size(); ++p)
      for (int i = 0; i < 10; ++i)
        expect(test::compare_onednn(test::Primitive(p), dtype, random).difference.empty(),
               test::primitive_names()[p]);
}

void check_all(std::span<const Prepared> all, std::mt19937& random) {
  const int levels = omp_get_max_active_levels(), dynamic = omp_get_dynamic();
  expect(all_hold(all), "outside of regions");
  compare_geometries(random);
  expect(hold_inside(all, 3, 1), "inside a region");
  expect(hold_inside(all, 3, 2), "inside a region that allows another");
  expect(hold_inside(all, 1, 1), "inside a region of one thread");
  omp_set_dynamic(1);
  expect(all_hold(all), "with fewer threads on a busy machine");
  omp_set_dynamic(dynamic);
  omp_set_max_active_levels(0);
  expect(all_hold(all), "where no region has several threads");
  compare_geometries(random);
  omp_set_max_active_levels(levels);
}

/// Starts this program again with one core, so that OpenMP finds one.
void keep_one_core(char** argv) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(sched_getcpu(), &cores);
  char* again[] = {argv[0], nullptr};
  if (sched_setaffinity(0, sizeof cores, &cores) == 0) execv("/proc/self/exe", again);
  std::perror("one core");
  _exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) keep_one_core(argv);
  manual_seed(0);
  const Prepared all[]{Prepared(f32), Prepared(bf16)};
  std::mt19937 random(7);
  check_all(all, random);  // with the number of the environment
  for (const int threads : {1, 2, 4, 7}) {
    const test::Threads now(threads);
    check_all(all, random);
  }
  return failures == 0 ? 0 : 1;
}
