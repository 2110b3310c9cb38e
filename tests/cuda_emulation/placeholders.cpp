// Placeholder definitions while the families are being written.
#include <cstdio>
#include <cstdlib>
#include <halftone/backends/cuda/cuda_backend.h>
namespace halftone {
[[gnu::weak]] void CudaBackend::begin_capture() {
  std::fprintf(stderr, "CudaBackend::begin_capture is not written yet\n");
  std::abort();
}
[[gnu::weak]] std::unique_ptr<CapturedWork> CudaBackend::end_capture() {
  std::fprintf(stderr, "CudaBackend::end_capture is not written yet\n");
  std::abort();
}
[[gnu::weak]] void CudaBackend::fill(double, Tensor&) {
  std::fprintf(stderr, "CudaBackend::fill is not written yet\n");
  std::abort();
}
[[gnu::weak]] void CudaBackend::copy(const Tensor&, Tensor&) {
  std::fprintf(stderr, "CudaBackend::copy is not written yet\n");
  std::abort();
}
[[gnu::weak]] void CudaBackend::select(const Tensor&, const Tensor&, const Tensor&, Tensor&) {
  std::fprintf(stderr, "CudaBackend::select is not written yet\n");
  std::abort();
}
[[gnu::weak]] void CudaBackend::gather_rows(const Tensor&, const Tensor&, Tensor&) {
  std::fprintf(stderr, "CudaBackend::gather_rows is not written yet\n");
  std::abort();
}
[[gnu::weak]] void CudaBackend::scatter_add_rows(const Tensor&, const Tensor&, int64_t, Tensor&) {
  std::fprintf(stderr, "CudaBackend::scatter_add_rows is not written yet\n");
  std::abort();
}
[[gnu::weak]] void CudaBackend::unary(FormulaCall, const Tensor&, Tensor&) {
  std::fprintf(stderr, "CudaBackend::unary is not written yet\n");
  std::abort();
}
[[gnu::weak]] void CudaBackend::unary_backward(FormulaCall, const Tensor&, const Tensor&, Tensor&) {
  std::fprintf(stderr, "CudaBackend::unary_backward is not written yet\n");
  std::abort();
}
[[gnu::weak]] void CudaBackend::binary(FormulaCall, const Tensor&, const Tensor&, Tensor&) {
  std::fprintf(stderr, "CudaBackend::binary is not written yet\n");
  std::abort();
}
[[gnu::weak]] void CudaBackend::binary_backward(FormulaCall, int, const Tensor&, const Tensor&,
                                                const Tensor&, Tensor&) {
  std::fprintf(stderr, "CudaBackend::binary_backward is not written yet\n");
  std::abort();
}
[[gnu::weak]] void CudaBackend::compare(FormulaCall, const Tensor&, const Tensor&, Tensor&) {
  std::fprintf(stderr, "CudaBackend::compare is not written yet\n");
  std::abort();
}
[[gnu::weak]] void CudaBackend::reduce(Reduction, const Tensor&, Tensor&) {
  std::fprintf(stderr, "CudaBackend::reduce is not written yet\n");
  std::abort();
}
[[gnu::weak]] void CudaBackend::arg_reduce(bool, const Tensor&, Tensor&) {
  std::fprintf(stderr, "CudaBackend::arg_reduce is not written yet\n");
  std::abort();
}
[[gnu::weak]] void CudaBackend::cumulative_sum(const Tensor&, bool, Tensor&) {
  std::fprintf(stderr, "CudaBackend::cumulative_sum is not written yet\n");
  std::abort();
}
[[gnu::weak]] void CudaBackend::matmul(const Tensor&, const Tensor&, const Tensor&, Tensor&) {
  std::fprintf(stderr, "CudaBackend::matmul is not written yet\n");
  std::abort();
}
[[gnu::weak]] void CudaBackend::conv(const Tensor&, const Tensor&, const Tensor&,
                                     const ConvGeometry&, Tensor&) {
  std::fprintf(stderr, "CudaBackend::conv is not written yet\n");
  std::abort();
}
[[gnu::weak]] void CudaBackend::conv_backward_data(const Tensor&, const Tensor&,
                                                   const ConvGeometry&, Tensor&) {
  std::fprintf(stderr, "CudaBackend::conv_backward_data is not written yet\n");
  std::abort();
}
[[gnu::weak]] void CudaBackend::conv_backward_weights(const Tensor&, const Tensor&,
                                                      const ConvGeometry&, Tensor&, Tensor&) {
  std::fprintf(stderr, "CudaBackend::conv_backward_weights is not written yet\n");
  std::abort();
}
[[gnu::weak]] void CudaBackend::max_pool(const Tensor&, const PoolGeometry&, Tensor&, Tensor&) {
  std::fprintf(stderr, "CudaBackend::max_pool is not written yet\n");
  std::abort();
}
[[gnu::weak]] void CudaBackend::max_pool_backward(const Tensor&, const Tensor&, const PoolGeometry&,
                                                  Tensor&) {
  std::fprintf(stderr, "CudaBackend::max_pool_backward is not written yet\n");
  std::abort();
}
[[gnu::weak]] void CudaBackend::avg_pool(const Tensor&, const PoolGeometry&, Tensor&) {
  std::fprintf(stderr, "CudaBackend::avg_pool is not written yet\n");
  std::abort();
}
[[gnu::weak]] void CudaBackend::avg_pool_backward(const Tensor&, const PoolGeometry&, Tensor&) {
  std::fprintf(stderr, "CudaBackend::avg_pool_backward is not written yet\n");
  std::abort();
}
[[gnu::weak]] void CudaBackend::adaptive_avg_pool(const Tensor&, Tensor&) {
  std::fprintf(stderr, "CudaBackend::adaptive_avg_pool is not written yet\n");
  std::abort();
}
[[gnu::weak]] void CudaBackend::adaptive_avg_pool_backward(const Tensor&, Tensor&) {
  std::fprintf(stderr, "CudaBackend::adaptive_avg_pool_backward is not written yet\n");
  std::abort();
}
[[gnu::weak]] void CudaBackend::interpolate(const Tensor&, const InterpolationGeometry&, Tensor&) {
  std::fprintf(stderr, "CudaBackend::interpolate is not written yet\n");
  std::abort();
}
[[gnu::weak]] void CudaBackend::interpolate_backward(const Tensor&, const InterpolationGeometry&,
                                                     Tensor&) {
  std::fprintf(stderr, "CudaBackend::interpolate_backward is not written yet\n");
  std::abort();
}
[[gnu::weak]] void CudaBackend::softmax(const Tensor&, bool, Tensor&) {
  std::fprintf(stderr, "CudaBackend::softmax is not written yet\n");
  std::abort();
}
[[gnu::weak]] void CudaBackend::softmax_backward(const Tensor&, const Tensor&, bool, Tensor&) {
  std::fprintf(stderr, "CudaBackend::softmax_backward is not written yet\n");
  std::abort();
}
[[gnu::weak]] void CudaBackend::log_sum_exp(const Tensor&, Tensor&) {
  std::fprintf(stderr, "CudaBackend::log_sum_exp is not written yet\n");
  std::abort();
}
[[gnu::weak]] void CudaBackend::attention(const Tensor&, const Tensor&, const Tensor&,
                                          const Tensor&, const AttentionSettings&, Tensor&,
                                          Tensor&) {
  std::fprintf(stderr, "CudaBackend::attention is not written yet\n");
  std::abort();
}
[[gnu::weak]] void CudaBackend::attention_backward(const Tensor&, const Tensor&, const Tensor&,
                                                   const Tensor&, const AttentionSettings&,
                                                   const Tensor&, const Tensor&, const Tensor&,
                                                   Tensor&, Tensor&, Tensor&) {
  std::fprintf(stderr, "CudaBackend::attention_backward is not written yet\n");
  std::abort();
}
[[gnu::weak]] void CudaBackend::cross_entropy(const Tensor&, const Tensor&, const Tensor&,
                                              const CrossEntropyOptions&, Tensor&, Tensor&,
                                              Tensor&) {
  std::fprintf(stderr, "CudaBackend::cross_entropy is not written yet\n");
  std::abort();
}
[[gnu::weak]] void CudaBackend::cross_entropy_backward(const Tensor&, const Tensor&, const Tensor&,
                                                       const CrossEntropyOptions&, const Tensor&,
                                                       const Tensor&, Tensor&) {
  std::fprintf(stderr, "CudaBackend::cross_entropy_backward is not written yet\n");
  std::abort();
}
[[gnu::weak]] void CudaBackend::layer_norm(const Tensor&, const Tensor&, const Tensor&, double,
                                           Tensor&, Tensor&, Tensor&) {
  std::fprintf(stderr, "CudaBackend::layer_norm is not written yet\n");
  std::abort();
}
[[gnu::weak]] void CudaBackend::layer_norm_backward(const Tensor&, const Tensor&, const Tensor&,
                                                    const Tensor&, const Tensor&, Tensor&, Tensor&,
                                                    Tensor&) {
  std::fprintf(stderr, "CudaBackend::layer_norm_backward is not written yet\n");
  std::abort();
}
[[gnu::weak]] void CudaBackend::group_norm(const Tensor&, const Tensor&, const Tensor&, double,
                                           Tensor&, Tensor&, Tensor&) {
  std::fprintf(stderr, "CudaBackend::group_norm is not written yet\n");
  std::abort();
}
[[gnu::weak]] void CudaBackend::group_norm_backward(const Tensor&, const Tensor&, const Tensor&,
                                                    const Tensor&, const Tensor&, Tensor&, Tensor&,
                                                    Tensor&) {
  std::fprintf(stderr, "CudaBackend::group_norm_backward is not written yet\n");
  std::abort();
}
[[gnu::weak]] void CudaBackend::batch_norm_statistics(const Tensor&, Tensor&, Tensor&) {
  std::fprintf(stderr, "CudaBackend::batch_norm_statistics is not written yet\n");
  std::abort();
}
[[gnu::weak]] void CudaBackend::batch_norm(const Tensor&, const Tensor&, const Tensor&, double,
                                           const Tensor&, const Tensor&, const Tensor&, bool,
                                           Tensor&) {
  std::fprintf(stderr, "CudaBackend::batch_norm is not written yet\n");
  std::abort();
}
[[gnu::weak]] void CudaBackend::batch_norm_backward(const Tensor&, const Tensor&, const Tensor&,
                                                    double, const Tensor&, const Tensor&,
                                                    const Tensor&, bool, Tensor&, Tensor&, Tensor&,
                                                    Tensor&) {
  std::fprintf(stderr, "CudaBackend::batch_norm_backward is not written yet\n");
  std::abort();
}
[[gnu::weak]] void CudaBackend::lstm_cell(const Tensor&, const Tensor&, const Tensor&, Tensor&,
                                          Tensor&, Tensor&) {
  std::fprintf(stderr, "CudaBackend::lstm_cell is not written yet\n");
  std::abort();
}
[[gnu::weak]] void CudaBackend::lstm_cell_backward(const Tensor&, const Tensor&, const Tensor&,
                                                   const Tensor&, const Tensor&, Tensor&, Tensor&) {
  std::fprintf(stderr, "CudaBackend::lstm_cell_backward is not written yet\n");
  std::abort();
}
[[gnu::weak]] void CudaBackend::gru_cell(const Tensor&, const Tensor&, const Tensor&, Tensor&,
                                         Tensor&) {
  std::fprintf(stderr, "CudaBackend::gru_cell is not written yet\n");
  std::abort();
}
[[gnu::weak]] void CudaBackend::gru_cell_backward(const Tensor&, const Tensor&, const Tensor&,
                                                  Tensor&, Tensor&, Tensor&) {
  std::fprintf(stderr, "CudaBackend::gru_cell_backward is not written yet\n");
  std::abort();
}
[[gnu::weak]] void CudaBackend::accumulate(const Tensor&, Tensor&) {
  std::fprintf(stderr, "CudaBackend::accumulate is not written yet\n");
  std::abort();
}
[[gnu::weak]] void CudaBackend::lerp(const Tensor&, double, Tensor&) {
  std::fprintf(stderr, "CudaBackend::lerp is not written yet\n");
  std::abort();
}
[[gnu::weak]] void CudaBackend::sgd_step(std::span<UpdateSlot>, const SgdUpdate&) {
  std::fprintf(stderr, "CudaBackend::sgd_step is not written yet\n");
  std::abort();
}
[[gnu::weak]] void CudaBackend::adam_step(std::span<UpdateSlot>, const AdamUpdate&) {
  std::fprintf(stderr, "CudaBackend::adam_step is not written yet\n");
  std::abort();
}
[[gnu::weak]] void CudaBackend::rmsprop_step(std::span<UpdateSlot>, const RmspropUpdate&) {
  std::fprintf(stderr, "CudaBackend::rmsprop_step is not written yet\n");
  std::abort();
}
[[gnu::weak]] void CudaBackend::scale_all(std::span<Tensor>, const Tensor&) {
  std::fprintf(stderr, "CudaBackend::scale_all is not written yet\n");
  std::abort();
}
[[gnu::weak]] void CudaBackend::unscale(std::span<Tensor>, const Tensor&, Tensor&) {
  std::fprintf(stderr, "CudaBackend::unscale is not written yet\n");
  std::abort();
}
[[gnu::weak]] void CudaBackend::sum_of_squares(std::span<const Tensor>, Tensor&) {
  std::fprintf(stderr, "CudaBackend::sum_of_squares is not written yet\n");
  std::abort();
}
[[gnu::weak]] void CudaBackend::uniform(double, double, RandomKey, Tensor&) {
  std::fprintf(stderr, "CudaBackend::uniform is not written yet\n");
  std::abort();
}
[[gnu::weak]] void CudaBackend::normal(double, double, RandomKey, Tensor&) {
  std::fprintf(stderr, "CudaBackend::normal is not written yet\n");
  std::abort();
}
[[gnu::weak]] void CudaBackend::random_integers(int64_t, int64_t, RandomKey, Tensor&) {
  std::fprintf(stderr, "CudaBackend::random_integers is not written yet\n");
  std::abort();
}
[[gnu::weak]] void CudaBackend::dropout(const Tensor&, double, RandomKey, Tensor&) {
  std::fprintf(stderr, "CudaBackend::dropout is not written yet\n");
  std::abort();
}
}  // namespace halftone
