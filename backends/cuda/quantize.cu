// The scale of a block that one warp quantizes, if it depends on elements or random numbers: the
// sums of core/formats/block_scale.h in their order, by all lanes of the warp.
#include <bit>
#include <cmath>
#include <limits>

#include <halftone/backends/cuda/cuda_backend.h>
#include <halftone/backends/cuda/launch.h>
#include <halftone/backends/cuda/rows.h>
#include <halftone/backends/cuda/values.h>
#include <halftone/core/formats/block_scale.h>
#include <halftone/core/formats/quantizer.h>
#include <halftone/core/formats/survey.h>

namespace halftone::cuda {

/// Returns the sum over a block of term(row, column): block_total(). Lanes compute terms, and each
/// of them adds up the same row; lane i has the sum of rows i, i + 16, ...
template <class Term>
__device__ float warp_block_total(ScaleError error, int64_t rows, int64_t columns,
                                  const Term& term) {
  const int lane = int(threadIdx.x) % warp_lanes;
  float own = 0;
  for (int64_t i = 0; i < rows; ++i) {
    float of_row = 0;
    for (int64_t begin = 0; begin < columns; begin += warp_lanes) {
      const float mine = begin + lane < columns ? term(i, begin + lane) : 0.0f;
      const int count = columns - begin < warp_lanes ? int(columns - begin) : warp_lanes;
      for (int j = 0; j < count; ++j)
        of_row = combined(error, of_row, __shfl_sync(whole_warp, mine, j));
    }
    if (lane == int(i % BlockSum::ways)) own = combined(error, own, of_row);
  }
  for (int half = BlockSum::ways / 2; half > 0; half /= 2)
    own = combined(error, own, __shfl_xor_sync(whole_warp, own, half));
  return __shfl_sync(whole_warp, own, 0);
}

/// at(row, column): an element of the block; first: the number of its first one.
template <class At>
__device__ Scale warp_block_scale(const QuantizeNumbers& n, float amax, float amax_tensor,
                                  RandomKey key, uint64_t first, int64_t rows, int64_t columns,
                                  const At& at) {
  return block_scale(n, amax, level_of(n, amax_tensor), scale_word(key, first),
                     [&](ScaleError error, const auto& term) {
                       return warp_block_total(error, rows, columns, [&](int64_t i, int64_t j) {
                         return term(at(i, j));
                       });
                     });
}

}  // namespace halftone::cuda

// Quantizers with the functions of core/formats/quantizer.h. Without blocks, and in the usual
// blocks of one row, a thread takes four neighbors, which share a counter of random words. Other
// blocks take a warp, or a thread if their scale is a sum over one row. An element's result depends
// on other threads only through a largest magnitude, whose order does not matter.

namespace halftone {

namespace cuda {
namespace {

/// The call's scalars and random numbers for kernels; null pointers: not given.
struct QuantizeArguments {
  const float *amax, *scale, *skip;
  float* factor;
  RandomKey key;
  uint64_t key_stride;
  const uint64_t* shift;

  QuantizeArguments(const Context& context, const QuantizeCall& call)
      : amax(data_of(call.amax)),
        scale(data_of(call.scale)),
        skip(data_of(call.skip)),
        factor(call.factor.defined() ? call.factor.data<float>() : nullptr),
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

/// An f8 result has the numbers on the grid, and their factor goes to given.factor.
template <class T, class Y>
__device__ void quantize_elements(const QuantizeNumbers& n, const QuantizeArguments& given,
                                  const T* x, Y* y, int64_t count) {
  if (given.skips()) return;
  Scale scale;
  if (n.per == Scaling::Per::tensor) {
    const float s = n.from_history ? (given.scale ? *given.scale : 1.0f)
                                   : scale_of_tensor(n, given.amax ? *given.amax : 0.0f);
    scale = scale_per_tensor(s);
  }
  if constexpr (sizeof(Y) == 1) {
    if (global_thread() == 0) *given.factor = scale.out;
    scale.out = 1;
  }
  const bool random = n.rounding == Rounding::stochastic;
  const RandomKey key = given.own_key();
  for (int64_t group = global_thread(); group * 4 < count; group += all_threads()) {
    std::array<uint32_t, 4> words{};
    if (random) words = Philox::words(key.seed, key.offset + uint64_t(group));
    for (int i = 0; i < 4 && group * 4 + i < count; ++i) {
      const int64_t at = group * 4 + i;
      y[at] = narrow<Y>(quantize_element(n, scale, widen(x[at]), words[std::size_t(i)]));
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

/// Quantizes block b of `across` side by side in its band, one warp each. An f8 result has the
/// numbers on the grid; the factor of block b goes to given.factor[b], and what multiplies all of
/// them to the place after these.
template <bool plain, class T, class Y>
__device__ void quantize_blocks(const QuantizeNumbers& n, const QuantizeArguments& given,
                                const T* x, Y* y, int64_t rows, int64_t columns, int64_t across,
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
    if constexpr (sizeof(Y) == 1) {
      if (lane == 0) given.factor[block] = scale.out;
      if (lane == 0 && block == 0) given.factor[blocks] = 1 / level_of(n, amax_tensor).g;
      scale.out = scale.tail = 1;
    }
    for (int64_t i = lane; i < width * height; i += warp_lanes) {
      const int64_t at = element(i);
      const uint32_t word = random ? word_of(key, uint64_t(at)) : 0;
      y[at] = narrow<Y>(quantize_element(n, scale, widen(x[at]), word));
    }
  }
}

/// Quantizes blocks of one row, whose width is a power of two from 4 to 128 and divides the
/// columns. A thread takes four elements, and neighboring lanes share a block. An f8 result is as
/// in quantize_blocks().
template <class T, class Y>
__device__ void quantize_fours(const QuantizeNumbers& n, const QuantizeArguments& given, const T* x,
                               Y* y, int64_t columns, int64_t fours) {
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
    const float amax_tensor = amax_above(n, given.amax, row);
    Scale scale = scale_of_block(n, amax, amax_tensor);
    if constexpr (sizeof(Y) == 1) {
      if (inside && four * 4 % n.columns == 0)
        given.factor[quotient(four * 4, n.columns)] = scale.out;
      if (four == 0) given.factor[quotient(fours * 4, n.columns)] = 1 / level_of(n, amax_tensor).g;
      scale.out = scale.tail = 1;
    }
    std::array<uint32_t, 4> words{};
    if (random) words = Philox::words(key.seed, key.offset + uint64_t(four));
    Pack<Y, 4> results{};
    for (int i = 0; i < 4; ++i)
      results.values[i] =
          narrow<Y>(quantize_element(n, scale, widen(values.values[i]), words[std::size_t(i)]));
    if (inside) reinterpret_cast<Pack<Y, 4>*>(y)[four] = results;
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

/// Quantizes blocks with sub-blocks, a thread each.
template <class T>
__device__ void quantize_inner(const QuantizeNumbers& n, const QuantizeArguments& given, const T* x,
                               T* y, int64_t rows, int64_t columns, int64_t across,
                               int64_t blocks) {
  if (given.skips()) return;
  const bool random = n.rounding == Rounding::stochastic;
  const RandomKey key = given.own_key();
  for (int64_t block = global_thread(); block < blocks; block += all_threads()) {
    const int64_t band = quotient(block, across);
    const int64_t row = band * n.rows, column = (block - band * across) * n.columns;
    const int64_t width = columns - column < n.columns ? columns - column : n.columns;
    const int64_t end = rows - row < n.rows ? rows : row + n.rows;
    const auto largest_of = [&](int64_t first, int64_t count, uint32_t largest = 0) {
      for (int64_t j = 0; j < count; ++j)
        largest = LargerBits{}(largest, magnitude_bits(widen(x[first + j])));
      return largest;
    };
    uint32_t largest = 0;
    for (int64_t r = row; r < end; ++r) largest = largest_of(r * columns + column, width, largest);
    const float amax = std::bit_cast<float>(magnitude_of_bits(largest));
    const Scale scale = scale_of_block(n, amax, amax_above(n, given.amax, row));
    for (int64_t r = row; r < end; ++r) {
      const int64_t first = r * columns + column;
      each_inner(
          n, scale, width, amax,
          [&](int64_t at, int64_t count) {
            return std::bit_cast<float>(magnitude_of_bits(largest_of(first + at, count)));
          },
          [&](const Scale& own, int64_t at, int64_t count) {
            for (int64_t j = first + at; j < first + at + count; ++j)
              y[j] = narrow<T>(
                  quantize_element(n, own, widen(x[j]), random ? word_of(key, uint64_t(j)) : 0));
          });
    }
  }
}

/// The candidates of a choice among grids.
struct Candidates {
  const float *measured[8]{}, *results[8]{};
  int count = 0;
  int32_t rows, columns;
  ScaleError by;
};

/// A thread takes a block.
__global__ void choose_kernel(Candidates of, const float* x, float* y, int64_t rows,
                              int64_t columns, int64_t across, int64_t blocks) {
  for (int64_t block = global_thread(); block < blocks; block += all_threads()) {
    const int64_t band = quotient(block, across);
    const int64_t row = band * of.rows, column = (block - band * across) * of.columns;
    const int64_t width = columns - column < of.columns ? columns - column : of.columns;
    const int64_t height = rows - row < of.rows ? rows - row : of.rows;
    const auto place = [&](int64_t i, int64_t j) { return (row + i) * columns + column + j; };
    const int best = least_candidate(
        of.by, of.count, height, width, [&](int64_t i, int64_t j) { return x[place(i, j)]; },
        [&](int k, int64_t i, int64_t j) { return of.measured[k][place(i, j)]; });
    for (int64_t i = 0; i < height; ++i)
      for (int64_t j = 0; j < width; ++j) y[place(i, j)] = of.results[best][place(i, j)];
  }
}

template <class T, class Y>
__global__ void quantize_kernel(QuantizeNumbers n, QuantizeArguments given, const T* x, Y* y,
                                int64_t count) {
  quantize_elements(n, given, x, y, count);
}
template <bool plain, class T, class Y>
__global__ void blocks_kernel(QuantizeNumbers n, QuantizeArguments given, const T* x, Y* y,
                              int64_t rows, int64_t columns, int64_t across, int64_t blocks) {
  quantize_blocks<plain>(n, given, x, y, rows, columns, across, blocks);
}
template <class T, class Y>
__global__ void fours_kernel(QuantizeNumbers n, QuantizeArguments given, const T* x, Y* y,
                             int64_t columns, int64_t fours) {
  quantize_fours(n, given, x, y, columns, fours);
}
template <class T>
__global__ void row_blocks_kernel(QuantizeNumbers n, QuantizeArguments given, const T* x, T* y,
                                  int64_t columns, int64_t across, int64_t blocks) {
  quantize_rows(n, given, x, y, columns, across, blocks);
}
template <class T>
__global__ void inner_kernel(QuantizeNumbers n, QuantizeArguments given, const T* x, T* y,
                             int64_t rows, int64_t columns, int64_t across, int64_t blocks) {
  quantize_inner(n, given, x, y, rows, columns, across, blocks);
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
  return n.plain && n.inner_levels == 0 && n.rows == 1 && n.columns >= 4 &&
         n.columns <= 4 * warp_lanes && std::has_single_bit(uint32_t(n.columns)) &&
         columns % n.columns == 0;
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
      const int64_t columns = x.rank() > 0 ? x.size(-1) : 1, rows = count / columns;
      const int64_t across = (columns + n.columns - 1) / n.columns;
      const int64_t blocks = (rows + n.rows - 1) / n.rows * across;
      const auto usual = [&]<class Y>() {
        if (n.per != Scaling::Per::block)
          launch(context_, quantize_kernel<T, Y>, shape_for(context_, count, 4), n, given, from,
                 y.data<Y>(), count);
        else if (takes_fours(n, columns) && packs_aligned(4, x, y))
          launch(context_, fours_kernel<T, Y>, shape_for(context_, count / 4), n, given, from,
                 y.data<Y>(), columns, count / 4);
        else
          launch(context_, n.plain ? blocks_kernel<true, T, Y> : blocks_kernel<false, T, Y>,
                 shape_for(context_, blocks * warp_lanes), n, given, from, y.data<Y>(), rows,
                 columns, across, blocks);
      };
      if (y.dtype() == f8_e4m3) return usual.template operator()<Float8E4M3>();
      if (y.dtype() == f8_e5m2) return usual.template operator()<Float8E5M2>();
      if (n.per != Scaling::Per::block || (n.plain && n.inner_levels == 0))
        return usual.template operator()<T>();
      T* const to = y.data<T>();
      if (n.inner_levels > 0)
        return launch(context_, inner_kernel<T>, shape_for(context_, blocks), n, given, from, to,
                      rows, columns, across, blocks);
      if (n.rows == 1 && n.columns <= warp_lanes)
        return launch(context_, row_blocks_kernel<T>, shape_for(context_, blocks), n, given, from,
                      to, columns, across, blocks);
      usual.template operator()<T>();
    }
  });
}

void CudaBackend::choose_blocks(const Quantizer& quantizer, const Tensor& x,
                                std::span<const Tensor> measured, std::span<const Tensor> results,
                                Tensor& y) {
  if (x.numel() == 0) return;
  const Scaling& scaling = quantizer.scaling;
  Candidates of{.count = int(measured.size()),
                .rows = scaling.rows,
                .columns = scaling.columns,
                .by = quantizer.choice.by};
  for (std::size_t i = 0; i < measured.size(); ++i)
    of.measured[i] = measured[i].data<float>(), of.results[i] = results[i].data<float>();
  const int64_t columns = x.size(-1), rows = x.numel() / columns;
  const int64_t across = (columns + scaling.columns - 1) / scaling.columns;
  const int64_t blocks = (rows + scaling.rows - 1) / scaling.rows * across;
  launch(context_, choose_kernel, shape_for(context_, blocks), of, x.data<float>(), y.data<float>(),
         rows, columns, across, blocks);
  y.storage()->bump_version();
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

// The bound of a clip, and the clip. The sum of squares has the order of
// core/formats/block_scale.h: a block of threads is the lanes of one sum. A quantile is found digit
// by digit in three passes, each of which counts the values of one digit; whole numbers, so the
// order does not matter.

namespace cuda {
namespace {

constexpr unsigned lanes = sum_lanes;
constexpr int64_t most_rows = 128;  // of counts of digits

/// Adds the lanes' totals up in the order of summed_by_lanes(); all threads get the sum.
__device__ double sum_of_lanes(double own) {
  __shared__ double totals[lanes];
  const unsigned lane = threadIdx.x;
  totals[lane] = own;
  for (unsigned half = lanes / 2; half > 0; half /= 2) {
    __syncthreads();
    if (lane < half) totals[lane] += totals[lane + half];
  }
  __syncthreads();
  const double sum = totals[0];
  __syncthreads();  // totals may be written again
  return sum;
}

/// Computes one sum of squares, and one count of finite numbers, per squares_together neighbors.
__global__ void squares_kernel(const float* x, int64_t count, int64_t pieces, double* squares,
                               int* finite) {
  for (int64_t piece = blockIdx.x; piece < pieces; piece += gridDim.x) {
    const int64_t first = piece * squares_together;
    const int64_t length = count - first < squares_together ? count - first : squares_together;
    double sum = 0;
    int numbers = 0;
    for (int64_t i = threadIdx.x; i < length; i += lanes) {
      const float value = x[first + i];
      sum += finite_square(value);
      numbers += is_finite_magnitude(value) ? 1 : 0;
    }
    sum = sum_of_lanes(sum), numbers = block_sum(numbers);
    if (threadIdx.x == 0) squares[piece] = sum, finite[piece] = numbers;
  }
}

__global__ void rms_kernel(double multiple, const double* squares, const int* finite,
                           int64_t pieces, float* bound) {
  double sum = 0;
  int64_t numbers = 0;
  for (int64_t i = threadIdx.x; i < pieces; i += lanes) sum += squares[i], numbers += finite[i];
  sum = sum_of_lanes(sum), numbers = block_sum(numbers);
  if (threadIdx.x == 0) *bound = bound_by_rms(multiple, sum, numbers);
}

/// Counts the values of a digit among the magnitudes that follow the prefix, in `rows` shares. A
/// null prefix: among all magnitudes.
__global__ void count_digits_kernel(MagnitudeDigit digit, const uint32_t* prefix, const float* x,
                                    int64_t count, int64_t rows, unsigned* counts) {
  __shared__ unsigned own[most_digit_values];
  const uint32_t before = prefix ? *prefix : 0;
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    for (unsigned i = threadIdx.x; i < most_digit_values; i += blockDim.x) own[i] = 0;
    __syncthreads();
    for (int64_t i = row * blockDim.x + threadIdx.x; i < count; i += rows * blockDim.x) {
      const uint32_t bits = magnitude_bits(x[i]);
      if (digit.follows(bits, before)) atomicAdd(own + digit.of(bits), 1u);
    }
    __syncthreads();
    for (unsigned i = threadIdx.x; i < most_digit_values; i += blockDim.x)
      counts[row * most_digit_values + i] = own[i];
    __syncthreads();  // own may be written again
  }
}

/// Appends the digit of the magnitude at `place` to the prefix; then `place` counts among the
/// magnitudes that follow it. first: the place is that of the quantile. All 0 without magnitudes.
__global__ void find_digit_kernel(MagnitudeDigit digit, bool first, double share,
                                  const unsigned* counts, int64_t rows, uint32_t* prefix,
                                  int64_t* place) {
  constexpr int each = most_digit_values / int(lanes);
  __shared__ int64_t sums[lanes];
  const int lane = int(threadIdx.x);
  int64_t own[each] = {}, sum = 0;
  for (int64_t row = 0; row < rows; ++row)
    for (int i = 0; i < each; ++i) own[i] += counts[row * most_digit_values + lane * each + i];
  for (int i = 0; i < each; ++i) sum += own[i];
  sums[lane] = sum;
  const uint32_t before = first ? 0 : *prefix;
  int64_t wanted = first ? 0 : *place, below = 0, all = 0;
  __syncthreads();
  for (int i = 0; i < int(lanes); ++i) below += i < lane ? sums[i] : 0, all += sums[i];
  if (first && all > 0) wanted = place_of_quantile(share, all);
  if (wanted == 0 && lane == 0) *prefix = 0, *place = 0;
  if (wanted <= below || wanted > below + sum) return;
  bool found = false;
  for (int i = 0; i < each; ++i) {
    if (!found && wanted <= below + own[i]) {
      *prefix = before << digit.bits | unsigned(lane * each + i), *place = wanted - below;
      found = true;
    }
    below += own[i];
  }
}

__global__ void clip_kernel(const float* x, const float* bound, float* y, int64_t count) {
  const float most = *bound;
  for (int64_t i = global_thread(); i < count; i += all_threads()) y[i] = clipped(x[i], most);
}

void bound_by_rms_of(const Context& context, double multiple, const Tensor& x, Tensor& bound) {
  const int64_t pieces = (x.numel() + squares_together - 1) / squares_together;
  const Tensor squares = scratch(context, {pieces}, f64), finite = scratch(context, {pieces}, i32);
  launch(context, squares_kernel, shape_for_rows(context, pieces, lanes), x.data<float>(),
         x.numel(), pieces, squares.data<double>(), finite.data<int32_t>());
  launch(context, rms_kernel, {dim3(1), dim3(lanes)}, multiple, squares.data<double>(),
         finite.data<int32_t>(), pieces, bound.data<float>());
}

void bound_by_quantile_of(const Context& context, double share, const Tensor& x, Tensor& bound) {
  const unsigned threads = 1024;
  const int64_t rows = blocks_for(x.numel(), threads, most_rows);
  const Tensor counts = scratch(context, {rows, most_digit_values}, i32);
  const Tensor place = scratch(context, {}, i64);
  auto* const own = reinterpret_cast<unsigned*>(counts.data<int32_t>());
  auto* const prefix = reinterpret_cast<uint32_t*>(bound.data<float>());
  for (const MagnitudeDigit& digit : magnitude_digits) {
    const bool first = &digit == magnitude_digits;
    launch(context, count_digits_kernel, shape_for_rows(context, rows, threads), digit,
           first ? nullptr : prefix, x.data<float>(), x.numel(), rows, own);
    launch(context, find_digit_kernel, {dim3(1), dim3(lanes)}, digit, first, share, own, rows,
           prefix, place.data<int64_t>());
  }
}

}  // namespace
}  // namespace cuda

using namespace cuda;

void CudaBackend::clip_bound(const Tensor& x, const Clip& clip, Tensor& bound) {
  if (clip.rms) bound_by_rms_of(context_, *clip.rms, x, bound);
  else if (clip.quantile) bound_by_quantile_of(context_, *clip.quantile, x, bound);
  else fill(std::numeric_limits<double>::infinity(), bound);
}

void CudaBackend::clip(const Tensor& x, const Tensor& bound, Tensor& y) {
  if (x.numel() == 0) return;
  launch(context_, clip_kernel, shape_for(context_, x.numel()), x.data<float>(),
         bound.data<float>(), y.data<float>(), x.numel());
}

// Surveys with survey_element() of core/formats/survey.h: each block of threads counts its share
// into a histogram in shared memory and into its own sums. A last kernel adds the blocks' rows up
// in their order, so results repeat.

namespace cuda {
namespace {

constexpr int most_sums = 64;
static_assert(std::is_standard_layout_v<SurveySums>);

/// The inputs of one kernel; null pointers: not given. whole: x before its clip, or x.
struct SurveyArguments {
  Operand whole, x, y;
  bool clips;
  SurveyNumbers numbers;
  QuantizeNumbers quantizer;
  const float *amax, *scale;
  RandomKey key;
  uint64_t key_stride;
  const uint64_t* shift;
  int64_t rows, columns;

  __device__ void add(const Scale& with, int64_t at, unsigned* histogram, SurveySums& sums) const {
    const float before = load_as<float>(whole, at), used = clips ? load_as<float>(x, at) : before;
    const float after = numbers.rounds ? load_as<float>(y, at) : before;
    float scaled = numbers.rounds ? scaled_in(quantizer, with, used) : 0;
    if (used != before) scaled = std::numeric_limits<float>::infinity();  // counts as saturated
    const int bin = survey_element(numbers, with, before, scaled, after, sums);
    if (bin >= 0) atomicAdd(histogram + bin, 1u);
  }
};

/// Counts elements one by one: without a scale, or with one for the whole tensor.
__device__ void count_elements(const SurveyArguments& of, unsigned* histogram, SurveySums& sums) {
  Scale scale;
  if (of.quantizer.per == Scaling::Per::tensor) {
    const float s = of.quantizer.from_history
                        ? (of.scale ? *of.scale : 1.0f)
                        : scale_of_tensor(of.quantizer, of.amax ? *of.amax : 0.0f);
    scale = scale_per_tensor(s);
  }
  const int64_t count = of.rows * of.columns;
  for (int64_t i = global_thread(); i < count; i += all_threads())
    of.add(scale, i, histogram, sums);
}

/// Counts the quantizer's blocks, one warp per block.
__device__ void count_blocks(const SurveyArguments& of, unsigned* histogram, SurveySums& sums) {
  const QuantizeNumbers& n = of.quantizer;
  const RandomKey key = key_in_replay(of.key, of.key_stride, of.shift);
  const int64_t across = (of.columns + n.columns - 1) / n.columns;
  const int64_t blocks = (of.rows + n.rows - 1) / n.rows * across;
  const int64_t lane = threadIdx.x % warp_lanes;
  for (int64_t block = global_thread() / warp_lanes; block < blocks;
       block += all_threads() / warp_lanes) {
    const int64_t row = block / across * n.rows, column = block % across * n.columns;
    const int64_t width = of.columns - column < n.columns ? of.columns - column : n.columns;
    const int64_t height = of.rows - row < n.rows ? of.rows - row : n.rows;
    const auto place = [&](int64_t i) {
      return (row + i / width) * of.columns + column + i % width;
    };
    uint32_t largest = 0;
    for (int64_t i = lane; i < width * height; i += warp_lanes)
      largest = LargerBits{}(largest, magnitude_bits(load_as<float>(of.x, place(i))));
    largest = warp_reduce(largest > 0x7f800000u ? nan_magnitude : largest, LargerBits{});
    const float amax = std::bit_cast<float>(largest), amax_tensor = amax_above(n, of.amax, row);
    const Scale scale =
        n.plain
            ? scale_of_block(n, amax, amax_tensor)
            : warp_block_scale(n, amax, amax_tensor, key, uint64_t(row * of.columns + column),
                               height, width, [&](int64_t i, int64_t j) {
                                 return load_as<float>(of.x, (row + i) * of.columns + column + j);
                               });
    if (n.inner_levels == 0) {
      for (int64_t i = lane; i < width * height; i += warp_lanes)
        of.add(scale, place(i), histogram, sums);
      continue;
    }
    for (int64_t r = row + lane; r < row + height; r += warp_lanes) {
      const int64_t first = r * of.columns + column;
      each_inner(
          n, scale, width, amax,
          [&](int64_t at, int64_t count) {
            uint32_t most = 0;
            for (int64_t j = first + at; j < first + at + count; ++j)
              most = LargerBits{}(most, magnitude_bits(load_as<float>(of.x, j)));
            return std::bit_cast<float>(magnitude_of_bits(most));
          },
          [&](const Scale& own, int64_t at, int64_t count) {
            for (int64_t j = first + at; j < first + at + count; ++j)
              of.add(own, j, histogram, sums);
          });
    }
  }
}

/// Each block of threads writes one row.
__global__ void survey_kernel(SurveyArguments of, double* rows) {
  __shared__ unsigned histogram[Survey::binades];
  for (int i = int(threadIdx.x); i < Survey::binades; i += int(blockDim.x)) histogram[i] = 0;
  __syncthreads();
  SurveySums sums;
  if (of.quantizer.per == Scaling::Per::block) count_blocks(of, histogram, sums);
  else count_elements(of, histogram, sums);
  each_sum(
      [](const char*, SumKind kind, double& x) {
        const double none = 1e300;  // of smallest: there is no number but 0
        if (kind == SumKind::largest) x = block_reduce(x, Max{}, 0.0);
        else if (kind == SumKind::smallest) x = block_reduce(x == 0 ? none : x, Min{}, none);
        else x = block_sum(x);
        if (kind == SumKind::smallest && x == none) x = 0;
      },
      sums);
  const double* const fields = &sums.count;
  __syncthreads();
  double* const row = rows + int64_t(blockIdx.x) * (Survey::binades + sum_fields);
  for (int i = int(threadIdx.x); i < Survey::binades; i += int(blockDim.x))
    row[i] = double(histogram[i]);
  for (int f = int(threadIdx.x); f < sum_fields; f += int(blockDim.x))
    row[Survey::binades + f] = fields[f];
}

__global__ void fold_kernel(const double* rows, int count, double* into) {
  constexpr int length = Survey::binades + sum_fields;
  for (int i = int(threadIdx.x); i < length; i += int(blockDim.x)) {
    double total = into[i];
    for (int r = 0; r < count; ++r) {
      const double more = rows[r * length + i];
      total =
          i < Survey::binades ? total + more : merged(sum_kind(i - Survey::binades), total, more);
    }
    into[i] = total;
  }
}

}  // namespace
}  // namespace cuda

using namespace cuda;

void CudaBackend::survey(const Tensor& x, const Tensor& y, const QuantizeCall* call, Tensor& row) {
  if (x.numel() == 0) return;
  const auto data_of = [](const Tensor& t) { return t.defined() ? t.data<float>() : nullptr; };
  const bool clips = call && call->unclipped.defined();
  const SurveyArguments of{.whole = Operand(clips ? call->unclipped : x),
                           .x = Operand(x),
                           .y = Operand(y),
                           .clips = clips,
                           .numbers = survey_numbers(call),
                           .quantizer = call ? numbers_of(call->quantizer) : QuantizeNumbers{},
                           .amax = call ? data_of(call->amax) : nullptr,
                           .scale = call ? data_of(call->scale) : nullptr,
                           .key = call ? call->key : RandomKey{},
                           .key_stride = call ? call->key_stride : 0,
                           .shift = context_.key_shift(),
                           .rows = x.numel() / x.size(-1),
                           .columns = x.size(-1)};
  const int64_t wanted = (x.numel() + 8 * block_threads - 1) / (8 * block_threads);
  const int rows = int(wanted < most_sums ? wanted : most_sums);
  const Tensor parts = scratch(context_, {rows, Survey::row_length}, f64);
  launch(context_, survey_kernel, {dim3(unsigned(rows)), dim3(block_threads)}, of,
         parts.data<double>());
  launch(context_, fold_kernel, {dim3(1), dim3(block_threads)},
         static_cast<const double*>(parts.data<double>()), rows, row.data<double>());
  row.storage()->bump_version();
}

}  // namespace halftone
