// Teams of threads on a busy machine: the rule, and that regions do get smaller.
#include <atomic>
#include <chrono>
#include <filesystem>
#include <random>
#include <thread>
#include <vector>

#include <omp.h>
#include <unistd.h>

#include <doctest/doctest.h>
#include <sys/wait.h>

#include <halftone/backends/opened_library.h>
#include <halftone/backends/reference/loops.h>
#include <halftone/backends/team.h>
#include <halftone/halftone.h>

#include "../support.h"
#include "support.h"

namespace halftone::test::team_test {

constexpr int64_t ms = 1'000'000;

/// Calls the rule `times` times, 70 ms apart. Returns its last answer.
Crowd judge(CrowdRule& rule, int64_t& time, double late, int times) {
  Crowd last = Crowd::none;
  for (int i = 0; i < times; ++i) last = rule.judge(time += 70 * ms, late);
  return last;
}
TEST_CASE("it is crowded if threads lack cores for six intervals, and a second longer") {
  CrowdRule rule;
  int64_t time = 0;
  CHECK(judge(rule, time, 0.3, 100) == Crowd::none);
  CHECK(judge(rule, time, 0.5, 1) == Crowd::some);
  CHECK(judge(rule, time, 0.5, 4) == Crowd::some);  // as when a program begins
  CHECK(judge(rule, time, 0, 14) == Crowd::some);
  CHECK(judge(rule, time, 0, 1) == Crowd::none);
  CHECK(judge(rule, time, 0.5, 5) == Crowd::some);
  CHECK(judge(rule, time, 0.3, 1) == Crowd::some);
  CHECK(judge(rule, time, 1.5, 2) == Crowd::much);
  CHECK(judge(rule, time, 0.2, 100) == Crowd::much);  // its own measures make fewer threads late
  CHECK(judge(rule, time, 0.1, 14) == Crowd::much);
  CHECK(judge(rule, time, 0.1, 1) == Crowd::none);
}
TEST_CASE("a crowd that comes back at once is believed for twice as long, up to eight seconds") {
  CrowdRule rule;
  int64_t time = 0;
  for (const int seconds : {1, 2, 4, 8, 8}) {
    CHECK(judge(rule, time, 0.5, 6) == Crowd::much);
    CHECK(judge(rule, time, 0, seconds * 1000 / 70) == Crowd::much);
    CHECK(judge(rule, time, 0, 1) == Crowd::none);
  }
  judge(rule, time, 0, 20);
  CHECK(judge(rule, time, 0.5, 6) == Crowd::much);
  CHECK(judge(rule, time, 0, 15) == Crowd::none);
}

bool system_counts_waits() {
  if (std::filesystem::exists("/proc/self/task/" + std::to_string(gettid()) + "/schedstat"))
    return true;
  MESSAGE("skipped: this system does not count how long threads wait");
  return false;
}

/// Calls f until it returns true, for at most 20 seconds. Returns whether it did.
template <class F> bool comes_true(const F& f) {
  const auto begin = std::chrono::steady_clock::now();
  while (!f())
    if (std::chrono::steady_clock::now() - begin > std::chrono::seconds(20)) return false;
  return true;
}

TEST_CASE("busy threads make it crowded, their end ends it, and the same numbers come out") {
  if (!system_counts_waits()) return;
  const Threads threads(2);
  const Tensor x = rand({300, 200}), w = rand({200, 250});
  const std::vector<float> alone = matmul(x, w).to_vector<float>();
  std::atomic<bool> over{false};
  std::vector<std::thread> busy;
  for (unsigned i = 0; i < 2 * std::thread::hardware_concurrency(); ++i)
    busy.emplace_back([&over] {
      while (!over) continue;
    });
  bool same = true;
  CHECK(comes_true([&] {
    same = same && matmul(x, w).to_vector<float>() == alone;
    return crowded();
  }));
  CHECK(matmul(x, w).to_vector<float>() == alone);
  CHECK(same);
  CHECK(cpu_threads() == 2);
  over = true;
  for (std::thread& one : busy) one.join();
  CHECK(comes_true([] {  // threads that sleep are not late, whatever other programs do
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    look_around();
    return !crowded();
  }));
}

/// Results of kernels that cut their work otherwise while it is crowded.
std::vector<Tensor> results(DType dtype, std::mt19937& random) {
  const auto any = [&random](int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random);
  };
  std::vector<Tensor> all;
  const auto add = [&](std::vector<Tensor> inputs, const auto& f) {
    for (Tensor& x : inputs) x.set_requires_grad();
    const Tensor y = f(inputs);
    y.backward(y.detach());
    all.push_back(y.detach());
    for (const Tensor& x : inputs) all.push_back(x.grad());
  };
  for (const int64_t most : {8, 70, 600}) {
    const int64_t m = any(1, most), n = any(1, 600), k = any(1, 1500);
    add({cast(randn({m, k}), dtype), cast(randn({k, n}), dtype)},
        [](const auto& in) { return matmul(in[0], in[1]); });
  }
  for (int i = 0; i < 6; ++i) {
    const int64_t in = any(1, 80), kernel = any(1, 3), size = any(kernel, 16);
    const Conv2dOptions options{.stride = any(1, kernel), .padding = any(0, kernel - 1)};
    add({cast(randn({any(1, 20), in, size, size}), dtype),
         cast(randn({any(1, 80), in, kernel, kernel}), dtype)},
        [&](const auto& x) { return conv2d(x[0], x[1], {}, options); });
  }
  add({cast(randn({any(1, 300), any(1, 2000)}), dtype)},
      [](const auto& in) { return softmax(in[0], 1); });
  const std::vector<Tensor> list{randn({any(1, 300000)}), randn({any(1, 100)}), randn({70000})};
  all.push_back(scalar(0, f32));
  backend_for(list[0]).sum_of_squares(list, all.back());
  return all;
}

TEST_CASE("kernels compute the same bits whether it is crowded or not") {
  const Threads threads(4);
  for (const DType dtype : {f32, bf16, f16})
    for (const unsigned seed : {1U, 2U, 3U}) {
      const auto computed = [&] {
        std::mt19937 random(seed);
        manual_seed(seed);
        return results(dtype, random);
      };
      const std::vector<Tensor> alone = computed();
      const PretendCrowded scope;
      REQUIRE(crowded());
      const std::vector<Tensor> beside = computed();
      for (std::size_t i = 0; i < alone.size(); ++i)
        CHECK_MESSAGE(alone[i].to_vector<double>() == beside[i].to_vector<double>(), name(dtype),
                      ", result ", i, ", seed ", seed);
    }
  CHECK(!crowded());
}

TEST_CASE("while it is crowded, a region's first half millisecond has one thread") {
  const Threads threads(2);
  const auto helped = [](double alone) {  // whether another thread took a task
    const PretendCrowded scope(alone);
    std::atomic<bool> together{false}, regions_have_one{true};
    std::atomic<int> runs{0};
    const std::thread::id own = std::this_thread::get_id();
    reference::parallel_tasks(40, [&](int64_t) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (std::this_thread::get_id() != own) together = true;
      if (cpu_threads() != 1) regions_have_one = false;
      ++runs;
    });
    CHECK(regions_have_one);
    CHECK(runs == 40);
    return together.load();
  };
  CHECK(helped(0));
  CHECK(helped(0.005));
  CHECK(!helped(60));
  CHECK(cpu_threads() == 2);
}

TEST_CASE("five threads with teams of four compute at least half as fast as five without") {
  const auto seconds = [](int team) {
    const auto begin = std::chrono::steady_clock::now();
    std::vector<std::thread> all;
    for (int i = 0; i < 5; ++i)
      all.emplace_back([team] {
        omp_set_num_threads(team);
        const Tensor x = ones({128, 256}), w = ones({256, 256});
        for (int step = 0; step < 150; ++step) matmul(relu(matmul(x, w)), w);
      });
    for (std::thread& one : all) one.join();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  CHECK(comes_true([&] { return seconds(4) < 2 * seconds(1) + 0.05; }));
}

TEST_CASE("operations work after fork, in one thread") {
  const Threads threads(2);
  const Tensor x = rand({300, 200}), w = rand({200, 250});
  const std::vector<float> before = matmul(x, w).to_vector<float>();
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    alarm(20);  // otherwise a region could wait forever for a thread
    _exit(omp_get_max_threads() == 1 && matmul(x, w).to_vector<float>() == before ? 0 : 1);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK(omp_get_max_threads() == 2);
}

}  // namespace halftone::test::team_test

// Results do not depend on the number of threads, bit for bit: work is cut into fixed pieces, and
// partial results are joined in a fixed order.

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

// Libraries that are opened at run time: a missing one, a missing function, and one that works.

namespace halftone::test::opened_library_test {
namespace {

TEST_CASE("a missing library is named in the refusal, and finds no functions") {
  OpenedLibrary library({"libno_such_library.so.1", "/nowhere/libno_such_library.so.1"});
  CHECK_FALSE(library.is_open());
  CHECK(contains(library.error(), "libno_such_library.so.1: cannot open shared object file"));
  double (*function)(double) = [](double x) { return x; };
  library.find("cos", function);
  CHECK((function == nullptr));
  CHECK_FALSE(library.complete());
}

TEST_CASE("the second name is used if the first cannot be opened") {
  OpenedLibrary library({"/nowhere/libm.so.6", "libm.so.6"});
  REQUIRE(library.is_open());
  CHECK(library.error().empty());
  double (*cosine)(double) = nullptr;
  library.find("cos", cosine);
  REQUIRE((cosine != nullptr));
  CHECK(cosine(0.0) == 1.0);
  CHECK(library.complete());
  library.find("no_such_function", cosine);
  CHECK((cosine == nullptr));
  CHECK_FALSE(library.complete());
}

TEST_CASE("functions of a library are available only if it was not refused") {
  struct Functions {
    double (*cosine)(double) = nullptr;
  };
  LibraryFunctions<Functions> found;
  CHECK(found.get() == &found.functions);
  found.refusal = "too old";
  CHECK(found.get() == nullptr);
}

}  // namespace
}  // namespace halftone::test::opened_library_test
