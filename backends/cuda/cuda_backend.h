// The CUDA backend: own kernels in the .cu files of this folder, and cuBLASLt and cuDNN if they are
// found and faster (cublaslt/, cudnn/); each library may decline a call. Kernels go into the one
// stream of the device's context, and only operations that return numbers to the host wait for
// them.
#pragma once

#include <halftone/backends/cuda/context.h>
#include <halftone/core/backend.h>

namespace halftone {

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(int index) : context_(index), staging_(context_) {}
  std::string_view name() const override { return "cuda"; }
  cuda::Context& context() { return context_; }

  // --- memory (context.cpp)
  void* allocate(std::size_t bytes) override;
  void release(void* data, std::size_t bytes) noexcept override;
  void copy_to_host(const void* device, void* host, std::size_t bytes) override;
  void copy_from_host(const void* host, void* device, std::size_t bytes) override;
  void synchronize() override { context_.wait(); }
  void use_stream(void* stream) override { context_.use_stream(static_cast<cudaStream_t>(stream)); }
  int64_t waits() const override { return context_.waits(); }

  // --- captured work (capture.cu)
  bool capturing() const override { return context_.capturing(); }
  bool can_capture() const override { return true; }
  void begin_capture() override;
  std::unique_ptr<CapturedWork> end_capture() override;
  void abandon_capture() override;

  // --- movement (movement.cu, indexing.cu)
  void fill(Number value, Tensor& y) override;
  void copy(const Tensor& x, Tensor& y) override;
  void select(const Tensor& condition, const Tensor& a, const Tensor& b, Tensor& y) override;
  void gather_rows(const Tensor& table, const Tensor& indices, Tensor& y) override;
  void scatter_add_rows(const Tensor& dy, const Tensor& indices, int64_t skip,
                        Tensor& dtable) override;
  void gather(const Tensor& x, int dim, const Tensor& index, Tensor& y) override;
  void scatter_add(const Tensor& x, int dim, const Tensor& index, Tensor& y) override;

  // --- elementwise (elementwise.cu)
  void unary(FormulaCall f, const Tensor& x, Tensor& y) override;
  void unary_backward(FormulaCall f, const Tensor& saved, const Tensor& dy, Tensor& dx) override;
  void binary(FormulaCall f, const Tensor& a, const Tensor& b, Tensor& y) override;
  void binary_backward(FormulaCall f, int input, const Tensor& a, const Tensor& b, const Tensor& dy,
                       Tensor& dx) override;
  void unary_derivative(FormulaCall f, Derivatives d, const Tensor& saved, Tensor& y) override;
  void binary_derivative(FormulaCall f, Derivatives d, const Tensor& a, const Tensor& b,
                         Tensor& y) override;
  void compare(FormulaCall f, const Tensor& a, const Tensor& b, Tensor& y) override;

  // --- reduction (reduction.cu)
  void reduce(Reduction kind, const Tensor& x, Tensor& y) override;
  void arg_reduce(bool largest, const Tensor& x, Tensor& index) override;
  void extremum_backward(const Tensor& x, const Tensor& y, const Tensor& dy, Tensor& dx) override;
  void argsort(const Tensor& x, bool descending, Tensor& index) override;
  void cumulative_sum(const Tensor& x, bool reverse, Tensor& y) override;
  void cumulative_product(const Tensor& x, Tensor& y) override;
  void cumulative_product_backward(const Tensor& x, const Tensor& dy, Tensor& dx) override;

  // --- contraction (matmul.cu, conv.cu, pool.cu)
  void matmul(const Tensor& a, const Tensor& b, const Tensor& bias, Tensor& c) override;
  void conv(const Tensor& x, const Tensor& w, const Tensor& bias, const ConvGeometry& g,
            Tensor& y) override;
  void conv_backward_data(const Tensor& dy, const Tensor& w, const ConvGeometry& g,
                          Tensor& dx) override;
  void conv_backward_weights(const Tensor& x, const Tensor& dy, const ConvGeometry& g, Tensor& dw,
                             Tensor& dbias) override;
  void max_pool(const Tensor& x, const PoolGeometry& g, Tensor& y, Tensor& argmax) override;
  void max_pool_backward(const Tensor& dy, const Tensor& argmax, const PoolGeometry& g,
                         Tensor& dx) override;
  void avg_pool(const Tensor& x, const PoolGeometry& g, Tensor& y) override;
  void avg_pool_backward(const Tensor& dy, const PoolGeometry& g, Tensor& dx) override;
  void adaptive_avg_pool(const Tensor& x, Tensor& y) override;
  void adaptive_avg_pool_backward(const Tensor& dy, Tensor& dx) override;
  void interpolate(const Tensor& x, const InterpolationGeometry& g, Tensor& y) override;
  void interpolate_backward(const Tensor& dy, const InterpolationGeometry& g, Tensor& dx) override;

  // --- rows (softmax.cu, layer_norm.cu, batch_norm.cu)
  // and attention (attention.cu), rotary positions (elementwise.cu)
  void softmax(const Tensor& x, bool logarithm, Tensor& y) override;
  void softmax_backward(const Tensor& y, const Tensor& dy, bool logarithm, Tensor& dx) override;
  void log_sum_exp(const Tensor& x, Tensor& y) override;
  void attention(const AttentionCall& call) override;
  void attention_backward(const AttentionBackwardCall& call) override;
  void rope(const Tensor& x, const RopeOptions& options, bool inverse, Tensor& y) override;
  void cross_entropy(const Tensor& logits, const Tensor& targets, const Tensor& class_weights,
                     const CrossEntropySettings& settings, Tensor& losses, Tensor& row_weights,
                     Tensor& log_sum_exp) override;
  void cross_entropy_backward(const Tensor& logits, const Tensor& targets,
                              const Tensor& class_weights, const CrossEntropySettings& settings,
                              const Tensor& log_sum_exp, const Tensor& row_scale,
                              Tensor& dlogits) override;
  void layer_norm(const NormCall& call) override;
  void layer_norm_backward(const NormBackwardCall& call) override;
  void add_rms_norm(const AddNormCall& call) override;
  void group_norm(const NormCall& call) override;
  void group_norm_backward(const NormBackwardCall& call) override;
  void batch_norm_statistics(const Tensor& x, Tensor& mean, Tensor& variance) override;
  void batch_norm(const BatchNormCall& call) override;
  void batch_norm_backward(const BatchNormBackwardCall& call) override;

  // --- recurrent cells (matmul.cu)
  void lstm_cell(const LstmCellCall& call) override;
  void lstm_cell_backward(const LstmCellBackwardCall& call) override;
  void gru_cell(const Tensor& x, const Tensor& recurrent, const Tensor& state, Tensor& gates,
                Tensor& y) override;
  void gru_cell_backward(const GruCellBackwardCall& call) override;

  // --- training (movement.cu, optimizer.cu)
  void accumulate(const Tensor& x, Tensor& y) override;
  void lerp(const Tensor& x, double weight, Tensor& y) override;
  void update(std::span<UpdateSlot> slots, const UpdateCall& call) override;
  void decode_blocks(const Tensor& blocks, Coding storage, Tensor& x) override;
  void encode_blocks(const Tensor& x, const Tensor& skip, Coding storage, Tensor& blocks) override;
  void scale_all(std::span<Tensor> tensors, const Tensor& factor) override;
  void unscale(std::span<Tensor> tensors, const Tensor& factor, Tensor& found_inf) override;
  void sum_of_squares(std::span<const Tensor> tensors, Tensor& total) override;

  void next_loss_scale(const LossScaleOptions& options, const Tensor& found_inf, Tensor& scale,
                       Tensor& growth_tracker, Tensor& overflows_left) override;

  // --- numbers on a grid (quantize.cu, matmul.cu)
  void largest_magnitude(const Tensor& x, Tensor& amax) override;
  void clip_bound(const Tensor& x, const Clip& clip, Tensor& bound) override;
  void clip(const Tensor& x, const Tensor& bound, Tensor& y) override;
  void quantize(const Tensor& x, const QuantizeCall& call, Tensor& y) override;
  void survey(const Tensor& x, const Tensor& y, const QuantizeCall* call, Tensor& row) override;
  void choose_blocks(const Quantizer& quantizer, const Tensor& x, std::span<const Tensor> measured,
                     std::span<const Tensor> results, Tensor& y) override;
  void rotate(const Tensor& x, const Rotation& rotation, Tensor& y) override;
  void next_scales(const Quantizer& quantizer, Tensor& amax, Tensor& history, Tensor& position,
                   Tensor& scale) override;
  void matmul_accumulating(const Tensor& a, const Tensor& b, const Tensor& bias,
                           const Accumulator& accumulator, Tensor& c) override;
  const Accumulator* f8_sums() const override;
  bool f8_blocks() const override;

  // --- random (elementwise.cu)
  void uniform(double low, double high, RandomKey key, Tensor& y) override;
  void normal(double mean, double std, RandomKey key, Tensor& y) override;
  void random_integers(int64_t low, int64_t high, RandomKey key, Tensor& y) override;
  void dropout(const Tensor& x, double p, RandomKey key, Tensor& y) override;

 private:
  cuda::Context context_;
  cuda::Staging staging_;
  int capture_pool_ = 0;
};

}  // namespace halftone
