// Copies of a model's buffers (running statistics, and what user modules write) before a forward
// pass that may not count: its step may be skipped, or the pass repeats another.
#pragma once

#include <string>
#include <vector>

#include <halftone/nn/module.h>

namespace halftone::nn {

class BufferCopies final : public HeldBuffers {
 public:
  BufferCopies() = default;
  /// Copies the buffers, charged as workspace.
  explicit BufferCopies(const Module& model);
  bool empty() const { return held_.empty(); }
  void restore() const override;
  bool keep_changed() override;
  std::shared_ptr<HeldBuffers> now() const override;
  /// Returns the name of a buffer that has been written since; "" if none has.
  std::string first_changed() const;
  /// Restores the buffers if `flag`, an f32 scalar on any device, is not 0; the host does not wait.
  void restore_where(const Tensor& flag) const;

 private:
  struct Held {
    std::string name;
    Tensor buffer, copy;
    uint64_t version;  // of the buffer's storage
    bool changed() const;
  };
  std::vector<Held> held_{};
};

}  // namespace halftone::nn
