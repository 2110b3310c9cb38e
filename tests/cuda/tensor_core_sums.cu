// Compares the sums of a Hopper GPU's tensor cores with a model of them, bit by bit, over random
// dot products. The model is that of Li et al. 2025 ("MMA-Sim", arXiv 2511.10909):
// 1. An instruction adds its products, which are exact, and the accumulator in one step.
// 2. Each term is shifted to the largest exponent of a term, and truncated to a fixed number of
//    bits after the binary point.
// 3. The truncated terms add exactly, and the sum is truncated to the bits of the result.
//
//   flags="-O3 -std=c++17 -gencode=arch=compute_90a,code=sm_90a"
//   nvcc $flags -o sums tests/cuda/tensor_core_sums.cu
//   ./sums [TURNS]     TURNS (default 370): 2.7 million dot products of each kind a turn
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <cuda_runtime.h>

namespace {

struct Operand {
  int exponent_bits, fraction_bits, bias;
};
struct Model {
  int products, aligned_bits, result_bits;
};
enum class Code { mma, wgmma };

struct Bf16 {
  static constexpr Operand operand{8, 7, 127};
  static constexpr Model model{16, 25, 23};
};
struct F16 {
  static constexpr Operand operand{5, 10, 15};
  static constexpr Model model{16, 25, 23};
};
struct E4m3 {
  static constexpr Operand operand{4, 3, 7};
  static constexpr Model model{32, 13, 13};
};
struct E5m2 {
  static constexpr Operand operand{5, 2, 15};
  static constexpr Model model{32, 13, 13};
};

struct Term {
  bool negative;
  int64_t digits;  // the value is digits * 2^(exponent - fraction_bits)
  int exponent, fraction_bits;
};

__device__ Term term_of(uint32_t bits, Operand f) {
  const int e = int(bits >> f.fraction_bits) & ((1 << f.exponent_bits) - 1);
  const int fraction = int(bits) & ((1 << f.fraction_bits) - 1);
  return {((bits >> (f.exponent_bits + f.fraction_bits)) & 1) != 0,
          e > 0 ? fraction | 1 << f.fraction_bits : fraction, (e > 0 ? e : 1) - f.bias,
          f.fraction_bits};
}
__device__ Term product_of(const Term& a, const Term& b) {
  return {a.negative != b.negative, a.digits * b.digits, a.exponent + b.exponent,
          a.fraction_bits + b.fraction_bits};
}

/// Returns the sum of `count` terms by the model.
__device__ float sum_of(const Term* terms, int count, Model model) {
  int top = -100000;
  for (int i = 0; i < count; ++i)
    if (terms[i].digits != 0) top = max(top, terms[i].exponent);
  int64_t sum = 0;
  for (int i = 0; i < count; ++i) {
    const int shift = model.aligned_bits - terms[i].fraction_bits - (top - terms[i].exponent);
    const int64_t cut =
        shift >= 0 ? terms[i].digits << min(shift, 40) : terms[i].digits >> min(-shift, 62);
    sum += terms[i].negative ? -cut : cut;
  }
  if (sum == 0) return 0;
  uint64_t digits = uint64_t(sum < 0 ? -sum : sum);
  int last = top - model.aligned_bits;  // the exponent of the last digit
  const int extra =
      max(64 - __clzll(int64_t(digits)) - (model.result_bits + 1), -126 - model.result_bits - last);
  if (extra > 0) digits = extra > 63 ? 0 : digits >> extra, last += extra;
  const double value = ldexp(double(digits), last);
  const float size = value > 3.5e38 ? INFINITY : float(value);
  return sum < 0 ? -size : size;
}

__device__ uint64_t random_bits(uint64_t seed, uint64_t i) {  // SplitMix64's mixer
  uint64_t x = seed * 0x9e3779b97f4a7c15ull + i * 0xd1b54a32d192ed03ull + 1;
  x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdull, x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53ull;
  return x ^ (x >> 33);
}

/// Exponents of near numbers, of far ones, with zeros and subnormals, of the whole range but the
/// last exponent, of a medium range.
enum Range { near, far, with_zeros, whole, medium, ranges };

__device__ uint32_t random_operand(uint64_t seed, uint64_t i, Operand f, int range) {
  const uint64_t r = random_bits(seed, i);
  const int last = (1 << f.exponent_bits) - 1;  // of infinities and NaN in most formats
  const auto within = [&](int below, int count) { return f.bias - below + int((r >> 32) % count); };
  int e = range == near     ? within(1, 4)
          : range == far    ? within(12, 25)
          : range == whole  ? int((r >> 32) % last)
          : range == medium ? within(8, 17)
                            : within(4, 9);
  uint32_t fraction = uint32_t(r) & ((1u << f.fraction_bits) - 1);
  if (range == with_zeros && (r >> 42) % 4 == 0) {
    e = 0;
    if ((r >> 44) % 2 == 0) fraction = 0;
  }
  e = e < 0 ? 0 : e >= last ? last - 1 : e;
  return uint32_t(r >> 63) << (f.exponent_bits + f.fraction_bits) | uint32_t(e) << f.fraction_bits |
         fraction;
}
__device__ float random_accumulator(uint64_t seed, uint64_t i, int range) {
  const uint64_t r = random_bits(~seed, i);
  const int e = range == near         ? 125 + int((r >> 32) % 7)
                : range == with_zeros ? ((r >> 33) % 3 ? 120 + int((r >> 40) % 14) : 0)
                                      : 107 + int((r >> 32) % 41);
  const uint32_t fraction = e == 0 ? 0 : uint32_t(r) & 0x7fffffu;
  return __uint_as_float(uint32_t(r >> 63) << 31 | uint32_t(e) << 23 | fraction);
}

// The matrices are in shared memory in the layout of wgmma without swizzling: squares of 8 rows of
// 16 bytes, two next to each other for a row's 32 bytes.
__device__ int place_of(int row, int byte) {
  return (row / 8 * 2 + byte / 16) * 128 + row % 8 * 16 + byte % 16;
}
__device__ uint64_t description_of(const void* matrix) {
  const auto address = uint64_t(__cvta_generic_to_shared(matrix));
  return (address & 0x3ffff) >> 4 | uint64_t(128 >> 4) << 16 | uint64_t(256 >> 4) << 32;
}

#define HT_SUMS "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
#define HT_MMA(name)                                                        \
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." name                \
               ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
               : HT_SUMS                                                    \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
#define HT_WGMMA(name, flags)                                                            \
  asm volatile("{ .reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned." name \
               " {%0,%1,%2,%3}, %4, %5, p, 1, 1" flags "; }"                             \
               : HT_SUMS                                                                 \
               : "l"(left), "l"(right))

/// Adds a (64 rows) times b (8 columns, as rows) to d, whose places are those of both instructions.
template <Code code, class T>
__device__ void add_product(const uint8_t* sa, const uint8_t* sb, float (&d)[4]) {
  if constexpr (code == Code::mma) {
    const int lane = int(threadIdx.x) % 32, byte = lane % 4 * 4;
    const int row = int(threadIdx.x) / 32 * 16 + lane / 4;
    const auto four = [](const uint8_t* s, int r, int c) {
      return *reinterpret_cast<const uint32_t*>(s + place_of(r, c));
    };
    const uint32_t a[4] = {four(sa, row, byte), four(sa, row + 8, byte), four(sa, row, byte + 16),
                           four(sa, row + 8, byte + 16)};
    const uint32_t b[2] = {four(sb, lane / 4, byte), four(sb, lane / 4, byte + 16)};
    if constexpr (T::operand.fraction_bits == 7) HT_MMA("bf16.bf16");
    else HT_MMA("f16.f16");
  } else {
    const uint64_t left = description_of(sa), right = description_of(sb);
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    if constexpr (T::operand.fraction_bits == 7) HT_WGMMA("m64n8k16.f32.bf16.bf16", ", 0, 0");
    else if constexpr (T::operand.fraction_bits == 10) HT_WGMMA("m64n8k16.f32.f16.f16", ", 0, 0");
    else if constexpr (T::operand.fraction_bits == 3) HT_WGMMA("m64n8k32.f32.e4m3.e4m3", "");
    else HT_WGMMA("m64n8k32.f32.e5m2.e5m2", "");
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" : HT_SUMS::"memory");
  }
}

struct Counts {
  unsigned long long different, all;
};

/// A block of 128 threads computes 64 x 8 dot products a turn.
template <Code code, class T> __global__ void compare(int turns, int range, Counts* counts) {
  constexpr int depth = T::model.products, bytes = 32 / depth;
  __shared__ alignas(128) uint8_t sa[64 * 32], sb[8 * 32];
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
  unsigned long long different = 0;
  for (int turn = 0; turn < turns; ++turn) {
    const uint64_t seed = (uint64_t(blockIdx.x) * turns + turn) * ranges + range;
    const auto element = [&](int row, int k) {  // rows 64 to 71 are columns of b
      return random_operand(seed, uint64_t(row) * depth + k, T::operand, range);
    };
    __syncthreads();
    for (int i = int(threadIdx.x); i < 72 * depth; i += 128) {
      const int row = i / depth, k = i % depth;
      const uint32_t bits = element(row, k);
      uint8_t* const to =
          row < 64 ? sa + place_of(row, k * bytes) : sb + place_of(row - 64, k * bytes);
      to[0] = uint8_t(bits);
      if (bytes == 2) to[1] = uint8_t(bits >> 8);
    }
    __syncthreads();
    float before[4], d[4];
    for (int i = 0; i < 4; ++i) {
      const int row = warp * 16 + lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
      before[i] = d[i] = random_accumulator(seed, row * 8 + column, range);
    }
    add_product<code, T>(sa, sb, d);
    for (int i = 0; i < 4; ++i) {
      const int row = warp * 16 + lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
      Term terms[depth + 1];
      for (int k = 0; k < depth; ++k)
        terms[k] = product_of(term_of(element(row, k), T::operand),
                              term_of(element(64 + column, k), T::operand));
      terms[depth] = term_of(__float_as_uint(before[i]), {8, 23, 127});
      const float wanted = sum_of(terms, depth + 1, T::model);
      different += __float_as_uint(wanted) != __float_as_uint(d[i]) && (wanted != 0 || d[i] != 0);
    }
  }
  atomicAdd(&counts->different, different), atomicAdd(&counts->all, 4ull * turns);
}

void check(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::printf("[sums] %s\n", cudaGetErrorString(error));
  std::exit(1);
}

template <Code code, class T> bool run(const char* name, int turns) {
  Counts* counts = nullptr;
  check(cudaMalloc(&counts, sizeof(Counts)));
  check(cudaMemset(counts, 0, sizeof(Counts)));
  for (int range = 0; range < ranges; ++range)
    compare<code, T><<<1056, 128>>>(turns, range, counts);
  Counts found{};
  check(cudaMemcpy(&found, counts, sizeof(Counts), cudaMemcpyDeviceToHost));
  check(cudaFree(counts));
  std::printf("%-12s %2d products, %d bits, cut to %d: %llu of %llu differ\n", name,
              T::model.products, T::model.aligned_bits, T::model.result_bits, found.different,
              found.all);
  return found.different == 0;
}

}  // namespace

int main(int argc, char** argv) {
  const int turns = argc > 1 ? std::atoi(argv[1]) : 370;
  bool all = run<Code::mma, Bf16>("mma bf16", turns);
  all &= run<Code::mma, F16>("mma f16", turns);
  all &= run<Code::wgmma, Bf16>("wgmma bf16", turns);
  all &= run<Code::wgmma, F16>("wgmma f16", turns);
  all &= run<Code::wgmma, E4m3>("wgmma e4m3", turns);
  all &= run<Code::wgmma, E5m2>("wgmma e5m2", turns);
  return all ? 0 : 1;
}
