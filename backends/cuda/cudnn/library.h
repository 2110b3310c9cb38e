// cuDNN on one device: its handle, and the plans that were made, by a key that says all that the
// graph depends on. A plan that does not exist is remembered as well.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include <halftone/backends/cuda/cudnn/graph.h>
#include <halftone/core/error.h>

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
/// The power of two that the address of x is a multiple of, at most 16.
int64_t alignment_of(const Tensor& x);

class Library {
 public:
  /// The one of a context's device.
  static Library& of(const Context& context);

  /// The graph of a key, made by make(target) when it is first asked for; null if there is none, or
  /// cuDNN takes no such tensors (strides of 0, mixed dtypes) in the first place.
  template <class Make> const ReadyGraph* graph(const Key& key, const Make& make) {
    const auto [place, is_new] = graphs_.try_emplace(key);
    if (!is_new) return place->second.get();
    try {
      if (std::optional<ReadyGraph> made = make(Target(handle_)))
        place->second = std::make_unique<ReadyGraph>(std::move(*made));
    } catch (const DeviceError&) {  // while describing: nothing has run
    }
    return place->second.get();
  }
  void run(const ReadyGraph& graph, const Context& context,
           const std::vector<const void*>& addresses) const;
  std::mutex& mutex() { return mutex_; }

 private:
  explicit Library(const Context& context);

  std::mutex mutex_;
  cudnnHandle_t handle_ = nullptr;
  std::map<Key, std::unique_ptr<ReadyGraph>> graphs_;
};

}  // namespace halftone::cuda::cudnn
