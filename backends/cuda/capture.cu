// Captured steps as CUDA graphs. While a graph is captured, kernels that draw random numbers add a
// shift in device memory to their keys; a replay first sets the shift, in stream order.
#include <memory>

#include <halftone/backends/cuda/cuda_backend.h>
#include <halftone/backends/cuda/for_cudnn.h>
#include <halftone/backends/cuda/launch.h>

namespace halftone {

namespace cuda {
namespace {

__global__ void set_kernel(uint64_t* at, uint64_t key_shift, uint64_t replays) {
  at[0] = key_shift, at[1] = replays;
}

class CudaGraph final : public CapturedWork {
 public:
  CudaGraph(Context& context, cudaGraphExec_t executable, int pool)
      : context_(context), executable_(executable), pool_(pool) {}
  ~CudaGraph() override {
    cudaGraphExecDestroy(executable_);  // the device finishes its present run
    context_.memory().dissolve(pool_);
  }
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;

  void replay(uint64_t key_shift, uint64_t replays) override {
    launch(context_, set_kernel, {dim3(1), dim3(1)}, context_.key_shift_memory(), key_shift,
           replays);
    check(cudaGraphLaunch(executable_, context_.stream()), "running a captured step");
  }

 private:
  Context& context_;
  cudaGraphExec_t executable_;
  int pool_;
};

}  // namespace
}  // namespace cuda

using namespace cuda;

void CudaBackend::begin_capture() {
  if (capturing())
    fail<UsageError>("captured_step", "a step is being recorded already. Captures do not nest.");
  context_.activate();
  if (!context_.begin_recording())
    fail<UsageError>("captured_step", "another thread is recording a step on ", context_.device(),
                     ". Record steps of one device one after the other.");
  // Relaxed, because the cache may request memory from the driver during the capture.
  const cudaError_t result =
      cudaStreamBeginCapture(context_.stream(), cudaStreamCaptureModeRelaxed);
  if (result != cudaSuccess) context_.end_recording();
  check(result, "beginning to record");
  forget_recorded_weights(context_);
  capture_pool_ = context_.memory().begin_pool();
}

std::unique_ptr<CapturedWork> CudaBackend::end_capture() {
  if (!capturing())
    fail<UsageError>("captured_step", "nothing is being recorded. Call begin_capture() first.");
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  forget_recorded_weights(context_);
  cudaError_t result = cudaStreamEndCapture(context_.stream(), &graph);
  context_.end_recording();
  context_.memory().end_pool();
  if (result == cudaSuccess) {
    result = cudaGraphInstantiate(&executable, graph, 0);
    cudaGraphDestroy(graph);
  }
  if (result != cudaSuccess) context_.memory().dissolve(capture_pool_);
  check(result, "recording a step");
  return std::make_unique<CudaGraph>(context_, executable, capture_pool_);
}

void CudaBackend::abandon_capture() {
  if (!capturing()) return;
  cudaGraph_t graph = nullptr;
  forget_recorded_weights(context_);
  if (cudaStreamEndCapture(context_.stream(), &graph) == cudaSuccess) cudaGraphDestroy(graph);
  cudaGetLastError();
  context_.end_recording();
  context_.memory().end_pool();
  context_.memory().dissolve(capture_pool_);
}

}  // namespace halftone
