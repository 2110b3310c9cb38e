// Two guards for forward passes that must not change a model.
#pragma once

#include <utility>
#include <vector>

#include <halftone/autograd/slots.h>
#include <halftone/core/random.h>
#include <halftone/nn/module.h>

namespace halftone::train {

/// Evaluation for a scope: no gradients, every module in evaluation mode. The destructor restores
/// the mode of each module, including frozen ones, and the state of the default generator.
class Evaluation {
 public:
  /// The model must outlive this.
  explicit Evaluation(nn::Module& model);
  ~Evaluation();
  Evaluation(const Evaluation&) = delete;
  Evaluation& operator=(const Evaluation&) = delete;

 private:
  NoGrad no_grad_{};
  RandomKey random_;
  std::vector<std::pair<nn::Module*, bool>> modes_{};
};

/// Copies a model's buffers, and restores them when the scope ends, unless they were released.
class HeldBuffers {
 public:
  explicit HeldBuffers(const nn::Module& model) : copies_(model) {}
  ~HeldBuffers() { copies_.restore(); }
  HeldBuffers(const HeldBuffers&) = delete;
  HeldBuffers& operator=(const HeldBuffers&) = delete;
  void release() { copies_ = {}; }

 private:
  nn::BufferCopies copies_;
};

}  // namespace halftone::train
