// The ledger and the caching allocator below it: the bytes of each use, peaks, and reuse of
// blocks.
#include <doctest/doctest.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <sstream>
#include <thread>
#include <vector>

#include <halftone/core/factory.h>
#include <halftone/core/memory.h>

#include "../support.h"

namespace halftone::test::memory_test {
namespace {
/// The bytes of a use since the start of the scope.
class Growth {
 public:
  int64_t operator()(MemoryUse use) const {
    return memory_report().now_of(use) - before_.now_of(use);
  }
  int64_t total() const { return memory_report().total_now - before_.total_now; }

 private:
  MemoryReport before_ = memory_report();
};

std::string printed(const auto& value) {
  std::ostringstream text;
  text << value;
  return text.str();
}
}  // namespace

TEST_CASE("allocations are charged to the innermost scope, to the byte") {
  const Growth growth;
  {
    CHECK(MemoryScope::current() == MemoryUse::activation);
    const Tensor plain = empty({3});
    CHECK(growth(MemoryUse::activation) == 12);
    const MemoryScope outer(MemoryUse::parameter);
    const Tensor a = empty({5}, bf16);
    Tensor b;
    {
      const MemoryScope inner(MemoryUse::gradient);
      b = empty({7}, u8);
      CHECK(MemoryScope::current() == MemoryUse::gradient);
    }
    CHECK(MemoryScope::current() == MemoryUse::parameter);
    const Tensor c = empty({1}, f64);
    CHECK(growth(MemoryUse::parameter) == 18);
    CHECK(growth(MemoryUse::gradient) == 7);
    CHECK(b.storage()->use() == MemoryUse::gradient);
    CHECK(growth.total() == 37);
    b = Tensor{};  // released outside its scope: charged where it was made
    CHECK(growth(MemoryUse::gradient) == 0);
    CHECK(growth(MemoryUse::parameter) == 18);
    const Tensor view = a.view_as({2}, {1}, 1);
    CHECK(growth.total() == 30);
  }
  CHECK(growth.total() == 0);
  for (int i = 0; i < memory_use_count; ++i) CHECK(growth(MemoryUse(i)) == 0);
}

TEST_CASE("a scope ends with an exception, and belongs to its thread") {
  try {
    const MemoryScope scope(MemoryUse::workspace);
    fail<UsageError>("test", "thrown.");
  } catch (const UsageError&) {}
  CHECK(MemoryScope::current() == MemoryUse::activation);
  const MemoryScope scope(MemoryUse::input);
  MemoryUse elsewhere{};
  std::thread([&] { elsewhere = MemoryScope::current(); }).join();
  CHECK(elsewhere == MemoryUse::activation);
}

TEST_CASE("peaks: of the total, of each use, and of each use at the total's") {
  reset_peak_memory();
  const MemoryReport start = memory_report();
  CHECK(start.total_peak == start.total_now);
  CHECK(start.peak == start.now);
  CHECK(start.at_peak == start.now);
  const auto bytes_of = [](MemoryUse use, int64_t bytes) {
    const MemoryScope scope(use);
    return empty({bytes}, u8);
  };
  Tensor a = bytes_of(MemoryUse::gradient, 1000);
  Tensor b = bytes_of(MemoryUse::input, 300);
  a = Tensor{};                                // total 300
  Tensor c = bytes_of(MemoryUse::input, 900);  // total 1200: below the peak of 1300
  MemoryReport report = memory_report();
  CHECK(report.total_peak - start.total_now == 1300);
  CHECK(report.total_now - start.total_now == 1200);
  CHECK(report.peak_of(MemoryUse::input) - start.now_of(MemoryUse::input) == 1200);
  CHECK(report.at_peak_of(MemoryUse::input) - start.now_of(MemoryUse::input) == 300);
  CHECK(report.at_peak_of(MemoryUse::gradient) - start.now_of(MemoryUse::gradient) == 1000);
  int64_t sum = 0;
  for (const int64_t bytes : report.at_peak) sum += bytes;
  CHECK(sum == report.total_peak);
  reset_peak_memory();
  report = memory_report();
  CHECK(report.total_peak == report.total_now);
  CHECK(report.at_peak_of(MemoryUse::gradient) == start.now_of(MemoryUse::gradient));
}

TEST_CASE("recharging moves the charge") {
  const Growth growth;
  Tensor x = empty({100}, u8);
  x.storage()->recharge(MemoryUse::master_weight);
  CHECK(growth(MemoryUse::activation) == 0);
  CHECK(growth(MemoryUse::master_weight) == 100);
  CHECK(memory_report().peak_of(MemoryUse::master_weight) >=
        memory_report().now_of(MemoryUse::master_weight));
  x.storage()->recharge(MemoryUse::master_weight);
  CHECK(growth(MemoryUse::master_weight) == 100);
  x = Tensor{};
  CHECK(growth.total() == 0);
  CHECK(growth(MemoryUse::master_weight) == 0);
}

TEST_CASE("foreign memory is kept alive, and not charged") {
  const Growth growth;
  auto numbers = std::make_shared<std::vector<float>>(std::vector<float>{1, 2, 3, 4, 5, 6});
  const std::weak_ptr<std::vector<float>> watched = numbers;
  {
    auto* const bytes = reinterpret_cast<std::byte*>(numbers->data());
    Tensor x(std::make_shared<TensorBody>(
        TensorBody{.storage = std::make_shared<Storage>(bytes, 24, std::move(numbers)),
                   .shape = {2, 3},
                   .strides = {3, 1}}));
    CHECK(x.at({1, 0}) == 4);
    CHECK_FALSE(watched.expired());
    x.storage()->recharge(MemoryUse::parameter);
    CHECK(x.storage()->use() == MemoryUse::parameter);
    CHECK(growth.total() == 0);
    CHECK_THROWS_AS(x.view_as({7}, {1}, 0), ShapeError);  // beyond the memory
    (*watched.lock())[3] = 7;
    CHECK(x.at({1, 0}) == 7);
  }
  CHECK(watched.expired());
  CHECK(growth.total() == 0);
}

TEST_CASE("the ledger is right when threads share it") {
  const Growth growth;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      const MemoryScope scope{MemoryUse(t)};
      for (int i = 0; i < 500; ++i) empty({1 + i % 100});
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(growth.total() == 0);
  for (int t = 0; t < 4; ++t) CHECK(growth(MemoryUse(t)) == 0);
}

TEST_CASE("bytes and reports in print") {
  CHECK(printed(HumanBytes{0}) == "0");
  CHECK(printed(HumanBytes{1023}) == "1023 B");
  CHECK(printed(HumanBytes{1024}) == "1.0 KiB");
  CHECK(printed(HumanBytes{1536}) == "1.5 KiB");
  CHECK(printed(HumanBytes{4404019}) == "4.2 MiB");
  CHECK(printed(HumanBytes{int64_t(5) << 29}) == "2.50 GiB");

  MemoryReport report;
  report.now[std::size_t(MemoryUse::parameter)] = 2048;
  report.peak[std::size_t(MemoryUse::parameter)] = 2048;
  report.at_peak[std::size_t(MemoryUse::parameter)] = 2048;
  report.peak[std::size_t(MemoryUse::activation)] = 512;
  report.at_peak[std::size_t(MemoryUse::activation)] = 256;
  report.total_now = 2048, report.total_peak = 2304;
  CHECK(printed(report) ==
        "memory (cpu)               now        peak   at the peak\n"
        "parameter              2.0 KiB     2.0 KiB       2.0 KiB\n"
        "activation                   0       512 B         256 B\n"
        "total                  2.0 KiB     2.2 KiB       2.2 KiB\n");
  CHECK(name(MemoryUse::optimizer_state) == "optimizer_state");
  CHECK(name(MemoryUse::workspace) == "workspace");
}

TEST_CASE("blocks are aligned, and rounded up by at most a quarter") {
  for (std::size_t bytes :
       {std::size_t(0), std::size_t(1), std::size_t(64), std::size_t(65), std::size_t(256),
        std::size_t(257), std::size_t(1000), std::size_t(1) << 12, (std::size_t(1) << 12) + 1,
        std::size_t(1'000'003), (std::size_t(1) << 21) - 1, std::size_t(1) << 21,
        (std::size_t(1) << 23) + 7}) {
    CAPTURE(bytes);
    const int64_t before = cache_statistics().used_bytes;
    void* data = cached_allocate(bytes);
    const int64_t used = cache_statistics().used_bytes - before;
    CHECK(reinterpret_cast<std::uintptr_t>(data) % 64 == 0);
    CHECK(used >= int64_t(bytes));
    CHECK(used <=
          std::max<int64_t>(int64_t(bytes) + std::max<int64_t>(int64_t(bytes) / 4, 63), 64));
    if (bytes > 0) static_cast<char*>(data)[0] = static_cast<char*>(data)[bytes - 1] = 1;
    cached_release(data, bytes);
    CHECK(cache_statistics().used_bytes == before);
  }
}

TEST_CASE("size classes never shrink as sizes grow") {
  int64_t last = 0;
  for (std::size_t bytes = 1; bytes <= 20000; bytes += 13) {
    const int64_t before = cache_statistics().used_bytes;
    void* data = cached_allocate(bytes);
    const int64_t used = cache_statistics().used_bytes - before;
    CHECK(used >= last);
    last = used;
    cached_release(data, bytes);
  }
  release_cached_memory();
}

TEST_CASE("a released block is the next one of its class") {
  constexpr std::size_t bytes = 100'000, same_class = 99'000, other_class = 50'000;
  release_cached_memory();
  CHECK(cache_statistics().cached_bytes == 0);
  void* first = cached_allocate(bytes);
  const int64_t system = cache_statistics().system_allocations;
  cached_release(first, bytes);
  CHECK(cache_statistics().cached_bytes >= int64_t(bytes));
  void* second = cached_allocate(same_class);
  CHECK(second == first);
  CHECK(cache_statistics().cached_bytes == 0);
  CHECK(cache_statistics().system_allocations == system);
  void* third = cached_allocate(bytes);  // the class has no other block
  CHECK(third != first);
  CHECK(cache_statistics().system_allocations == system + 1);
  cached_release(third, bytes);
  void* small = cached_allocate(other_class);
  CHECK(small != third);
  cached_release(small, other_class);
  cached_release(second, same_class);
  release_cached_memory();
  CHECK(cache_statistics().cached_bytes == 0);
}

TEST_CASE("a loop of tensors asks the system once") {
  const auto step = [] {
    const Tensor x = empty({1000, 7}), y = empty({333}, bf16);
    return empty_like(x);
  };
  step();
  const int64_t before = cache_statistics().system_allocations;
  for (int i = 0; i < 100; ++i) step();
  CHECK(cache_statistics().system_allocations == before);
}

TEST_CASE("more memory than the machine has") {
  const Growth growth;
  const int64_t used = cache_statistics().used_bytes;
  CHECK(message_of<DeviceError>([] { cached_allocate((std::size_t(1) << 46) + 1); }) ==
        "[allocate] cannot allocate 70368744177665 bytes on the CPU. Use a smaller shape.");
  CHECK(message_of<DeviceError>([] { cached_allocate(std::numeric_limits<std::size_t>::max()); }) ==
        "[allocate] cannot allocate 18446744073709551615 bytes on the CPU. Use a smaller shape.");
  CHECK(test::contains(message_of<DeviceError>([] { empty({int64_t(1) << 50}, f64); }),
                       "[allocate] cannot allocate"));
  CHECK(cache_statistics().used_bytes == used);
  CHECK(growth.total() == 0);
}

TEST_CASE("an allocation that fails changes nothing, and the next one succeeds") {
  const int64_t used = cache_statistics().used_bytes;
  const MemoryReport before = memory_report();
  detail::fail_one_allocation(1);
  const Tensor first = empty({10});
  CHECK(message_of<DeviceError>([] {
          empty({10});
        }).starts_with("[allocate] cannot allocate 40 B on the CPU: the system has no more."));
  const Tensor second = empty({10});
  CHECK(memory_report().total_now == before.total_now + 80);
  CHECK(cache_statistics().used_bytes == used + 128);
  const auto runs_out = [] { or_no_memory("test", 80, [] { throw std::bad_alloc(); }); };
  CHECK(message_of<DeviceError>(runs_out) ==
        "[test] there is no memory left for work on 80 bytes. Use less data, or free other memory "
        "first.");
}

#if !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)  // which end the process instead
TEST_CASE("memory that the system refuses") {
  constexpr std::size_t half_the_address_space = std::size_t(1) << 46;
  const int64_t used = cache_statistics().used_bytes;
  void* data = nullptr;
  const std::string message =
      message_of<DeviceError>([&] { data = cached_allocate(half_the_address_space); });
  if (data) {  // a system that promises more than it has
    cached_release(data, half_the_address_space);
    release_cached_memory();
  } else {
    CHECK(message.starts_with(
        "[allocate] cannot allocate 65536.00 GiB on the CPU: the system has no more. Use a "
        "smaller batch or model.\nmemory (cpu)"));
  }
  CHECK(cache_statistics().used_bytes == used);
}
#endif

}  // namespace halftone::test::memory_test
