// Quantizers with the functions of core/formats/quantizer.h. Without blocks, and in the usual blocks of one
// row, a thread takes four neighbors, which share a counter of random words. Other blocks take a
// warp, or a thread if their scale is a sum over one row. An element's result depends on other
// threads only through a largest magnitude, whose order does not matter.
#include <bit>
#include <cmath>

#include <halftone/backends/cuda/block.h>
#include <halftone/backends/cuda/block_scale.h>
#include <halftone/backends/cuda/cuda_backend.h>
#include <halftone/backends/cuda/launch.h>
#include <halftone/backends/cuda/layout.h>
#include <halftone/backends/cuda/random.h>
#include <halftone/backends/cuda/rows.h>
#include <halftone/backends/cuda/values.h>
#include <halftone/core/formats/block_scale.h>
#include <halftone/core/formats/quantizer.h>

namespace halftone {

namespace cuda {
namespace {

/// The call's scalars and random numbers for kernels; null pointers: not given.
struct QuantizeArguments {
  const float *amax, *scale, *skip;
  RandomKey key;
  uint64_t key_stride;
  const uint64_t* shift;

  QuantizeArguments(const Context& context, const QuantizeCall& call)
      : amax(data_of(call.amax)),
        scale(data_of(call.scale)),
        skip(data_of(call.skip)),
        key(call.key),
        key_stride(call.key_stride),
        shift(context.key_shift()) {}
  static const float* data_of(const Tensor& x) { return x.defined() ? x.data<float>() : nullptr; }

  __device__ bool skips() const { return skip && *skip != 0; }
  __device__ RandomKey own_key() const { return key_in_replay(key, key_stride, shift); }
};

__device__ uint32_t word_of(RandomKey key, uint64_t element) {
  return Philox::words(key.seed, key.offset + element / 4)[std::size_t(element % 4)];
}

template <class T>
__device__ void quantize_elements(const QuantizeNumbers& n, const QuantizeArguments& given,
                                  const T* x, T* y, int64_t count) {
  if (given.skips()) return;
  Scale scale;
  if (n.per == Scaling::Per::tensor) {
    const float s = n.from_history ? (given.scale ? *given.scale : 1.0f)
                                   : scale_of_tensor(n, given.amax ? *given.amax : 0.0f);
    scale = scale_per_tensor(s);
  }
  const bool random = n.rounding == Rounding::stochastic;
  const RandomKey key = given.own_key();
  for (int64_t group = global_thread(); group * 4 < count; group += all_threads()) {
    std::array<uint32_t, 4> words{};
    if (random) words = Philox::words(key.seed, key.offset + uint64_t(group));
    for (int i = 0; i < 4 && group * 4 + i < count; ++i) {
      const int64_t at = group * 4 + i;
      y[at] = narrow<T>(quantize_element(n, scale, widen(x[at]), words[std::size_t(i)]));
    }
  }
}

struct LargerBits {
  HT_HD uint32_t operator()(uint32_t a, uint32_t b) const { return a > b ? a : b; }
};
__device__ uint32_t magnitude_of_bits(uint32_t bits) {
  return bits > 0x7f800000u ? nan_magnitude : bits;
}

/// Divides numbers that are not negative; two short ones quickly.
__device__ int64_t quotient(int64_t a, int64_t b) {
  return (a | b) >> 32 ? a / b : int64_t(uint32_t(a) / uint32_t(b));
}

/// Quantizes block b of `across` side by side in its band, one warp each.
template <bool plain, class T>
__device__ void quantize_blocks(const QuantizeNumbers& n, const QuantizeArguments& given,
                                const T* x, T* y, int64_t rows, int64_t columns, int64_t across,
                                int64_t blocks) {
  if (given.skips()) return;
  const bool random = n.rounding == Rounding::stochastic;
  const RandomKey key = given.own_key();
  const int64_t lane = threadIdx.x % warp_lanes;
  for (int64_t block = global_thread() / warp_lanes; block < blocks;
       block += all_threads() / warp_lanes) {
    const int64_t band = quotient(block, across);
    const int64_t row = band * n.rows, column = (block - band * across) * n.columns;
    const int64_t width = columns - column < n.columns ? columns - column : n.columns;
    const int64_t height = rows - row < n.rows ? rows - row : n.rows;
    const auto element = [&](int64_t i) {
      const int64_t down = height == 1 ? 0 : quotient(i, width);
      return (row + down) * columns + column + (i - down * width);
    };
    uint32_t largest = 0;
    for (int64_t i = lane; i < width * height; i += warp_lanes)
      largest = LargerBits{}(largest, magnitude_bits(widen(x[element(i)])));
    largest = magnitude_of_bits(warp_reduce(largest, LargerBits{}));
    const float amax = std::bit_cast<float>(largest), amax_tensor = amax_above(n, given.amax, row);
    Scale scale;
    if constexpr (plain) scale = scale_of_block(n, amax, amax_tensor);
    else
      scale = warp_block_scale(
          n, amax, amax_tensor, key, uint64_t(row * columns + column), height, width,
          [&](int64_t i, int64_t j) { return widen(x[(row + i) * columns + column + j]); });
    for (int64_t i = lane; i < width * height; i += warp_lanes) {
      const int64_t at = element(i);
      const uint32_t word = random ? word_of(key, uint64_t(at)) : 0;
      y[at] = narrow<T>(quantize_element(n, scale, widen(x[at]), word));
    }
  }
}

/// Quantizes blocks of one row, whose width is a power of two from 4 to 128 and divides the
/// columns. A thread takes four elements, and neighboring lanes share a block.
template <class T>
__device__ void quantize_fours(const QuantizeNumbers& n, const QuantizeArguments& given, const T* x,
                               T* y, int64_t columns, int64_t fours) {
  if (given.skips()) return;
  const bool random = n.rounding == Rounding::stochastic;
  const RandomKey key = given.own_key();
  const int64_t lane = threadIdx.x % warp_lanes;
  // All lanes of a warp take the same number of turns.
  for (int64_t four = global_thread(); four - lane < fours; four += all_threads()) {
    const bool inside = four < fours;
    Pack<T, 4> values{};
    if (inside) values = reinterpret_cast<const Pack<T, 4>*>(x)[four];
    uint32_t largest = 0;
    for (int i = 0; i < 4; ++i)
      largest = LargerBits{}(largest, magnitude_bits(widen(values.values[i])));
    for (int half = n.columns / 8; half > 0; half /= 2)
      largest = LargerBits{}(largest, __shfl_xor_sync(whole_warp, largest, half));
    const float amax = std::bit_cast<float>(magnitude_of_bits(largest));
    const int64_t row = n.row_level && inside ? quotient(four * 4, columns) : 0;
    const Scale scale = scale_of_block(n, amax, amax_above(n, given.amax, row));
    std::array<uint32_t, 4> words{};
    if (random) words = Philox::words(key.seed, key.offset + uint64_t(four));
    for (int i = 0; i < 4; ++i)
      values.values[i] =
          narrow<T>(quantize_element(n, scale, widen(values.values[i]), words[std::size_t(i)]));
    if (inside) reinterpret_cast<Pack<T, 4>*>(y)[four] = values;
  }
}

/// Quantizes blocks of one row whose scale is not plain, a thread each.
template <class T>
__device__ void quantize_rows(const QuantizeNumbers& n, const QuantizeArguments& given, const T* x,
                              T* y, int64_t columns, int64_t across, int64_t blocks) {
  if (given.skips()) return;
  const bool random = n.rounding == Rounding::stochastic;
  const RandomKey key = given.own_key();
  for (int64_t block = global_thread(); block < blocks; block += all_threads()) {
    const int64_t row = quotient(block, across), column = (block - row * across) * n.columns;
    const int64_t first = row * columns + column;
    const int64_t width = columns - column < n.columns ? columns - column : n.columns;
    uint32_t largest = 0;
    for (int64_t j = 0; j < width; ++j)
      largest = LargerBits{}(largest, magnitude_bits(widen(x[first + j])));
    const float amax = std::bit_cast<float>(magnitude_of_bits(largest));
    const Scale scale = block_scale(
        n, amax, level_of(n, amax_above(n, given.amax, row)), scale_word(key, uint64_t(first)),
        [&](ScaleError error, const auto& term) {
          return block_total(error, 1, width,
                             [&](int64_t, int64_t j) { return term(widen(x[first + j])); });
        });
    for (int64_t j = 0; j < width; ++j) {
      const uint32_t word = random ? word_of(key, uint64_t(first + j)) : 0;
      y[first + j] = narrow<T>(quantize_element(n, scale, widen(x[first + j]), word));
    }
  }
}

template <class T>
__global__ void quantize_kernel(QuantizeNumbers n, QuantizeArguments given, const T* x, T* y,
                                int64_t count) {
  quantize_elements(n, given, x, y, count);
}
template <bool plain, class T>
__global__ void blocks_kernel(QuantizeNumbers n, QuantizeArguments given, const T* x, T* y,
                              int64_t rows, int64_t columns, int64_t across, int64_t blocks) {
  quantize_blocks<plain>(n, given, x, y, rows, columns, across, blocks);
}
template <class T>
__global__ void fours_kernel(QuantizeNumbers n, QuantizeArguments given, const T* x, T* y,
                             int64_t columns, int64_t fours) {
  quantize_fours(n, given, x, y, columns, fours);
}
template <class T>
__global__ void row_blocks_kernel(QuantizeNumbers n, QuantizeArguments given, const T* x, T* y,
                                  int64_t columns, int64_t across, int64_t blocks) {
  quantize_rows(n, given, x, y, columns, across, blocks);
}
__global__ void largest_kernel(Layout<1> layout, bool small, Operand x, float* amax) {
  uint32_t largest = 0;
  for (int64_t turn = global_thread(); turn < layout.turns; turn += all_threads())
    largest =
        LargerBits{}(largest, magnitude_bits(load_as<float>(x, layout.at_turn(turn, small).of[0])));
  largest = block_reduce(magnitude_of_bits(largest), LargerBits{}, uint32_t(0));
  // Magnitudes have the order of their bits.
  if (threadIdx.x == 0) atomicMax(reinterpret_cast<unsigned*>(amax), largest);
}

template <class T>
__global__ void rotate_kernel(Rotation rotation, const uint64_t* shift, float inverse_root,
                              const T* x, T* y, int64_t columns, int64_t across, int64_t groups) {
  const RotationSigns signs =
      signs_of(rotation, key_in_replay(rotation.key, rotation.key_stride, shift));
  for (int64_t group = global_thread(); group < groups; group += all_threads()) {
    float values[Rotation::largest];
    const int64_t j = group % across * rotation.size, first = group / across * columns + j;
    const int count = columns - j < rotation.size ? int(columns - j) : rotation.size;
    for (int i = 0; i < count; ++i) values[i] = widen(x[first + i]);
    if (count == rotation.size) rotate_group(values, rotation, signs, inverse_root);
    for (int i = 0; i < count; ++i) y[first + i] = narrow<T>(values[i]);
  }
}

__global__ void next_scales_kernel(QuantizeNumbers n, int64_t steps, bool latest, float* amax,
                                   float* history, int64_t* position, float* scale, int64_t count) {
  for (int64_t i = global_thread(); i < count; i += all_threads())
    next_scale(n, steps, latest, amax[i], history + i * steps, position[i], scale[i]);
}

/// Returns whether quantize_fours() computes blocks of this kind in a tensor with these columns.
bool takes_fours(const QuantizeNumbers& n, int64_t columns) {
  return n.plain && n.rows == 1 && n.columns >= 4 && n.columns <= 4 * warp_lanes &&
         std::has_single_bit(uint32_t(n.columns)) && columns % n.columns == 0;
}

}  // namespace
}  // namespace cuda

using namespace cuda;

void CudaBackend::largest_magnitude(const Tensor& x, Tensor& amax) {
  const Layout<1> layout(x);
  if (layout.turns > 0)
    launch(context_, largest_kernel, shape_for(context_, layout.turns, 8), layout,
           layout.is_small(), Operand(x), amax.data<float>());
  amax.storage()->bump_version();
}

void CudaBackend::quantize(const Tensor& x, const QuantizeCall& call, Tensor& y) {
  const int64_t count = x.numel();
  if (count == 0) return;
  const QuantizeNumbers n = numbers_of(call.quantizer);
  if (n.table_count > 0)
    fail<UnsupportedError>("quantize", "the grid is a table of ", n.table_count,
                           " numbers, which the CUDA backend does not compute. Move the tensor to "
                           "the CPU, or use a format.");
  const QuantizeArguments given(context_, call);
  visit_floating(x.dtype(), "quantize", [&]<class T>() {
    if constexpr (sizeof(T) <= 4) {  // f64 passes through f32: autograd/ops/cast.cpp
      const T* const from = x.data<T>();
      T* const to = y.data<T>();
      if (n.per != Scaling::Per::block)
        return launch(context_, quantize_kernel<T>, shape_for(context_, count, 4), n, given, from,
                      to, count);
      const int64_t columns = x.size(-1), rows = count / columns;
      if (takes_fours(n, columns) && packs_aligned(4, x, y))
        return launch(context_, fours_kernel<T>, shape_for(context_, count / 4), n, given, from, to,
                      columns, count / 4);
      const int64_t across = (columns + n.columns - 1) / n.columns;
      const int64_t blocks = (rows + n.rows - 1) / n.rows * across;
      if (!n.plain && n.rows == 1 && n.columns <= warp_lanes)
        return launch(context_, row_blocks_kernel<T>, shape_for(context_, blocks), n, given, from,
                      to, columns, across, blocks);
      launch(context_, n.plain ? blocks_kernel<true, T> : blocks_kernel<false, T>,
             shape_for(context_, blocks * warp_lanes), n, given, from, to, rows, columns, across,
             blocks);
    }
  });
}

void CudaBackend::rotate(const Tensor& x, const Rotation& rotation, Tensor& y) {
  if (x.numel() == 0) return;
  const int64_t columns = x.size(-1), across = (columns + rotation.size - 1) / rotation.size,
                groups = x.numel() / columns * across;
  const auto inverse_root = float(1 / std::sqrt(double(rotation.size)));
  visit_floating(x.dtype(), "rotate", [&]<class T>() {
    if constexpr (sizeof(T) <= 4)
      launch(context_, rotate_kernel<T>, shape_for(context_, groups), rotation,
             context_.key_shift(), inverse_root, x.data<T>(), y.data<T>(), columns, across, groups);
  });
}

void CudaBackend::next_scales(const Quantizer& quantizer, Tensor& amax, Tensor& history,
                              Tensor& position, Tensor& scale) {
  if (amax.numel() == 0) return;
  launch(context_, next_scales_kernel, shape_for(context_, amax.numel()), numbers_of(quantizer),
         history.size(-1), quantizer.scaling.latest, amax.data<float>(), history.data<float>(),
         position.data<int64_t>(), scale.data<float>(), amax.numel());
  for (const Tensor* written : {&amax, &history, &position, &scale})
    written->storage()->bump_version();
}

}  // namespace halftone
