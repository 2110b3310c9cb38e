// The inner loops of the CPU backend: contiguous floats in, contiguous floats out, one thread. Each
// loop exists once per instruction set, compiled from the same sources with other flags;
// backends/cpu/staging.h selects a table at run time. The callers (backends/cpu/*.cpp) handle
// threads, strides and dtypes, and stage short floats through small float buffers.
#pragma once

#include <cstddef>
#include <cstdint>

#include <halftone/core/formulas.h>
#include <halftone/core/random.h>
#include <halftone/core/update_rules.h>

namespace halftone {
struct Accumulator;
struct Grid;
struct QuantizeNumbers;
struct Scale;
struct Codec;
enum class Rounding : uint8_t;
namespace sums {
struct Extent;
}
}  // namespace halftone

namespace halftone::simd {

/// The source of matrices for gemm(): element (i, j) is data[i * row + j * column], in a dtype.
enum class Element : uint8_t { f32, bf16 };
struct Matrix {
  const void* data;
  Element element;
  int64_t row, column;
};

/// The numbers of a rule and a step for update() (core/update_rules.h): Rule::Numbers<float> as
/// bytes.
struct UpdateNumbers {
  int rule = 0;  // its place in UpdateRules
  StateMask states = 0;
  bool moves_weight = true;
  alignas(double) std::byte numbers[64]{};
};

/// quantize_blocks() knows sub-blocks in blocks of up to this many columns.
inline constexpr int64_t most_columns_of_inner = 512;

/// One band of blocks for quantize_blocks(): element (i, j) is at i row_step + j and has number
/// first + i number_step + j in its tensor.
struct BlockBand {
  int64_t rows, columns, row_step, number_step;
  uint64_t first;
};

/// Batch norm on rows of n channels, floats or bf16 (as uint16_t): computed in float, each result
/// rounded once.
template <class Element> struct ChannelKernels {
  /// y = (x - mean) scale + shift (+ residual, which may be null), at least 0 if relu
  void (*affine)(const Element* x, const float* mean, const float* scale, const float* shift,
                 const Element* residual, bool relu, Element* y, int64_t rows, int64_t n);
  /// sum_g += g, sum_gd += g (x - mean) over rows. g is dy where relu_output is positive; all of dy
  /// if relu_output is null.
  void (*sums)(const Element* x, const Element* dy, const Element* relu_output, const float* mean,
               int64_t rows, int64_t n, double* sum_g, double* sum_gd);
  /// dx = a g + b (x - mean) + c; dresidual = g; one of them may be null
  void (*backward)(const Element* x, const Element* dy, const Element* relu_output,
                   const float* mean, const float* a, const float* b, const float* c, Element* dx,
                   Element* dresidual, int64_t rows, int64_t n);
};

struct Kernels {
  const char* name;

  // --- dtypes: exact widening, rounding to nearest even
  void (*widen_bf16)(const uint16_t* x, float* y, int64_t n);
  void (*narrow_bf16)(const float* x, uint16_t* y, int64_t n);
  void (*widen_f16)(const uint16_t* x, float* y, int64_t n);
  void (*narrow_f16)(const float* x, uint16_t* y, int64_t n);

  // --- elementwise; outputs may be the inputs
  void (*unary)(FormulaCall f, const float* x, float* y, int64_t n);
  void (*unary_backward)(FormulaCall f, const float* saved, const float* dy, float* dx, int64_t n);
  void (*binary)(FormulaCall f, const float* a, const float* b, float* y, int64_t n);
  void (*binary_backward)(FormulaCall f, int input, const float* a, const float* b, const float* dy,
                          float* dx, int64_t n);
  void (*compare)(FormulaCall f, const float* a, const float* b, bool* y, int64_t n);
  /// y = condition ? a : b, for elements as bits
  void (*select_words)(const bool* condition, const uint32_t* a, const uint32_t* b, uint32_t* y,
                       int64_t n);
  void (*select_halves)(const bool* condition, const uint16_t* a, const uint16_t* b, uint16_t* y,
                        int64_t n);
  void (*accumulate)(const float* x, float* y, int64_t n);          // y += x
  void (*subtract)(const float* x, float* y, int64_t n);            // y -= x
  void (*scale)(float factor, float* y, int64_t n);                 // y *= factor
  void (*lerp)(const float* x, float weight, float* y, int64_t n);  // y += weight (x - y)

  // --- reductions, pairwise in float within blocks, in double across them
  double (*sum)(const float* x, int64_t n);
  double (*sum_of_squares)(const float* x, int64_t n);
  double (*sum_of_wide_squares)(const float* x, int64_t n);  // squared and added in double
  float (*max)(const float* x, int64_t n);                   // NaN if any x is NaN
  float (*min)(const float* x, int64_t n);
  /// y[j] = the largest (smallest) of y[j] and x[i, j], NaN if any is NaN
  void (*max_rows)(const float* x, int64_t rows, int64_t row_stride, int64_t n, float* y);
  void (*min_rows)(const float* x, int64_t rows, int64_t row_stride, int64_t n, float* y);
  /// y[j] = sum_i x[i, j]
  void (*add_rows)(const float* x, int64_t rows, int64_t row_stride, int64_t n, float* y);
  void (*join)(const float* x, double* totals, int64_t n);  // totals += x

  // --- rows
  void (*softmax)(const float* x, int64_t n, bool logarithm, float* y);
  void (*softmax_backward)(const float* y, const float* dy, int64_t n, bool logarithm, float* dx);
  /// returns the sum of exp(x - shift); shift: the largest of x, 0 if that is infinite
  float (*exp_sum)(const float* x, int64_t n, float* shift);
  /// y = scale exp(x - shift)
  void (*exp_shifted)(const float* x, float shift, float scale, float* y, int64_t n);
  /// y = scale exp(factor x - shift); returns its sum
  float (*exp_scaled)(const float* x, float factor, float shift, float scale, float* y, int64_t n);
  float (*dot)(const float* a, const float* b, int64_t n);  // the sum of a b
  /// dx = scale y (dy - mean): softmax backward with a known sum
  void (*softmax_gradient)(const float* y, const float* dy, float mean, float scale, float* dx,
                           int64_t n);
  void (*moments)(const float* x, int64_t n, float* mean, double* variance);
  void (*normalize)(const float* x, float mean, float rstd, const float* weight, const float* bias,
                    float* y,
                    int64_t n);  // weight, bias may be null
  void (*norm_backward)(const float* x, float mean, float rstd, bool centred, const float* weight,
                        const float* dy,
                        /// dweight, dbias accumulate; any of them may be null
                        float* dx, float* dweight, float* dbias, int64_t n);

  // --- group norm: n neighbors of one channel
  void (*affine)(const float* x, float mean, float scale, float shift, float* y,
                 int64_t n);  // y = (x - mean) scale + shift
  /// the sums of dy and of dy (x - mean)
  void (*centred_sums)(const float* x, float mean, const float* dy, int64_t n, double* sum,
                       double* product);
  /// dx = a dy + b (x - mean) + c
  void (*affine_gradient)(const float* x, float mean, const float* dy, float a, float b, float c,
                          float* dx, int64_t n);

  // --- batch norm: rows of n channels
  ChannelKernels<float> channels;
  ChannelKernels<uint16_t> bf16_channels;
  /// sum_d += d, sum_d2 += d^2 over rows, d = x - mean
  void (*channel_moments)(const float* x, const float* mean, int64_t rows, int64_t n, double* sum_d,
                          double* sum_d2);

  // --- pooling: one output pixel from the pixels of its window, n channels
  void (*max_of_pixels)(const float* const* pixels, const uint8_t* places, int count, int64_t n,
                        float* y, uint8_t* argmax);
  /// bf16 or f16, whose bits have the order of the values; infinity: the bits of +inf
  void (*max_of_short_pixels)(const uint16_t* const* pixels, const uint8_t* places, int count,
                              uint16_t infinity, int64_t n, uint16_t* y, uint8_t* argmax);
  /// dx = dy where argmax is place, else 0
  void (*select_place)(const float* dy, const uint8_t* argmax, uint8_t place, int64_t n, float* dx);
  void (*select_short_place)(const uint16_t* dy, const uint8_t* argmax, uint8_t place, int64_t n,
                             uint16_t* dx);
  /// dx += dy where argmax is place
  void (*add_place)(const float* dy, const uint8_t* argmax, uint8_t place, int64_t n, float* dx);

  // --- layout
  /// y[j, i] = x[i, j]
  void (*transpose)(const float* x, int64_t x_stride, float* y, int64_t y_stride, int64_t rows,
                    int64_t columns);
  void (*transpose_shorts)(const uint16_t* x, int64_t x_stride, uint16_t* y, int64_t y_stride,
                           int64_t rows, int64_t columns);

  // --- training
  /// one step of a rule; states: three pointers, null if the rule has none
  void (*update)(const UpdateNumbers& u, const float* gradient, float* weight, float* const* states,
                 int64_t n);
  /// Converts weights from and to a form (core/update_rules.h) as floats. encode: `parameter` holds
  /// the rounded weight if the form uses that; random and companion are used if the form has them.
  void (*decode)(WeightForm form, const float* parameter, const float* companion, float* weight,
                 int64_t n);
  void (*encode)(WeightForm form, const float* weight, const uint16_t* random, float* parameter,
                 float* companion, int64_t n);
  /// The same in place for forms that store bf16 and i16.
  void (*decode_halves)(WeightForm form, const uint16_t* parameter, const int16_t* companion,
                        float* weight, int64_t n);
  void (*encode_halves)(WeightForm form, const float* weight, uint16_t* parameter,
                        int16_t* companion, int64_t n);
  /// decode_block() and encode_block() of core/formats/coded_form.h for n numbers of any blocks
  void (*decode_blocks)(const Codec& codec, const uint8_t* blocks, int64_t n, float* x);
  void (*encode_blocks)(const Codec& codec, const float* x, int64_t n, uint8_t* blocks);
  /// Returns whether all of x are finite; y = x factor (they may be the same), y null: only checks
  bool (*unscale)(const float* x, float factor, float* y, int64_t n);

  // --- random: element i uses word (first + i) % 4 of counter (first + i) / 4; y = x scale where
  // uniform >= p, else 0
  void (*dropout)(const float* x, uint64_t seed, uint64_t first, float p, float scale, float* y,
                  int64_t n);
  /// y[i] = random_half(key, first + i)
  void (*random_halves)(RandomKey key, uint64_t first, uint16_t* y, int64_t n);

  // --- numbers on a grid (core/formats/quantizer.h); y may be x
  /// the bits of the largest |x|; those of a NaN are larger than all others
  uint32_t (*largest_magnitude)(const float* x, int64_t n);
  /// Returns summed_by_lanes() of finite_square(x) (core/formats/block_scale.h); finite: the count
  /// of finite x
  double (*finite_squares)(const float* x, int64_t n, int64_t& finite);
  /// y = clipped(x, bound) of core/formats/block_scale.h
  void (*clip)(const float* x, float bound, float* y, int64_t n);
  /// element i is number first + i of its tensor; only stochastic rounding uses the key
  void (*quantize)(const QuantizeNumbers& numbers, const Scale& scale, RandomKey key,
                   uint64_t first, const float* x, float* y, int64_t n);
  /// the same for one band of blocks side by side; computes their scales
  void (*quantize_blocks)(const QuantizeNumbers& numbers, float amax_tensor, RandomKey key,
                          const BlockBand& band, const float* x, float* y);
  /// rotate_group() of core/formats/block_scale.h for n / size groups of 2, 4, ... 128 neighbors.
  /// flips: for each of 128 numbers, the sign bit if the rotation negates it
  void (*rotate)(const float* x, int64_t n, int size, const uint32_t* flips, bool back, float* y);
  /// sums[j] = on(sums[j] + a[i] b[i b_step + j]) for i = 0, 1, ... (core/formats/number_format.h);
  /// in_floats: whether it adds_in_floats(), and a and b fit_floats() (core/formats/sums.h)
  void (*accumulate_on)(const Accumulator& unit, const Grid& grid, bool in_floats, const float* a,
                        int64_t depth, const float* b, int64_t b_step, float* sums, int64_t n);
  /// adds numbers to what the extent says of an operand
  void (*extend)(const float* x, int64_t n, sums::Extent& extent);

  // --- gemm: panels of packed operands, and the tile product (called by backends/cpu/gemm.cpp)
  int tile_rows, tile_columns;
  /// [rows / tile_rows][depth][tile_rows]
  void (*pack_rows)(const Matrix& a, int64_t rows, int64_t depth, float* panels);
  /// [columns / tile_columns][depth][tile_columns]
  void (*pack_columns)(const Matrix& b, int64_t depth, int64_t columns, float* panels);
  /// c = a b (+ c) (+ bias), with `chain` products added up in a row; b is a panel (step
  /// tile_columns), or has its own rows
  void (*tile_product)(int64_t depth, int64_t chain, const float* a_panel, const float* b,
                       int64_t b_step, int64_t rows, int64_t columns, const float* bias,
                       bool accumulate, float* c, int64_t c_stride);
  /// The same with rows of a that are not packed: their depth comes in `count` pieces of `length`;
  /// row i of piece p is at pieces[p * tile_rows + i] + skip. All tile_rows are read. b: packed.
  void (*tile_product_of_pieces)(int64_t count, int64_t length, const float* const* pieces,
                                 int64_t skip, const float* b, int64_t rows, int64_t columns,
                                 const float* bias, bool accumulate, float* c, int64_t c_stride);
  void (*add_products)(const float* a, const float* b, float* y, int64_t n);  // y += a b
};

namespace baseline {
const Kernels& kernels();
}
namespace avx2 {
const Kernels& kernels();
}
namespace avx512 {
const Kernels& kernels();
}
namespace avx512_bf16 {
const Kernels& kernels();
}
// The same bits on each (docs/same_bits.md).
namespace portable_baseline {
const Kernels& kernels();
}
namespace portable_avx2 {
const Kernels& kernels();
}
namespace portable_avx512 {
const Kernels& kernels();
}

}  // namespace halftone::simd
