// Surveys with survey_element() of core/formats/survey.h: each block of threads counts its share into a
// histogram in shared memory and into its own sums. A last kernel adds the blocks' rows up in their
// order, so results repeat.
#include <limits>

#include <halftone/backends/cuda/block.h>
#include <halftone/backends/cuda/block_scale.h>
#include <halftone/backends/cuda/cuda_backend.h>
#include <halftone/backends/cuda/launch.h>
#include <halftone/backends/cuda/random.h>
#include <halftone/backends/cuda/values.h>
#include <halftone/core/formats/survey.h>

namespace halftone {

namespace cuda {
namespace {

constexpr int most_rows = 64, sum_fields = sizeof(SurveySums) / sizeof(double);
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

struct LargerBits {
  HT_HD uint32_t operator()(uint32_t a, uint32_t b) const { return a > b ? a : b; }
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
    for (int64_t i = lane; i < width * height; i += warp_lanes)
      of.add(scale, place(i), histogram, sums);
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
  // Field by field: all are sums except the last two, the largest and the smallest other than 0.
  double* const fields = &sums.count;
  for (int f = 0; f < sum_fields - 2; ++f) fields[f] = block_sum(fields[f]);
  sums.largest = block_reduce(sums.largest, Max{}, 0.0);
  const double none = 1e300;
  const double smallest = block_reduce(sums.smallest == 0 ? none : sums.smallest, Min{}, none);
  sums.smallest = smallest == none ? 0 : smallest;
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
      if (i < length - 2) total += more;
      else if (i == length - 2) total = more > total ? more : total;
      else if (more != 0 && (total == 0 || more < total)) total = more;
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
  const int rows = int(wanted < most_rows ? wanted : most_rows);
  const Tensor parts = scratch(context_, {rows, Survey::row_length}, f64);
  launch(context_, survey_kernel, {dim3(unsigned(rows)), dim3(block_threads)}, of,
         parts.data<double>());
  launch(context_, fold_kernel, {dim3(1), dim3(block_threads)},
         static_cast<const double*>(parts.data<double>()), rows, row.data<double>());
  row.storage()->bump_version();
}

}  // namespace halftone
