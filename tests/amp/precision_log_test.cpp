// The log of a region's decisions, counted by hand on small inputs.
#include <algorithm>
#include <limits>
#include <sstream>

#include "cases.h"

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
