// cuDNN: its functions, graphs of its operations, and their plans on a GPU.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <cudnn_backend.h>
#include <cudnn_version.h>

#include <halftone/backends/cuda/context.h>
#include <halftone/backends/cuda/libraries.h>
#include <halftone/core/backend.h>
#include <halftone/core/error.h>

namespace halftone::cuda::cudnn {

// The cuDNN functions that halftone uses, looked up when the first GPU is used: programs that never
// use a GPU do not load it.

struct Functions {
  decltype(&cudnnGetVersion) version;
  decltype(&cudnnGetCudartVersion) cudart_version;
  decltype(&cudnnGetErrorString) error_string;
  decltype(&cudnnGetLastErrorString) last_error_string;
  decltype(&cudnnCreate) create;
  decltype(&cudnnSetStream) set_stream;
  decltype(&cudnnBackendCreateDescriptor) create_descriptor;
  decltype(&cudnnBackendDestroyDescriptor) destroy_descriptor;
  decltype(&cudnnBackendSetAttribute) set_attribute;
  decltype(&cudnnBackendGetAttribute) get_attribute;
  decltype(&cudnnBackendFinalize) finalize;
  decltype(&cudnnBackendExecute) execute;
};

/// Returns null if the library is missing, lacks functions, or was made for another CUDA.
const Functions* functions();
/// Returns the functions if cuDNN is known to exist: descriptors and plans exist only then.
inline const Functions& cudnn() { return *functions(); }
/// Returns why functions() is null.
std::string refusal();

// A small wrapper of cuDNN's graph API (cudnn_backend.h): a Graph collects operations on tensors,
// plan() finds an engine for it, a Plan runs. Plans can be made without a GPU from a description of
// one, so tests on any machine check that engines for these graphs exist.

/// cuDNN declines for a reason that may be temporary: no memory, or an error inside it.
struct RefusedForNow : DeviceError {
  using DeviceError::DeviceError;
};

/// Throws DeviceError, which names the operation and cuDNN's own reason; RefusedForNow if the
/// reason may be temporary.
void check_status(cudnnStatus_t status, std::string_view what);

cudnnDataType_t data_type(DType dtype);

/// A cuDNN object with its attributes.
class Descriptor {
 public:
  explicit Descriptor(cudnnBackendDescriptorType_t type);
  ~Descriptor();
  Descriptor(Descriptor&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }

  template <class T>
  void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, const T& value) {
    set_all(name, type, 1, &value);
  }
  void set(cudnnBackendAttributeName_t name, const std::vector<int64_t>& values) {
    set_all(name, CUDNN_TYPE_INT64, int64_t(values.size()), values.data());
  }
  void set(cudnnBackendAttributeName_t name, const Descriptor& other) {
    set_all(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &other.handle_);
  }
  void set_all(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count,
               const void* values);
  /// Returns cuDNN's answer to the attributes.
  Answer try_finalize();
  void finalize(std::string_view what);
  cudnnBackendDescriptor_t get() const { return handle_; }

 private:
  cudnnBackendDescriptor_t handle_ = nullptr;
};

/// A GPU to make plans for: an existing one, or the description of one (JSON, as cuDNN writes it).
class Target {
 public:
  explicit Target(cudnnHandle_t handle) : handle_(handle) {}
  explicit Target(const std::string& description);

  cudnnHandle_t handle() const { return handle_; }
  const Descriptor* description() const { return description_ ? &*description_ : nullptr; }

 private:
  cudnnHandle_t handle_ = nullptr;
  std::optional<Descriptor> description_;
};

/// A graph for which an engine was found.
struct Plan {
  Descriptor descriptor, configuration;  // the plan, and the engine that it uses
  int64_t workspace_bytes = 0;

  /// addresses: by the numbers that Graph gave to its tensors; for scalars, host addresses. Throws
  /// if the device reports an error. If cuDNN declines, nothing has run.
  Outcome run(cudnnHandle_t handle, const Context& context,
              const std::vector<std::pair<int64_t, const void*>>& addresses) const;
};

/// A tensor of a graph.
struct Edge {
  cudnnBackendDescriptor_t descriptor = nullptr;
  int64_t number = 0;
  Shape shape{};
  Strides strides{};
};

/// An engine's permission to round its inputs. none: no rounding, which excludes tensor cores for
/// f32. to_tf32: round f32 to TF32 for tensor cores. any: all roundings, for inputs that are
/// already short.
enum class InputRounding { none, to_tf32, any };

class Graph {
 public:
  /// Adds a tensor in memory; alignment: the power of two that its address is a multiple of, at
  /// most 16.
  Edge tensor(const Shape& shape, const Strides& strides, DType dtype, int64_t alignment = 16);
  /// Adds a tensor that only exists inside the graph.
  Edge inner(const Shape& shape, DType dtype = f32);
  Edge inner(const Shape& shape, const Strides& strides, DType dtype);
  /// Adds a number whose host address is given when the plan runs.
  Edge scalar(int rank = 4);

  void conv(cudnnBackendDescriptorType_t direction, const Edge& x, const Edge& w, const Edge& y,
            const std::vector<int64_t>& padding, const std::vector<int64_t>& stride,
            const std::vector<int64_t>& dilation);
  void pointwise(cudnnPointwiseMode_t mode, const Edge& a, const Edge* b, const Edge& y,
                 const Edge* condition = nullptr);
  void generate_index(const Edge& like, int64_t axis, const Edge& y);
  void reduce(cudnnReduceTensorOp_t mode, const Edge& x, const Edge& y);
  void matmul(const Edge& a, const Edge& b, const Edge& c);
  void reshape(const Edge& x, const Edge& y);

  /// Returns the first engine of cuDNN's choice that gives the same bits in every run and rounds
  /// its inputs at most as allowed; nullopt if there is none. Throws RefusedForNow if there may be
  /// one at another time.
  std::optional<Plan> plan(const Target& target, InputRounding rounding);
  /// Returns up to `most` such engines, the first choice first.
  std::vector<Plan> plans(const Target& target, InputRounding rounding, std::size_t most);

 private:
  Descriptor& add(cudnnBackendDescriptorType_t type);
  void finish(Descriptor& operation, std::string_view what);
  Edge edge(const Shape& shape, const Strides& strides, DType dtype, int64_t alignment,
            bool is_virtual, bool by_value);

  std::deque<Descriptor> parts_;  // everything that operations point to
  std::vector<cudnnBackendDescriptor_t> operations_;
  int64_t next_number_ = 1;
};

// cuDNN on one device: its handle, and its plans (libraries.h), by a key with everything that the
// graph depends on.

/// A graph that can run, with the numbers of its tensors in the order of their addresses. `others`
/// are further engines, until the fastest one is known.
struct ReadyGraph {
  Plan plan;
  std::vector<int64_t> tensors;
  std::vector<Plan> others{};
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
  /// Returns how many engines of a call are wanted: all that are compared, or those up to the one
  /// that was chosen. cuDNN's first choice among the deterministic engines of an f32 convolution
  /// can take twice the time of the best.
  std::size_t engines_for(const Key& key) const;

 private:
  explicit Library(const Context& context);
  Outcome make_graph(const Make& make, std::unique_ptr<ReadyGraph>& graph) const;
  using Addresses = std::vector<std::pair<int64_t, const void*>>;
  /// Leaves the engine that was chosen for a key, or measures all and leaves the fastest. A graph
  /// has its engine from its first run on.
  void choose(const Context& context, const Key& key, const Addresses& addresses,
              ReadyGraph& graph);

  std::mutex mutex_;
  cudnnHandle_t handle_ = nullptr;
  PlanCache<Key, ReadyGraph> graphs_;
  EngineChoices choices_;
};

// The graphs of this folder as functions of tensors' layouts only, so that tests can request plans
// for GPUs that the machine does not have.

/// The properties of a tensor that a graph depends on.
struct Form {
  Shape shape{};
  Strides strides{};
  DType dtype = f32;
  int64_t alignment = 16;

  Form() = default;
  Form(Shape s, Strides t, DType d) : shape(s), strides(t), dtype(d) {}
  explicit Form(const Tensor& x)
      : shape(x.shape()), strides(x.strides()), dtype(x.dtype()), alignment(alignment_of(x)) {}
};
/// Returns a tensor of a graph with this form.
inline Edge edge(Graph& graph, const Form& form) {
  return graph.tensor(form.shape, form.strides, form.dtype, form.alignment);
}

/// Makes the graph of a convolution. Forward: x, w -> y (and bias [1, out, 1, 1] between, if there
/// is one); backward data: x is dx, y is dy; backward filter: w is dw. All are channels-last. f32
/// is rounded to TF32 if tf32 allows it. Tensors in the order x, w, y, bias. With up to
/// most_engines engines to choose from.
std::optional<ReadyGraph> conv_graph(const Target& target, cudnnBackendDescriptorType_t direction,
                                     const Form& x, const Form& w, const Form& y,
                                     const std::optional<Form>& bias, const ConvGeometry& g,
                                     bool tf32 = false, std::size_t most_engines = 1);

/// Makes the graph of softmax(scale q k^T) v, of rank 4. Tensors: q, k, v, y, statistics, scale,
/// minus infinity.
std::optional<ReadyGraph> attention_graph(const Target& target, const Form& q, const Form& k,
                                          const Form& v, const Form& y, const Form& statistics,
                                          bool causal);
/// Makes the graph of its gradients. Tensors: q, k, v, y, statistics, dy, dq, dk, dv, delta (f32,
/// like statistics), scale, one, minus infinity. The engines that give the same bits in every run
/// store the gradient of the weights, of the size of q k^T, in their workspace.
std::optional<ReadyGraph> attention_backward_graph(const Target& target, const Form& q,
                                                   const Form& k, const Form& v, const Form& y,
                                                   const Form& statistics, const Form& dy,
                                                   const Form& dq, const Form& dk, const Form& dv,
                                                   bool causal);

}  // namespace halftone::cuda::cudnn
