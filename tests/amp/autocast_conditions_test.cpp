// Conditions of regions and of their cast cache that no other test checks: which casts are kept,
// how long, for which thread, and which values are never cast.
#include <doctest/doctest.h>

#include <thread>

#include <halftone/halftone.h>

namespace halftone::testing {
namespace {

using amp::Autocast;
using amp::autocast;
using amp::Region;

Tensor leaf(const Shape& shape, double value = 1) { return full(shape, value).set_requires_grad(); }
const amp::CacheCounters& counters() { return amp::active_cast_cache()->counters(); }
int64_t kept_bytes() { return memory_report().now_of(MemoryUse::cast_cache); }

// --- the cache

TEST_CASE("views are not kept: neither the first part of a storage nor one as large as it") {
  const Tensor x = ones({2, 8}), whole = ones({16, 8});
  const Tensor front = whole.view_as({8, 8}, {8, 1}, 0).set_requires_grad();
  const Tensor repeated = whole.view_as({16, 8}, {0, 1}, 8).set_requires_grad();
  const Autocast region(bf16);
  for (const Tensor& w : {front, repeated}) {
    linear(x, w), linear(x, w);
    CHECK(counters().misses == 0);
  }
}

TEST_CASE("a weight that was written is cast once more, and that cast is kept") {
  const Tensor x = ones({1, 2});
  const Tensor w = leaf({2, 1});
  const Autocast region(bf16);
  CHECK(matmul(x, w).item() == 2);
  for (const double value : {3, 5}) {
    const amp::CacheCounters before = counters();
    fill_with(w, value);
    for (int i = 0; i < 3; ++i) CHECK(matmul(x, w).item() == 2 * value);
    CHECK(counters().misses == before.misses + 1);
    CHECK(counters().hits == before.hits + 2);
  }
  CHECK(amp::active_cast_cache()->size() == 1);
}

TEST_CASE("other data in a weight's place are not mistaken for the cast data, at any address") {
  const Tensor x = ones({1, 2});
  const Tensor w = leaf({2, 1});
  const Autocast region(bf16);
  CHECK(matmul(x, w).item() == 2);
  for (int i = 2; i < 20; ++i) {  // as Module::to() does; twice, to reuse an address
    *w.body() = *full({2, 1}, -1).body();
    *w.body() = *full({2, 1}, i).body();
    CHECK(matmul(x, w).item() == 2 * i);
  }
}

TEST_CASE("a weight has an entry for each dtype it is used in") {
  const Tensor x = ones({1, 1});
  const Tensor w = leaf({1, 1}, 1 + 0x1p-9);  // 1 in bf16; exact in f16
  const Autocast region(bf16);
  for (const bool cached : {false, true}) {
    CHECK(matmul(x, w).item() == 1);
    const Autocast inner(f16);
    CHECK(matmul(x, w).item() == 1 + 0x1p-9);
    CHECK(counters().misses == 2);
    CHECK(counters().hits == (cached ? 2 : 0));
  }
  CHECK(amp::active_cast_cache()->size() == 2);
}

TEST_CASE("two weights have an entry each") {
  const Tensor x = ones({1, 1});
  std::vector<Tensor> weights;
  for (int i = 0; i < 40; ++i) weights.push_back(leaf({1, 1}, i));
  const Autocast region(bf16);
  for (int round = 0; round < 2; ++round)
    for (int i = 0; i < 40; ++i) CHECK(matmul(x, weights[std::size_t(i)]).item() == i);
  CHECK(amp::active_cast_cache()->size() == 40);
  CHECK(counters().hits == 40);
}

TEST_CASE("a checkpointed segment outlives its region; the casts that the region kept do not") {
  const int64_t before = kept_bytes();
  const Tensor x = ones({1, 2});
  const Tensor w = leaf({2, 1});
  const Tensor y = autocast(bf16, [&] {
    const auto segment = [&](const std::vector<Tensor>& in) { return matmul(in[0], w); };
    Tensor product = sum(checkpoint(segment, {x}));
    CHECK(kept_bytes() > before);
    return product;
  });
  CHECK(kept_bytes() == before);
  fill_with(w, 7);
  y.backward();
  CHECK(w.grad().dtype() == f32);
  CHECK(w.grad().at({0, 0}) == 1);
}

// --- regions

TEST_CASE("a region is its thread's alone: another thread begins and ends its own") {
  const Tensor x = ones({1, 2});
  const Tensor w = leaf({2, 1});
  const Autocast region(bf16);
  matmul(x, w);
  const amp::CastCache* const mine = amp::active_cast_cache();
  bool enabled = true, has_cache = true, own_cache = false;
  std::optional<DType> outside, inside;
  std::thread([&] {
    enabled = amp::autocast_enabled(), has_cache = amp::active_cast_cache() != nullptr;
    outside = matmul(x, w).dtype();
    const Autocast other(f16);
    inside = matmul(x, w).dtype();
    own_cache = amp::active_cast_cache() != mine && amp::active_cast_cache()->size() == 1;
  }).join();
  CHECK_FALSE(enabled);
  CHECK_FALSE(has_cache);
  CHECK(outside == f32);
  CHECK(inside == f16);
  CHECK(own_cache);
  CHECK(amp::active_cast_cache() == mine);
  CHECK(mine->size() == 1);
  CHECK(matmul(x, w).dtype() == bf16);
  CHECK(counters().hits == 1);
}

/// Records the inputs it gets; the second input may be absent.
struct Arrives final : UserOp {
  static constexpr OpInfo info{"arrives", CastClass::widest_input};
  std::vector<DType>* seen;
  explicit Arrives(std::vector<DType>* list) : seen(list) {}
  Tensor forward(const Tensor& a, const Tensor& b, const Tensor& c) {
    for (const Tensor& x : {a, b, c})
      if (x.defined()) seen->push_back(x.dtype());
    return a.clone();
  }
};

TEST_CASE("the widest input is found among those that a region casts: f64 widens no other input") {
  std::vector<DType> seen;
  const Tensor low = ones({2}, bf16), wide = ones({2}, f64), whole = ones({2}, i64);
  const Autocast region(bf16);
  apply(Arrives(&seen), low, wide, Tensor{});
  CHECK(seen == std::vector<DType>{bf16, f64});
  seen.clear();
  apply(Arrives(&seen), wide, low, ones({2}));
  CHECK(seen == std::vector<DType>{f64, f32, f32});
  seen.clear();
  apply(Arrives(&seen), low, whole, low);
  CHECK(seen == std::vector<DType>{bf16, i64, bf16});
}

TEST_CASE("inputs in f32 are not widened, and the log does not list them") {
  const Tensor x = ones({2, 2});
  amp::PrecisionLog log;
  const Autocast region(bf16);
  softmax(x, 1);
  CHECK(log.entries().at(0).runs_in == "f32");
}

TEST_CASE("a region that ends before one inside it is an error at the next use") {
  const Tensor x = ones({1, 2});
  const Tensor w = leaf({2, 1});
  const char* const message =
      "[autocast] a region ended before a region that had begun inside it. End the inner one "
      "first, "
      "as scopes do.";
  for (const bool used : {true, false}) {
    auto outer = std::make_unique<Autocast>(bf16), inner = std::make_unique<Autocast>(f16);
    outer.reset();
    if (used) CHECK_THROWS_WITH_AS(matmul(x, w), message, UsageError);
    inner.reset();
    CHECK_FALSE(amp::autocast_enabled());
    CHECK(amp::active_cast_cache() == nullptr);
    CHECK(matmul(x, w).dtype() == f32);
    if (!used) CHECK_THROWS_WITH_AS(Autocast{bf16}, message, UsageError);
    CHECK(autocast(bf16, [&] { return matmul(x, w).dtype(); }) == bf16);
    CHECK(matmul(x, w).dtype() == f32);
  }
  // With a third region, which began and ended properly in the disorder, and a disabled one.
  auto a = std::make_unique<Autocast>(bf16),
       b = std::make_unique<Autocast>(Region{.enabled = false}),
       c = std::make_unique<Autocast>(f16);
  b.reset();
  c.reset();
  CHECK_THROWS_WITH_AS(matmul(x, w), message, UsageError);
  CHECK_THROWS_WITH_AS(Autocast{bf16}, message, UsageError);
  a.reset();
  CHECK(matmul(x, w).dtype() == f32);
  CHECK(autocast(bf16, [&] { return matmul(x, w).dtype(); }) == bf16);
}

}  // namespace
}  // namespace halftone::testing
