// Chains of multiply-adds in registers, and passes over arrays. Each loop is written for one
// instruction set, and runs if the CPU backend uses that set or a better one.
#include <algorithm>
#include <array>

#include <halftone/core/memory.h>
#include <halftone/amp/probe.h>

#include "machine.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>

#include <halftone/backends/cpu/staging.h>

namespace halftone::bench {

namespace {
/// Enough chains to hide an instruction's latency: two units times five or six cycles.
constexpr int chains = 12;
volatile float sink;  // takes the results, so that the compiler keeps the loops

// Each function returns its number of operations: two for a multiply-add.
double multiply_add(int64_t n) {
  using Four [[gnu::vector_size(16)]] = float;
  Four sum[chains], x = Four{} + 1e-3F;
  for (int c = 0; c < chains; ++c) sum[c] = Four{} + float(c);
  for (int64_t i = 0; i < n; ++i)
#pragma GCC unroll 12
    for (Four& s : sum) s = s * x + x;
  for (const Four& s : sum) sink = s[0];
  return double(n) * chains * 4 * 2;
}

void copy(const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = x[i];
}
void triad(const float* x, const float* y, float* z, int64_t n) {
  for (int64_t i = 0; i < n; ++i) z[i] = x[i] + 0.5F * y[i];
}

#if defined(__x86_64__)
[[gnu::target("avx2,fma")]] double multiply_add_avx2(int64_t n) {
  __m256 sum[chains], x = _mm256_set1_ps(1e-3F);
  for (int c = 0; c < chains; ++c) sum[c] = _mm256_set1_ps(float(c));
  for (int64_t i = 0; i < n; ++i)
#pragma GCC unroll 12
    for (__m256& s : sum) s = _mm256_fmadd_ps(s, x, x);
  for (const __m256& s : sum) sink = _mm256_cvtss_f32(s);
  return double(n) * chains * 8 * 2;
}

[[gnu::target("avx512f")]] double multiply_add_avx512(int64_t n) {
  __m512 sum[chains], x = _mm512_set1_ps(1e-3F);
  for (int c = 0; c < chains; ++c) sum[c] = _mm512_set1_ps(float(c));
  for (int64_t i = 0; i < n; ++i)
#pragma GCC unroll 12
    for (__m512& s : sum) s = _mm512_fmadd_ps(s, x, x);
  for (const __m512& s : sum) sink = _mm512_cvtss_f32(s);
  return double(n) * chains * 16 * 2;
}

[[gnu::target("avx512f,avx512bf16")]] double dot_bf16(int64_t n) {
  __m512 sum[chains];
  const __m512i bits = _mm512_set1_epi16(0x3a83);  // 1e-3 in bf16
  __m512bh x;
  static_assert(sizeof x == sizeof bits);
  __builtin_memcpy(&x, &bits, sizeof x);
  for (int c = 0; c < chains; ++c) sum[c] = _mm512_set1_ps(float(c));
  for (int64_t i = 0; i < n; ++i)
#pragma GCC unroll 12
    for (__m512& s : sum) s = _mm512_dpbf16_ps(s, x, x);
  for (const __m512& s : sum) sink = _mm512_cvtss_f32(s);
  return double(n) * chains * 32 * 2;
}

[[gnu::target("amx-tile,amx-bf16")]] double tiles_bf16(int64_t n) {
  struct alignas(64) {
    uint8_t palette = 1, start_row = 0, reserved[14]{};
    uint16_t row_bytes[16]{};
    uint8_t rows[16]{};
  } shape;
  std::fill_n(shape.row_bytes, 8, uint16_t{64});
  std::fill_n(shape.rows, 8, uint8_t{16});
  alignas(64) static const uint16_t zeros[512] = {};
  asm volatile("" ::"r"(&shape) : "memory");  // the stores happen before the tiles are configured
  _tile_loadconfig(&shape);
  _tile_loadd(4, zeros, 64);
  _tile_loadd(5, zeros, 64);
  _tile_loadd(6, zeros, 64);
  _tile_loadd(7, zeros, 64);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t i = 0; i < n; ++i) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_release();
  return double(n) * 4 * 16 * 16 * 32 * 2;
}

[[gnu::target("avx2")]] void copy_avx2(const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i + 8 <= n; i += 8) _mm256_storeu_ps(y + i, _mm256_loadu_ps(x + i));
}
[[gnu::target("avx2,fma")]] void triad_avx2(const float* x, const float* y, float* z, int64_t n) {
  const __m256 half = _mm256_set1_ps(0.5F);
  for (int64_t i = 0; i + 8 <= n; i += 8)
    _mm256_storeu_ps(z + i, _mm256_fmadd_ps(half, _mm256_loadu_ps(y + i), _mm256_loadu_ps(x + i)));
}

#else

constexpr auto multiply_add_avx2 = multiply_add, multiply_add_avx512 = multiply_add,
               dot_bf16 = multiply_add, tiles_bf16 = multiply_add;
constexpr auto copy_avx2 = copy;
constexpr auto triad_avx2 = triad;

#endif

using Clock = std::chrono::steady_clock;
constexpr int rounds = 8;

/// Returns the highest rate, in units of `work(thread, repeats)` per second, on all threads
/// together: the best of eight runs of at least 10 ms.
double best_rate(int threads, const std::function<double(int, int64_t)>& work) {
  double best = 0;
  int64_t repeats = 1;
  for (int round = 0; round < rounds;) {
    double done = 0;
    const Clock::time_point start = Clock::now();
#pragma omp parallel num_threads(threads) reduction(+ : done)
    done += work(omp_get_thread_num(), repeats);
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    if (seconds < 0.01) repeats *= 2;
    else best = std::max(best, done / seconds), ++round;
  }
  return best;
}

/// Uses three arrays per thread, each first touched by its thread.
Machine::Traffic measure_traffic(double mebibytes, int threads, bool avx2) {
  const auto share = [&](int arrays) {
    return int64_t(mebibytes * 1048576 / (4.0 * arrays * threads)) / 16 * 16;
  };
  std::vector<std::vector<float>> x(threads), y(threads), z(threads);
#pragma omp parallel num_threads(threads)
  {
    const auto t = std::size_t(omp_get_thread_num());
    x[t].assign(std::size_t(share(2)), 1), y[t].assign(std::size_t(share(2)), 2);
    z[t].assign(std::size_t(share(3)), 3);
  }
  const double copied = best_rate(threads, [&](int thread, int64_t repeats) {
    const auto t = std::size_t(thread);
    for (int64_t i = 0; i < repeats; ++i)
      (avx2 ? copy_avx2 : copy)(x[t].data(), y[t].data(), share(2));
    sink = y[t][0];
    return double(repeats) * double(share(2)) * 8;
  });
  const double added = best_rate(threads, [&](int thread, int64_t repeats) {
    const auto t = std::size_t(thread);
    for (int64_t i = 0; i < repeats; ++i)
      (avx2 ? triad_avx2 : triad)(x[t].data(), y[t].data(), z[t].data(), share(3));
    sink = z[t][0];
    return double(repeats) * double(share(3)) * 12;
  });
  return {.mebibytes = mebibytes, .copy = copied * 1e-9, .triad = added * 1e-9};
}
}  // namespace

double Machine::arithmetic(DType dtype) const {
  if (dtype == DType::f64) return f32 / 2;
  if (dtype == DType::f16 && f16 > 0) return f16;
  return dtype == DType::bf16 ? bf16 : f32;
}

double Machine::bandwidth(double bytes) const {
  const auto distance = [&](const Traffic& t) {
    return std::abs(std::log(std::max(bytes, 1.0) / (t.mebibytes * 1048576)));
  };
  const Traffic& nearest = *std::ranges::min_element(traffic, {}, distance);
  return std::max(nearest.copy, nearest.triad);
}

Machine measure_machine(int threads) {
  std::string instructions = use_amx() ? "amx" : simd_kernels().name;
  if (instructions.starts_with("portable_")) instructions.erase(0, 9);
  const bool avx512 = instructions == "amx" || instructions.starts_with("avx512"),
             avx2 = avx512 || instructions == "avx2";
  const auto peak = [&](double (*loop)(int64_t)) {
    return best_rate(threads, [loop](int, int64_t repeats) { return loop(100 * repeats); }) * 1e-9;
  };
  Machine machine{.threads = threads, .instructions = instructions, .traffic = {}};
  machine.f32 = peak(avx512 ? multiply_add_avx512 : avx2 ? multiply_add_avx2 : multiply_add);
  machine.bf16 = has_bf16_products() ? peak(dot_bf16) : machine.f32;
  if (use_amx()) machine.bf16 = std::max(machine.bf16, peak(tiles_bf16));
  for (const double mebibytes : {4, 16, 64, 256})
    machine.traffic.push_back(measure_traffic(mebibytes, threads, avx2));
  return machine;
}

// Observes one step: which dtype each product multiplied, and what the memory ledger counts.

namespace {
/// Returns the multiply-adds of one product's forward pass.
double multiply_adds(std::string_view op, std::span<const Tensor> inputs, const Tensor& y) {
  if (inputs.size() < 2 || !inputs[0].defined()) return 0;
  const Tensor &a = inputs[0], &b = inputs[1];
  // Queries, keys and values may come as one tensor [n, l, 3 width].
  if (op == "scaled_dot_product_attention")
    return 2 * double(y.numel()) * double(a.rank() == 3 ? a.size(1) : b.size(-2));
  if (op == "linear") return double(y.numel()) * double(b.size(1));
  if (op == "conv2d") return double(y.numel()) * double(b.numel()) / double(b.size(0));
  if (op == "matmul") return double(y.numel()) * double(a.size(-1));
  return 0;
}

/// The share of each dtype in a pass's products. If one operand is f32 and the other short, the
/// product counts as f32.
class DTypesOfProducts final : public policy::Observer {
 public:
  bool begin_pass(int64_t) override { return true; }
  void tensor(const policy::Seen& seen, const Tensor&, const Tensor& after) override {
    if (seen.role > policy::Role::weight || seen.input > 1) return;
    op_ = seen.op;
    if (seen.input == 0) operands_[1] = after.dtype();  // for an operation with one tensor
    operands_[seen.input] = after.dtype();
  }
  void ran(std::string_view, std::span<const Tensor> inputs, Computation&,
           const Tensor& y) override {
    const DType dtype = operands_[0] == operands_[1] ? operands_[0] : f32;
    if (const double work = multiply_adds(op_, inputs, y); work > 0) of_dtype_[dtype] += work;
    op_ = {};
  }
  std::map<DType, double> shares() const {
    double all = 0;
    for (const auto& [dtype, work] : of_dtype_) all += work;
    std::map<DType, double> shares = of_dtype_;
    for (auto& [dtype, share] : shares) share /= all;
    return shares;
  }

 private:
  std::string_view op_{};
  std::array<DType, 2> operands_{f32, f32};
  std::map<DType, double> of_dtype_{};
};
}  // namespace

StepNeeds needs_of_step(lab::SyntheticWorkload& work, amp::Training& training) {
  using Use = MemoryUse;
  const Device device = work.inputs.device();
  const auto held = [&](std::initializer_list<Use> uses) {
    const MemoryReport report = memory_report(device);
    double bytes = 0;
    for (const Use use : uses) bytes += double(report.now_of(use));
    return bytes;
  };
  const auto products = std::make_shared<DTypesOfProducts>();
  const policy::Observation observation("limit", training, products);
  const double before = held({Use::activation});
  const Tensor loss = lab::logits_loss(training.forward(*work.model, work.inputs), work.targets);
  const double kept = held({Use::activation}) - before;
  training.backward(loss);
  const double gradients = held({Use::gradient, Use::master_gradient});
  training.step();
  training.zero_grad();

  StepNeeds needs;
  for (const auto& [dtype, share] : products->shares()) needs.gflop[dtype] = work.gflop * share;
  const double weights = held({Use::parameter});
  const double updated =
      weights + held({Use::master_weight, Use::compensation, Use::optimizer_state});
  needs.bytes = 2 * (updated + gradients + weights + kept + double(work.inputs.bytes()));
  return needs;
}

Limit limit_on(const Machine& machine, const StepNeeds& needs) {
  Limit limit;
  for (const auto& [dtype, gflop] : needs.gflop)
    limit.arithmetic_ms += 1e3 * gflop / machine.arithmetic(dtype);
  limit.memory_ms = 1e3 * needs.bytes * 1e-9 / machine.bandwidth(needs.bytes / 2);
  return limit;
}

}  // namespace halftone::bench
