// The CPU backend: the reference with faster overrides: SIMD kernels for elementwise operations,
// casts, reductions, rows and optimizers, own matrix products, oneDNN for convolutions and, on CPUs
// with bf16 instructions but no AMX, for bf16 products. If a fast path does not support a dtype,
// layout or shape, it calls the reference, so every operation works.
#pragma once

#include <halftone/backends/reference/reference.h>

namespace halftone {

class CpuBackend final : public ReferenceBackend {
 public:
  std::string_view name() const override { return "cpu"; }

  // --- movement (elementwise.cpp)
  void copy(const Tensor& x, Tensor& y) override;
  void gather(const Tensor& x, int dim, const Tensor& index, Tensor& y) override;

  // --- elementwise (elementwise.cpp)
  void unary(FormulaCall f, const Tensor& x, Tensor& y) override;
  void unary_backward(FormulaCall f, const Tensor& saved, const Tensor& dy, Tensor& dx) override;
  void binary(FormulaCall f, const Tensor& a, const Tensor& b, Tensor& y) override;
  void binary_backward(FormulaCall f, int input, const Tensor& a, const Tensor& b, const Tensor& dy,
                       Tensor& dx) override;
  void compare(FormulaCall f, const Tensor& a, const Tensor& b, Tensor& y) override;
  void select(const Tensor& condition, const Tensor& a, const Tensor& b, Tensor& y) override;
  void accumulate(const Tensor& x, Tensor& y) override;
  void lerp(const Tensor& x, double weight, Tensor& y) override;

  // --- reduction (reduction.cpp)
  void reduce(Reduction kind, const Tensor& x, Tensor& y) override;
  void arg_reduce(bool largest, const Tensor& x, Tensor& index) override;
  void extremum_backward(const Tensor& x, const Tensor& y, const Tensor& dy, Tensor& dx) override;

  // --- contraction (gemm.cpp, conv.cpp, pool.cpp)
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

  // --- attention (attention.cpp), rotary positions (elementwise.cpp)
  void attention(const AttentionCall& call) override;
  void attention_backward(const AttentionBackwardCall& call) override;
  void rope(const Tensor& x, const RopeOptions& options, bool inverse, Tensor& y) override;

  // --- rows (norms.cpp)
  void softmax(const Tensor& x, bool logarithm, Tensor& y) override;
  void softmax_backward(const Tensor& y, const Tensor& dy, bool logarithm, Tensor& dx) override;
  void log_sum_exp(const Tensor& x, Tensor& y) override;
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

  // --- recurrent cells (elementwise.cpp)
  void lstm_cell(const LstmCellCall& call) override;
  void lstm_cell_backward(const LstmCellBackwardCall& call) override;
  void gru_cell(const Tensor& x, const Tensor& recurrent, const Tensor& state, Tensor& gates,
                Tensor& y) override;
  void gru_cell_backward(const GruCellBackwardCall& call) override;

  // --- training (optimizer.cpp)
  void update(std::span<UpdateSlot> slots, const UpdateCall& call) override;
  void decode_blocks(const Tensor& blocks, Coding storage, Tensor& x) override;
  void encode_blocks(const Tensor& x, const Tensor& skip, Coding storage, Tensor& blocks) override;
  void scale_all(std::span<Tensor> tensors, const Tensor& factor) override;
  void unscale(std::span<Tensor> tensors, const Tensor& factor, Tensor& found_inf) override;
  void sum_of_squares(std::span<const Tensor> tensors, Tensor& total) override;

  // --- numbers on a grid (quantize.cpp)
  void clip_bound(const Tensor& x, const Clip& clip, Tensor& bound) override;
  void clip(const Tensor& x, const Tensor& bound, Tensor& y) override;
  void largest_magnitude(const Tensor& x, Tensor& amax) override;
  void rotate(const Tensor& x, const Rotation& rotation, Tensor& y) override;
  void quantize(const Tensor& x, const QuantizeCall& call, Tensor& y) override;
  void matmul_accumulating(const Tensor& a, const Tensor& b, const Tensor& bias,
                           const Accumulator& accumulator, Tensor& c) override;

  // --- random (elementwise.cpp)
  void dropout(const Tensor& x, double p, RandomKey key, Tensor& y) override;
};

}  // namespace halftone
