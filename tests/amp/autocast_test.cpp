// Regions: which inputs are cast, nesting, ends of regions, backward, and the cast cache.
#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>
#include <stdexcept>
#include <thread>

#include <doctest/doctest.h>

#include <halftone/halftone.h>

#include "cases.h"

namespace halftone::test::autocast_test {
namespace {

using amp::Autocast;
using amp::autocast;
using amp::CastClass;
using amp::CastPolicy;
using amp::Region;

Tensor leaf(const Shape& shape) { return randn(shape).set_requires_grad(); }
const amp::CacheCounters& counters() { return amp::active_cast_cache()->counters(); }

// --- which inputs are cast

TEST_CASE("every cast class, by an operation that asks for it") {
  manual_seed(0);
  const Tensor x = randn({4, 4}), y = cast(randn({4, 4}), bf16);
  const Autocast region(bf16);
  CHECK(matmul(x, x).dtype() == bf16);   // low_precision
  CHECK(matmul(x, y).dtype() == bf16);   // in any input dtype
  CHECK(softmax(y, 1).dtype() == f32);   // full_precision, written as f32 by the kernel
  CHECK(pow(y, y).dtype() == f32);       // full_precision, by casts
  CHECK(cat({x, y}, 0).dtype() == f32);  // widest_input
  CHECK(cat({y, y}, 0).dtype() == bf16);
  CHECK(relu(y).dtype() == bf16);  // as_is
  CHECK(relu(x).dtype() == f32);
  const Tensor p = full({4}, 0.5), target = ones({4});
  CHECK_THROWS_WITH_AS(binary_cross_entropy(p, target),  // banned
                       doctest::Contains("is refused under autocast"), UsageError);
}

struct Agree final : UserOp {  // the framework's own operations promote before they ask
  static constexpr OpInfo info{"agree", CastClass::widest_input};
  Tensor forward(const Tensor& a, const Tensor& b) {
    CHECK(a.dtype() == b.dtype());
    return a.clone();
  }
};

TEST_CASE("f16 and bf16 meet in f32 where inputs must agree") {
  const Tensor a = ones({2, 2}, f16), b = ones({2, 2}, bf16);
  const Autocast region(f16);
  CHECK(cat({a, b}, 0).dtype() == f32);
  CHECK(apply(Agree{}, a, b).dtype() == f32);
  CHECK(apply(Agree{}, b, a).dtype() == f32);
  CHECK(apply(Agree{}, b, b).dtype() == bf16);
  CHECK(apply(Agree{}, b, ones({2, 2})).dtype() == f32);
  CHECK(matmul(a, b).dtype() == f16);  // low_precision: both become f16
}

TEST_CASE("f64, integers and booleans are not cast") {
  manual_seed(0);
  const Tensor wide = randn({3, 3}, f64), narrow = randn({3, 3});
  const Tensor indices = from({0, 2}, i64);
  const Autocast region(bf16);
  CHECK(matmul(wide, wide).dtype() == f64);
  CHECK(exp(wide).dtype() == f64);
  CHECK_THROWS_AS(matmul(wide, narrow), DTypeError);  // f64 and bf16: neither is widened
  CHECK(embedding(indices, narrow).dtype() == f32);
  const Tensor mask = less(wide, wide);
  CHECK(mask.dtype() == boolean);
  CHECK(where(mask, narrow, narrow).dtype() == f32);
}

struct Twice final : UserOp {
  static constexpr OpInfo info{"twice", CastClass::low_precision, "", {.sums = sums_over_last}};
  Tensor forward(const Tensor& x) { return x + x; }
};
struct AsItIs final : UserOp {
  static constexpr OpInfo info{"as_it_is", CastClass::full_precision};
  Tensor forward(const Tensor& x) { return x.clone(); }
};

TEST_CASE("operations of users get the class they ask for, also if the policy has other rules") {
  const Tensor x = ones({2}), y = ones({2}, bf16);
  for (const std::string_view preset : {"pytorch-cuda", "none"}) {
    const Autocast region(CastPolicy::preset(preset).with(bf16));
    CHECK(apply(Twice{}, x).dtype() == bf16);
    CHECK(apply(AsItIs{}, y).dtype() == f32);
  }
}

// --- regions

TEST_CASE("nesting: dtype, policy and disabling hold inside, and the outer state is restored") {
  const Tensor x = ones({2, 2});
  const auto dtypes = [&] { return std::pair(matmul(x, x).dtype(), exp(matmul(x, x)).dtype()); };
  using Pair = std::pair<DType, DType>;
  CHECK_FALSE(amp::autocast_enabled());
  CHECK_FALSE(amp::autocast_dtype());
  CHECK(amp::active_cast_cache() == nullptr);
  {
    const Autocast outer(bf16);
    CHECK(amp::autocast_dtype() == std::optional(bf16));
    CHECK(dtypes() == Pair{bf16, f32});
    {
      const Autocast inner(CastPolicy::preset("all-low").with(f16));
      CHECK(amp::autocast_dtype() == std::optional(f16));
      CHECK(dtypes() == Pair{f16, f16});
      {
        const Autocast off = Autocast::disabled();
        CHECK_FALSE(amp::autocast_enabled());
        CHECK_FALSE(amp::autocast_dtype());
        CHECK(dtypes() == Pair{f32, f32});
        const Autocast on_again(bf16);  // enabled inside disabled
        CHECK(amp::autocast_enabled());
        CHECK(dtypes() == Pair{bf16, f32});
      }
      CHECK(dtypes() == Pair{f16, f16});
    }
    CHECK(amp::autocast_dtype() == std::optional(bf16));
    CHECK(dtypes() == Pair{bf16, f32});
  }
  CHECK_FALSE(amp::autocast_enabled());
  CHECK(dtypes() == Pair{f32, f32});
}

TEST_CASE("a disabled outermost region keeps the cache of the regions in it") {
  const Autocast off = Autocast::disabled();
  CHECK(amp::active_cast_cache() != nullptr);
  CHECK(matmul(ones({2, 2}), ones({2, 2})).dtype() == f32);
}

TEST_CASE("no dtype for the CPU: its low_precision operations do not change") {
  const Tensor x = ones({2, 2});
  const Autocast region(Region{.dtype = std::nullopt});
  CHECK(amp::autocast_enabled());
  CHECK_FALSE(amp::autocast_dtype());
  CHECK(matmul(x, x).dtype() == f32);
}

TEST_CASE("a region ends with an exception, and with the function") {
  const Tensor x = ones({2, 2});
  CHECK_THROWS_AS(autocast(bf16, [&]() -> Tensor { throw std::runtime_error("out"); }),
                  std::runtime_error);
  CHECK_FALSE(amp::autocast_enabled());
  CHECK(amp::active_cast_cache() == nullptr);
  CHECK_THROWS_AS(autocast(bf16, [&] { return matmul(x, ones({3, 3})); }), ShapeError);
  CHECK_FALSE(amp::autocast_enabled());
  CHECK(autocast(f16, [&] { return matmul(x, x); }).dtype() == f16);
  CHECK(autocast(f16, [] { return 7; }) == 7);
  int value = 3;
  autocast(f16, [&]() -> int& { return value; }) = 4;  // references stay references
  CHECK(value == 4);
  autocast(f16, [] {});
}

TEST_CASE("only bf16 and f16 are dtypes to run in; a refusal leaves no region open") {
  const auto open = [](const Region& region) { const Autocast opened(region); };
  for (const DType wrong : {f32, f64, i64}) {
    CHECK_THROWS_WITH_AS(open({.dtype = wrong}),
                         doctest::Contains("[autocast] cannot run operations in"), DTypeError);
    CHECK_THROWS_AS(open({.cuda_dtype = wrong}), DTypeError);
    CHECK(amp::active_cast_cache() == nullptr);
  }
}

// --- backward

TEST_CASE("backward runs outside, or in another region, to the same gradients") {
  manual_seed(0);
  const Tensor x = randn({4, 8});
  const auto gradient = [&](std::optional<Region> around) {
    manual_seed(1);
    Tensor w = leaf({3, 8});
    const Tensor loss = autocast(bf16, [&] { return mean(square(linear(x, w))); });
    if (around) autocast(*around, [&] { loss.backward(); });
    else loss.backward();
    CHECK(w.grad().dtype() == f32);
    return w.grad();
  };
  const Tensor outside = gradient({});
  CHECK(same_bits(outside, gradient(Region{.dtype = f16})));
  CHECK(same_bits(outside, gradient(CastPolicy::preset("all-low").with(bf16))));
  CHECK(same_bits(outside, gradient(Region{.enabled = false})));
}

TEST_CASE("gradients arrive in the dtype of their tensor") {
  manual_seed(0);
  Tensor x = leaf({4, 8}), w = leaf({3, 8}), b = leaf({3});
  Tensor short_w = cast(randn({3, 8}), bf16).set_requires_grad();
  sum(autocast(f16, [&] { return linear(x, w, b) + linear(x, short_w); })).backward();
  for (const Tensor& p : {x, w, b}) CHECK(p.grad().dtype() == f32);
  CHECK(short_w.grad().dtype() == bf16);
}

TEST_CASE("weight gradients leave their product as f32, never rounded through bf16") {
  manual_seed(0);
  const int64_t batch = 32;
  const Tensor x = randn({batch, 8});
  Tensor w = leaf({5, 8});
  const Tensor dy = cast(randn({batch, 5}), bf16);
  autocast(bf16, [&] { return linear(x, w); }).backward(dy);
  // By hand: the product of the inputs rounded to bf16, without another rounding.
  const auto wide = [](const Tensor& t) { return cast(cast(t, bf16), f64); };
  const Tensor exact = matmul(permute(wide(dy), {1, 0}), wide(x));
  const std::vector<double> got = w.grad().to_vector<double>(), want = exact.to_vector<double>();
  const Tensor sizes = matmul(permute(abs(wide(dy)), {1, 0}), abs(wide(x)));
  const std::vector<double> size = sizes.to_vector<double>();
  int short_ones = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    CHECK(std::abs(got[i] - want[i]) <= double(batch) * epsilon(f32) * size[i]);
    short_ones += double(float(BFloat16(float(got[i])))) == got[i];
  }
  CHECK(short_ones < 3);  // rounded through bf16, all 40 would be numbers of bf16
}

// --- the cache

TEST_CASE("a weight is cast once: counters, and the end of the outermost region") {
  manual_seed(0);
  const Tensor x = cast(randn({2, 8}), bf16);
  const Tensor w = leaf({8, 8});
  {
    const Autocast region(bf16);
    linear(x, w), linear(x, w);
    {
      const Autocast inner(bf16);  // shares the cache, and does not end it
      linear(x, w);
    }
    linear(x, w);
    CHECK(counters().misses == 1);
    CHECK(counters().hits == 3);
    CHECK(counters().bytes == 8 * 8 * 2);
    CHECK(amp::active_cast_cache()->size() == 1);
  }
  const Autocast next(bf16);
  CHECK(amp::active_cast_cache()->size() == 0);
  CHECK(counters().misses == 0);
}

TEST_CASE("cache = false casts every time, to the same values and gradients") {
  manual_seed(0);
  const Tensor x = cast(randn({2, 8}), bf16);
  Tensor w = leaf({8, 8}), same = w.clone().set_requires_grad();
  {
    const Autocast region(Region{.cache = false});
    sum(linear(x, w) * linear(x, w)).backward();
    CHECK(counters().hits + counters().misses == 0);
  }
  autocast(bf16, [&] { return sum(linear(x, same) * linear(x, same)); }).backward();
  CHECK(same_bits(w.grad(), same.grad()));
}

TEST_CASE("activations, views, frozen and short weights are not cached") {
  manual_seed(0);
  const Tensor x = randn({2, 8});
  Tensor frozen = randn({8, 8}), both = leaf({16, 8}), short_w = cast(randn({8, 8}), f16);
  short_w.set_requires_grad();
  Tensor part = both.detach().view_as({8, 8}, {8, 1}, 64);
  part.set_requires_grad();  // a leaf, but a view of a larger tensor
  // The first part of a storage, and a view as large as it.
  const Tensor whole = ones({16, 8});
  const Tensor front = whole.view_as({8, 8}, {8, 1}, 0).set_requires_grad();
  const Tensor repeated = whole.view_as({16, 8}, {0, 1}, 8).set_requires_grad();
  const Tensor computed = relu(leaf({8, 8}));
  const Autocast region(bf16);
  for (const Tensor& w : {frozen, part, front, repeated, short_w, computed, slice(both, 0, 0, 8)}) {
    linear(x, w), linear(x, w);
    CHECK(counters().misses == 0);
  }
  linear(x, both);
  CHECK(counters().misses == 1);
}

TEST_CASE("a region that is destroyed in another thread does not change that thread's regions") {
  std::unique_ptr<Autocast> strayed;
  std::thread([&] { strayed = std::make_unique<Autocast>(f16); }).join();
  const Autocast region(bf16);
  strayed.reset();
  CHECK(amp::autocast_dtype() == bf16);
  CHECK(linear(leaf({2, 4}), leaf({3, 4})).dtype() == bf16);
}

TEST_CASE("a batched product with one weight for all batches hits the cache") {
  manual_seed(0);
  const Tensor x = randn({3, 4, 8});
  const Tensor w = leaf({8, 5});
  const Autocast region(bf16);
  CHECK(matmul(x, w).shape() == Shape{3, 4, 5});
  matmul(x, w);
  CHECK(counters().misses == 1);
  CHECK(counters().hits == 1);
}

}  // namespace
}  // namespace halftone::test::autocast_test

// Conditions of regions and of their cast cache that no other test checks: which casts are kept,
// how long, for which thread, and which values are never cast.

namespace halftone::testing {
namespace {

using amp::Autocast;
using amp::autocast;
using amp::Region;

Tensor leaf(const Shape& shape, double value = 1) { return full(shape, value).set_requires_grad(); }
const amp::CacheCounters& counters() { return amp::active_cast_cache()->counters(); }
int64_t kept_bytes() { return memory_report().now_of(MemoryUse::cast_cache); }

// --- the cache

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
    if (!used) CHECK_THROWS_WITH_AS(static_cast<void>(Autocast{bf16}), message, UsageError);
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
  CHECK_THROWS_WITH_AS(static_cast<void>(Autocast{bf16}), message, UsageError);
  a.reset();
  CHECK(matmul(x, w).dtype() == f32);
  CHECK(autocast(bf16, [&] { return matmul(x, w).dtype(); }) == bf16);
}

}  // namespace
}  // namespace halftone::testing

// The log of a region's decisions, counted by hand on small inputs.

namespace halftone::test::precision_log_test {
namespace {

using amp::autocast;
using amp::PrecisionLog;

constexpr float infinity = std::numeric_limits<float>::infinity();

const PrecisionLog::Entry& named(const std::vector<PrecisionLog::Entry>& entries,
                                 std::string_view op) {
  const auto found = std::ranges::find(entries, op, &PrecisionLog::Entry::op);
  REQUIRE(found != entries.end());
  return *found;
}

TEST_CASE("calls, casts, bytes and cache hits, in the order of first calls") {
  const Tensor x = ones({2, 4});
  const Tensor w = ones({3, 4}).set_requires_grad();
  PrecisionLog log;
  autocast(bf16, [&] {
    const Tensor y = linear(x, w);   // casts x (16 bytes) and w (24)
    softmax(y, 1);                   // writes f32 from bf16: no cast
    linear(x, w);                    // casts x again, w from the cache
    nll_loss(y, from({0, 1}, i64));  // casts y: 2 x 3 x 4 bytes
    relu(y);
  });
  const std::vector<PrecisionLog::Entry> entries = log.entries();
  REQUIRE(entries.size() == 4);
  const PrecisionLog::Entry& linears = entries[0];
  CHECK(linears.op == "linear");
  CHECK(linears.decided == CastClass::low_precision);
  CHECK(linears.runs_in == "bf16");
  CHECK(linears.calls == 2);
  CHECK(linears.casts == 4);
  CHECK(linears.cache_hits == 1);
  CHECK(linears.bytes == 16 + 24 + 16);
  CHECK(entries[1].op == "softmax");
  CHECK(entries[1].decided == CastClass::full_precision);
  CHECK(entries[1].runs_in == "bf16 -> f32");
  CHECK(entries[1].casts == 0);
  CHECK(entries[1].bytes == 0);
  CHECK(entries[2].op == "nll_loss");
  CHECK(entries[2].runs_in == "f32, i64");
  CHECK(entries[2].casts == 1);
  CHECK(entries[2].bytes == 24);
  CHECK(entries[3].op == "relu");
  CHECK(entries[3].decided == CastClass::as_is);
  CHECK(entries[3].runs_in == "bf16");
  const PrecisionLog::Entry total = log.total();
  CHECK(total.op == "total");
  CHECK(total.calls == 5);
  CHECK(total.casts == 5);
  CHECK(total.cache_hits == 1);
  CHECK(total.bytes == 16 + 24 + 16 + 24);
}

TEST_CASE(
    "one operation, decided in two ways: two entries; both dtypes of mixed inputs are named") {
  const Tensor x = ones({2, 2}), y = ones({2, 2}, bf16);
  PrecisionLog log;
  {
    const amp::Autocast region(bf16);
    matmul(x, x), matmul(x, y);
    {
      const amp::Autocast inner(f16);
      matmul(x, x);
    }
    const amp::Autocast plain(amp::CastPolicy::preset("none").with(bf16));
    matmul(x, x);
    where(less(x, x), x, y);  // promotes y to f32
  }
  std::vector<std::string> seen;
  for (const auto& e : log.entries())
    seen.push_back(e.op + ' ' + described(e.decided) + ' ' + e.runs_in);
  CHECK(seen == std::vector<std::string>{"matmul low_precision bf16", "matmul low_precision f16",
                                         "matmul as_is f32", "less as_is f32",
                                         "where as_is bool, f32"});
  CHECK(log.entries()[0].calls == 2);
  CHECK(log.entries()[0].casts == 3);
}

TEST_CASE("values that the casts destroyed: they became zero or infinite") {
  // f16: below 2^-25 is zero, 65520 and more is infinite. Earlier zeros and infinities do not
  // count; NaN stays NaN.
  const Tensor x = from({{0, 1e-9, -1e-9, 6e-8}, {65519, 65520, -1e9, infinity}});
  const Tensor w = from({{1, 1e-30, std::numeric_limits<float>::quiet_NaN(), 1e30}});
  PrecisionLog log;
  autocast(f16, [&] { linear(x, w); });
  const PrecisionLog::Entry entry = named(log.entries(), "linear");
  CHECK(entry.to_zero == 3);      // 1e-9, -1e-9, 1e-30
  CHECK(entry.to_infinity == 3);  // 65520, -1e9, 1e30
  log.clear();
  CHECK(log.entries().empty());
  autocast(bf16, [&] { linear(x, w); });  // has f32's range
  CHECK(log.total().casts == 2);
  CHECK(log.total().to_zero == 0);
  CHECK(log.total().to_infinity == 0);
}

TEST_CASE("the innermost log records, and after it the outer one again") {
  const Tensor x = ones({2, 2});
  const amp::Autocast region(bf16);
  PrecisionLog outer;
  CHECK(PrecisionLog::active() == &outer);
  matmul(x, x);
  {
    PrecisionLog inner;
    CHECK(PrecisionLog::active() == &inner);
    matmul(x, x), matmul(x, x);
    CHECK(inner.total().calls == 2);
  }
  CHECK(PrecisionLog::active() == &outer);
  matmul(x, x);
  CHECK(outer.total().calls == 2);
}

TEST_CASE("nothing is recorded without a log, outside of regions and in disabled ones") {
  const Tensor x = ones({2, 2});
  CHECK(PrecisionLog::active() == nullptr);
  autocast(bf16, [&] { matmul(x, x); });
  PrecisionLog log;
  matmul(x, x);
  autocast(amp::Region{.enabled = false}, [&] { matmul(x, x); });
  CHECK(log.entries().empty());
  CHECK(log.total().calls == 0);
}

TEST_CASE("a log changes neither results nor gradients nor the cache") {
  const auto gradient = [](bool logged) {
    manual_seed(0);
    const Tensor x = randn({4, 8});
    Tensor w = randn({3, 8}).set_requires_grad();
    std::unique_ptr<PrecisionLog> log;
    if (logged) log = std::make_unique<PrecisionLog>();
    const amp::Autocast region(f16);
    sum(linear(x, w) * linear(x, w)).backward();
    CHECK(amp::active_cast_cache()->counters().hits == 1);
    return w.grad();
  };
  CHECK(same_bits(gradient(true), gradient(false)));
}

TEST_CASE("the table: a head, one line per entry, the total") {
  const Tensor x = full({64, 64}, 1e-9);
  const Tensor w = ones({64, 64}).set_requires_grad();
  PrecisionLog log;
  autocast(f16, [&] { softmax(linear(linear(x, w), w), 1); });
  std::ostringstream text;
  text << log;
  const std::string wanted =
      "operation         policy          runs in                 calls     casts    cached  KiB "
      "cast   to zero    to inf\n"
      "linear            low_precision   f16                         2         3         1        "
      "16      4096         0\n"
      "softmax           full_precision  f16 -> f32                  1         0         0         "
      "0         0         0\n"
      "total                                                         3         3         1        "
      "16      4096         0\n";
  CHECK(text.str() == wanted);
}

}  // namespace
}  // namespace halftone::test::precision_log_test
