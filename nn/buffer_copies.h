// A model's buffers (running statistics) as they were: a forward pass changes them before anybody
// knows whether its step will be taken.
#pragma once

#include <utility>
#include <vector>

#include <halftone/nn/module.h>

namespace halftone::nn {

class BufferCopies {
 public:
  BufferCopies() = default;
  /// Copies them, charged as workspace.
  explicit BufferCopies(const Module& model);
  bool empty() const { return held_.empty(); }
  /// Puts them back.
  void restore() const;
  /// The same where `flag`, an f32 scalar on any device, is other than 0; nobody waits for it.
  void restore_where(const Tensor& flag) const;

 private:
  std::vector<std::pair<Tensor, Tensor>> held_{};  // a buffer, its copy
};

}  // namespace halftone::nn
