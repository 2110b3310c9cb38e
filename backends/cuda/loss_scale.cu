// The loss scale after a step: one thread computes it on the device, so that the host need not
// wait.
#include <halftone/backends/cuda/cuda_backend.h>
#include <halftone/backends/cuda/launch.h>

namespace halftone {

namespace cuda {
namespace {
__global__ void next_kernel(LossScaleOptions options, const float* found_inf, float* scale,
                            int64_t* growth_tracker, int32_t* overflows_left) {
  const LossScale after =
      next({options, *scale, *growth_tracker, *overflows_left}, *found_inf != 0);
  *scale = after.scale, *growth_tracker = after.growth_tracker;
  *overflows_left = after.overflows_left;
}
}  // namespace
}  // namespace cuda

void CudaBackend::next_loss_scale(const LossScaleOptions& options, const Tensor& found_inf,
                                  Tensor& scale, Tensor& growth_tracker, Tensor& overflows_left) {
  cuda::launch(context_, cuda::next_kernel, {dim3(1), dim3(1)}, options, found_inf.data<float>(),
               scale.data<float>(), growth_tracker.data<int64_t>(), overflows_left.data<int32_t>());
  for (const Tensor* x : {&scale, &growth_tracker, &overflows_left}) x->storage()->bump_version();
}

}  // namespace halftone
