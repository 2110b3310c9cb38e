// Regions: which inputs are cast, nesting, ends of regions, backward, and the cast cache.
#include <cmath>
#include <stdexcept>

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
  const Tensor computed = relu(leaf({8, 8}));
  const Autocast region(bf16);
  for (const Tensor& w : {frozen, part, short_w, computed, slice(both, 0, 0, 8)}) {
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
