// Updates the loss scale after a step: one thread decides, and the host need not wait for the
// result.
#include <halftone/backends/cuda/cuda_backend.h>
#include <halftone/backends/cuda/launch.h>

namespace halftone {

namespace cuda {
namespace {
__global__ void next_kernel(LossScaleRule rule, const float* found_inf, float* scale,
                            int64_t* growth_tracker, int32_t* overflows_left) {
  const LossScaleState after =
      next({*scale, *growth_tracker, *overflows_left}, rule, *found_inf != 0);
  *scale = after.scale, *growth_tracker = after.growth_tracker;
  *overflows_left = after.overflows_left;
}
}  // namespace
}  // namespace cuda

void CudaBackend::next_loss_scale(const LossScaleRule& rule, const Tensor& found_inf, Tensor& scale,
                                  Tensor& growth_tracker, Tensor& overflows_left) {
  cuda::launch(context_, cuda::next_kernel, {dim3(1), dim3(1)}, rule, found_inf.data<float>(),
               scale.data<float>(), growth_tracker.data<int64_t>(), overflows_left.data<int32_t>());
  for (const Tensor* x : {&scale, &growth_tracker, &overflows_left}) x->storage()->bump_version();
}

}  // namespace halftone
