// A module is a struct whose members are parameters, buffers and other modules. Here: those
// members, the visitor that walks them, the module itself, and copies of it.
#pragma once

#include <concepts>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include <halftone/autograd/node.h>
#include <halftone/autograd/slots.h>
#include <halftone/core/factory.h>
#include <halftone/core/memory.h>
#include <halftone/core/named_tensors.h>
#include <halftone/core/random.h>
#include <halftone/core/tensor.h>

namespace halftone::nn {

// The tensors that a module owns: parameters, which are trained, and buffers, which are not
// (running statistics). The ledger (core/memory.h counts bytes by use) charges both to `parameter`.
// Copies are handles to the same data, so an assignment of one module's parameter to another ties
// the two (`head.weight = embedding.weight`).

/// A leaf that requires grad. A default-constructed one is undefined, such as an absent bias.
struct Parameter : Tensor {
  Parameter() = default;
  /// Shares the data of `value`, without its gradient history, and counts its bytes as
  /// MemoryUse::parameter.
  explicit Parameter(const Tensor& value) : Tensor(value.body()) {
    storage()->recharge(MemoryUse::parameter);
    set_requires_grad();
    meta()->unclaimed = true;
  }
  /// Makes a parameter with uninitialized values; nn::init (nn/layers.h) fills it.
  explicit Parameter(const Shape& shape, DType dtype = f32, Device device = {})
      : Parameter(allocated(shape, dtype, device)) {}

 private:
  static Tensor allocated(const Shape& shape, DType dtype, Device device) {
    const MemoryScope scope(MemoryUse::parameter);
    return empty(shape, dtype, device);
  }
};

/// A part of a module's state that optimizers do not see.
struct Buffer : Tensor {
  Buffer() = default;
  explicit Buffer(const Tensor& value) : Tensor(value.body()) {
    storage()->recharge(MemoryUse::parameter);
  }
  /// If true, Module::to(Device) leaves it on the CPU: a counter, which the host reads and writes
  /// at every step, would cost a synchronization each time on a GPU.
  bool stays_on_host = false;
  /// If true, Module::to(DType) makes it f32 instead of a short dtype. In a short float a running
  /// average stops early, because its small updates are rounded away.
  bool stays_wide = false;
  /// If false, state dictionaries and files leave it out, for a table that the constructor computes
  /// again. As in torch.nn.Module.register_buffer.
  bool persistent = true;
};

// The visitor to which a module describes itself. Every function on modules that need not know the
// class (collect parameters, save, convert, switch to evaluation) is a Fields that walks over
// describe(). Derive from it for a walk of your own. The paths it receives are PyTorch's dotted
// names.

struct Module;

class Fields {
 public:
  Fields() = default;
  virtual ~Fields() = default;
  Fields(const Fields&) = delete;
  Fields& operator=(const Fields&) = delete;

  /// Walks over a module and all its children, in the order in which they describe themselves.
  /// Throws UsageError for two fields under one path, and for a module that is part of itself.
  void walk(Module& root);

  // --- called by describe(). Undefined tensors (an absent bias) are skipped.
  void operator()(std::string_view name, Parameter& parameter);
  void operator()(std::string_view name, Buffer& buffer);
  void operator()(std::string_view name, Module& child);

 protected:
  // --- received by a walk. The path of the root is "".
  virtual void parameter(const std::string& path, Parameter& parameter);
  virtual void buffer(const std::string& path, Buffer& buffer);
  /// Called before the module's fields; return false to skip them.
  virtual bool module(const std::string& path, Module& module);

 private:
  std::string path_of(std::string_view name) const;
  /// Returns the path of a field, and throws if a field already has it.
  std::string new_path(std::string_view name);
  void enter(Module& module);

  std::string prefix_;                   // "" or the path of the module that is being described
  std::unordered_set<std::string> met_;  // paths of fields, since the root
  std::vector<std::pair<const Module*, std::string>> open_;  // open modules, from the root on
};

// A module is a struct whose members are parameters, buffers and other modules, named once in
// describe(). The object has no registry inside, so no pointer can become stale: modules can be
// moved. They cannot be copied, because a copy would share its parameters with the original.

template <class T> using Named = std::vector<std::pair<std::string, T>>;

/// Sees the tensors among a call's inputs and results. Inputs that were left out are undefined.
using ForwardObserver = std::function<void(const Module& module, std::span<const Tensor> inputs,
                                           std::span<const Tensor> outputs)>;
using ForwardObservers = std::vector<std::shared_ptr<const ForwardObserver>>;

/// Refers to an observer that Module::on_forward() registered. A copy refers to the same observer.
/// Destroying a handle does not remove the observer.
class ForwardHandle {
 public:
  ForwardHandle() = default;
  /// Removes the observer. Does nothing the second time, or if the module is gone.
  void remove();

 private:
  friend Module;
  std::weak_ptr<ForwardObservers> all_;
  std::weak_ptr<const ForwardObserver> observer_;
};

namespace detail {
/// Appends x if it is a tensor, or the tensors of x.tensors() if it has that function.
template <class T> void add_tensors(std::vector<Tensor>& to, const T& x) {
  if constexpr (std::derived_from<T, Tensor>) to.push_back(x);
  else if constexpr (requires { x.tensors(); })
    for (const Tensor& part : x.tensors()) to.push_back(part);
}
}  // namespace detail

struct Module {
  /// The mode of this module: Dropout and norms read it, train() and eval() set it.
  bool training = true;

  Module() = default;
  Module(Module&&) = default;
  Module& operator=(Module&&) = default;
  virtual ~Module() = default;

  /// The only required function: calls `field(name, member)` for every parameter, buffer and child.
  virtual void describe(Fields& field) = 0;  // override it: { field("first", first); }
  /// Returns "head", "embedding" or "router" for a module that is one; patterns of policies can
  /// name these parts (amp/rules.h). "": another module.
  virtual std::string_view part() const { return {}; }

  /// Returns the parameters for an optimizer. A parameter that two modules share appears once,
  /// under its first name.
  std::vector<Tensor> parameters() const;
  Named<Tensor> named_parameters() const;
  Named<Tensor> named_buffers() const;
  /// Returns this module (under the name "") and all below it.
  Named<Module*> named_modules();
  /// Returns the number of elements of all parameters.
  int64_t parameter_count() const;

  void train(bool on = true);
  void eval() { train(false); }
  /// Drops the gradients of all parameters: grad() is undefined afterwards.
  void zero_grad();
  /// Freezes (false) or unfreezes (true) all parameters.
  void set_requires_grad(bool value);

  /// Converts floating parameters and buffers to a dtype, and drops their gradients. Buffers that
  /// stay wide (running statistics) become f32 if the dtype is shorter. The storage is replaced
  /// inside the tensor that all handles share, so an existing optimizer sees the change. Throws
  /// DTypeError for a dtype that is not floating.
  void to(DType dtype) { to(dtype, {}); }
  /// Leaves modules for which `except` returns true, and all modules below them, as they are.
  void to(DType dtype, const std::function<bool(const Module&)>& except);
  /// Moves all parameters and buffers, except buffers with stays_on_host. Existing handles follow.
  void to(Device device);

  /// While the returned scope exists, operations of this thread count as this module's. `label`
  /// names a part that is not a module; its text must outlive the scope. Each call of a Layer has a
  /// scope.
  [[nodiscard]] CallScope call_scope(std::string_view label = {}) const {
    return CallScope(this, label, &Module::held_buffers);
  }

  /// Registers `observer`, which runs after each call of this module, also when backward runs a
  /// checkpointed segment again. Several observers run in the order of registration. Clones have
  /// none. As torch.nn.Module.register_forward_hook, but an observer cannot change the result.
  ForwardHandle on_forward(ForwardObserver observer);

 protected:
  /// Returns call(), run within a scope of this module; then the module's observers see `inputs`
  /// and the result. Modules with more call functions than operator() of Layer and LayerOf use it.
  template <class Call, class... Inputs>
  auto called(const Call& call, const Inputs&... inputs) const {
    const CallScope scope = call_scope();
    auto result = call();
    if (observers_) {
      std::vector<Tensor> in, out;
      (detail::add_tensors(in, inputs), ...);
      detail::add_tensors(out, result);
      observe(in, out);
    }
    return result;
  }

 private:
  void observe(std::span<const Tensor> inputs, std::span<const Tensor> outputs) const;
  /// Returns copies of the buffers of a module, for passes that are repeated (module.cpp).
  static std::shared_ptr<HeldBuffers> held_buffers(const void* module);

  std::shared_ptr<ForwardObservers> observers_{};  // null until the first one
};

/// A module whose call has the given signature: `LayerOf<Tensor(const Tensor& x, const Tensor& y)>`
/// has forward(x, y). The result may be a struct; observers see its tensors if it has tensors().
template <class Call, class Base = Module> struct LayerOf;
template <class Result, class... Inputs, class Base>
struct LayerOf<Result(Inputs...), Base> : Base {
  using Base::Base;
  /// Calls forward() within this module's call_scope(). Callers use this, not forward().
  Result operator()(Inputs... inputs) const {
    return this->called([&] { return forward(inputs...); }, inputs...);
  }
  /// Computes the layer. As torch.nn.Module.forward.
  virtual Result forward(Inputs... inputs) const = 0;  // override it, as const
};

/// A module that maps one tensor to one tensor: the elements of a Sequential.
struct Layer : LayerOf<Tensor(const Tensor& x)> {};

/// A layer without parameters, buffers and children.
struct StatelessLayer : Layer {
  void describe(Fields&) override {}
};

// A second module with the values of a first: copy.deepcopy(module) in PyTorch. Modules do not copy
// (a copy would share its parameters), so the clone is constructed anew, from the arguments of the
// original, and then filled.

namespace detail {
/// Gives `copy` the values, dtypes, devices, ties, frozen parameters and modes of `source`. Throws
/// UsageError if the two modules have fields of other names or shapes.
void copy_module(Module& source, Module& copy);
}  // namespace detail

/// Constructs M(arguments...) and gives it the values of `source`: parameters and buffers are
/// copies of the same dtype and device. Tied and frozen parameters stay tied and frozen, and
/// submodules keep their modes. Gradients are not copied, and the default generator does not
/// advance. Throws UsageError if the arguments make a module with fields of other names or shapes.
///   nn::Linear copy = nn::clone(layer, 784, 10);
///   nn::models::LeNet teacher = nn::clone(lenet);
template <std::derived_from<Module> M, class... Arguments>
M clone(M& source, Arguments&&... arguments) {
  const RandomKey before = default_generator().state();
  M copy(std::forward<Arguments>(arguments)...);
  default_generator().set_state(before);
  detail::copy_module(source, copy);
  return copy;
}

// Copies of a model's buffers (running statistics, and what user modules write) before a forward
// pass that may not count: its step may be skipped, or the pass repeats another.

class BufferCopies final : public HeldBuffers {
 public:
  BufferCopies() = default;
  /// Copies the model's buffers. The copies count as MemoryUse::workspace.
  explicit BufferCopies(const Module& model);
  bool empty() const { return held_.empty(); }
  void restore() const override;
  bool keep_changed() override;
  std::shared_ptr<HeldBuffers> now() const override;
  /// Returns the name of the first buffer that was written after its copy was made; "" for none.
  std::string first_changed() const;
  /// Restores the buffers if `flag`, an f32 scalar on any device, is not 0. Never waits.
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

// A module's parameters and buffers by name, to and from .safetensors files. Names and layouts are
// PyTorch's, so files can be exchanged in both directions (`safetensors.torch.load_file`).

using halftone::load_safetensors;
using halftone::NamedTensors;
using halftone::SafetensorsFile;
using halftone::save_safetensors;

/// Returns parameters and persistent buffers by name, without gradient history. They share the data
/// of the module. A tensor with several names appears under each.
NamedTensors state_dict(const Module& module);

struct LoadOptions {
  bool strict = true;  // names must agree; shapes must in any case
  /// A prefix to remove from given names: "model." (Lightning), "module." (PyTorch's DDP),
  /// "_orig_mod." (torch.compile), or several, "module._orig_mod.". Other names stay.
  std::string strip_prefix{};
};
/// Names that only the module has (missing) or only the state (unexpected): errors if `strict`.
struct LoadReport {
  std::vector<std::string> missing, unexpected;
};

/// Copies values into the module's tensors in place, and converts them to the module's dtypes and
/// devices. If anything does not fit, throws one error that lists all of it, and changes nothing:
/// ShapeError for shapes, DTypeError for values that the module's dtype cannot hold, UsageError for
/// names, for a shared tensor with different values under its names, and for expanded tensors in
/// the module. If the given names are the module's with a prefix, the error names the prefix.
LoadReport load_state_dict(Module& module, const NamedTensors& state, LoadOptions options = {});

void save(const Module& module, const std::filesystem::path& path);
/// Loads a .safetensors file as load_state_dict() does. For a tensor of the file that no Tensor can
/// hold (see SafetensorsFile::unsupported), throws UnsupportedError if the module has its name;
/// otherwise its name is an unexpected one.
LoadReport load(Module& module, const std::filesystem::path& path, LoadOptions options = {});

namespace detail {
/// Does what load() does, for a file that has been read; `path` is for messages. `hidden`: a prefix
/// that was put before the file's names to match the module's; errors leave it out.
LoadReport load_file(Module& module, SafetensorsFile file, const LoadOptions& options,
                     const std::filesystem::path& path, std::string_view hidden = {});
/// Removes the prefix from names that begin with it. Throws UsageError if two become equal.
void strip_prefix(SafetensorsFile& file, const std::string& prefix);
}  // namespace detail

}  // namespace halftone::nn
