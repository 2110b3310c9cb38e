// Teams of threads on a busy machine: the rule, and that regions do get smaller.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <random>
#include <thread>
#include <vector>

#include <omp.h>
#include <sys/wait.h>
#include <unistd.h>

#include <halftone/autograd/ops.h>
#include <halftone/backends/team.h>
#include <halftone/core/backend.h>
#include <halftone/core/device.h>

#include "../threads.h"

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
