// A small wrapper of cuDNN's graph API (cudnn_backend.h): a Graph collects operations on tensors,
// plan() finds an engine for it, a Plan runs. Plans can be made without a GPU from a description of
// one, so tests on any machine check that engines for these graphs exist.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <halftone/backends/cuda/cudnn/functions.h>

#include <halftone/backends/cuda/context.h>
#include <halftone/backends/cuda/plan_cache.h>
#include <halftone/core/error.h>

namespace halftone::cuda::cudnn {

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

 private:
  Descriptor& add(cudnnBackendDescriptorType_t type);
  void finish(Descriptor& operation, std::string_view what);
  Edge edge(const Shape& shape, const Strides& strides, DType dtype, int64_t alignment,
            bool is_virtual, bool by_value);

  std::deque<Descriptor> parts_;  // everything that operations point to
  std::vector<cudnnBackendDescriptor_t> operations_;
  int64_t next_number_ = 1;
};

}  // namespace halftone::cuda::cudnn
