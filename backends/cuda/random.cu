// Random numbers: element i in memory order uses word i % 4 of Philox counter offset + i / 4, as on
// every device. A thread computes the words of one counter. Values are computed in double, which
// only initialization pays for. Dropout compares words with integers, so the mask is exact.
#include <cmath>

#include <halftone/backends/cuda/cuda_backend.h>
#include <halftone/backends/cuda/launch.h>
#include <halftone/backends/cuda/random.h>
#include <halftone/backends/cuda/values4.h>
#include <halftone/core/math.h>

namespace halftone {

namespace cuda {
namespace {

/// Calls make(words, values) for the four elements of each counter and stores the values.
template <class Make> __global__ void draw_kernel(Make make, DeviceKey key, Operand y, int64_t n) {
  for (int64_t group = global_thread(); group * 4 < n; group += all_threads()) {
    typename Make::Value values[4];
    make(Philox::words(key.seed, key.first() + uint64_t(group)), values);
    for (int i = 0; i < 4 && group * 4 + i < n; ++i) store_as(y, group * 4 + i, values[i]);
  }
}

struct Uniform {
  using Value = double;
  double low, high, below;  // below: the value before `high` on y's grid
  __device__ void operator()(const std::array<uint32_t, 4>& words, double* values) const {
    for (int i = 0; i < 4; ++i) {
      const double value = low + (high - low) * double(Philox::uniform(words[std::size_t(i)]));
      values[i] = value < below ? value : below;
    }
  }
};

/// Box & Muller 1958: two uniform numbers, the first on (0, 1], give two normal ones.
struct Normal {
  using Value = double;
  double mean, std;
  __device__ void operator()(const std::array<uint32_t, 4>& words, double* values) const {
    constexpr double two_pi = 6.283185307179586;
    for (std::size_t i = 0; i < 4; i += 2) {
      const double u1 = 1.0 - double(Philox::uniform(words[i]));
      const double angle = two_pi * double(Philox::uniform(words[i + 1]));
      const double radius = ::sqrt(-2 * ::log(u1));
      values[i] = mean + std * (radius * ::cos(angle));
      values[i + 1] = mean + std * (radius * ::sin(angle));
    }
  }
};

struct Integers {
  using Value = int64_t;
  int64_t low;
  uint64_t range;
  __device__ void operator()(const std::array<uint32_t, 4>& words, int64_t* values) const {
    for (std::size_t i = 0; i < 4; ++i) values[i] = low + int64_t((words[i] * range) >> 32);
  }
};

/// threshold: an element is kept if the upper 24 bits of its word reach it.
template <class T>
__global__ void dropout_kernel(uint32_t threshold, compute_t<T> scale, DeviceKey key, const T* x,
                               T* y, int64_t n) {
  constexpr int size = 4;
  using Values = Pack<T, size>;
  const uint64_t first = key.first();
  for (int64_t group = global_thread(); group * size < n; group += all_threads()) {
    const std::array<uint32_t, 4> words = Philox::words(key.seed, first + uint64_t(group));
    const int64_t begin = group * size;
    Values values{};
    if (begin + size <= n) values = reinterpret_cast<const Values*>(x)[group];
    else
      for (int i = 0; begin + i < n; ++i) values.values[i] = x[begin + i];
    for (int i = 0; i < size; ++i) {
      const bool kept = (words[std::size_t(i)] >> 8) >= threshold;
      values.values[i] = narrow<T>(kept ? widen(values.values[i]) * scale : compute_t<T>(0));
    }
    if (begin + size <= n) reinterpret_cast<Values*>(y)[group] = values;
    else
      for (int i = 0; begin + i < n; ++i) y[begin + i] = values.values[i];
  }
}
/// The same if x or y is not aligned.
template <class T>
__global__ void dropout_unaligned_kernel(uint32_t threshold, compute_t<T> scale, DeviceKey key,
                                         const T* x, T* y, int64_t n) {
  for (int64_t i = global_thread(); i < n; i += all_threads()) {
    const uint32_t word =
        Philox::words(key.seed, key.first() + uint64_t(i) / 4)[std::size_t(i) % 4];
    y[i] = narrow<T>((word >> 8) >= threshold ? widen(x[i]) * scale : compute_t<T>(0));
  }
}

template <class Make>
void draw(const Context& context, const Make& make, RandomKey key, Tensor& y) {
  if (y.numel() == 0) return;
  launch(context, draw_kernel<Make>, shape_for(context, y.numel(), 4), make,
         device_key(context, key), Operand(y), y.numel());
}

}  // namespace
}  // namespace cuda

using namespace cuda;

void CudaBackend::uniform(double low, double high, RandomKey key, Tensor& y) {
  const double below =
      visit_floating(y.dtype(), "uniform", [&]<class T>() { return largest_below<T>(high); });
  draw(context_, Uniform{low, high, below}, key, y);
}

void CudaBackend::normal(double mean, double std, RandomKey key, Tensor& y) {
  draw(context_, Normal{mean, std}, key, y);
}

void CudaBackend::random_integers(int64_t low, int64_t high, RandomKey key, Tensor& y) {
  const uint64_t range = uint64_t(high) - uint64_t(low);
  if (high <= low || range > (uint64_t(1) << 32))
    fail<UsageError>("randint", "cannot draw from [", low, ", ", high,
                     "): the range must hold 1 to 2^32 integers. Choose other bounds.");
  draw(context_, Integers{low, range}, key, y);
}

void CudaBackend::dropout(const Tensor& x, double p, RandomKey key, Tensor& y) {
  if (y.numel() == 0) return;
  // A word's upper 24 bits k mean k 2^-24; the word keeps an element if that is at least p.
  const auto threshold = uint32_t(std::ceil(p * 0x1p24));
  visit_floating(y.dtype(), "dropout", [&]<class T>() {
    const auto scale = compute_t<T>(1 / (1 - p));
    const bool aligned = begins_aligned4(x) && begins_aligned4(y);
    launch(context_, aligned ? dropout_kernel<T> : dropout_unaligned_kernel<T>,
           shape_for(context_, y.numel(), aligned ? 4 : 1), threshold, scale,
           device_key(context_, key), x.data<T>(), y.data<T>(), y.numel());
  });
}

}  // namespace halftone
