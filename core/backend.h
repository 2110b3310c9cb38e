// The kernels that a device must provide. Kernels write into tensors they are given and allocate
// nothing that outlives the call, so the ledger (core/memory.h) counts every byte under its use.
// Operations check shapes and dtypes before they call. Kernels compute short floats in float,
// accumulate in float or wider, and may rely on these contracts:
//
//   strided   any strides, also 0 (broadcast); inputs and output have the same shape
//   rows      contiguous, seen as [rows, n]
//   images    rank 4, logical NCHW, NHWC in memory (channels-last)
//   statistics and other by-products of short-float inputs are f32 (f64 for f64 inputs)
//
// reference/ implements all of it in plain loops and is the specification; other backends override
// the kernels that they make faster.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <halftone/core/formats/coded_form.h>
#include <halftone/core/formulas.h>
#include <halftone/core/loss_scale.h>
#include <halftone/core/op_info.h>
#include <halftone/core/random.h>
#include <halftone/core/rope.h>
#include <halftone/core/tensor.h>
#include <halftone/core/update_rules.h>

namespace halftone {

struct Accumulator;
struct Clip;
struct QuantizeCall;
struct Quantizer;
struct Rotation;

enum class Reduction : uint8_t { sum, mean, sum_of_squares, max, min, prod };

struct ConvGeometry {
  std::array<int64_t, 2> stride{1, 1}, padding{0, 0}, dilation{1, 1};
  int64_t groups = 1;
};
struct PoolGeometry {
  std::array<int64_t, 2> kernel{2, 2}, stride{2, 2}, padding{0, 0};
  /// average pooling divides by the whole window, as PyTorch's count_include_pad
  bool count_padding = true;
  /// distance between the elements of a window; 1 for average pooling
  std::array<int64_t, 2> dilation{1, 1};
};
enum class Interpolation : uint8_t { nearest, bilinear };
struct InterpolationGeometry {
  Interpolation mode = Interpolation::nearest;
  /// aligns the centers of the corner pixels of both images, instead of the edges of these pixels
  bool align_corners = false;
  /// input pixels per output pixel; unused with align_corners
  std::array<double, 2> step{1, 1};
};
struct CrossEntropySettings {
  double label_smoothing = 0;
  int64_t ignore_index = -100;
};
/// For the weights of attention: softmax(scale q k^T + mask), some of them set to 0 by dropout.
struct AttentionSettings {
  double scale = 1;
  bool causal = false;  // query i sees keys 0 to i
  double dropout = 0;
  /// The weight of (batch, head, query, key) uses the random number of its row-major index.
  RandomKey key{};
};
/// One parameter with the tensors that its update reads and writes. State tensors are f32 or short
/// floats; the gradient has any dtype of these. Arithmetic is f32 (f64 for f64 parameters), and
/// each result is rounded once, as `form` says (core/update_rules.h).
struct UpdateSlot {
  Tensor parameter, gradient;
  std::array<Tensor, 3> state{};
  /// how state[i] is stored. A coded state is a u8 tensor of blocks, in the parameter's memory
  /// order; the parameter is then f32 or a short float, and dense
  std::array<Coding, 3> stored{};
  /// An f32 scalar on the device (1 / loss scale, clipping) by which the gradient is multiplied
  /// first
  Tensor gradient_factor{};
  WeightForm form = WeightForm::plain;
  /// laid out as the parameter; undefined if the form has none
  Tensor companion{};
  /// key of stochastic rounding: element i in the parameter's memory order uses random_half(key, i)
  RandomKey key{};
  /// the increase of the key's offset from one step to the next, for steps that are replayed
  uint64_t key_stride = 0;
  /// i64 scalar on the device: the count of updates before this one. The update adds 1 unless it is
  /// skipped. If undefined, UpdateCall::steps counts
  Tensor steps{};

  /// Calls f(tensor) for each tensor that an update writes.
  template <class F> void for_each_written(F&& f) const {
    for (const Tensor* x : {&parameter, &companion, &state[0], &state[1], &state[2]})
      if (x->defined()) f(*x);
  }
  void bump_versions() const {
    for_each_written([](const Tensor& x) { x.storage()->bump_version(); });
  }
  bool has_coded_state() const {
    return stored[0].coded() || stored[1].coded() || stored[2].coded();
  }
};
/// One step of an elementwise optimizer, for the slots of one group. `skip` and `device_lr` are
/// scalars on the device; if defined, they are read when the update runs.
struct UpdateCall {
  UpdateRule rule;  // core/update_rules.h
  double lr = 0;
  int64_t steps = 0;   // updates before this one, for slots without a count of their own
  Tensor skip{};       // f32: if it is not 0, no weight, state, companion or count changes (storage
                       // versions may: a host that does not wait cannot know)
  Tensor device_lr{};  // f64, replaces lr
};

/// Work of a device that was recorded once and can be run again, with the addresses from the
/// recording.
class CapturedWork {
 public:
  virtual ~CapturedWork() = default;
  /// Runs the work again. key_shift: added to the offset of every random key in it. replays: how
  /// many replays came before this one.
  virtual void replay(uint64_t key_shift, uint64_t replays) = 0;
};

// --- operands of calls with many tensors; Backend says what each call does

struct AttentionCall {
  const Tensor &q, &k, &v, &mask;
  const AttentionSettings& settings;
  Tensor &y, &log_sum_exp;
};
/// y and log_sum_exp are those of the forward call.
struct AttentionBackwardCall {
  const Tensor &q, &k, &v, &mask;
  const AttentionSettings& settings;
  const Tensor &y, &log_sum_exp, &dy;
  Tensor &dq, &dk, &dv;
};
struct NormCall {
  const Tensor &x, &weight, &bias;
  double eps;
  Tensor &y, &mean, &rstd;
};
struct AddNormCall {
  const Tensor &a, &b, &weight;
  double eps;
  Tensor &sum, &y, &rstd;
};
/// An undefined output is not computed.
struct NormBackwardCall {
  const Tensor &x, &weight, &mean, &rstd, &dy;
  Tensor &dx, &dweight, &dbias;
};
struct BatchNormCall {
  const Tensor &x, &mean, &variance;
  double eps;
  const Tensor &weight, &bias, &residual;
  bool relu;
  Tensor& y;
};
struct BatchNormBackwardCall {
  const Tensor &x, &mean, &variance;
  double eps;
  const Tensor &weight, &relu_output, &dy;
  bool training;
  Tensor &dx, &dweight, &dbias, &dresidual;
};
struct LstmCellCall {
  const Tensor &x, &recurrent, &cell_before;
  Tensor &gates, &cell, &y;
};
struct LstmCellBackwardCall {
  const Tensor &gates, &cell_before, &cell, &dy, &dstate;
  Tensor &dcell, &dgates;
};
struct GruCellBackwardCall {
  const Tensor &gates, &state, &dy;
  Tensor &dstate, &dx, &drecurrent;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string_view name() const = 0;

  // --- memory
  virtual void* allocate(std::size_t bytes) = 0;  // 64-byte aligned or better
  virtual void release(void* data, std::size_t bytes) noexcept = 0;
  virtual void copy_to_host(const void* device, void* host, std::size_t bytes) = 0;
  virtual void copy_from_host(const void* host, void* device, std::size_t bytes) = 0;
  /// waits for all work issued until now
  virtual void synchronize() = 0;
  /// Issues all further work in this stream (a cudaStream_t), after the work issued until now: for
  /// programs where another library works on the same memory. Devices without streams do nothing.
  virtual void use_stream(void*) {}
  /// how often the host has waited for this device, or read from it, until now
  virtual int64_t waits() const { return 0; }

  // --- captured work: see core/captured_step.h
  /// whether work is recorded now instead of run
  virtual bool capturing() const { return false; }
  virtual bool can_capture() const { return false; }
  /// Starts recording work instead of running it. Throws UnsupportedError if the device cannot.
  virtual void begin_capture();
  /// Stops recording and returns the recorded work.
  virtual std::unique_ptr<CapturedWork> end_capture();
  /// Stops recording after an error, which may have ended it already.
  virtual void abandon_capture() {}

  // --- movement (strided, any dtype)
  virtual void fill(Number value, Tensor& y) = 0;
  /// converts dtypes, as core's convert<>()
  virtual void copy(const Tensor& x, Tensor& y) = 0;
  /// condition: bool
  virtual void select(const Tensor& condition, const Tensor& a, const Tensor& b, Tensor& y) = 0;
  /// y[i] = table[indices[i]]. An index or a loss's target out of range is an error: at once on the
  /// CPU, at the next wait elsewhere. No kernel reads or writes out of bounds.
  virtual void gather_rows(const Tensor& table, const Tensor& indices, Tensor& y) = 0;
  /// dtable = 0, then dtable[indices[i]] += dy[i] for each i; an index equal to `skip` adds nothing
  virtual void scatter_add_rows(const Tensor& dy, const Tensor& indices, int64_t skip,
                                Tensor& dtable) = 0;
  /// y[i] = x[i with index[i] at dim]; index i64, of y's shape. Out of range: as gather_rows().
  virtual void gather(const Tensor& x, int dim, const Tensor& index, Tensor& y) = 0;
  /// y[i with index[i] at dim] += x[i], summed in f32 or wider in the order of i and rounded once
  /// (integers of y are exact to 2^53); x, y of one dtype, index i64 of x's shape
  virtual void scatter_add(const Tensor& x, int dim, const Tensor& index, Tensor& y) = 0;

  // --- elementwise (strided, floating; integers of one dtype if the formula takes them)
  virtual void unary(FormulaCall f, const Tensor& x, Tensor& y) = 0;
  /// dx = dy * df/dx; saved: x or y, whichever the formula saves; undefined if it saves none
  virtual void unary_backward(FormulaCall f, const Tensor& saved, const Tensor& dy, Tensor& dx) = 0;
  virtual void binary(FormulaCall f, const Tensor& a, const Tensor& b, Tensor& y) = 0;
  /// dx = dy * d f / d input (0: a, 1: b)
  virtual void binary_backward(FormulaCall f, int input, const Tensor& a, const Tensor& b,
                               const Tensor& dy, Tensor& dx) = 0;
  /// y = a second or third derivative (core/formulas.h); saved: as for unary_backward
  virtual void unary_derivative(FormulaCall f, Derivatives d, const Tensor& saved, Tensor& y) = 0;
  virtual void binary_derivative(FormulaCall f, Derivatives d, const Tensor& a, const Tensor& b,
                                 Tensor& y) = 0;
  /// any dtype; y: bool
  virtual void compare(FormulaCall f, const Tensor& a, const Tensor& b, Tensor& y) = 0;

  // --- reduction
  /// strided x; y contiguous, of x's rank, with size 1 in reduced dimensions; sums of integers into
  /// integers are exact
  virtual void reduce(Reduction kind, const Tensor& x, Tensor& y) = 0;
  /// x: rows; index: i64 [rows], the extreme's place: the first of equal elements; NaN is extreme
  virtual void arg_reduce(bool largest, const Tensor& x, Tensor& index) = 0;
  /// y, dy: of x's dtype, for each row of x its largest (or smallest) number and the gradient of
  /// that. dx = dy / count at the `count` places in the row where x equals y, else 0; all NaN if y
  /// is.
  virtual void extremum_backward(const Tensor& x, const Tensor& y, const Tensor& dy,
                                 Tensor& dx) = 0;
  /// rows; index: i64, like x: the positions of the row's elements in sorted order. Equal elements
  /// keep their order, also when descending; NaN is larger than all.
  virtual void argsort(const Tensor& x, bool descending, Tensor& index) = 0;
  virtual void cumulative_sum(const Tensor& x, bool reverse, Tensor& y) = 0;  // rows, along n
  /// rows, along n, one factor after the other in f64 (integers in 64 bits)
  virtual void cumulative_product(const Tensor& x, Tensor& y) = 0;
  /// dx = the gradient of cumulative_product() for dy; floating. No divisions: zeros do no harm
  virtual void cumulative_product_backward(const Tensor& x, const Tensor& dy, Tensor& dx) = 0;

  // --- contraction
  /// c[.., m, n] = a[.., m, k] b[.., k, n] + bias[n]; rank 2 or 3; a, b: one unit stride among the
  /// last two, batch stride may be 0; c contiguous, same dtype or f32
  virtual void matmul(const Tensor& a, const Tensor& b, const Tensor& bias, Tensor& c) = 0;
  /// images; w [out, in / groups, kh, kw], contiguous or, on the CPU, channels-last; bias may be
  /// undefined
  virtual void conv(const Tensor& x, const Tensor& w, const Tensor& bias, const ConvGeometry& g,
                    Tensor& y) = 0;
  virtual void conv_backward_data(const Tensor& dy, const Tensor& w, const ConvGeometry& g,
                                  Tensor& dx) = 0;
  /// dbias may be undefined
  virtual void conv_backward_weights(const Tensor& x, const Tensor& dy, const ConvGeometry& g,
                                     Tensor& dw, Tensor& dbias) = 0;
  /// images; argmax: index in the window, i32, or u8 for windows of at most 256 elements
  virtual void max_pool(const Tensor& x, const PoolGeometry& g, Tensor& y, Tensor& argmax) = 0;
  virtual void max_pool_backward(const Tensor& dy, const Tensor& argmax, const PoolGeometry& g,
                                 Tensor& dx) = 0;
  virtual void avg_pool(const Tensor& x, const PoolGeometry& g, Tensor& y) = 0;
  virtual void avg_pool_backward(const Tensor& dy, const PoolGeometry& g, Tensor& dx) = 0;
  /// images; bins as PyTorch's, from the two shapes
  virtual void adaptive_avg_pool(const Tensor& x, Tensor& y) = 0;
  virtual void adaptive_avg_pool_backward(const Tensor& dy, Tensor& dx) = 0;
  /// images; coordinates as PyTorch's
  virtual void interpolate(const Tensor& x, const InterpolationGeometry& g, Tensor& y) = 0;
  virtual void interpolate_backward(const Tensor& dy, const InterpolationGeometry& g,
                                    Tensor& dx) = 0;

  // --- attention: q [n, heads, l, e], k [n, key heads, s, e], v [n, key heads, s, ev], y [n,
  // heads, l, ev]. The number of key heads divides the number of heads; each key head serves heads
  // / key heads neighbors. Strided with unit stride last, one dtype. mask strided [n, heads, l, s]:
  // bool (true takes part), floating (added), or undefined. Rows without any key are 0.
  /// log_sum_exp: statistics [1, n, heads, l], or [2, n, heads, l]: the largest score and the sum
  /// of exp(score - largest), stored separately. Their rounded total would lose the second part if
  /// scores are large. Rows without any key: infinite, or infinite and 1.
  virtual void attention(const AttentionCall& call) = 0;
  virtual void attention_backward(const AttentionBackwardCall& call) = 0;

  /// x, y [n, heads, l, e], e even, strided with unit stride last: each pair (a, b) of a row turned
  /// by the angle of the row and the pair (core/rope.h), (a cos - b sin, b cos + a sin). inverse:
  /// by the negative angle. Cosine and sine are f64, rounded to the statistics dtype.
  virtual void rope(const Tensor& x, const RopeOptions& options, bool inverse, Tensor& y) = 0;

  // --- rows; y has x's dtype, or is f32 for a short x; dx has x's dtype
  /// y = softmax of each row, or its natural logarithm
  virtual void softmax(const Tensor& x, bool logarithm, Tensor& y) = 0;
  virtual void softmax_backward(const Tensor& y, const Tensor& dy, bool logarithm, Tensor& dx) = 0;
  virtual void log_sum_exp(const Tensor& x, Tensor& y) = 0;  // y: [rows]
  /// logits: rows; targets: i64 [rows]; class_weights: statistics dtype, [n] or undefined. Outputs
  /// have the statistics dtype: losses (weighted) and row_weights [rows]; log_sum_exp [2, rows], as
  /// in attention(), but with 0 for an infinite largest logit. NaN if a logit is +inf or all are
  /// -inf
  virtual void cross_entropy(const Tensor& logits, const Tensor& targets,
                             const Tensor& class_weights, const CrossEntropySettings& settings,
                             Tensor& losses, Tensor& row_weights, Tensor& log_sum_exp) = 0;
  /// row_scale: statistics dtype [rows], stride 0 or 1
  virtual void cross_entropy_backward(const Tensor& logits, const Tensor& targets,
                                      const Tensor& class_weights,
                                      const CrossEntropySettings& settings,
                                      const Tensor& log_sum_exp, const Tensor& row_scale,
                                      Tensor& dlogits) = 0;
  /// rows; weight, bias [n] of any floating dtype, or undefined; mean undefined: RMS norm
  virtual void layer_norm(const NormCall& call) = 0;
  /// an undefined output is not computed
  virtual void layer_norm_backward(const NormBackwardCall& call) = 0;
  /// sum = a + b, rounded once, then y and rstd as layer_norm(sum) without a mean, in one pass.
  /// rows; y has the dtype of sum
  virtual void add_rms_norm(const AddNormCall& call) = 0;
  /// x contiguous [n, c, spatial]; weight, bias [c] or undefined; mean, rstd [n, groups]
  virtual void group_norm(const NormCall& call) = 0;
  virtual void group_norm_backward(const NormBackwardCall& call) = 0;
  /// x: images or [n, c]; mean, variance (the biased one): [c]
  virtual void batch_norm_statistics(const Tensor& x, Tensor& mean, Tensor& variance) = 0;
  /// y = (x - mean) / sqrt(variance + eps) weight + bias (+ residual, like x), at least 0 if relu
  virtual void batch_norm(const BatchNormCall& call) = 0;
  /// training: mean and variance depend on x. relu_output: y if the forward call had relu, else
  /// undefined; where y is not positive, dy counts as 0.
  virtual void batch_norm_backward(const BatchNormBackwardCall& call) = 0;

  // --- recurrent cells: one step of rows of h numbers; cells and gradients of states have the
  // statistics dtype
  /// x, recurrent: the contributions of input and state to the gates (in, forget, cell, out), [n,
  /// 4h]; gates: sigmoid(x + recurrent), but tanh for the cell gate g; cell_before, cell, y: [n, h]
  virtual void lstm_cell(const LstmCellCall& call) = 0;
  /// dy, dstate: the gradients of y from this step's result and from later steps, which are added.
  /// dcell, in place: the gradient of cell before the call, of cell_before after it
  virtual void lstm_cell_backward(const LstmCellBackwardCall& call) = 0;
  /// x, recurrent: [n, 3h] of (reset, update, new), as PyTorch's; gates [n, 4h]: reset, update and
  /// new after activation (new = tanh(x + reset * recurrent)), then the recurrent part of new;
  /// state, y: [n, h]
  virtual void gru_cell(const Tensor& x, const Tensor& recurrent, const Tensor& state,
                        Tensor& gates, Tensor& y) = 0;
  /// dstate, in place: before the call the gradient of y from later steps; after it the gradient of
  /// `state`, without the part that goes through `recurrent`
  virtual void gru_cell_backward(const GruCellBackwardCall& call) = 0;

  // --- training: in place; every written tensor gets a new storage version
  /// y += x, same dtype, strided; adds in compute_t
  virtual void accumulate(const Tensor& x, Tensor& y) = 0;
  /// y += weight (x - y), strided: running statistics
  virtual void lerp(const Tensor& x, double weight, Tensor& y) = 0;
  /// an optimizer step: the call's rule over every element of every slot
  virtual void update(std::span<UpdateSlot> slots, const UpdateCall& call) = 0;
  /// Convert a coded tensor (u8 blocks, core/formats/coded_form.h) to and from a dense x of f32 or
  /// a short float, in x's memory order. encode_blocks() writes nothing if skip, an f32 scalar, is
  /// not 0.
  virtual void decode_blocks(const Tensor& blocks, Coding storage, Tensor& x) = 0;
  virtual void encode_blocks(const Tensor& x, const Tensor& skip, Coding storage,
                             Tensor& blocks) = 0;
  /// every tensor *= factor, an f32 scalar on the device
  virtual void scale_all(std::span<Tensor> tensors, const Tensor& factor) = 0;
  /// found_inf (f32 scalar) becomes 1 if any element is infinite or NaN. After this check, all
  /// tensors are multiplied by factor (if defined), also if found_inf is set.
  virtual void unscale(std::span<Tensor> tensors, const Tensor& factor, Tensor& found_inf) = 0;
  /// total, an f32 or f64 scalar, becomes the sum of all x^2, accumulated in f64
  virtual void sum_of_squares(std::span<const Tensor> tensors, Tensor& total) = 0;
  /// next() of core/loss_scale.h in place, on scalars: f32 found_inf (an overflow if not 0), f32
  /// scale, i64 growth_tracker, i32 overflows_left
  virtual void next_loss_scale(const LossScaleOptions& options, const Tensor& found_inf,
                               Tensor& scale, Tensor& growth_tracker, Tensor& overflows_left) = 0;

  // --- rounding to the grid of a short format; tensors are f32, bf16 or f16. core/formats/
  // (quantizer.h, block_scale.h, number_format.h) contains all of the arithmetic, so that every
  // backend gives the same bits.
  /// amax, an f32 scalar, becomes the larger of itself and the largest |x|; NaN if either is. x
  /// strided
  virtual void largest_magnitude(const Tensor& x, Tensor& amax) = 0;
  /// bound, an f32 scalar, becomes clip_bound() of core/formats/block_scale.h. x: f32, row-major
  virtual void clip_bound(const Tensor& x, const Clip& clip, Tensor& bound) = 0;
  /// y = clipped(x, bound) of core/formats/block_scale.h; f32, row-major
  virtual void clip(const Tensor& x, const Tensor& bound, Tensor& y) = 0;
  /// y = x quantized as `call` says; rows; y has x's shape and dtype, and may be x itself. On a GPU
  /// y may be f8, without blocks: the numbers on the grid, whose factor goes to call.factor
  virtual void quantize(const Tensor& x, const QuantizeCall& call, Tensor& y) = 0;
  /// For each block of quantizer.scaling, y becomes results[i], with i the first whose measured[i]
  /// has the least error against x (quantizer.choice.by, summed in f64, row by row); f32, row-major
  virtual void choose_blocks(const Quantizer& quantizer, const Tensor& x,
                             std::span<const Tensor> measured, std::span<const Tensor> results,
                             Tensor& y) = 0;
  /// y = x rotated in groups (core/formats/block_scale.h); rows; elements at the end of a row that
  /// fill no group do not change; y has x's shape and dtype, and may be x itself
  virtual void rotate(const Tensor& x, const Rotation& rotation, Tensor& y) = 0;
  /// Ends a step for n tensors with delayed scaling per tensor, in place: amax f32 [n] enters the
  /// ring buffer history f32 [n, steps] at position i64 [n], scale f32 [n] is computed from
  /// history, and amax is set to 0. An amax that is not finite is set to 0 and changes nothing
  /// else.
  virtual void next_scales(const Quantizer& quantizer, Tensor& amax, Tensor& history,
                           Tensor& position, Tensor& scale) = 0;
  /// Adds statistics of x and of y = quantize(x, call) to row, a Survey (core/formats/survey.h). x
  /// and y: rows of one shape. A null call: statistics of x alone, y is not read
  virtual void survey(const Tensor& x, const Tensor& y, const QuantizeCall* call, Tensor& row) = 0;
  /// matmul() with sums rounded as `accumulator` says, which is not stochastic; c may be f32. If a
  /// and b are operands of f8 numbers (f8_operand()), the device itself adds, as f8_sums() says
  virtual void matmul_accumulating(const Tensor& a, const Tensor& b, const Tensor& bias,
                                   const Accumulator& accumulator, Tensor& c) = 0;
  /// Returns how the device adds products of f8 numbers; null: it does not multiply them
  virtual const Accumulator* f8_sums() const { return nullptr; }
  /// Returns whether it multiplies f8 numbers with factors of blocks (F8Operand)
  virtual bool f8_blocks() const { return false; }

  // --- random (dense y; element i in memory order uses number i of the key)
  virtual void uniform(double low, double high, RandomKey key, Tensor& y) = 0;
  virtual void normal(double mean, double std, RandomKey key, Tensor& y) = 0;
  virtual void random_integers(int64_t low, int64_t high, RandomKey key, Tensor& y) = 0;
  /// x, y dense alike; y = x / (1 - p), or 0 with probability p; also its own backward
  virtual void dropout(const Tensor& x, double p, RandomKey key, Tensor& y) = 0;
};

/// Returns the backend of a device; defined in backends/registry.cpp. Throws DeviceError, with the
/// remedy, if the device has no backend.
Backend& backend_for(Device device);
inline Backend& backend_for(const Tensor& x) { return backend_for(x.device()); }

/// A backend that this build may contain; if it is absent, the description says how to get it.
struct BackendStatus {
  std::string_view name;
  Backend* backend;         // null if absent
  std::string description;  // the libraries and instructions it uses, or how to get it
};
std::vector<BackendStatus> backend_statuses();

/// Replaces the CPU backend by the one of that name ("reference" or "cpu") in all threads until the
/// scope ends: for tests and comparisons. Throws UsageError for another name. The environment
/// variable HALFTONE_CPU_BACKEND sets it for a whole run.
class CpuBackendScope {
 public:
  [[nodiscard]] explicit CpuBackendScope(std::string_view name);
  ~CpuBackendScope();
  CpuBackendScope(const CpuBackendScope&) = delete;
  CpuBackendScope& operator=(const CpuBackendScope&) = delete;

 private:
  Backend* before_;
};

// Writes into tensors that others hold. An object that keeps a result made from a tensor, as
// autocast keeps its casts of weights, compares storage versions: a write that does not bump the
// version leaves a stale copy. So outside of kernels all writes go through these functions.

/// Returns whether several elements of y are one number in memory, as in an expanded tensor: they
/// cannot be written one by one.
bool has_overlap(const Tensor& y);
/// Throws UsageError if has_overlap(y).
void require_writable(const Tensor& y);

/// Announces a write through data<T>() or raw_data(): call it after the write.
inline void mark_written(const Tensor& y) {
  require_writable(y);
  y.storage()->bump_version();
}

/// Calls kernel(backend, y), which writes y by calls of the backend.
template <class Kernel> void write_in_place(Tensor y, const Kernel& kernel) {
  require_writable(y);
  kernel(backend_for(y), y);
  y.storage()->bump_version();
}

/// y = x in y's dtype; x may be on another device. As torch's y.copy_(x), for equal shapes only.
inline void copy_into(const Tensor& y, const Tensor& x) {
  if (y.shape() != x.shape())
    fail<ShapeError>(running_operation("copy_into"), described(x), " does not fill ", described(y),
                     ". Shapes must be equal.");
  write_in_place(y, [&](Backend& backend, Tensor& to) { backend.copy(x.to(to.device()), to); });
}

/// Sets every element to value. As torch's y.fill_(value).
inline void fill_with(const Tensor& y, Number value) {
  write_in_place(y, [&](Backend& backend, Tensor& to) { backend.fill(value, to); });
}

/// Updates a slot through f32 copies of its coded states: for backends and layouts without a loop.
void update_decoded(Backend& backend, const UpdateSlot& slot, const UpdateCall& call);

}  // namespace halftone
