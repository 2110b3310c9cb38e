// cuDNN on one device: its handle, and the plans that were made (plan_cache.h), by a key that says
// all that the graph depends on.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <halftone/backends/cuda/cudnn/graph.h>
#include <halftone/backends/cuda/library_calls.h>
#include <halftone/backends/cuda/plan_cache.h>

namespace halftone::cuda::cudnn {

/// A graph that can run: the numbers of its tensors in the order in which their addresses are
/// given.
struct ReadyGraph {
  Plan plan;
  std::vector<int64_t> tensors;
};

using Key = std::vector<int64_t>;
/// Appends what a graph depends on of a tensor: shape, strides, dtype, alignment.
void append(Key& key, const Tensor& x);
/// Shapes and dtypes, for the log.
std::string text_of(std::initializer_list<const Tensor*> tensors);
/// Whether the cuDNN that is there was made for this build's CUDA, and nobody switched it off.
bool usable();
/// The power of two that the address of x is a multiple of, at most 16.
int64_t alignment_of(const Tensor& x);

class Library {
 public:
  /// The one of a context's device.
  static Library& of(const Context& context);

  using Make = std::function<std::optional<ReadyGraph>(const Target&)>;
  /// Runs the graph of a key, made by make(target) when it is first asked for; false if there is
  /// none, cuDNN takes no such tensors (strides of 0, mixed dtypes) in the first place, or it
  /// declines now: then nothing has run. `call` names it in the log.
  bool run(Context& context, Family family, const std::string& call, const Key& key,
           const Make& make, const std::vector<const void*>& addresses);
  std::mutex& mutex() { return mutex_; }

 private:
  explicit Library(const Context& context);
  Outcome make_graph(const Make& make, std::unique_ptr<ReadyGraph>& graph) const;

  std::mutex mutex_;
  cudnnHandle_t handle_ = nullptr;
  PlanCache<Key, ReadyGraph> graphs_;
};

}  // namespace halftone::cuda::cudnn
