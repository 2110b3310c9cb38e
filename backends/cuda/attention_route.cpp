// Attention on lengths that are rounded up.
#include <halftone/backends/cuda/for_cudnn.h>

#include <halftone/core/tensor.h>

namespace halftone::cuda {

namespace {
/// Returns x with `dim` extended to `length`, filled with zeros.
Tensor lengthened(const Context& context, const Tensor& x, int dim, int64_t length) {
  Shape shape = x.shape();
  const int64_t before = std::exchange(shape[dim], length);
  Tensor longer = scratch(context, shape, x.dtype());
  Backend& backend = backend_for(longer);
  backend.fill(0, longer);
  Tensor head = views::slice(longer, dim, 0, before);
  backend.copy(x, head);
  return longer;
}
/// Returns an uninitialized tensor of x's shape with `dim` extended to `length`.
Tensor room_for(const Context& context, const Tensor& x, int dim, int64_t length) {
  Shape shape = x.shape();
  shape[dim] = length;
  return scratch(context, shape, x.dtype());
}
}  // namespace

bool attention_lengthened(const Context& context, const Tensor& q, const Tensor& k, const Tensor& v,
                          Tensor& y, Tensor& log_sum_exp, const AttentionCall& call) {
  const int64_t l = q.shape()[2];
  const int64_t length = (l + attention_step - 1) / attention_step * attention_step;
  Tensor longer_y = room_for(context, y, 2, length);
  Tensor longer_sums = room_for(context, log_sum_exp, 3, length);
  if (!call(lengthened(context, q, 2, length), lengthened(context, k, 2, length),
            lengthened(context, v, 2, length), longer_y, longer_sums))
    return false;
  backend_for(y).copy(views::slice(longer_y, 2, 0, l), y);
  backend_for(y).copy(views::slice(longer_sums, 3, 0, l), log_sum_exp);
  return true;
}

}  // namespace halftone::cuda
