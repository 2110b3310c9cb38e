// All differences between oneDNN 2.6 and 3.x, and the shared parts of the wrappers: engine, stream,
// descriptors, the plan cache, and the execution of a plan. No other file mentions a version.
#include <halftone/backends/cpu/onednn/onednn.h>

#if HALFTONE_HAVE_ONEDNN

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <dnnl.hpp>
#include <omp.h>

#include <halftone/backends/reference/loops.h>
#include <halftone/backends/team.h>
#include <halftone/core/device.h>
#include <halftone/core/files.h>
#include <halftone/core/tensor.h>

namespace halftone::onednn {

dnnl::engine& engine();
dnnl::stream& stream();
/// Returns the oneDNN dtype, if this backend uses oneDNN for it: f32, and bf16 if there are
/// instructions for it.
std::optional<dnnl::memory::data_type> data_type(DType dtype);

/// Builds a primitive description. oneDNN 2 first needs an operation descriptor, 3 takes its
/// arguments directly. `hint` is the forward description if a backward one needs it.
template <class Primitive, class Hint, class... Arguments>
typename Primitive::primitive_desc describe(const dnnl::primitive_attr& attributes,
                                            const Hint& hint, const Arguments&... arguments) {
  using Description = typename Primitive::primitive_desc;
  constexpr bool hinted = !std::is_same_v<Hint, std::nullopt_t>;
  if constexpr (requires { typename Primitive::desc; }) {
    const typename Primitive::desc operation(arguments...);
    if constexpr (hinted) return Description(operation, attributes, engine(), hint);
    else return Description(operation, attributes, engine());
  } else {
    if constexpr (hinted) return Description(engine(), arguments..., hint, attributes);
    else return Description(engine(), arguments..., attributes);
  }
}

/// Returns the number of threads for oneDNN: one inside another region, else cpu_threads(), which a
/// parallel region does get. omp_get_max_threads(), which oneDNN calls, may return more.
int team_size();
/// While it exists, omp_get_max_threads() is `threads`, and OpenMP does not take threads away.
/// oneDNN cuts its work into that many parts, and its kernels wait for that many threads.
class TeamScope {
 public:
  explicit TeamScope(int threads = team_size());
  ~TeamScope();
  TeamScope(const TeamScope&) = delete;
  TeamScope& operator=(const TeamScope&) = delete;

 private:
  int threads_before_, dynamic_before_;
};

/// The identity of a plan as numbers: the operation, team_size(), shapes, strides, dtypes and
/// attributes.
using PlanKey = std::vector<int64_t>;
struct PlanKeyHash {
  std::size_t operator()(const PlanKey& key) const {
    std::size_t h = 1469598103934665603ull;
    for (int64_t v : key) h = (h ^ std::size_t(v)) * 1099511628211ull;
    return h;
  }
};

/// An argument for which the primitive may need another layout than the tensor's.
struct Layout {
  dnnl::memory::desc plain, wanted;
  std::optional<dnnl::reorder> reorder;  // plain -> wanted for inputs, wanted -> plain for outputs
};
Layout input_layout(const dnnl::memory::desc& plain, const dnnl::memory::desc& wanted);
Layout output_layout(const dnnl::memory::desc& plain, const dnnl::memory::desc& wanted);

/// A built primitive with the layouts of its arguments, by oneDNN argument number.
struct Plan {
  dnnl::primitive primitive;
  std::vector<std::pair<int, Layout>> inputs{}, outputs{};
  int64_t scratchpad_bytes = 0;
  dnnl::memory::desc scratchpad{};
  std::string implementation{};
};

/// Returns the plan for a key, built by `build` the first time. Returns null if oneDNN refuses, or
/// would use its scalar reference implementation. Forgets all plans when there are 4,096, so that a
/// program whose shapes always change does not grow. Thread-safe.
std::shared_ptr<const Plan> plan_for(std::string_view op, const PlanKey& key,
                                     const std::function<Plan()>& build);

/// Fills in the values that every plan takes from its primitive description.
template <class Description> void finish(Plan& plan, const Description& description) {
  plan.scratchpad = description.scratchpad_desc();
  plan.scratchpad_bytes = int64_t(plan.scratchpad.get_size());
  plan.implementation = description.impl_info_str();
}
/// Returns the attributes of all plans: scratch memory comes from halftone, so that the ledger
/// counts it.
dnnl::primitive_attr user_scratchpad();

/// Runs a plan on raw pointers, given in the order of its inputs and outputs. Converts library
/// errors to DeviceError.
void execute(std::string_view op, const std::shared_ptr<const Plan>& plan,
             std::span<const void* const> inputs, std::span<void* const> outputs);

// Engine, plan cache and execution.

namespace {
constexpr std::size_t most_plans = 4096;  // about 70 KB each
thread_local std::shared_ptr<const Plan> last_plan;

struct Plans {
  std::mutex mutex;
  std::unordered_map<PlanKey, std::shared_ptr<const Plan>, PlanKeyHash> built;  // null: declined
};
Plans& plans() {
  static Plans* instance = new Plans;  // never destroyed: oneDNN's own statics may be destroyed
                                       // first
  return *instance;
}

std::string version() {
  const dnnl_version_t* v = dnnl_version();
  return "oneDNN " + std::to_string(v->major) + '.' + std::to_string(v->minor) + '.' +
         std::to_string(v->patch);
}

/// Limits oneDNN to the set that HALFTONE_MAX_ISA names. ONEDNN_MAX_CPU_ISA wins if it is set.
void cap_instructions() {
  using dnnl::cpu_isa;
  const char* cap = environment_variable("HALFTONE_MAX_ISA");
  if (!cap || environment_variable("ONEDNN_MAX_CPU_ISA")) return;
  constexpr std::array<std::pair<std::string_view, cpu_isa>, 4> sets{
      {{"baseline", cpu_isa::sse41},
       {"avx2", cpu_isa::avx2},
       {"avx512", cpu_isa::avx512_core},
       {"avx512_bf16", cpu_isa::avx512_core_bf16}}};
  for (const auto& [name, isa] : sets)
    if (name == cap) dnnl::set_max_cpu_isa(isa);
}

/// Returns whether oneDNN, with or without a cap, has instructions for bf16. Without them it
/// emulates bf16 on AVX-512 at a third of the speed of f32.
bool bf16_is_native() {
  static const bool native = [] {
    engine();
    constexpr auto wanted = unsigned(dnnl::cpu_isa::avx512_core_bf16);  // a set of bits
    return (unsigned(dnnl::get_effective_cpu_isa()) & wanted) == wanted;
  }();
  return native;
}
}  // namespace

int team_size() { return omp_in_parallel() ? 1 : cpu_threads(); }

TeamScope::TeamScope(int threads)
    : threads_before_(omp_get_max_threads()), dynamic_before_(omp_get_dynamic()) {
  omp_set_num_threads(threads);
  omp_set_dynamic(0);
}
TeamScope::~TeamScope() {
  omp_set_num_threads(threads_before_);
  omp_set_dynamic(dynamic_before_);
}

dnnl::engine& engine() {
  static dnnl::engine* instance = [] {
    cap_instructions();
    return new dnnl::engine(dnnl::engine::kind::cpu, 0);
  }();
  return *instance;
}

dnnl::stream& stream() {
  thread_local dnnl::stream instance(engine());
  return instance;
}

std::optional<dnnl::memory::data_type> data_type(DType dtype) {
  if (dtype == f32) return dnnl::memory::data_type::f32;
  if (dtype == bf16 && bf16_is_native()) return dnnl::memory::data_type::bf16;
  return std::nullopt;
}

Layout input_layout(const dnnl::memory::desc& plain, const dnnl::memory::desc& wanted) {
  Layout layout{plain, wanted, {}};
  if (plain != wanted) layout.reorder = dnnl::reorder({engine(), plain, engine(), wanted});
  return layout;
}

Layout output_layout(const dnnl::memory::desc& plain, const dnnl::memory::desc& wanted) {
  Layout layout{plain, wanted, {}};
  if (plain != wanted) layout.reorder = dnnl::reorder({engine(), wanted, engine(), plain});
  return layout;
}

dnnl::primitive_attr user_scratchpad() {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attributes;
}

std::shared_ptr<const Plan> plan_for(std::string_view op, const PlanKey& key,
                                     const std::function<Plan()>& build) {
  const std::lock_guard lock(plans().mutex);
  if (plans().built.size() >= most_plans && !plans().built.contains(key)) plans().built.clear();
  const auto [place, is_new] = plans().built.try_emplace(key);
  if (is_new) {
    const TeamScope team;
    try {
      Plan plan = build();
      const bool scalar =
          plan.implementation.starts_with("ref") || plan.implementation.starts_with("simple");
      if (!scalar) place->second = std::make_shared<const Plan>(std::move(plan));
    } catch (const dnnl::error& error) {
      // A request that has no primitive, or that oneDNN calls invalid (for example a negative
      // padding after a dilated window), is declined and goes to the own kernels; only lack of
      // memory is an error.
      if (error.status == dnnl_out_of_memory) {
        plans().built.erase(place);
        fail<DeviceError>(running_operation(op), version(),
                          " cannot build the primitive: ", error.what(),
                          ". Set HALFTONE_CPU_BACKEND=reference to go on without it.");
      }
    } catch (...) {  // otherwise later calls would find a declined plan
      plans().built.erase(place);
      throw;
    }
  }
  return place->second;
}

void execute(std::string_view op, const std::shared_ptr<const Plan>& shared,
             std::span<const void* const> inputs, std::span<void* const> outputs) {
  const Plan& plan = *shared;
  using reference::Workspace;
  const TeamScope team;
  std::vector<std::unique_ptr<Workspace<std::byte>>> temporaries;
  std::unordered_map<int, dnnl::memory> arguments;
  std::vector<std::pair<dnnl::memory, dnnl::memory>> results;  // reordered outputs: wanted, plain
  const auto temporary = [&](const dnnl::memory::desc& desc) {
    temporaries.push_back(std::make_unique<Workspace<std::byte>>(int64_t(desc.get_size())));
    return dnnl::memory(desc, engine(), temporaries.back()->data());
  };
  try {
    for (std::size_t i = 0; i < plan.inputs.size(); ++i) {
      const auto& [name, layout] = plan.inputs[i];
      dnnl::memory plain(layout.plain, engine(), const_cast<void*>(inputs[i]));
      if (layout.reorder) {
        dnnl::memory wanted = temporary(layout.wanted);
        layout.reorder->execute(stream(), plain, wanted);
        plain = wanted;
      }
      arguments.emplace(name, plain);
    }
    for (std::size_t i = 0; i < plan.outputs.size(); ++i) {
      const auto& [name, layout] = plan.outputs[i];
      dnnl::memory plain(layout.plain, engine(), outputs[i]);
      if (layout.reorder) results.emplace_back(temporary(layout.wanted), plain);
      arguments.emplace(name, layout.reorder ? results.back().first : plain);
    }
    if (plan.scratchpad_bytes > 0)
      arguments.emplace(DNNL_ARG_SCRATCHPAD, temporary(plan.scratchpad));
    plan.primitive.execute(stream(), arguments);
    std::size_t next = 0;
    for (const auto& [name, layout] : plan.outputs)
      if (layout.reorder) {
        layout.reorder->execute(stream(), results[next].first, results[next].second);
        ++next;
      }
    stream().wait();
  } catch (const dnnl::error& error) {
    fail<DeviceError>(running_operation(op), version(), " failed in ", plan.implementation, ": ",
                      error.what(), ". Set HALFTONE_CPU_BACKEND=reference to go on without it.");
  }
  last_plan = shared;
}

std::string description() { return version(); }
std::string last_implementation() { return last_plan ? last_plan->implementation : std::string(); }

// Convolutions. Data stays NHWC. oneDNN chooses the weights' layout; the wrapper converts from and
// to PyTorch's.

namespace {
using Dims4 = dnnl::memory::dims;
using Tag = dnnl::memory::format_tag;
using Desc = dnnl::memory::desc;

/// The descriptors and numbers of one convolution: x -> y with weights w.
struct Problem {
  Desc x, y, w_any, w_plain, w_forward, bias;  // w_forward: of the forward convolution, x's dtype
  Dims4 stride, dilation, padding_before, padding_after;
  PlanKey key;
  bool has_bias;

  Problem(int operation, const Tensor& x_in, const Tensor& w, const Tensor& bias_in,
          const Tensor& y_in, const ConvGeometry& g)
      : has_bias(bias_in.defined()) {
    const auto dims = [](const Tensor& t) { return Dims4(t.shape().begin(), t.shape().end()); };
    const auto type = *data_type(x_in.dtype()), w_type = *data_type(w.dtype());
    x = Desc(dims(x_in), type, Tag::nhwc),
    y = Desc(dims(y_in), *data_type(y_in.dtype()), Tag::nhwc);
    const int64_t out = w.shape()[0] / g.groups;
    const Dims4 w_dims =
        g.groups == 1 ? dims(w) : Dims4{g.groups, out, w.shape()[1], w.shape()[2], w.shape()[3]};
    w_any = Desc(w_dims, w_type, Tag::any), w_forward = Desc(w_dims, type, Tag::any);
    const bool plain = w.is_contiguous();
    if (g.groups == 1) w_plain = Desc(w_dims, w_type, plain ? Tag::oihw : Tag::ohwi);
    else w_plain = Desc(w_dims, w_type, plain ? Tag::goihw : Tag::gohwi);
    bias = has_bias ? Desc({w.shape()[0]}, *data_type(bias_in.dtype()), Tag::x) : Desc();
    key = {operation,          team_size(),           int64_t(x_in.dtype()),
           int64_t(w.dtype()), int64_t(y_in.dtype()), has_bias ? int64_t(bias_in.dtype()) : -1,
           g.groups,           int64_t(plain)};
    for (const Tensor* t : {&x_in, &w, &y_in})
      key.insert(key.end(), t->shape().begin(), t->shape().end());
    for (std::size_t d : {0u, 1u}) {
      stride.push_back(g.stride[d]), dilation.push_back(g.dilation[d] - 1),
          padding_before.push_back(g.padding[d]);
      // Pixels after the last window are cut off: negative padding in oneDNN's terms.
      const int64_t span = g.dilation[d] * (w.shape()[2 + int(d)] - 1) + 1;
      padding_after.push_back((y_in.shape()[2 + int(d)] - 1) * g.stride[d] + span -
                              x_in.shape()[2 + int(d)] - g.padding[d]);
      key.insert(key.end(), {g.stride[d], g.dilation[d], g.padding[d]});
    }
  }

  dnnl::convolution_forward::primitive_desc forward() const {
    constexpr auto kind = dnnl::prop_kind::forward_training;
    constexpr auto algorithm = dnnl::algorithm::convolution_direct;
    return describe<dnnl::convolution_forward>(user_scratchpad(), std::nullopt, kind, algorithm, x,
                                               w_forward, bias, y, stride, dilation, padding_before,
                                               padding_after);
  }
};

/// Returns whether every window touches the image and fewer pixels than a stride are left after the
/// last one, as in usual networks. For other geometries version 2.6 writes outside of its buffers.
bool is_ordinary(const Tensor& x, const Tensor& w, const ConvGeometry& g, const Tensor& y) {
  for (int i : {0, 1}) {
    const auto d = std::size_t(i);
    const int64_t span = g.dilation[d] * (w.shape()[2 + i] - 1) + 1, in = x.shape()[2 + i],
                  after = (y.shape()[2 + i] - 1) * g.stride[d] + span - in - g.padding[d];
    if (g.padding[d] >= span || after >= span || after <= -g.stride[d] || span > in + g.padding[d])
      return false;
  }
  return true;
}

bool served(const Tensor& x, const Tensor& w, const Tensor& bias, const ConvGeometry& g,
            const Tensor& y) {
  return is_ordinary(x, w, g, y) && data_type(x.dtype()) && data_type(w.dtype()) &&
         data_type(y.dtype()) && (!bias.defined() || data_type(bias.dtype())) && x.numel() > 0 &&
         y.numel() > 0;
}

/// Returns whether oneDNN would compute a wrong y. Version 3.7 does on AVX-512 for one input
/// channel per group (brg_conv_fwd:avx512_core) if windows step sideways and y is one pixel wide.
/// Version 2.6 does in bf16 on AMX (brgconv:avx512_core_amx_bf16) if kernels of several taps are
/// smaller than a stride. It also rounds the width of its copy of x up to a multiple of the stride,
/// and writes past that copy unless rows of padding make room.
bool miscomputes(const Tensor& w, const ConvGeometry& g, const Tensor& y) {
  const auto [rows, columns] = g.stride;
  const int64_t kernel_height = w.shape()[2], kernel_width = w.shape()[3];
  const int64_t height = (y.shape()[2] - 1) * rows + kernel_height,
                width = (y.shape()[3] - 1) * columns + kernel_width;
  const int64_t beyond = (columns - width % columns) % columns;
  const bool of_amx =
      w.dtype() == bf16 && kernel_height * kernel_width > 1 &&
      (kernel_height < rows || kernel_width < columns || height * beyond > g.padding[0] * width);
  return of_amx || (w.shape()[1] == 1 && columns > 1 && y.shape()[3] == 1);
}

/// Returns whether oneDNN would compute wrong gradients of weights. Version 2.6 does on AVX2 for 1
/// x 1 kernels with a stride and channels that do not fill a vector. In bf16 it leaves taps
/// unwritten that touch no pixel, which exist if the image is narrower than the stride. Also in
/// bf16, it adds up other pixels if rows are dilated and images wide (jit_bf16:avx512_core_bf16).
bool miscomputes_weights(const Tensor& x, const Tensor& w, const ConvGeometry& g) {
  const bool strided_point = w.shape()[2] == 1 && w.shape()[3] == 1 &&
                             (g.stride[0] > 1 || g.stride[1] > 1) && w.shape()[1] % 16 != 0;
  const bool dilated_rows = x.dtype() == bf16 && g.dilation[0] > 1;
  return strided_point || dilated_rows || x.shape()[3] < g.stride[1];
}

/// Returns whether oneDNN would compute wrong gradients of data. Version 2.6 does in bf16 on
/// AVX512-BF16, for 1 x 1 kernels with an odd number of output channels and some numbers of pixels:
/// it multiplies dy of the last channel by dy instead of by the weight
/// (jit_bf16_1x1:avx512_core_bf16). Such kernels are rare (the head of a model with an odd number
/// of classes), so every size of them goes to the own products.
bool miscomputes_data(const Tensor& w, const ConvGeometry& g) {
  return w.dtype() == bf16 && w.shape()[2] == 1 && w.shape()[3] == 1 &&
         w.shape()[0] / g.groups % 2 != 0;
}

/// Calls f(images of a, images of b) for groups of images, which threads that lack cores take in
/// turn; a call computes with one thread. Returns whether all calls returned true. The results are
/// those of one call with all images (tests/backends/onednn_geometries.h).
template <class F> bool by_images(const Tensor& a, const Tensor& b, const F& f) {
  const int64_t images = a.shape()[0], size = reference::pieces_of(images, 8 * team_size());
  std::atomic<bool> served = true;
  reference::parallel_tasks(reference::pieces_of(images, size), [&](int64_t i) {
    const int64_t first = i * size, count = std::min(size, images - first);
    if (!served || !f(views::slice(a, 0, first, count), views::slice(b, 0, first, count)))
      served = false;
  });
  return served;
}
bool wants_images_in_turn(const Tensor& x) {
  return crowded() && team_size() > 1 && x.shape()[0] > 1;
}
}  // namespace

bool conv(const Tensor& x, const Tensor& w, const Tensor& bias, const ConvGeometry& g, Tensor& y) {
  if (!served(x, w, bias, g, y) || miscomputes(w, g, y)) return false;
  if (wants_images_in_turn(x))
    return by_images(x, y,
                     [&](const Tensor& some, Tensor to) { return conv(some, w, bias, g, to); });
  const Problem problem(0, x, w, bias, y, g);
  const std::shared_ptr<const Plan> plan = plan_for("conv2d", problem.key, [&] {
    const auto description = problem.forward();
    Plan built{.primitive = dnnl::convolution_forward(description)};
    built.inputs = {{DNNL_ARG_SRC, input_layout(problem.x, description.src_desc())},
                    {DNNL_ARG_WEIGHTS, input_layout(problem.w_plain, description.weights_desc())}};
    if (problem.has_bias)
      built.inputs.push_back({DNNL_ARG_BIAS, input_layout(problem.bias, problem.bias)});
    built.outputs = {{DNNL_ARG_DST, output_layout(problem.y, description.dst_desc())}};
    finish(built, description);
    return built;
  });
  if (!plan) return false;
  const void* inputs[] = {x.raw_data(), w.raw_data(), problem.has_bias ? bias.raw_data() : nullptr};
  void* outputs[] = {y.raw_data()};
  execute("conv2d", plan, inputs, outputs);
  return true;
}

bool conv_backward_data(const Tensor& dy, const Tensor& w, const ConvGeometry& g, Tensor& dx) {
  if (!served(dx, w, {}, g, dy) || miscomputes_data(w, g)) return false;
  if (wants_images_in_turn(dy))
    return by_images(
        dy, dx, [&](const Tensor& some, Tensor to) { return conv_backward_data(some, w, g, to); });
  const Problem problem(1, dx, w, {}, dy, g);
  const std::shared_ptr<const Plan> plan = plan_for("conv2d", problem.key, [&] {
    constexpr auto algorithm = dnnl::algorithm::convolution_direct;
    const auto description = describe<dnnl::convolution_backward_data>(
        user_scratchpad(), problem.forward(), algorithm, problem.x, problem.w_any, problem.y,
        problem.stride, problem.dilation, problem.padding_before, problem.padding_after);
    Plan built{.primitive = dnnl::convolution_backward_data(description)};
    built.inputs = {{DNNL_ARG_DIFF_DST, input_layout(problem.y, description.diff_dst_desc())},
                    {DNNL_ARG_WEIGHTS, input_layout(problem.w_plain, description.weights_desc())}};
    built.outputs = {{DNNL_ARG_DIFF_SRC, output_layout(problem.x, description.diff_src_desc())}};
    finish(built, description);
    return built;
  });
  if (!plan) return false;
  const void* inputs[] = {dy.raw_data(), w.raw_data()};
  void* outputs[] = {dx.raw_data()};
  execute("conv2d", plan, inputs, outputs);
  return true;
}

bool conv_backward_weights(const Tensor& x, const Tensor& dy, const ConvGeometry& g, Tensor& dw) {
  if (!served(x, dw, {}, g, dy) || miscomputes_weights(x, dw, g)) return false;
  const Problem problem(2, x, dw, {}, dy, g);
  const std::shared_ptr<const Plan> plan = plan_for("conv2d", problem.key, [&] {
    constexpr auto algorithm = dnnl::algorithm::convolution_direct;
    const auto description = describe<dnnl::convolution_backward_weights>(
        user_scratchpad(), problem.forward(), algorithm, problem.x, problem.w_any, problem.bias,
        problem.y, problem.stride, problem.dilation, problem.padding_before, problem.padding_after);
    Plan built{.primitive = dnnl::convolution_backward_weights(description)};
    built.inputs = {{DNNL_ARG_SRC, input_layout(problem.x, description.src_desc())},
                    {DNNL_ARG_DIFF_DST, input_layout(problem.y, description.diff_dst_desc())}};
    built.outputs = {
        {DNNL_ARG_DIFF_WEIGHTS, output_layout(problem.w_plain, description.diff_weights_desc())}};
    finish(built, description);
    return built;
  });
  if (!plan) return false;
  const void* inputs[] = {x.raw_data(), dy.raw_data()};
  void* outputs[] = {dw.raw_data()};
  execute("conv2d", plan, inputs, outputs);
  return true;
}

// Products of bf16 matrices on AVX512-BF16. f32 products and those on AMX use the own kernels
// (backends/cpu/gemm_blocking.h), which are faster than oneDNN 2.6's; f16 has no primitive there.

namespace {
dnnl::memory::desc strided(const Tensor& x) {
  return dnnl::memory::desc(dnnl::memory::dims(x.shape().begin(), x.shape().end()),
                            *data_type(x.dtype()),
                            dnnl::memory::dims(x.strides().begin(), x.strides().end()));
}

/// Multiply-adds below which threads cost more than they save.
constexpr int64_t small_product = 1 << 18;

/// Returns whether oneDNN would take the elements between those of a for elements of a. Version 3.7
/// does on AVX-512 if a has one row with holes (brg_matmul:avx512_core). Such rows are rare, so
/// other versions do not compute them either.
bool misreads(const Tensor& a) { return a.shape()[-2] == 1 && a.strides()[-1] != 1; }
}  // namespace

bool matmul(const Tensor& a, const Tensor& b, const Tensor& bias, Tensor& c) {
  const bool batch_stands =
      a.rank() == 3 && (a.strides()[0] == 0 || b.strides()[0] == 0) && c.shape()[0] != 1;
  if (!data_type(a.dtype()) || !data_type(b.dtype()) || !data_type(c.dtype()) || batch_stands ||
      misreads(a))
    return false;
  if (bias.defined() && !data_type(bias.dtype())) return false;
  const bool small = c.numel() * a.shape()[a.rank() - 1] <= reference::worth_waking(small_product);
  const TeamScope team(small ? 1 : team_size());
  PlanKey key{3,
              team_size(),
              int64_t(a.dtype()),
              int64_t(b.dtype()),
              int64_t(c.dtype()),
              bias.defined() ? int64_t(bias.dtype()) : -1};
  for (const Tensor* t : {&a, &b, static_cast<const Tensor*>(&c)}) {
    key.insert(key.end(), t->shape().begin(), t->shape().end());
    key.insert(key.end(), t->strides().begin(), t->strides().end());
  }
  const std::shared_ptr<const Plan> plan = plan_for("matmul", key, [&] {
    dnnl::memory::dims bias_dims(std::size_t(c.rank()), 1);
    bias_dims.back() = c.shape()[c.rank() - 1];
    const dnnl::memory::desc row =
        bias.defined() ? dnnl::memory::desc(bias_dims, *data_type(bias.dtype()),
                                            c.rank() == 3 ? dnnl::memory::format_tag::abc
                                                          : dnnl::memory::format_tag::ab)
                       : dnnl::memory::desc();
    const auto description = describe<dnnl::matmul>(user_scratchpad(), std::nullopt, strided(a),
                                                    strided(b), row, strided(c));
    Plan built{.primitive = dnnl::matmul(description)};
    built.inputs = {{DNNL_ARG_SRC, input_layout(strided(a), strided(a))},
                    {DNNL_ARG_WEIGHTS, input_layout(strided(b), strided(b))}};
    if (bias.defined()) built.inputs.push_back({DNNL_ARG_BIAS, input_layout(row, row)});
    built.outputs = {{DNNL_ARG_DST, output_layout(strided(c), strided(c))}};
    finish(built, description);
    return built;
  });
  if (!plan) return false;
  const void* inputs[] = {a.raw_data(), b.raw_data(), bias.defined() ? bias.raw_data() : nullptr};
  void* outputs[] = {c.raw_data()};
  execute("matmul", plan, inputs, outputs);
  return true;
}

}  // namespace halftone::onednn

#else

// A build without oneDNN declines every request.

namespace halftone::onednn {

bool matmul(const Tensor&, const Tensor&, const Tensor&, Tensor&) { return false; }
bool conv(const Tensor&, const Tensor&, const Tensor&, const ConvGeometry&, Tensor&) {
  return false;
}
bool conv_backward_data(const Tensor&, const Tensor&, const ConvGeometry&, Tensor&) {
  return false;
}
bool conv_backward_weights(const Tensor&, const Tensor&, const ConvGeometry&, Tensor&) {
  return false;
}
std::string description() { return "no oneDNN (install libdnnl-dev and configure again)"; }
std::string last_implementation() { return {}; }

}  // namespace halftone::onednn

#endif
