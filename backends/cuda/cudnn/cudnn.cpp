// Convolutions and attention by cuDNN. Attention (Dao 2023, "FlashAttention-2", in its fused
// engines) is described as a graph of products and elementwise steps, whose pattern the engines
// recognize. Forward writes nothing of the size of q k^T to memory. Supports short floats without
// mask and dropout; the rest goes to the own kernels.
#include <halftone/backends/cuda/for_cudnn.h>

#if HALFTONE_HAVE_CUDNN

#include <algorithm>
#include <array>
#include <limits>

#include <halftone/backends/cuda/cudnn/graph.h>
#include <halftone/core/device.h>
#include <halftone/core/factory.h>
#include <halftone/core/memory.h>
#include <halftone/core/tensor.h>

namespace halftone::cuda::cudnn {

namespace {

/// Returns the form with the last two dimensions exchanged.
Form transposed(Form form) {
  std::swap(form.shape[2], form.shape[3]), std::swap(form.strides[2], form.strides[3]);
  return form;
}
/// Returns [n, heads, l, 1] of f32.
Form row_form(const Form& q) {
  const Shape shape{q.shape[0], q.shape[1], q.shape[2], 1};
  return {shape, contiguous_strides(shape), f32};
}
Shape score_shape(const Form& q, const Form& k) {
  return {q.shape[0], q.shape[1], q.shape[2], k.shape[2]};
}

/// Keeps scores whose key is not after the query; the others become minus infinity.
Edge masked(Graph& graph, const Edge& scores, const Edge& minus_infinity) {
  const Edge row = graph.inner(scores.shape, i32), column = graph.inner(scores.shape, i32);
  graph.generate_index(scores, 2, row);
  graph.generate_index(scores, 3, column);
  const Edge visible = graph.inner(scores.shape, boolean);
  graph.pointwise(CUDNN_POINTWISE_CMP_GE, row, &column, visible);
  const Edge result = graph.inner(scores.shape);
  graph.pointwise(CUDNN_POINTWISE_BINARY_SELECT, scores, &minus_infinity, result, &visible);
  return result;
}

/// Returns y = f(a, b), which stays inside the graph.
Edge combined(Graph& graph, cudnnPointwiseMode_t mode, const Edge& a, const Edge& b) {
  const Edge y = graph.inner(a.shape);
  graph.pointwise(mode, a, &b, y);
  return y;
}
Edge mapped(Graph& graph, cudnnPointwiseMode_t mode, const Edge& a) {
  const Edge y = graph.inner(a.shape);
  graph.pointwise(mode, a, nullptr, y);
  return y;
}
/// Returns the transpose of a matrix of scores, in the dtype that products accept.
Edge turned(Graph& graph, const Edge& scores, DType dtype) {
  const Shape s = scores.shape, shape{s[0], s[1], s[3], s[2]};
  const Strides strides{s[1] * s[2] * s[3], s[2] * s[3], 1, s[3]};
  const Edge y = graph.inner(shape, strides, dtype);
  graph.reshape(scores, y);
  return y;
}

/// Computes y = a b; if several heads of a share one of y, the sum of their products.
void product_of_heads(Graph& graph, const Edge& a, const Edge& b, const Edge& y, const Form& form) {
  if (a.shape[1] == y.shape[1]) return graph.matmul(a, b, y);
  Shape shape = y.shape;
  shape[1] = a.shape[1];
  const Edge each = graph.inner(shape, contiguous_strides(shape), form.dtype);
  graph.matmul(a, b, each);
  graph.reduce(CUDNN_REDUCE_TENSOR_ADD, each, y);
}

std::optional<ReadyGraph> ready(Graph& graph, const Target& target, std::vector<int64_t> tensors) {
  std::optional<Plan> plan = graph.plan(target, InputRounding::any);
  if (!plan) return std::nullopt;
  return ReadyGraph{std::move(*plan), std::move(tensors)};
}

/// Returns whether tensors begin at multiples of 16 bytes. At other addresses cuDNN 9.19 computed
/// wrong numbers, or ended with an error, on an H200: in attention, and in some engines of f32
/// convolutions.
bool aligned(std::initializer_list<const Tensor*> tensors) {
  return std::ranges::all_of(tensors, [](const Tensor* x) { return alignment_of(*x) == 16; });
}
/// Returns whether all rows of heads [n, heads, l, e] begin at such addresses.
bool rows_aligned(std::initializer_list<const Tensor*> tensors) {
  return aligned(tensors) && std::ranges::all_of(tensors, [](const Tensor* x) {
           for (int d = 0; d < 3; ++d)
             if (x->shape()[d] > 1 && x->strides()[d] * size_of(x->dtype()) % 16 != 0) return false;
           return true;
         });
}

bool takes(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask,
           const AttentionSettings& settings) {
  const bool is_short = q.dtype() == f16 || q.dtype() == bf16;
  return usable() && is_short && !mask.defined() && settings.dropout == 0 && q.numel() > 0 &&
         k.numel() > 0 && v.numel() > 0;
}

Key key_of(int direction, bool causal, std::initializer_list<const Tensor*> tensors) {
  Key key{direction, causal};
  for (const Tensor* x : tensors) append(key, *x);
  return key;
}

Form statistics_form(const Tensor& log_sum_exp) {
  const Shape& s = log_sum_exp.shape();
  const Shape shape{s[0], s[1], s[2], 1};
  Form form(shape, contiguous_strides(shape), f32);
  form.alignment = alignment_of(log_sum_exp);
  return form;
}

/// Returns log_sum_exp of short floats, [1, n, heads, l], as [n, heads, l].
Tensor in_one_part(const Tensor& log_sum_exp) {
  const Shape& s = log_sum_exp.shape();
  const Shape shape{s[1], s[2], s[3]};
  return log_sum_exp.view_as(shape, contiguous_strides(shape), log_sum_exp.offset());
}

constexpr float minus_infinity = -std::numeric_limits<float>::infinity();

}  // namespace

std::optional<ReadyGraph> attention_graph(const Target& target, const Form& q, const Form& k,
                                          const Form& v, const Form& y, const Form& statistics,
                                          bool causal) {
  Graph graph;
  const Edge eq = edge(graph, q), ek = edge(graph, transposed(k)), ev = edge(graph, v),
             ey = edge(graph, y), es = edge(graph, statistics), scale = graph.scalar(),
             lowest = graph.scalar();
  const Edge products = graph.inner(score_shape(q, k));
  graph.matmul(eq, ek, products);
  Edge scores = combined(graph, CUDNN_POINTWISE_MUL, products, scale);
  if (causal) scores = masked(graph, scores, lowest);
  const Form rows = row_form(q);
  const Edge highest = graph.inner(rows.shape), sums = graph.inner(rows.shape);
  graph.reduce(CUDNN_REDUCE_TENSOR_MAX, scores, highest);
  const Edge powers =
      mapped(graph, CUDNN_POINTWISE_EXP, combined(graph, CUDNN_POINTWISE_SUB, scores, highest));
  graph.reduce(CUDNN_REDUCE_TENSOR_ADD, powers, sums);
  const Edge logarithms = mapped(graph, CUDNN_POINTWISE_LOG, sums);
  graph.pointwise(CUDNN_POINTWISE_ADD, highest, &logarithms, es);
  const Edge weights = graph.inner(powers.shape, q.dtype);
  graph.pointwise(CUDNN_POINTWISE_DIV, powers, &sums, weights);
  graph.matmul(weights, ev, ey);
  std::vector<int64_t> tensors{eq.number, ek.number, ev.number, ey.number, es.number, scale.number};
  if (causal) tensors.push_back(lowest.number);
  return ready(graph, target, std::move(tensors));
}

std::optional<ReadyGraph> attention_backward_graph(const Target& target, const Form& q,
                                                   const Form& k, const Form& v, const Form& y,
                                                   const Form& statistics, const Form& dy,
                                                   const Form& dq, const Form& dk, const Form& dv,
                                                   bool causal) {
  Graph graph;
  const Edge eq = edge(graph, q), ek = edge(graph, transposed(k)), ev = edge(graph, transposed(v)),
             ey = edge(graph, y), es = edge(graph, statistics), edy = edge(graph, dy),
             edq = edge(graph, dq), edk = edge(graph, dk), edv = edge(graph, dv),
             delta = edge(graph, row_form(q)), scale = graph.scalar(), lowest = graph.scalar(),
             one = graph.scalar();
  // delta = rowsum(dy y), which the softmax subtracts from all gradients of a row.
  const Edge row_sums = graph.inner(delta.shape);
  const Edge products_of_y = graph.inner(dy.shape);
  graph.pointwise(CUDNN_POINTWISE_MUL, edy, &ey, products_of_y);
  graph.reduce(CUDNN_REDUCE_TENSOR_ADD, products_of_y, row_sums);
  graph.pointwise(CUDNN_POINTWISE_MUL, row_sums, &one, delta);
  // Recomputes the weights from the statistics; dv = weights^T dy.
  const Edge products = graph.inner(score_shape(q, k));
  graph.matmul(eq, ek, products);
  Edge scores = combined(graph, CUDNN_POINTWISE_MUL, products, scale);
  scores = combined(graph, CUDNN_POINTWISE_SUB, scores, es);
  if (causal) scores = masked(graph, scores, lowest);
  const Edge weights = mapped(graph, CUDNN_POINTWISE_EXP, scores);
  product_of_heads(graph, turned(graph, weights, q.dtype), edy, edv, v);
  // dscores = weights (dy v^T - delta) scale; dk = dscores^T q, dq = dscores k.
  const Edge dweights = graph.inner(products.shape);
  graph.matmul(edy, ev, dweights);
  const Edge inner = combined(graph, CUDNN_POINTWISE_MUL,
                              combined(graph, CUDNN_POINTWISE_SUB, dweights, delta), weights);
  const Edge dscores = combined(graph, CUDNN_POINTWISE_MUL, inner, scale);
  product_of_heads(graph, turned(graph, dscores, q.dtype), eq, edk, k);
  const Edge keys = graph.inner(k.shape, k.strides, k.dtype);
  graph.reshape(ek, keys);
  graph.matmul(dscores, keys, edq);
  std::vector<int64_t> tensors{eq.number,  ek.number,    ev.number,    ey.number,
                               es.number,  edy.number,   edq.number,   edk.number,
                               edv.number, delta.number, scale.number, one.number};
  if (causal) tensors.push_back(lowest.number);
  return ready(graph, target, std::move(tensors));
}

namespace {
/// Runs attention at the given lengths.
bool forward_of(Context& context, const Tensor& q, const Tensor& k, const Tensor& v,
                const AttentionSettings& settings, const Tensor& y, const Tensor& statistics) {
  const Tensor log_sum_exp = in_one_part(statistics);
  Library& library = Library::of(context);
  const std::lock_guard lock(library.mutex());
  const auto make = [&](const Target& target) {
    return attention_graph(target, Form(q), Form(k), Form(v), Form(y), statistics_form(log_sum_exp),
                           settings.causal);
  };
  const auto scale = float(settings.scale);
  std::vector<const void*> addresses{q.raw_data(), k.raw_data(),           v.raw_data(),
                                     y.raw_data(), log_sum_exp.raw_data(), &scale};
  if (settings.causal) addresses.push_back(&minus_infinity);
  return library.run(context, Family::attention, log_wanted() ? text_of({&q, &k, &v}) : "",
                     key_of(0, settings.causal, {&q, &k, &v, &y, &log_sum_exp}), make, addresses);
}

AttentionRoute route_of(const Tensor& q, const Tensor& k, const AttentionSettings& settings) {
  const Shape& s = q.shape();
  return attention_route(s[0] * s[1], s[2], k.shape()[2], settings.causal);
}

/// Logs why no plan is requested. Returns false for the caller to return.
bool left_to_own_kernels(Family family, const Tensor& q, const Tensor& k, const Tensor& v,
                         std::string_view why) {
  if (log_wanted() && usable()) say_declined(By::cudnn, family, text_of({&q, &k, &v}), why);
  return false;
}
constexpr std::string_view
    not_taken =
        "a mask, dropout, no short floats, or rows that do not begin at multiples of 16 bytes",
    too_short = "short, and no plan is kept for such a length";
}  // namespace

bool attention(Context& context, const AttentionCall& call) {
  const Tensor &q = call.q, &k = call.k, &v = call.v;
  const AttentionSettings& settings = call.settings;
  if (!takes(q, k, v, call.mask, settings) || !rows_aligned({&q, &k, &v, &call.y}))
    return left_to_own_kernels(Family::attention, q, k, v, not_taken);
  switch (route_of(q, k, settings)) {
    case AttentionRoute::own_kernels:
      return left_to_own_kernels(Family::attention, q, k, v, too_short);
    case AttentionRoute::library: break;
    case AttentionRoute::lengthened:
      return attention_lengthened(context, q, k, v, call.y, call.log_sum_exp,
                                  [&](const Tensor& longer_q, const Tensor& longer_k,
                                      const Tensor& longer_v, Tensor& longer_y, Tensor& sums) {
                                    return forward_of(context, longer_q, longer_k, longer_v,
                                                      settings, longer_y, sums);
                                  });
  }
  return forward_of(context, q, k, v, settings, call.y, call.log_sum_exp);
}

namespace {
/// q, k, v, y, log_sum_exp, dy, dq, dk, dv.
using BackwardTensors = std::array<Tensor, 9>;

bool backward_of(Context& context, const BackwardTensors& t, const AttentionSettings& settings) {
  const Tensor &q = t[0], &k = t[1], &v = t[2], &y = t[3], &log_sum_exp = t[4], &dy = t[5],
               &dq = t[6], &dk = t[7], &dv = t[8];
  Library& library = Library::of(context);
  const std::lock_guard lock(library.mutex());
  const auto make = [&](const Target& target) {
    return attention_backward_graph(target, Form(q), Form(k), Form(v), Form(y),
                                    statistics_form(log_sum_exp), Form(dy), Form(dq), Form(dk),
                                    Form(dv), settings.causal);
  };
  const Tensor delta = scratch(context, log_sum_exp.shape(), f32);
  const auto scale = float(settings.scale);
  const float one = 1;
  std::vector<const void*> addresses;
  for (const Tensor& x : t) addresses.push_back(x.raw_data());
  for (const void* x : {static_cast<const void*>(delta.raw_data()),
                        static_cast<const void*>(&scale), static_cast<const void*>(&one)})
    addresses.push_back(x);
  if (settings.causal) addresses.push_back(&minus_infinity);
  return library.run(context, Family::attention_backward, log_wanted() ? text_of({&q, &k, &v}) : "",
                     key_of(1, settings.causal, {&q, &k, &v, &y, &log_sum_exp, &dy, &dq, &dk, &dv}),
                     make, addresses);
}

/// Returns the size of equal parts of `total`, at most `most` each.
int64_t part_of(int64_t total, int64_t most) {
  const int64_t parts = (total + most - 1) / most;
  return (total + parts - 1) / parts;
}

/// Returns a part with some images, and some heads of each with their keys and values.
BackwardTensors part(const BackwardTensors& all, int64_t image, int64_t images, int64_t head,
                     int64_t heads) {
  const Shape& s = all[0].shape();
  const int64_t image_count = std::min(images, s[0] - image),
                head_count = std::min(heads, s[1] - head);
  BackwardTensors some = all;
  for (Tensor& x : some) {
    const int64_t sharing = s[1] / x.shape()[1];
    x = views::slice(views::slice(x, 0, image, image_count), 1, head / sharing,
                     head_count / sharing);
  }
  return some;
}
}  // namespace

/// Runs as many images, or heads of one image, at a time as the workspace can hold scores for. If a
/// later part is declined, the own kernels write all results again.
bool attention_backward(Context& context, const AttentionBackwardCall& call) {
  const Tensor &q = call.q, &k = call.k, &v = call.v;
  const AttentionSettings& settings = call.settings;
  constexpr int64_t largest_scores = int64_t(256) << 20;  // bytes
  if (!takes(q, k, v, call.mask, settings) ||
      !rows_aligned({&q, &k, &v, &call.y, &call.dy, &call.dq, &call.dk, &call.dv}))
    return left_to_own_kernels(Family::attention_backward, q, k, v, not_taken);
  if (route_of(q, k, settings) == AttentionRoute::own_kernels)
    return left_to_own_kernels(Family::attention_backward, q, k, v, too_short);
  const BackwardTensors all{q,       k,       v,       call.y, in_one_part(call.log_sum_exp),
                            call.dy, call.dq, call.dk, call.dv};
  const int64_t count = q.shape()[0], head_count = q.shape()[1];
  const int64_t fitting = largest_scores / (q.shape()[2] * k.shape()[2] * size_of(q.dtype()));
  const int64_t sharing = head_count / k.shape()[1];  // of heads with the same keys and values
  if (fitting < sharing) return false;
  const int64_t heads =
      part_of(head_count / sharing, std::min(head_count, fitting) / sharing) * sharing;
  const int64_t images = heads < head_count ? 1 : part_of(count, std::min(count, fitting / heads));
  for (int64_t image = 0; image < count; image += images)
    for (int64_t head = 0; head < head_count; head += heads)
      if (!backward_of(context, part(all, image, images, head, heads), settings)) return false;
  return true;
}

// Convolutions by cuDNN on channels-last images. Weights have the layout [out, in, kh, kw]; cuDNN's
// fast engines also need them channels-last (for_cudnn.h). f64 goes to the own kernels.

namespace {

constexpr auto forward = CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR;
constexpr auto backward_data = CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR;
constexpr auto backward_filter = CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR;

std::vector<int64_t> list(const std::array<int64_t, 2>& two) { return {two[0], two[1]}; }

bool takes(const Tensor& x, const Tensor& w, const Tensor& y) {
  const bool short_or_f32 = x.dtype() == f32 || x.dtype() == f16 || x.dtype() == bf16;
  return usable() && short_or_f32 && x.numel() > 0 && w.numel() > 0 && y.numel() > 0;
}

Key key_of(cudnnBackendDescriptorType_t direction, const Tensor& x, const Tensor& w,
           const Tensor& y, const Tensor& bias, const ConvGeometry& g) {
  Key key{int64_t(direction), g.stride[0],   g.stride[1], g.padding[0], g.padding[1],
          g.dilation[0],      g.dilation[1], g.groups,    allow_tf32()};
  for (const Tensor* t : {&x, &w, &y, &bias}) append(key, *t);
  return key;
}

/// Returns strides from which cuDNN recognizes channels-last, also if a size is 1.
Form channels_last_form(const Tensor& x) {
  Form form(x);
  form.strides = channels_last_strides(x.shape());
  return form;
}

Tensor channels_last_scratch(const Context& context, const Shape& shape, DType dtype) {
  const MemoryScope scope(MemoryUse::workspace);
  return empty_channels_last(shape, dtype, context.device());
}

/// Returns [out] as [1, out, 1, 1].
Tensor as_image(const Tensor& bias) {
  const int64_t n = bias.numel();
  return bias.view_as({1, n, 1, 1}, {n, bias.strides()[0], n, n}, bias.offset());
}

Family family_of(cudnnBackendDescriptorType_t direction) {
  if (direction == forward) return Family::conv;
  return direction == backward_data ? Family::conv_backward_data : Family::conv_backward_weights;
}

/// bias: as an image, or undefined. Returns false if cuDNN declines.
bool run(Library& library, Context& context, cudnnBackendDescriptorType_t direction,
         const Tensor& x, const Tensor& w, const Tensor& y, const Tensor& bias,
         const ConvGeometry& g) {
  std::vector<const void*> addresses{x.raw_data(), w.raw_data(), y.raw_data()};
  if (bias.defined()) addresses.push_back(bias.raw_data());
  const Key key = key_of(direction, x, w, y, bias, g);
  const bool measured = x.dtype() == f32 && aligned({&x, &w, &y, bias.defined() ? &bias : &x});
  const auto make = [&](const Target& target) {
    return conv_graph(target, direction, channels_last_form(x), channels_last_form(w),
                      channels_last_form(y),
                      bias.defined() ? std::optional(Form(bias)) : std::nullopt, g, allow_tf32(),
                      measured ? library.engines_for(key) : 1);
  };
  return library.run(context, family_of(direction),
                     log_wanted() ? text_of({&x, &w, &y, &bias}) : "", key, make, addresses);
}

/// cuDNN 9.19 on an H100 rounds a short product of single pixels before it adds a bias, if their
/// channels are not aligned to 16 bytes.
bool rounds_once(const Tensor& w, const Tensor& y) {
  const bool single_pixels = w.shape()[2] == 1 && w.shape()[3] == 1;
  return size_of(y.dtype()) > 2 || !single_pixels ||
         (w.shape()[0] % 8 == 0 && w.shape()[1] % 8 == 0);
}

}  // namespace

std::optional<ReadyGraph> conv_graph(const Target& target, cudnnBackendDescriptorType_t direction,
                                     const Form& x, const Form& w, const Form& y,
                                     const std::optional<Form>& bias, const ConvGeometry& g,
                                     bool tf32, std::size_t most_engines) {
  Graph graph;
  const Edge ex = edge(graph, x), ew = edge(graph, w), ey = edge(graph, y);
  std::vector<int64_t> tensors{ex.number, ew.number, ey.number};
  const std::vector<int64_t> padding = list(g.padding), stride = list(g.stride),
                             dilation = list(g.dilation);
  if (bias) {
    const Edge eb = edge(graph, *bias), sum = graph.inner(y.shape, y.strides, f32);
    graph.conv(direction, ex, ew, sum, padding, stride, dilation);
    graph.pointwise(CUDNN_POINTWISE_ADD, sum, &eb, ey);
    tensors.push_back(eb.number);
  } else {
    graph.conv(direction, ex, ew, ey, padding, stride, dilation);
  }
  const InputRounding rounding = x.dtype != f32 ? InputRounding::any
                                 : tf32         ? InputRounding::to_tf32
                                                : InputRounding::none;
  std::vector<Plan> plans = graph.plans(target, rounding, most_engines);
  if (plans.empty()) return std::nullopt;
  ReadyGraph ready{std::move(plans.front()), std::move(tensors)};
  ready.others.assign(std::make_move_iterator(plans.begin() + 1),
                      std::make_move_iterator(plans.end()));
  return ready;
}

bool conv(Context& context, const Tensor& x, const Tensor& w, const Tensor& bias,
          const ConvGeometry& g, Tensor& y) {
  if (!takes(x, w, y)) return false;
  Library& library = Library::of(context);
  const std::lock_guard lock(library.mutex());
  const Tensor weight = channels_last_weight(context, w);
  const Tensor image_bias = bias.defined() ? as_image(bias) : bias;
  if ((!bias.defined() || rounds_once(w, y)) &&
      run(library, context, forward, x, weight, y, image_bias, g))
    return true;
  if (!bias.defined()) return false;
  // The bias is added in a separate kernel. A short y would be rounded twice, so the sum is in f32.
  const Tensor sum = size_of(y.dtype()) > 2 ? y : channels_last_scratch(context, y.shape(), f32);
  if (!run(library, context, forward, x, weight, sum, {}, g)) return false;
  backend_for(y).binary(call_of<BinaryFormulas>(formula::Add{}), sum,
                        views::expand(image_bias, y.shape()), y);
  return true;
}

bool conv_backward_data(Context& context, const Tensor& dy, const Tensor& w, const ConvGeometry& g,
                        Tensor& dx) {
  if (!takes(dy, w, dx)) return false;
  Library& library = Library::of(context);
  const std::lock_guard lock(library.mutex());
  const Tensor weight = channels_last_weight(context, w);
  return run(library, context, backward_data, dx, weight, dy, {}, g);
}

bool conv_backward_weights(Context& context, const Tensor& x, const Tensor& dy,
                           const ConvGeometry& g, Tensor& dw) {
  if (!takes(x, dw, dy)) return false;
  Library& library = Library::of(context);
  const std::lock_guard lock(library.mutex());
  // f32 gradients of short floats are rounded to the short dtype once, as in PyTorch under
  // autocast: cuDNN 9.19 has fast engines only for these, and on many GPUs none that writes f32.
  for (const DType dtype : {x.dtype(), dw.dtype()}) {
    const bool in_place = dtype == dw.dtype() && dw.is_channels_last();
    Tensor written = in_place ? dw : channels_last_scratch(context, dw.shape(), dtype);
    if (!run(library, context, backward_filter, x, written, dy, {}, g)) continue;
    if (!in_place) backend_for(dw).copy(written, dw);
    return true;
  }
  return false;
}

}  // namespace halftone::cuda::cudnn

#else

// A build without cuDNN uses the own convolution and attention.

namespace halftone::cuda::cudnn {
std::string description() { return "no cuDNN"; }
bool conv(Context&, const Tensor&, const Tensor&, const Tensor&, const ConvGeometry&, Tensor&) {
  return false;
}
bool conv_backward_data(Context&, const Tensor&, const Tensor&, const ConvGeometry&, Tensor&) {
  return false;
}
bool conv_backward_weights(Context&, const Tensor&, const Tensor&, const ConvGeometry&, Tensor&) {
  return false;
}
bool attention(Context&, const AttentionCall&) { return false; }
bool attention_backward(Context&, const AttentionBackwardCall&) { return false; }
}  // namespace halftone::cuda::cudnn

#endif
