// Copies of a model's buffers (running statistics) before a forward pass, which changes them before
// it is known whether its step will be skipped.
#pragma once

#include <utility>
#include <vector>

#include <halftone/nn/module.h>

namespace halftone::nn {

class BufferCopies {
 public:
  BufferCopies() = default;
  /// Copies the buffers, charged as workspace.
  explicit BufferCopies(const Module& model);
  bool empty() const { return held_.empty(); }
  /// Restores the buffers.
  void restore() const;
  /// Restores the buffers if `flag`, an f32 scalar on any device, is not 0; the host does not wait.
  void restore_where(const Tensor& flag) const;

 private:
  std::vector<std::pair<Tensor, Tensor>> held_{};  // a buffer, its copy
};

}  // namespace halftone::nn
