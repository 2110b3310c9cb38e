// cuDNN, opened at run time: the one that this build was configured with, or the loader's.
#include <halftone/backends/cuda/cudnn/graph.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <type_traits>

#include <cuda_runtime_api.h>

#include <halftone/backends/cuda/for_cudnn.h>
#include <halftone/backends/cuda/libraries.h>
#include <halftone/backends/opened_library.h>
#include <halftone/core/error.h>

namespace halftone::cuda::cudnn {

namespace {
using Found = LibraryFunctions<Functions>;

bool find_all(OpenedLibrary& library, Functions& f) {
  library.find("cudnnGetVersion", f.version);
  library.find("cudnnGetCudartVersion", f.cudart_version);
  library.find("cudnnGetErrorString", f.error_string);
  library.find("cudnnGetLastErrorString", f.last_error_string);
  library.find("cudnnCreate", f.create);
  library.find("cudnnSetStream", f.set_stream);
  library.find("cudnnBackendCreateDescriptor", f.create_descriptor);
  library.find("cudnnBackendDestroyDescriptor", f.destroy_descriptor);
  library.find("cudnnBackendSetAttribute", f.set_attribute);
  library.find("cudnnBackendGetAttribute", f.get_attribute);
  library.find("cudnnBackendFinalize", f.finalize);
  library.find("cudnnBackendExecute", f.execute);
  return library.complete();
}

Found found_library() {
  const std::string name = "libcudnn.so." + std::to_string(CUDNN_MAJOR);
  OpenedLibrary library({HALFTONE_CUDNN_PATH, name});
  if (!library.is_open())
    return {{}, library.error() + ". Install cuDNN " + std::to_string(CUDNN_MAJOR)};
  Found found;
  if (!find_all(library, found.functions)) return {{}, "cuDNN lacks functions"};
  // With another CUDA than its own it may fail at unpredictable points.
  found.refusal = cudnn_refusal(int(found.functions.cudart_version()), CUDART_VERSION);
  return found;
}
}  // namespace

const Functions* functions() { return Found::once<found_library>().get(); }
std::string refusal() { return Found::once<found_library>().refusal; }

// Operations as descriptors, and the search for an engine.

namespace {
constexpr int64_t largest_workspace = int64_t(1) << 30;

std::string reason() {
  std::array<char, 1024> text{};
  cudnn().last_error_string(text.data(), text.size());
  return text.data();
}
std::vector<int64_t> numbers(const Dims& dims) { return {dims.begin(), dims.end()}; }
}  // namespace

void check_status(cudnnStatus_t status, std::string_view what) {
  const auto refuse = [&]<class Kind>(std::type_identity<Kind>) {
    fail<Kind>("cudnn", what, " failed: ", cudnn().error_string(status), ", ", reason(), " (cuDNN ",
               cudnn().version(), "). Set HALFTONE_CUDA_LIBRARIES=off to go without it.");
  };
  switch (answer_of_cudnn(status)) {
    case Answer::done: return;
    case Answer::unsupported: refuse(std::type_identity<DeviceError>{}); break;
    case Answer::not_now: refuse(std::type_identity<RefusedForNow>{});
  }
}

cudnnDataType_t data_type(DType dtype) {
  switch (dtype) {
    case f64: return CUDNN_DATA_DOUBLE;
    case f32: return CUDNN_DATA_FLOAT;
    case f16: return CUDNN_DATA_HALF;
    case bf16: return CUDNN_DATA_BFLOAT16;
    case i32: return CUDNN_DATA_INT32;
    case boolean: return CUDNN_DATA_BOOLEAN;
    default: return CUDNN_DATA_FLOAT;  // not reached: no graph has such tensors
  }
}

// --- Descriptor

Descriptor::Descriptor(cudnnBackendDescriptorType_t type) {
  check_status(cudnn().create_descriptor(type, &handle_), "making a descriptor");
}
Descriptor::~Descriptor() {
  if (handle_) cudnn().destroy_descriptor(handle_);
}
void Descriptor::set_all(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                         int64_t count, const void* values) {
  check_status(cudnn().set_attribute(handle_, name, type, count, values), "setting an attribute");
}
Answer Descriptor::try_finalize() { return answer_of_cudnn(cudnn().finalize(handle_)); }
void Descriptor::finalize(std::string_view what) { check_status(cudnn().finalize(handle_), what); }

Target::Target(const std::string& description)
    : description_(std::in_place, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR) {
  description_->set_all(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
                        int64_t(description.size()), description.data());
  description_->finalize("reading the description of a GPU");
}

// --- Graph

Edge Graph::edge(const Shape& shape, const Strides& strides, DType dtype, int64_t alignment,
                 bool is_virtual, bool by_value) {
  Descriptor& t = add(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  const int64_t number = next_number_++;
  t.set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, data_type(dtype));
  t.set(CUDNN_ATTR_TENSOR_DIMENSIONS, numbers(shape));
  t.set(CUDNN_ATTR_TENSOR_STRIDES, numbers(strides));
  t.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, number);
  t.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, alignment);
  t.set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, is_virtual);
  t.set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, by_value);
  t.finalize("describing a tensor");
  return {t.get(), number, shape, strides};
}
Edge Graph::tensor(const Shape& shape, const Strides& strides, DType dtype, int64_t alignment) {
  return edge(shape, strides, dtype, alignment, false, false);
}
Edge Graph::inner(const Shape& shape, DType dtype) {
  return edge(shape, contiguous_strides(shape), dtype, 16, true, false);
}
Edge Graph::inner(const Shape& shape, const Strides& strides, DType dtype) {
  return edge(shape, strides, dtype, 16, true, false);
}
Edge Graph::scalar(int rank) {
  return edge(Dims::filled(rank, 1), Dims::filled(rank, 1), f32, 4, false, true);
}

Descriptor& Graph::add(cudnnBackendDescriptorType_t type) { return parts_.emplace_back(type); }

void Graph::finish(Descriptor& operation, std::string_view what) {
  operation.finalize(what);
  operations_.push_back(operation.get());
}

namespace {
/// The attributes of the three directions of a convolution, in matching positions.
struct ConvNames {
  cudnnBackendAttributeName_t description, alpha, beta, x, w, y;
};
ConvNames conv_names(cudnnBackendDescriptorType_t direction) {
  switch (direction) {
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR:
      return {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY};
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR:
      return {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY};
    default:
      return {CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y};
  }
}
}  // namespace

void Graph::conv(cudnnBackendDescriptorType_t direction, const Edge& x, const Edge& w,
                 const Edge& y, const std::vector<int64_t>& padding,
                 const std::vector<int64_t>& stride, const std::vector<int64_t>& dilation) {
  Descriptor& c = add(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
  c.set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
  c.set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, CUDNN_CROSS_CORRELATION);
  c.set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, int64_t(padding.size()));
  c.set(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, padding);
  c.set(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, padding);
  c.set(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, stride);
  c.set(CUDNN_ATTR_CONVOLUTION_DILATIONS, dilation);
  c.finalize("describing a convolution");
  const ConvNames names = conv_names(direction);
  Descriptor& operation = add(direction);
  operation.set(names.description, c);
  operation.set(names.alpha, CUDNN_TYPE_FLOAT, 1.0f);
  operation.set(names.beta, CUDNN_TYPE_FLOAT, 0.0f);
  operation.set(names.x, CUDNN_TYPE_BACKEND_DESCRIPTOR, x.descriptor);
  operation.set(names.w, CUDNN_TYPE_BACKEND_DESCRIPTOR, w.descriptor);
  operation.set(names.y, CUDNN_TYPE_BACKEND_DESCRIPTOR, y.descriptor);
  finish(operation, "adding a convolution");
}

void Graph::pointwise(cudnnPointwiseMode_t mode, const Edge& a, const Edge* b, const Edge& y,
                      const Edge* condition) {
  Descriptor& p = add(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  p.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, mode);
  p.set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
  p.finalize("describing an elementwise operation");
  Descriptor& operation = add(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  operation.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, p);
  const auto put = [&](cudnnBackendAttributeName_t name, const Edge& edge) {
    operation.set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, edge.descriptor);
  };
  put(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, a);
  if (b) put(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, *b);
  if (condition) put(CUDNN_ATTR_OPERATION_POINTWISE_TDESC, *condition);
  put(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
  finish(operation, "adding an elementwise operation");
}

void Graph::generate_index(const Edge& like, int64_t axis, const Edge& y) {
  Descriptor& p = add(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  p.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, CUDNN_POINTWISE_GEN_INDEX);
  p.set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_INT32);
  p.set(CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, axis);
  p.finalize("describing an index");
  Descriptor& operation = add(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  operation.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, p);
  operation.set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                like.descriptor);
  operation.set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, y.descriptor);
  finish(operation, "adding an index");
}

void Graph::reduce(cudnnReduceTensorOp_t mode, const Edge& x, const Edge& y) {
  Descriptor& r = add(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
  r.set(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, mode);
  r.set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
  r.finalize("describing a reduction");
  Descriptor& operation = add(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
  operation.set(CUDNN_ATTR_OPERATION_REDUCTION_DESC, r);
  operation.set(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, x.descriptor);
  operation.set(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, y.descriptor);
  finish(operation, "adding a reduction");
}

void Graph::matmul(const Edge& a, const Edge& b, const Edge& c) {
  Descriptor& m = add(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
  m.set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
  m.finalize("describing a product");
  Descriptor& operation = add(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
  operation.set(CUDNN_ATTR_OPERATION_MATMUL_DESC, m);
  operation.set(CUDNN_ATTR_OPERATION_MATMUL_ADESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, a.descriptor);
  operation.set(CUDNN_ATTR_OPERATION_MATMUL_BDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, b.descriptor);
  operation.set(CUDNN_ATTR_OPERATION_MATMUL_CDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, c.descriptor);
  finish(operation, "adding a product");
}

void Graph::reshape(const Edge& x, const Edge& y) {
  Descriptor& operation = add(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
  operation.set(CUDNN_ATTR_OPERATION_RESHAPE_XDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, x.descriptor);
  operation.set(CUDNN_ATTR_OPERATION_RESHAPE_YDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, y.descriptor);
  finish(operation, "adding a reshape");
}

// --- the search for an engine

namespace {
/// Returns the configurations that a heuristic proposes, best first.
std::vector<Descriptor> proposals(const Descriptor& graph, const Target& target,
                                  cudnnBackendHeurMode_t mode) {
  Descriptor heuristic(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  heuristic.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
  heuristic.set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, mode);
  if (target.description()) heuristic.set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, *target.description());
  if (heuristic.try_finalize() != Answer::done) return {};
  int64_t count = 0;
  cudnn().get_attribute(heuristic.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                        CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &count, nullptr);
  std::vector<Descriptor> found;
  std::vector<cudnnBackendDescriptor_t> handles;
  for (int64_t i = 0; i < count; ++i)
    handles.push_back(found.emplace_back(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR).get());
  cudnn().get_attribute(heuristic.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                        CUDNN_TYPE_BACKEND_DESCRIPTOR, count, &count, handles.data());
  found.erase(found.begin() + std::min<int64_t>(count, int64_t(found.size())), found.end());
  return found;
}

/// Returns an engine's notes about its arithmetic.
std::vector<cudnnBackendNumericalNote_t> notes_of(const Descriptor& configuration) {
  Descriptor engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  cudnnBackendDescriptor_t handle = engine.get();
  int64_t count = 0;
  if (cudnn().get_attribute(configuration.get(), CUDNN_ATTR_ENGINECFG_ENGINE,
                            CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count,
                            &handle) != CUDNN_STATUS_SUCCESS)
    return {};
  std::vector<cudnnBackendNumericalNote_t> notes(CUDNN_NUMERICAL_NOTE_TYPE_COUNT);
  cudnn().get_attribute(handle, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                        int64_t(notes.size()), &count, notes.data());
  notes.resize(std::size_t(count));
  return notes;
}

bool acceptable(const Descriptor& configuration, InputRounding rounding) {
  for (const cudnnBackendNumericalNote_t note : notes_of(configuration)) {
    if (note == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC ||
        note == CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION)
      return false;
    if (note == CUDNN_NUMERICAL_NOTE_TENSOR_CORE && rounding == InputRounding::none) return false;
    if ((note == CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS || note == CUDNN_NUMERICAL_NOTE_FFT) &&
        rounding != InputRounding::any)
      return false;
  }
  return true;
}
}  // namespace

std::optional<Plan> Graph::plan(const Target& target, InputRounding rounding) {
  std::vector<Plan> found = plans(target, rounding, 1);
  return found.empty() ? std::nullopt : std::optional(std::move(found.front()));
}

std::vector<Plan> Graph::plans(const Target& target, InputRounding rounding, std::size_t most) {
  Descriptor graph(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  graph.set_all(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                int64_t(operations_.size()), operations_.data());
  if (target.handle())
    graph.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, target.handle());
  bool may_pass = false;
  const auto finalized = [&](Descriptor& descriptor) {
    const Answer answer = descriptor.try_finalize();
    may_pass |= answer == Answer::not_now;
    return answer == Answer::done;
  };
  std::vector<Plan> found;
  const auto all = [&] {
    if (found.empty() && may_pass)
      fail<RefusedForNow>("cudnn", "no plan could be made now: ", reason(), " (cuDNN ",
                          cudnn().version(),
                          "). Set HALFTONE_CUDA_LIBRARIES=off to go without it.");
    return std::move(found);
  };
  if (!finalized(graph)) return all();
  for (const cudnnBackendHeurMode_t mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK})
    for (Descriptor& configuration : proposals(graph, target, mode)) {
      if (!acceptable(configuration, rounding)) continue;
      Plan plan{Descriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR), std::move(configuration)};
      plan.descriptor.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, plan.configuration);
      if (target.handle())
        plan.descriptor.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, target.handle());
      else plan.descriptor.set(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, *target.description());
      if (!finalized(plan.descriptor)) continue;
      int64_t count = 0;
      cudnn().get_attribute(plan.descriptor.get(), CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                            CUDNN_TYPE_INT64, 1, &count, &plan.workspace_bytes);
      if (plan.workspace_bytes <= largest_workspace) found.push_back(std::move(plan));
      if (found.size() == most) return all();
    }
  return all();
}

Outcome Plan::run(cudnnHandle_t handle, const Context& context,
                  const std::vector<std::pair<int64_t, const void*>>& addresses) const {
  const std::optional<Tensor> room = workspace(context, workspace_bytes);
  if (!room) return {Answer::not_now, "no memory for its workspace"};
  std::vector<int64_t> ids;
  std::vector<const void*> pointers;
  for (const auto& [number, address] : addresses)
    ids.push_back(number), pointers.push_back(address);
  const void* const workspace_data = workspace_bytes > 0 ? room->raw_data() : nullptr;
  Descriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, ids);
  pack.set_all(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, int64_t(pointers.size()),
               pointers.data());
  pack.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, workspace_data);
  pack.finalize("collecting addresses");
  check_status(cudnn().set_stream(handle, context.stream()), "choosing a stream");
  const cudnnStatus_t status = cudnn().execute(handle, descriptor.get(), pack.get());
  // An error of the device: the work may have begun.
  if (status / 1000 == CUDNN_STATUS_EXECUTION_FAILED / 1000) check_status(status, "running a plan");
  return {answer_of_cudnn(status), status == CUDNN_STATUS_SUCCESS ? "" : reason()};
}

// Opening cuDNN, once per device.

namespace {
/// The number of cached plans; an engine compiled for a plan has code on the device.
constexpr std::size_t most_plans = 512;
}  // namespace

bool usable() { return libraries_wanted() && functions(); }

std::string description() {
  if (!functions()) return refusal();
  const std::size_t version = cudnn().version();
  return "cuDNN " + std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) +
         "." + std::to_string(version % 100) +
         (EngineChoices::usual_path().empty() ? ", first engines" : ", engines by time");
}

int64_t alignment_of(const Tensor& x) {
  const auto address = reinterpret_cast<uintptr_t>(x.raw_data());
  return address == 0 ? 16 : std::min<int64_t>(16, int64_t(address & (~address + 1)));
}

void append(Key& key, const Tensor& x) {
  key.push_back(x.defined() ? int64_t(x.dtype()) : -1);
  if (!x.defined()) return;
  key.push_back(alignment_of(x));
  for (const Dims& dims : {x.shape(), x.strides()}) key.insert(key.end(), dims.begin(), dims.end());
}

Library& Library::of(const Context& context) {
  static std::mutex mutex;
  static auto* const libraries = new std::map<int, std::unique_ptr<Library>>;
  const std::lock_guard lock(mutex);
  std::unique_ptr<Library>& library = (*libraries)[context.device().index];
  if (!library) library.reset(new Library(context));
  return *library;
}

std::string text_of(std::initializer_list<const Tensor*> tensors) {
  PlainText text;
  for (const Tensor* x : tensors)
    if (x->defined()) text << (text.str().empty() ? "" : ", ") << described(*x);
  return text.str();
}

namespace {
std::string name_of(int device) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device), "reading the name of a GPU");
  return properties.name;
}

/// Returns the milliseconds of a run, the least of some; nullopt if cuDNN declines.
std::optional<float> milliseconds_of(
    const Plan& plan, cudnnHandle_t handle, const Context& context,
    const std::vector<std::pair<int64_t, const void*>>& addresses) {
  struct Event {
    cudaEvent_t event = nullptr;
    Event() { check(cudaEventCreateWithFlags(&event, cudaEventDefault), "creating an event"); }
    ~Event() { cudaEventDestroy(event); }
  };
  const Event begin, end;
  float least = std::numeric_limits<float>::infinity();
  for (int turn = 0; turn < 4; ++turn) {  // the first loads code
    check(cudaEventRecord(begin.event, context.stream()), "recording an event");
    if (plan.run(handle, context, addresses).answer != Answer::done) return std::nullopt;
    check(cudaEventRecord(end.event, context.stream()), "recording an event");
    check(cudaEventSynchronize(end.event), "waiting for an event");
    float now = 0;
    check(cudaEventElapsedTime(&now, begin.event, end.event), "reading an event");
    if (turn > 0) least = std::min(least, now);
  }
  return least;
}
}  // namespace

std::size_t Library::engines_for(const Key& key) const {
  constexpr std::size_t most_measured = 10;
  if (!choices_.kept()) return 1;
  const std::optional<std::size_t> choice = choices_.of(key);
  return choice && *choice < most_measured ? *choice + 1 : most_measured;
}

void Library::choose(const Context& context, const Key& key, const Addresses& addresses,
                     ReadyGraph& graph) {
  std::optional<std::size_t> choice = choices_.of(key);
  // A captured step must not record measurements. Its replays keep the plan, so the first choice
  // stays in this program.
  if (!choice && context.capturing()) choice = 0;
  if (!choice || *choice > graph.others.size()) {
    choice = 0;
    // A later engine must be clearly faster: noise decides nothing.
    constexpr float clearly = 0.97f;
    float least = std::numeric_limits<float>::infinity();
    for (std::size_t i = 0; i <= graph.others.size(); ++i) {
      const Plan& plan = i == 0 ? graph.plan : graph.others[i - 1];
      const std::optional<float> now = milliseconds_of(plan, handle_, context, addresses);
      if (now && *now < least * clearly) least = *now, choice = i;
    }
    choice = std::min(choices_.keep(key, *choice), graph.others.size());
  }
  if (*choice > 0) graph.plan = std::move(graph.others[*choice - 1]);
  graph.others.clear();
}

Library::Library(const Context& context)
    : graphs_(most_plans,
              [&context] {
                check(cudaStreamSynchronize(context.stream()),
                      "waiting for plans that are given up");
              }),
      choices_(EngineChoices::usual(name_of(context.device().index) + " " +
                                    std::to_string(cudnn().version()))) {
  context.activate();
  check_status(cudnn().create(&handle_), "opening it");
}

Outcome Library::make_graph(const Make& make, std::unique_ptr<ReadyGraph>& graph) const {
  try {
    std::optional<ReadyGraph> made = make(Target(handle_));
    if (!made) return {Answer::unsupported, "it has no engine that gives the same bits each time"};
    graph = std::make_unique<ReadyGraph>(std::move(*made));
    return {};
  } catch (const RefusedForNow& refused) {
    return {Answer::not_now, refused.what()};
  } catch (const DeviceError& refused) {  // while describing: nothing has run
    return {Answer::unsupported, refused.what()};
  }
}

bool Library::run(Context& context, Family family, const std::string& call, const Key& key,
                  const Make& make, const std::vector<const void*>& addresses) {
  context.activate();
  const auto run_graph = [&](ReadyGraph& graph) {
    std::vector<std::pair<int64_t, const void*>> pairs;
    for (std::size_t i = 0; i < addresses.size(); ++i)
      pairs.emplace_back(graph.tensors[i], addresses[i]);
    if (!graph.others.empty()) choose(context, key, pairs, graph);
    return graph.plan.run(handle_, context, pairs);
  };
  const Outcome outcome =
      graphs_.run(key, {.make = [&](auto& graph) { return make_graph(make, graph); },
                        .run = run_graph,
                        .trim = [&] { context.memory().trim(); },
                        .recorded = context.capturing()});
  if (outcome.answer == Answer::done) return true;
  if (log_wanted()) say_declined(By::cudnn, family, call, outcome.why);
  return false;
}

}  // namespace halftone::cuda::cudnn
