// Teams of threads on a busy machine: the rule, and that regions do get smaller.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <thread>
#include <vector>

#include <omp.h>
#include <sys/wait.h>
#include <unistd.h>

#include <halftone/autograd/ops.h>
#include <halftone/backends/team.h>
#include <halftone/core/kernel_identity.h>

#include "../threads.h"

namespace halftone::test::team_test {

constexpr int64_t ms = 1'000'000;

TEST_CASE("a team drops as many threads as had no core, never the last") {
  TeamSize team(8);
  CHECK(team.judge(0, 0.3) == 8);
  CHECK(team.judge(20 * ms, 2.2) == 6);
  CHECK(team.judge(40 * ms, 0.5) == 5);
  CHECK(team.judge(60 * ms, 9) == 1);
  CHECK(team.judge(80 * ms, 9) == 1);
  CHECK(team.full() == 8);
  CHECK(TeamSize(1).judge(0, 5) == 1);
}

TEST_CASE("it tries its full size after pauses that double, and again soon after a quiet time") {
  TeamSize team(2);
  int64_t time = 0;
  std::vector<int64_t> pauses;
  for (int i = 0; i < 8; ++i) {  // always busy
    REQUIRE(team.judge(time, 0.5) == 1);
    const int64_t begin = time;
    while (team.judge(time, 0) == 1) time += ms;
    pauses.push_back((time - begin) / ms);
  }
  CHECK(pauses == std::vector<int64_t>{100, 200, 400, 800, 1600, 3200, 3200, 3200});
  for (int i = 0; i < 7000; ++i) CHECK(team.judge(time += ms, 0) == 2);
  CHECK(team.judge(time, 0.5) == 1);
  CHECK(team.judge(time + 99 * ms, 0) == 1);
  CHECK(team.judge(time + 100 * ms, 0) == 2);
}

TEST_CASE("regions get smaller while other threads are busy, and the same numbers come out") {
  if (!std::filesystem::exists("/proc/self/task/" + std::to_string(gettid()) + "/schedstat")) {
    MESSAGE("skipped: this system does not count how long threads wait");
    return;
  }
  const Threads threads(2);
  const Tensor x = rand({300, 200}), w = rand({200, 250});
  const std::vector<float> alone = matmul(x, w).to_vector<float>();
  std::atomic<bool> over{false};
  std::vector<std::thread> busy;
  for (unsigned i = 0; i < 2 * std::thread::hardware_concurrency(); ++i)
    busy.emplace_back([&over] {
      while (!over) continue;
    });
  const auto begin = std::chrono::steady_clock::now();
  bool shrank = false, same = true;
  while (!shrank && std::chrono::steady_clock::now() - begin < std::chrono::seconds(20)) {
    same = same && matmul(x, w).to_vector<float>() == alone;
    shrank = omp_get_max_threads() == 1;
  }
  CHECK(shrank);
  CHECK(cpu_threads() == 2);  // the requested number
  CHECK(matmul(x, w).to_vector<float>() == alone);
  CHECK(same);
  over = true;
  for (std::thread& one : busy) one.join();
  omp_set_num_threads(3);
  CHECK(cpu_threads() == 3);
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
