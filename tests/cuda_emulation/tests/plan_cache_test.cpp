// Refusals of a library: an unsupported call is remembered, a call that cannot be done now is tried
// again. The test uses no library.
#include <doctest/doctest.h>

#include <deque>

#include <halftone/backends/cuda/libraries.h>

namespace halftone::cuda {
namespace {

struct Plan {
  int number;
};
using Cache = PlanCache<int, Plan>;

/// A library that first gives the answers of a list, and then success.
struct Told {
  std::deque<Answer> to_make{}, to_run{};
  int made = 0, ran = 0, trims = 0, last = -1;

  Cache::Calls calls(bool recorded = false) {
    return {.make = [this](std::unique_ptr<Plan>& plan) -> Outcome {
              const Answer answer = next(to_make);
              if (answer != Answer::done) return {answer, "making"};
              plan = std::make_unique<Plan>(++made);
              return {};
            },
            .run = [this](Plan& plan) -> Outcome {
              const Answer answer = next(to_run);
              if (answer != Answer::done) return {answer, "running"};
              ++ran, last = plan.number;
              return {};
            },
            .trim = [this] { ++trims; },
            .recorded = recorded};
  }
  static Answer next(std::deque<Answer>& told) {
    if (told.empty()) return Answer::done;
    const Answer answer = told.front();
    return told.pop_front(), answer;
  }
};
constexpr auto done = Answer::done, unsupported = Answer::unsupported, not_now = Answer::not_now;

TEST_CASE("a plan is made once and runs each time") {
  Cache cache(10);
  Told library;
  for (int i = 0; i < 5; ++i) CHECK(cache.run(1, library.calls()).answer == done);
  CHECK(cache.run(2, library.calls()).answer == done);
  CHECK(library.made == 2);
  CHECK(library.ran == 6);
  CHECK(library.last == 2);
  CHECK(library.trims == 0);
}

TEST_CASE("an unsupported call is asked for once") {
  Cache cache(10);
  Told library{.to_make = {unsupported}};
  const Outcome first = cache.run(1, library.calls());
  CHECK(first.answer == unsupported);
  CHECK(first.why == "making");
  for (int i = 0; i < 5; ++i) CHECK(cache.run(1, library.calls()).answer == unsupported);
  CHECK(library.made == 0);
  Told running{.to_run = {unsupported}};
  CHECK(cache.run(2, running.calls()).answer == unsupported);
  CHECK(cache.run(2, running.calls()).why == "declined before");
  CHECK(running.ran == 0);
}

TEST_CASE("lack of memory: unused memory is given back, and the same call is tried again at once") {
  Cache cache(10);
  Told library{.to_make = {not_now}, .to_run = {not_now}};
  CHECK(cache.run(1, library.calls()).answer == done);
  CHECK(library.trims == 2);
  CHECK(library.made == 1);
  CHECK(library.ran == 1);
}

TEST_CASE("lack of memory is not remembered forever") {
  Cache cache(10);
  Told library{.to_make = {not_now, not_now}};
  CHECK(cache.run(1, library.calls()).answer == not_now);
  CHECK(cache.run(1, library.calls()).answer == done);  // the second call finds memory
  library.to_run = {not_now, not_now};
  CHECK(cache.run(1, library.calls()).answer == not_now);
  CHECK(cache.run(1, library.calls()).answer == done);
  CHECK(library.made == 1);
}

TEST_CASE("a persistent error is asked about less and less often") {
  Cache cache(10);
  Told library{.to_make = std::deque<Answer>(10'000, not_now)};
  for (int i = 0; i < 1000; ++i) CHECK(cache.run(1, library.calls()).answer == not_now);
  CHECK(library.trims <= 12);
  library.to_make.clear();
  int calls = 0;
  while (cache.run(1, library.calls()).answer != done) ++calls;
  CHECK(calls <= 1024);
}

TEST_CASE("the least recently used plans are dropped when there are too many, after a wait") {
  int waits = 0;
  PlanCache<int, Plan> cache(100, [&] { ++waits; });
  Told library;
  for (int key = 0; key < 1000; ++key) {
    CHECK(cache.run(key, library.calls()).answer == done);
    CHECK(cache.run(0, library.calls()).answer == done);  // in use
    CHECK(cache.size() <= 101);
  }
  CHECK(library.made == 1000);  // key 0 once
  CHECK(waits > 0);
  CHECK(waits < 50);
  cache.run(999, library.calls());
  CHECK(library.made == 1000);
  cache.run(1, library.calls());
  CHECK(library.made == 1001);
}

TEST_CASE("declined calls do not fill the cache either") {
  Cache cache(100);
  Told library{.to_make = std::deque<Answer>(1000, unsupported)};
  for (int key = 0; key < 1000; ++key) cache.run(key, library.calls());
  CHECK(cache.size() <= 101);
}

TEST_CASE("a plan that is recorded stays, and nothing is dropped meanwhile") {
  int waits = 0;
  PlanCache<int, Plan> cache(10, [&] { ++waits; });
  Told library;
  for (int key = 0; key < 50; ++key) cache.run(key, library.calls(true));
  CHECK(waits == 0);
  CHECK(cache.size() == 50);
  for (int key = 100; key < 200; ++key) cache.run(key, library.calls());
  const int made = library.made;
  for (int key = 0; key < 50; ++key) cache.run(key, library.calls());
  CHECK(library.made == made);
}

TEST_CASE(
    "the statuses of cuDNN: parameters and combinations are refused for good, the rest is not") {
  CHECK(answer_of_cudnn(0) == done);
  for (const int status : {2000, 2002, 3000, 3007}) CHECK(answer_of_cudnn(status) == unsupported);
  for (const int status : {1001, 1003, 4000, 4002, 4003, 5000, 5003})
    CHECK(answer_of_cudnn(status) == not_now);
}

TEST_CASE("a declined call is reported once, with its reason") {
  const std::size_t before = declined_calls().size();
  for (int i = 0; i < 3; ++i)
    say_declined(By::cudnn, Family::conv, "[7, 7] of this test", i == 0 ? "no engine" : "again");
  say_declined(By::cudnn, Family::conv_backward_data, "[7, 7] of this test", "no memory");
  const std::vector<std::string> said = declined_calls();
  REQUIRE(said.size() == before + 2);
  CHECK(said[before] == "[cuda] cuDNN declined conv of [7, 7] of this test: no engine");
  CHECK(said[before + 1] ==
        "[cuda] cuDNN declined conv_backward_data of [7, 7] of this test: no memory");
}

}  // namespace
}  // namespace halftone::cuda
