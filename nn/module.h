// A module is a struct whose members are parameters, buffers and other modules, named once in
// describe(). There is no registry inside the object, hence no pointer that could go stale: modules
// move freely. They do not copy, for a copy would share its parameters with the original.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <halftone/autograd/call_scope.h>
#include <halftone/nn/fields.h>

namespace halftone::nn {

template <class T> using Named = std::vector<std::pair<std::string, T>>;

struct Module {
  /// Read by Dropout and BatchNorm; written through train() and eval().
  bool training = true;

  Module() = default;
  Module(Module&&) = default;
  Module& operator=(Module&&) = default;
  virtual ~Module() = default;

  /// The only obligation: calls `field(name, member)` for every parameter, buffer and child module.
  virtual void describe(Fields& field) = 0;  // override it: { field("first", first); }

  /// What an optimizer takes. A parameter that two modules share appears once, under its first
  /// name.
  std::vector<Tensor> parameters() const;
  Named<Tensor> named_parameters() const;
  Named<Tensor> named_buffers() const;
  /// This module (under the name "") and all below it.
  Named<Module*> named_modules();
  /// Elements of all parameters.
  int64_t parameter_count() const;

  void train(bool on = true);
  void eval() { train(false); }
  /// Drops the gradients.
  void zero_grad();
  /// Freezes (false) or thaws all parameters.
  void set_requires_grad(bool value);

  /// Converts floating parameters and buffers, which lose their gradients. The storage is replaced
  /// inside the tensor that all handles share, so an optimizer made before follows.
  void to(DType dtype) { to(dtype, {}); }
  /// The same, but modules for which `except` is true, and all below them, stay as they are.
  void to(DType dtype, const std::function<bool(const Module&)>& except);
  /// Moves everything but buffers that stay on the host, in the same way.
  void to(Device device);

  /// While it lives, operations of this thread stand in this module: `const CallScope scope =
  /// call_scope();` is the first line of what a module that is no Layer is called by. `label` names
  /// a part that is no module; it must outlive the scope.
  [[nodiscard]] CallScope call_scope(std::string_view label = {}) const {
    return CallScope(this, label);
  }
};

/// A module that maps one tensor to one tensor: what Sequential holds.
struct Layer : Module {
  /// What a caller calls: forward(), within a scope that says which module is at work.
  Tensor operator()(const Tensor& x) const {
    const CallScope scope = call_scope();
    return forward(x);
  }
  /// What a layer computes. As torch.nn.Module.forward.
  virtual Tensor forward(const Tensor& x) const = 0;  // override it, as const
};

/// A layer that owns nothing.
struct StatelessLayer : Layer {
  void describe(Fields&) override {}
};

}  // namespace halftone::nn
