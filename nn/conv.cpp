// Convolution layers: argument checks, allocation and first values.
#include <halftone/nn/conv.h>

#include <halftone/autograd/slots.h>
#include <halftone/core/backend.h>
#include <halftone/core/captured_step.h>
#include <halftone/nn/layers.h>
#include <halftone/nn/module.h>

namespace halftone::nn {
namespace {

void check(std::string_view layer, int64_t in_channels, int64_t out_channels, Pair kernel,
           int64_t groups) {
  detail::require_positive(layer, "in_channels", in_channels);
  detail::require_positive(layer, "out_channels", out_channels);
  detail::require_positive(layer, "kernel height", kernel.height);
  detail::require_positive(layer, "kernel width", kernel.width);
  detail::require_positive(layer, "groups", groups);
  detail::require_divisible(layer, "in_channels", in_channels, groups);
  detail::require_divisible(layer, "out_channels", out_channels, groups);
}

}  // namespace

Conv1d::Conv1d(int64_t in_channels, int64_t out_channels, int64_t kernel, Conv1dOptions o)
    : options{
          .stride = o.stride, .padding = o.padding, .dilation = o.dilation, .groups = o.groups} {
  check("Conv1d", in_channels, out_channels, kernel, o.groups);
  weight = Parameter(Shape{out_channels, in_channels / o.groups, kernel});
  if (o.bias) bias = Parameter(Shape{out_channels});
  init::layer_default(weight, bias);
}

Conv2d::Conv2d(int64_t in_channels, int64_t out_channels, Pair kernel, Conv2dOptions o)
    : options{
          .stride = o.stride, .padding = o.padding, .dilation = o.dilation, .groups = o.groups} {
  check("Conv2d", in_channels, out_channels, kernel, o.groups);
  weight = Parameter(Shape{out_channels, in_channels / o.groups, kernel.height, kernel.width});
  if (o.bias) bias = Parameter(Shape{out_channels});
  init::layer_default(weight, bias);
}

ConvTranspose1d::ConvTranspose1d(int64_t in_channels, int64_t out_channels, int64_t kernel,
                                 ConvTranspose1dOptions o)
    : options{.stride = o.stride,
              .padding = o.padding,
              .output_padding = o.output_padding,
              .dilation = o.dilation,
              .groups = o.groups} {
  check("ConvTranspose1d", in_channels, out_channels, kernel, o.groups);
  weight = Parameter(Shape{in_channels, out_channels / o.groups, kernel});
  if (o.bias) bias = Parameter(Shape{out_channels});
  init::layer_default(weight, bias);
}

ConvTranspose2d::ConvTranspose2d(int64_t in_channels, int64_t out_channels, Pair kernel,
                                 ConvTranspose2dOptions o)
    : options{.stride = o.stride,
              .padding = o.padding,
              .output_padding = o.output_padding,
              .dilation = o.dilation,
              .groups = o.groups} {
  check("ConvTranspose2d", in_channels, out_channels, kernel, o.groups);
  weight = Parameter(Shape{in_channels, out_channels / o.groups, kernel.height, kernel.width});
  if (o.bias) bias = Parameter(Shape{out_channels});
  init::layer_default(weight,
                      bias);  // as in PyTorch, the fan in is size(1) of the transposed weight
}

// Normalization layers: allocation, first values, and the counts and updates of batch norm's
// running statistics.

namespace {

Parameter filled(const Shape& shape, double value) {
  Parameter parameter(shape);
  init::constant(parameter, value);
  return parameter;
}

Shape checked(std::string_view layer, const Shape& shape) {
  if (shape.empty())
    fail<UsageError>(layer, "normalized_shape is empty. Name at least the last dimension.");
  for (const int64_t size : shape)
    detail::require_positive(layer, "a size of normalized_shape", size);
  return shape;
}

Buffer statistics(int64_t channels, double value) {
  const MemoryScope scope(MemoryUse::parameter);
  Buffer buffer(full({channels}, value));
  buffer.stays_wide = true;
  return buffer;
}

}  // namespace

LayerNorm::LayerNorm(const Shape& shape, LayerNormOptions options)
    : normalized_shape(checked("LayerNorm", shape)), eps(options.eps) {
  if (options.affine) weight = filled(shape, 1);
  if (options.affine && options.bias) bias = filled(shape, 0);
}

RmsNorm::RmsNorm(const Shape& shape, RmsNormOptions options)
    : normalized_shape(checked("RmsNorm", shape)), eps(options.eps) {
  if (options.affine) weight = filled(shape, 1);
}

GroupNorm::GroupNorm(int64_t group_count, int64_t channels, GroupNormOptions options)
    : groups(group_count), eps(options.eps) {
  detail::require_positive("GroupNorm", "groups", groups);
  detail::require_positive("GroupNorm", "channels", channels);
  detail::require_divisible("GroupNorm", "channels", channels, groups);
  if (!options.affine) return;
  weight = filled({channels}, 1);
  bias = filled({channels}, 0);
}

RunningNorm::RunningNorm(std::string_view layer, int64_t channels, const BatchNormOptions& options)
    : eps(options.eps), momentum(options.momentum) {
  detail::require_positive(layer, "channels", channels);
  if (options.affine) {
    weight = filled({channels}, 1);
    bias = filled({channels}, 0);
  }
  if (options.track_running_stats) {
    running_mean = statistics(channels, 0);
    running_var = statistics(channels, 1);
    const MemoryScope scope(MemoryUse::parameter);
    num_batches_tracked = Buffer(zeros({}, i64));
    num_batches_tracked.stays_on_host = true;
  }
}

void RunningNorm::describe(Fields& field) {
  field("weight", weight), field("bias", bias);
  field("running_mean", running_mean), field("running_var", running_var);
  field("num_batches_tracked", num_batches_tracked);
}

/// Makes replays of a captured step count batches as well. Their momentum is the recorded one.
void BatchNorm::count_replays() const {
  if (!momentum)
    fail<UsageError>("batch_norm",
                     "without momentum each batch has another weight in the running statistics, "
                     "which a captured step cannot follow. Give it a momentum.");
  repeat_on_replay([batches = Tensor(num_batches_tracked)] { ++*batches.data<int64_t>(); });
}

/// Returns the options of this pass; in training it also counts the pass.
halftone::BatchNormOptions BatchNorm::count_batch() const {
  const bool tracking = running_mean.defined();
  double weight_of_batch = momentum.value_or(0);
  if (StatisticsSink* sink = active_statistics_sink(); sink && training && tracking) {
    if (!momentum && !sink->drops())
      fail<UsageError>(
          "batch_norm",
          "without momentum a batch's weight is the number of batches before it, which "
          "steps of several batches do not know in time. Give it a momentum.");
    sink->counted(num_batches_tracked);
  } else if (training && tracking) {
    // Tensors are handles: a const layer may write to their data.
    const int64_t batches = ++*num_batches_tracked.data<int64_t>();
    mark_written(num_batches_tracked);
    if (!momentum) weight_of_batch = 1 / double(batches);
    if (recording_step()) count_replays();
  }
  return {.training = training || !tracking, .momentum = weight_of_batch, .eps = eps};
}

Tensor BatchNorm::normalized(const Tensor& x) const {
  check_rank(x);
  return batch_norm(x, weight, bias, running_mean, running_var, count_batch());
}

Tensor BatchNorm::then_relu(const Tensor& x, const Tensor& residual) const {
  const auto call = [&] {
    check_rank(x);
    return batch_norm_relu(x, weight, bias, running_mean, running_var, count_batch(), residual);
  };
  return called(call, x, residual);
}

namespace {
/// The batch norms of a model that have running statistics: all average over batches in training,
/// as long as this exists.
class Averaging {
 public:
  explicit Averaging(Module& model) {
    for (const auto& [path, module] : model.named_modules()) {
      modes_.emplace_back(module, module->training);
      auto* const norm = dynamic_cast<BatchNorm*>(module);
      if (norm && norm->running_mean.defined()) norms_.emplace_back(norm, norm->momentum);
    }
  }
  ~Averaging() {
    for (const auto& [module, training] : modes_) module->training = training;
    for (const auto& [norm, momentum] : norms_) norm->momentum = momentum;
  }
  Averaging(const Averaging&) = delete;
  Averaging& operator=(const Averaging&) = delete;

  bool empty() const { return norms_.empty(); }
  void start() const {
    for (const auto& [module, training] : modes_) module->training = true;
    for (const auto& [norm, momentum] : norms_) {
      norm->momentum.reset();
      fill_with(norm->running_mean, 0), fill_with(norm->running_var, 1);
      fill_with(norm->num_batches_tracked, 0);
    }
  }
  /// Throws if a layer saw no batch: its statistics would be those of no data.
  void require_batches() const {
    for (const auto& [norm, momentum] : norms_)
      if (*norm->num_batches_tracked.data<int64_t>() == 0)
        fail<UsageError>("update_batch_norm",
                         "a batch norm of the model saw no batch. Call the model with batches.");
  }

 private:
  std::vector<std::pair<Module*, bool>> modes_{};
  std::vector<std::pair<BatchNorm*, std::optional<double>>> norms_{};
};
}  // namespace

void update_batch_norm(Module& model, const std::function<void()>& passes) {
  const Averaging averaging(model);
  if (averaging.empty()) return;
  const BufferCopies before(model);
  try {
    averaging.start();
    const NoGrad no_grad;
    const StatisticsScope own(nullptr);
    passes();
    averaging.require_batches();
  } catch (...) {
    before.restore();
    throw;
  }
}

BatchNorm1d::BatchNorm1d(int64_t channels, BatchNormOptions options)
    : BatchNorm("BatchNorm1d", channels, options) {}

void BatchNorm1d::check_rank(const Tensor& x) const {
  if (x.rank() != 2 && x.rank() != 3)
    fail<ShapeError>("BatchNorm1d", "needs [n, channels] or [n, channels, length], got ",
                     described(x), ". Images take BatchNorm2d.");
}

BatchNorm2d::BatchNorm2d(int64_t channels, BatchNormOptions options)
    : BatchNorm("BatchNorm2d", channels, options) {}

void BatchNorm2d::check_rank(const Tensor& x) const {
  if (x.rank() != 4)
    fail<ShapeError>("BatchNorm2d", "needs [n, channels, height, width], got ", described(x),
                     ". Vectors and sequences take BatchNorm1d.");
}

Tensor InstanceNorm::forward(const Tensor& in) const {
  return halftone::detail::batched("instance_norm", in, rank, [&](const Tensor& x) {
    check::rank("instance_norm", "x", x, rank);
    return instance_norm(x, weight, bias, running_mean, running_var,
                         {.use_input_stats = training || !running_mean.defined(),
                          .momentum = momentum.value_or(0),
                          .eps = eps});
  });
}

Conv3d::Conv3d(int64_t in_channels, int64_t out_channels, Triple kernel, Conv3dOptions o)
    : options{
          .stride = o.stride, .padding = o.padding, .dilation = o.dilation, .groups = o.groups} {
  check("Conv3d", in_channels, out_channels, kernel.image(), o.groups);
  detail::require_positive("Conv3d", "kernel depth", kernel.depth);
  weight = Parameter(
      Shape{out_channels, in_channels / o.groups, kernel.depth, kernel.height, kernel.width});
  if (o.bias) bias = Parameter(Shape{out_channels});
  init::layer_default(weight, bias);
}

BatchNorm3d::BatchNorm3d(int64_t channels, BatchNormOptions options)
    : BatchNorm("BatchNorm3d", channels, options) {}

void BatchNorm3d::check_rank(const Tensor& x) const {
  if (x.rank() != 5)
    fail<ShapeError>("BatchNorm3d", "needs [n, channels, depth, height, width], got ", described(x),
                     ". Images take BatchNorm2d.");
}

}  // namespace halftone::nn
