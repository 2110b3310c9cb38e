// cuDNN on one device: its handle, and its plans (plan_cache.h), by a key with everything that the
// graph depends on.
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

/// A graph that can run, with the numbers of its tensors in the order of their addresses.
struct ReadyGraph {
  Plan plan;
  std::vector<int64_t> tensors;
};

using Key = std::vector<int64_t>;
/// Appends the properties of a tensor that a graph depends on: shape, strides, dtype, alignment.
void append(Key& key, const Tensor& x);
/// Returns shapes and dtypes, for the log.
std::string text_of(std::initializer_list<const Tensor*> tensors);
/// Returns whether cuDNN exists, was made for this build's CUDA, and is not switched off.
bool usable();
/// Returns the power of two that the address of x is a multiple of, at most 16.
int64_t alignment_of(const Tensor& x);

class Library {
 public:
  /// Returns the library of a context's device.
  static Library& of(const Context& context);

  using Make = std::function<std::optional<ReadyGraph>(const Target&)>;
  /// Runs the graph of a key; make(target) makes it at the first request. Returns false, and runs
  /// nothing, if make() finds no graph, if cuDNN does not support such tensors (strides of 0, mixed
  /// dtypes), or if it declines now. `call` names the call in the log.
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
