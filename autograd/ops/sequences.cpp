// Shapes and checks of attention, and separate operations for masks that are trained.
#include <halftone/autograd/ops/sequences.h>

#include <cmath>

#include <halftone/autograd/ops/logical.h>
#include <halftone/autograd/ops/matmul.h>
#include <halftone/autograd/ops/norm.h>

namespace halftone {

Tensor dropout2d(const Tensor& x, double p, bool training) {
  check::floating("dropout2d", x);
  if (x.rank() < 2)
    fail<ShapeError>("dropout2d", "x is ", described(x), ". It must be [n, channels, ...].");
  if (!(p >= 0 && p <= 1)) fail<UsageError>("dropout2d", "p is ", p, ". It must be on [0, 1].");
  if (!training || p == 0 || x.numel() == 0) return x;
  Shape shape = Dims::filled(x.rank(), 1);
  shape[0] = x.size(0), shape[1] = x.size(1);
  return x * dropout(ones(shape, x.dtype(), x.device()), p);
}

namespace {
constexpr std::string_view op = Attention::info.name;

/// Makes rows contiguous, as kernels read rows.
Tensor with_unit_rows(const Tensor& x) {
  return x.strides()[3] == 1 || x.shape()[3] == 1 ? x : views::contiguous(x);
}

Tensor as_rank_4(Tensor x) {
  while (x.rank() < 4) x = unsqueeze(x, 0);
  return x;
}
/// Returns the mask with leading dimensions of 1 up to rank 4, checked against the weights' shape.
Tensor mask_for(const Tensor& mask, const Shape& weights) {
  if (!mask.defined()) return mask;
  if (mask.dtype() != boolean) check::floating(op, mask);
  if (mask.rank() > weights.rank() || broadcast_shapes(op, mask.shape(), weights) != weights)
    fail<ShapeError>(op, "the mask is ", described(mask), ", the weights are ", weights,
                     ". The mask must broadcast to them.");
  return as_rank_4(mask);
}

AttentionSettings settings_of(const AttentionOptions& options, int64_t width, int64_t weights) {
  if (!(options.dropout >= 0 && options.dropout < 1))
    fail<UsageError>(op, "dropout is ", options.dropout, ". It must be on [0, 1).");
  if (options.causal && options.mask.defined())
    fail<UsageError>(op, "causal and a mask are both given. Put the causal part into the mask.");
  if (options.scale && !std::isfinite(*options.scale))
    fail<UsageError>(op, "scale is ", *options.scale, ". It must be finite.");
  AttentionSettings settings{.scale = options.scale.value_or(1 / std::sqrt(double(width))),
                             .causal = options.causal,
                             .dropout = options.dropout};
  if (options.dropout > 0) settings.key = default_generator().reserve(uint64_t(weights));
  return settings;
}

/// Returns whether the heads of k and v divide those of q; their shapes are checked otherwise.
bool heads_fit(const Tensor& q, const Tensor& k, bool shared) {
  const int d = q.rank() - 3;
  const int64_t heads = q.shape()[d], key_heads = k.shape()[d];
  return heads == key_heads || (shared && heads > 0 && key_heads > 0 && heads % key_heads == 0);
}
/// Repeats each head of x so that there are `heads`.
Tensor repeated(const Tensor& x, int64_t heads) {
  const int d = x.rank() - 3;
  if (d < 0 || x.shape()[d] == heads) return x;
  Shape spread = x.shape(), shape = x.shape();
  spread.insert(d + 1, heads / x.shape()[d]);
  shape[d] = heads;
  return reshape(expand(unsqueeze(x, d + 1), spread), shape);
}

/// Returns softmax(scale q k^T + mask) v in recorded steps, in f32 or wider, as PyTorch's: a short
/// float would round the scores.
Tensor by_steps(const Tensor& q_in, const Tensor& k_in, const Tensor& v_in,
                const AttentionOptions& options, double scale) {
  std::array inputs{q_in, k_in, v_in};
  if (InputCaster* caster = active_caster()) caster->cast_inputs(Attention::info, inputs);
  const CasterScope no_cast(nullptr);
  const DType dtype = inputs[0].dtype(), wide = dtype == f64 ? f64 : f32;
  for (Tensor& x : inputs) x = cast(x, wide);
  const auto& [q, k, v] = inputs;
  const Tensor scores = matmul(q, transpose(k, -2, -1)) * scale + cast(options.mask, wide);
  return cast(matmul(dropout(softmax(scores, -1), options.dropout), v), dtype);
}
}  // namespace

Tensor Attention::forward(const Tensor& query, const Tensor& key, const Tensor& value,
                          const Tensor& m) {
  check::same_dtype(op, query, key), check::same_dtype(op, query, value);
  const Shape& s = query.shape();
  q = with_unit_rows(query), k = with_unit_rows(key), v = with_unit_rows(value);
  if (m.defined()) mask = views::expand(m, {s[0], s[1], s[2], key.shape()[2]});
  const Shape shape{s[0], s[1], s[2], value.shape()[3]};
  // In the order of q, with contiguous rows: the stride of a head of size 1 is arbitrary.
  const bool any_order = s[3] == 1 && q.strides()[3] != 1;
  y = any_order
          ? empty(shape, q.dtype(), q.device())
          : empty_strided(shape, strides_in_order_of(shape, q.strides()), q.dtype(), q.device());
  const bool is_short = q.dtype() != f64 && q.dtype() != f32;
  log_sum_exp =
      empty({is_short ? 1 : 2, s[0], s[1], s[2]}, q.dtype() == f64 ? f64 : f32, q.device());
  backend_for(q).attention({.q = q,
                            .k = k,
                            .v = v,
                            .mask = mask,
                            .settings = settings,
                            .y = y,
                            .log_sum_exp = log_sum_exp});
  return y;
}

std::array<Tensor, 4> Attention::backward(const Tensor& dy) const {
  const auto like = [](const Tensor& x) {
    return empty_strided(x.shape(), strides_in_order_of(x.shape(), x.strides()), x.dtype(),
                         x.device());
  };
  Tensor dq = like(q), dk = like(k), dv = like(v);
  backend_for(q).attention_backward({.q = q,
                                     .k = k,
                                     .v = v,
                                     .mask = mask,
                                     .settings = settings,
                                     .y = y,
                                     .log_sum_exp = log_sum_exp,
                                     .dy = with_unit_rows(dy),
                                     .dq = dq,
                                     .dk = dk,
                                     .dv = dv});
  return {dq, dk, dv, {}};
}

namespace {
/// Returns part 0, 1 or 2 of a contiguous [n, l, 3 width] as [n, heads, l, e].
Tensor heads_of(const Tensor& qkv, int64_t heads, int part) {
  const int64_t n = qkv.shape()[0], l = qkv.shape()[1], width = qkv.shape()[2] / 3;
  return qkv.view_as({n, heads, l, width / heads}, {l * 3 * width, width / heads, 3 * width, 1},
                     qkv.offset() + part * width);
}
/// Returns [n, l, heads e] as [n, heads, l, e].
Tensor heads_of(const Tensor& x, int64_t heads) {
  const Shape& s = x.shape();
  return views::transpose(x.view_as({s[0], s[1], heads, s[2] / heads},
                                    {s[1] * s[2], s[2], s[2] / heads, 1}, x.offset()),
                          1, 2);
}
}  // namespace

Tensor PackedAttention::forward(const Tensor& x, const Tensor& mask) {
  qkv = views::contiguous(x);
  inner.settings = settings;
  const Tensor heads_first = inner.forward(heads_of(qkv, heads, 0), heads_of(qkv, heads, 1),
                                           heads_of(qkv, heads, 2), mask);
  return views::reshaped(views::transpose(heads_first, 1, 2),
                         {x.shape()[0], x.shape()[1], x.shape()[2] / 3});
}

std::array<Tensor, 2> PackedAttention::backward(const Tensor& dy) const {
  Tensor dx = empty_like(qkv);
  Tensor dq = heads_of(dx, heads, 0), dk = heads_of(dx, heads, 1), dv = heads_of(dx, heads, 2);
  backend_for(qkv).attention_backward({.q = inner.q,
                                       .k = inner.k,
                                       .v = inner.v,
                                       .mask = inner.mask,
                                       .settings = settings,
                                       .y = inner.y,
                                       .log_sum_exp = inner.log_sum_exp,
                                       .dy = heads_of(views::contiguous(dy), heads),
                                       .dq = dq,
                                       .dk = dk,
                                       .dv = dv});
  return {dx, {}};
}

void detail::check_inner_product(std::string_view op, const Tensor& a, const Tensor& b) {
  check::floating(op, a), check::floating(op, b), check::same_dtype(op, a, b);
  if (a.rank() != 4 || b.rank() != 4 || a.size(0) != b.size(0) || a.size(1) != b.size(1) ||
      a.size(3) != b.size(2))
    fail<ShapeError>(op, "the operands are ", described(a), " and ", described(b),
                     ". They must be [n, heads, m, k] and [n, heads, k, l].");
}

Tensor AttentionProbabilities::forward(const Tensor& scores, const Tensor& mask) {
  check::floating(info.name, scores);
  if (scores.rank() != 4)
    fail<ShapeError>(info.name, "the scores are ", described(scores),
                     ". They must be [n, heads, l, s].");
  Backend& backend = backend_for(scores);
  const auto everywhere = [&](double value) {
    return views::expand(full({}, value, scores.dtype(), scores.device()), scores.shape());
  };
  const Tensor wide = mask.defined() ? views::expand(mask, scores.shape()) : mask;
  const bool seen = mask.defined() && mask.dtype() == boolean;
  Tensor x = scores;
  if (mask.defined()) x = empty(scores.shape(), scores.dtype(), scores.device());
  if (seen) backend.select(wide, scores, everywhere(-std::numeric_limits<double>::infinity()), x);
  else if (mask.defined()) backend.binary(call_of<BinaryFormulas>(formula::Add{}), scores, wide, x);
  y = empty(scores.shape(), scores.dtype(), scores.device());
  backend.softmax(views::contiguous(x), false, y);
  if (!seen) return y;
  Tensor some = empty(y.shape(), y.dtype(), y.device());
  backend.select(wide, y, everywhere(0), some);
  return y = some;
}
std::array<Tensor, 2> AttentionProbabilities::backward(const Tensor& dy) const {
  Tensor dx = empty(y.shape(), y.dtype(), y.device());
  backend_for(y).softmax_backward(y, views::contiguous(dy), false, dx);
  return {dx, {}};
}

namespace {
/// Returns the plan of a caster that treats the inside of attention, and casts the inputs; nullopt
/// without one.
std::optional<CastPlan> opened(std::span<Tensor> inputs, const Tensor& mask) {
  InputCaster* const caster = active_caster();
  std::optional<CastPlan> plan;
  if (caster) plan = caster->open(Attention::info, inputs);
  if (plan && mask.defined() && mask.requires_grad() && grad_enabled())
    fail<UnsupportedError>(op,
                           "a rule is for the inside of attention, and the mask wants a gradient. "
                           "Except this place from the rule, or detach the mask.");
  return plan;
}

/// Returns softmax(scale q k^T + mask) v by operations that the caster treats one by one. inputs:
/// as they were cast, of rank 4.
Tensor by_treated_steps(const std::array<Tensor, 3>& inputs, const Tensor& mask,
                        const AttentionSettings& settings, const CastPlan& plan) {
  const std::shared_ptr<InputCaster> caster = shared_active_caster();
  const auto treated = [&](auto operation, const auto&... x) {
    const CasterScope scope(caster);
    return apply(std::move(operation), x...);
  };
  const CasterScope untreated(nullptr);
  const DType dtype = inputs[0].dtype(), wide = dtype == f64 ? f64 : f32;
  const Tensor q = cast(inputs[0], wide), k = repeated(cast(inputs[1], wide), q.size(1)),
               v = repeated(cast(inputs[2], wide), q.size(1));
  Tensor seen = mask.defined() && mask.dtype() != boolean ? cast(mask, wide) : mask;
  if (settings.causal)
    seen = unsqueeze(arange(q.size(-2), i64, q.device()), 1) >= arange(k.size(-2), i64, q.device());
  const Tensor products = treated(AttentionScores{}, q, transpose(k, -2, -1));
  Tensor weights = treated(AttentionProbabilities{}, products * settings.scale, seen);
  weights = dropout(weights, settings.dropout);
  return cast(treated(AttentionValues{}, weights, v), plan.result.value_or(dtype));
}
}  // namespace

Tensor scaled_dot_product_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                    const AttentionOptions& options) {
  check::floating(op, q), check::floating(op, k), check::floating(op, v);
  const int r = q.rank();
  bool fits = r >= 2 && r <= 4 && k.rank() == r && v.rank() == r;
  for (int i = 0; fits && i < r - 2; ++i)
    fits = i == r - 3 ? heads_fit(q, k, options.enable_gqa) && k.shape()[i] == v.shape()[i]
                      : q.shape()[i] == k.shape()[i] && q.shape()[i] == v.shape()[i];
  if (!fits || q.shape()[r - 1] != k.shape()[r - 1] || k.shape()[r - 2] != v.shape()[r - 2])
    fail<ShapeError>(op, "q is ", described(q), ", k is ", described(k), ", v is ", described(v),
                     ". They must be [..., l, e], [..., s, e] and [..., s, ev], of rank 2 to 4",
                     options.enable_gqa ? ", with key heads that divide heads." : ".");
  Shape weights = q.shape();
  weights[r - 1] = k.shape()[r - 2];
  const Tensor mask = mask_for(options.mask, weights);
  const AttentionSettings settings = settings_of(options, q.shape()[r - 1], numel_of(weights));
  std::array inputs{as_rank_4(q), as_rank_4(k), as_rank_4(v)};
  Tensor y;
  if (const auto plan = opened(inputs, mask)) {
    y = by_treated_steps(inputs, mask, settings, *plan);
  } else if (mask.defined() && mask.requires_grad() && grad_enabled()) {
    return by_steps(q, r > 2 ? repeated(k, q.shape()[r - 3]) : k,
                    r > 2 ? repeated(v, q.shape()[r - 3]) : v, options, settings.scale);
  } else {
    y = apply(Attention{.settings = settings}, inputs[0], inputs[1], inputs[2], mask);
  }
  Shape shape = q.shape();
  shape[r - 1] = v.shape()[r - 1];
  return r == 4 ? y : reshape(y, shape);
}

Tensor self_attention(const Tensor& qkv, int64_t heads, const AttentionOptions& options) {
  check::floating(op, qkv);
  check::rank(op, "qkv", qkv, 3);
  const int64_t l = qkv.shape()[1], width = qkv.shape()[2] / 3;
  if (heads <= 0 || qkv.shape()[2] % (3 * heads) != 0 || width == 0)
    fail<ShapeError>(op, "qkv is ", described(qkv), " for ", heads,
                     " heads. Its last dimension must be 3 heads times their width.");
  const Shape weights{qkv.shape()[0], heads, l, l};
  const Tensor mask = mask_for(options.mask, weights);
  const AttentionSettings settings = settings_of(options, width / heads, numel_of(weights));
  if (mask.defined() && mask.requires_grad() && grad_enabled())
    fail<UnsupportedError>(op,
                           "a mask of packed attention gets no gradient. Give "
                           "scaled_dot_product_attention queries, keys and values.");
  std::array inputs{qkv};
  if (const auto plan = opened(inputs, mask)) {
    const auto heads_first = [&](int part) {
      const CasterScope untreated(nullptr);
      const Tensor x = slice(inputs[0], 2, part * width, (part + 1) * width);
      return transpose(reshape(x, {weights[0], l, heads, width / heads}), 1, 2);
    };
    const Tensor y =
        by_treated_steps({heads_first(0), heads_first(1), heads_first(2)}, mask, settings, *plan);
    const CasterScope untreated(nullptr);
    return reshape(transpose(y, 1, 2), {weights[0], l, width});
  }
  return apply(PackedAttention{.heads = heads, .settings = settings}, qkv, mask);
}

// The loops over time. A step is one product of the state with the recurrent weights, in f32, and
// one kernel for everything else.

namespace {

/// Returns step t of a contiguous [time, n, width].
Tensor at(const Tensor& x, int64_t t) {
  const int64_t n = x.size(1), width = x.size(2);
  return x.view_as({n, width}, {width, 1}, x.offset() + t * n * width);
}
Tensor all_rows(const Tensor& x) { return detail::as_shape(x, {x.size(0) * x.size(1), x.size(2)}); }
Tensor statistics_copy(const Tensor& x, DType dtype) {
  Tensor y = empty(x.shape(), dtype, x.device());
  backend_for(x).copy(x, y);
  return y;
}
DType statistics(DType dtype) { return dtype == f64 ? f64 : f32; }

/// The order of the time steps.
struct Steps {
  int64_t count;
  bool reverse;
  int64_t of(int64_t step) const { return reverse ? count - 1 - step : step; }
  int64_t first() const { return of(0); }
  int64_t last() const { return of(count - 1); }
  int64_t before(int64_t t) const { return reverse ? t + 1 : t - 1; }
};

void check_state(std::string_view op, std::string_view what, const Tensor& x, const Tensor& state,
                 int64_t hidden) {
  check::rank(op, what, state, 2);
  check::same_dtype(op, x, state);
  if (state.size(0) != x.size(1) || state.size(1) != hidden)
    fail<ShapeError>(op, what, " is ", described(state), " for x ", described(x),
                     " and weights of ", hidden, " states. It must be [", x.size(1), ", ", hidden,
                     "].");
}

void check_inputs(std::string_view op, int64_t gates, const Tensor& x, const Tensor& w,
                  const Tensor& bias) {
  check::rank(op, "x", x, 3);
  check::floating(op, x);
  check::rank(op, "weight", w, 2);
  const int64_t h = w.size(1);
  if (h < 1 || w.size(0) != gates * h || x.size(2) != gates * h)
    fail<ShapeError>(op, "x is ", described(x), ", weight is ", described(w),
                     ". With h states they "
                     "must be [time, n, ",
                     gates, " h] and [", gates, " h, h].");
  if (x.size(0) < 1) fail<ShapeError>(op, "x is ", described(x), ". It must have steps.");
  check::vector_of(op, "bias", bias, gates * h);
}

/// Returns the states before each step, in the order of time: [time * n, h].
Tensor states_before(const Tensor& y, const Tensor& h0, const Steps& steps) {
  const int64_t n = y.size(1), h = y.size(2);
  Tensor states = empty({steps.count, n, h}, y.dtype(), y.device());
  Tensor first = at(states, steps.first());
  backend_for(y).copy(h0, first);
  const int64_t shift = steps.reverse ? 0 : 1;
  Tensor rest = views::slice(states, 0, shift, steps.count - 1);
  backend_for(y).copy(views::slice(y, 0, 1 - shift, steps.count - 1), rest);
  return all_rows(states);
}

/// Returns the gradients of recurrent weights and bias, from the gate gradients of all steps.
template <int N>
std::array<Tensor, 2> weight_gradients(const Needs<N>& needs, const Tensor& dgates, const Tensor& y,
                                       const Tensor& h0, const Steps& steps) {
  const Tensor rows = all_rows(dgates);
  const int64_t width = rows.size(1);
  Tensor dweight, dbias;
  if (needs[N - 2])
    dweight =
        Matmul::product(detail::transposed(rows), states_before(y, h0, steps), needs.dtype(N - 2));
  if (needs[N - 1])
    dbias = detail::as_shape(reduce_to(rows, {1, width}, needs.dtype(N - 1)), {width});
  return {dweight, dbias};
}

}  // namespace

Tensor Lstm::forward(const Tensor& x_in, const Tensor& h, const Tensor& c, const Tensor& w,
                     const Tensor& bias) {
  check_inputs("lstm", 4, x_in, w, bias);
  check_state("lstm", "h0", x_in, h, w.size(1));
  check_state("lstm", "c0", x_in, c, w.size(1));
  check::same_dtype("lstm", x_in, w);
  if (bias.defined()) check::same_dtype("lstm", x_in, bias);
  const Tensor x = views::contiguous(x_in);
  const int64_t n = x.size(1), width = w.size(1);
  const Steps steps{x.size(0), reverse};
  const DType wide = statistics(x.dtype());
  const bool kept = needs[0] || needs[1] || needs[2] || needs[3] || needs[4];

  h0 = views::contiguous(h), c0 = statistics_copy(c, wide), weight = detail::matrix_layout(w);
  y = empty({steps.count + 1, n, width}, x.dtype(), x.device());
  cells = empty({steps.count, n, width}, wide, x.device());
  gates = empty({kept ? steps.count : 1, n, 4 * width}, x.dtype(), x.device());
  Tensor recurrent = empty({n, 4 * width}, wide, x.device());
  Backend& backend = backend_for(x);
  for (int64_t step = 0; step < steps.count; ++step) {
    const int64_t t = steps.of(step);
    const bool first = step == 0;
    backend.matmul(first ? h0 : at(y, steps.before(t)), detail::transposed(weight),
                   detail::contiguous_or_undefined(bias), recurrent);
    Tensor step_gates = at(gates, kept ? t : 0), cell = at(cells, t), state = at(y, t);
    backend.lstm_cell({.x = at(x, t),
                       .recurrent = recurrent,
                       .cell_before = first ? c0 : at(cells, steps.before(t)),
                       .gates = step_gates,
                       .cell = cell,
                       .y = state});
  }
  Tensor last_cell = at(y, steps.count);
  backend.copy(at(cells, steps.last()), last_cell);
  return y;
}

std::array<Tensor, 5> Lstm::backward(const Tensor& dy_in) const {
  const Tensor dy = views::contiguous(dy_in);
  const Steps steps{gates.size(0), reverse};
  const DType wide = statistics(y.dtype());
  Tensor dgates = empty_like(gates);
  Tensor dstate = zeros(h0.shape(), wide, y.device());
  Tensor dcell = statistics_copy(at(dy, steps.count), wide);
  Backend& backend = backend_for(y);
  for (int64_t step = steps.count - 1; step >= 0; --step) {
    const int64_t t = steps.of(step);
    Tensor step_dgates = at(dgates, t);
    backend.lstm_cell_backward({.gates = at(gates, t),
                                .cell_before = step == 0 ? c0 : at(cells, steps.before(t)),
                                .cell = at(cells, t),
                                .dy = at(dy, t),
                                .dstate = dstate,
                                .dcell = dcell,
                                .dgates = step_dgates});
    if (step > 0 || needs[1]) backend.matmul(step_dgates, weight, {}, dstate);
  }
  const auto [dweight, dbias] = weight_gradients(needs, dgates, y, h0, steps);
  return {dgates, needs[1] ? statistics_copy(dstate, y.dtype()) : Tensor{},
          needs[2] ? statistics_copy(dcell, y.dtype()) : Tensor{}, dweight, dbias};
}

Tensor Gru::forward(const Tensor& x_in, const Tensor& h, const Tensor& w, const Tensor& bias) {
  check_inputs("gru", 3, x_in, w, bias);
  check_state("gru", "h0", x_in, h, w.size(1));
  check::same_dtype("gru", x_in, w);
  if (bias.defined()) check::same_dtype("gru", x_in, bias);
  const Tensor x = views::contiguous(x_in);
  const int64_t n = x.size(1), width = w.size(1);
  const Steps steps{x.size(0), reverse};
  const bool kept = needs[0] || needs[1] || needs[2] || needs[3];

  h0 = views::contiguous(h), weight = detail::matrix_layout(w);
  y = empty({steps.count, n, width}, x.dtype(), x.device());
  gates = empty({kept ? steps.count : 1, n, 4 * width}, x.dtype(), x.device());
  Tensor recurrent = empty({n, 3 * width}, statistics(x.dtype()), x.device());
  Backend& backend = backend_for(x);
  for (int64_t step = 0; step < steps.count; ++step) {
    const int64_t t = steps.of(step);
    const Tensor before = step == 0 ? h0 : at(y, steps.before(t));
    backend.matmul(before, detail::transposed(weight), detail::contiguous_or_undefined(bias),
                   recurrent);
    Tensor step_gates = at(gates, kept ? t : 0), state = at(y, t);
    backend.gru_cell(at(x, t), recurrent, before, step_gates, state);
  }
  return y;
}

std::array<Tensor, 4> Gru::backward(const Tensor& dy_in) const {
  const Tensor dy = views::contiguous(dy_in);
  const int64_t n = y.size(1), width = y.size(2);
  const Steps steps{gates.size(0), reverse};
  const DType wide = statistics(y.dtype());
  Tensor dx = empty({steps.count, n, 3 * width}, y.dtype(), y.device());
  Tensor drecurrent = empty_like(dx), dstate = zeros(h0.shape(), wide, y.device());
  Tensor through_weights = empty_like(dstate);
  Backend& backend = backend_for(y);
  for (int64_t step = steps.count - 1; step >= 0; --step) {
    const int64_t t = steps.of(step);
    Tensor step_dx = at(dx, t), step_drecurrent = at(drecurrent, t);
    backend.gru_cell_backward({.gates = at(gates, t),
                               .state = step == 0 ? h0 : at(y, steps.before(t)),
                               .dy = at(dy, t),
                               .dstate = dstate,
                               .dx = step_dx,
                               .drecurrent = step_drecurrent});
    if (step == 0 && !needs[1]) break;
    backend.matmul(step_drecurrent, weight, {}, through_weights);
    backend.accumulate(through_weights, dstate);
  }
  const auto [dweight, dbias] = weight_gradients(needs, drecurrent, y, h0, steps);
  return {dx, needs[1] ? statistics_copy(dstate, y.dtype()) : Tensor{}, dweight, dbias};
}

LstmStates lstm(const Tensor& x, const Tensor& h0, const Tensor& c0, const Tensor& weight,
                const Tensor& bias, bool reverse) {
  const Tensor all = apply(Lstm{.reverse = reverse}, x, h0, c0, weight, bias);
  const int64_t steps = all.size(0) - 1;
  return {slice(all, 0, 0, steps), select(all, 0, reverse ? 0 : steps - 1), select(all, 0, steps)};
}

GruStates gru(const Tensor& x, const Tensor& h0, const Tensor& weight, const Tensor& bias,
              bool reverse) {
  const Tensor y = apply(Gru{.reverse = reverse}, x, h0, weight, bias);
  return {y, select(y, 0, reverse ? 0 : y.size(0) - 1)};
}

// Random numbers whose distributions are tensors.

Tensor bernoulli(const Tensor& p) {
  check::floating("bernoulli", p);
  const NoGrad no_grad;
  const bool seen = p.device().kind == DeviceKind::cpu && p.numel() > 0;
  if (seen && all(logical_and(p >= 0, p <= 1)).item() == 0)
    fail<UsageError>("bernoulli", "probabilities are from ", min(p).item(), " to ", max(p).item(),
                     ". They must be on [0, 1].");
  const Tensor drawn = rand(p.shape(), p.dtype() == f64 ? f64 : f32, p.device());
  return cast(drawn < p, p.dtype());
}

Tensor normal(const Tensor& mean, const Tensor& std) {
  check::floating("normal", mean);
  check::floating("normal", std);
  const NoGrad no_grad;
  const CasterScope as_is(nullptr);
  const bool seen = std.device().kind == DeviceKind::cpu && std.numel() > 0;
  if (seen && all(std >= 0).item() == 0)
    fail<UsageError>("normal", "the least std is ", min(std).item(), ". None may be negative.");
  const DType dtype = promote(mean.dtype(), std.dtype()), wide = dtype == f64 ? f64 : f32;
  const Shape shape = broadcast_shapes("normal", mean.shape(), std.shape());
  return cast(cast(mean, wide) + randn(shape, wide, mean.device()) * cast(std, wide), dtype);
}
Tensor normal(const Tensor& mean, double std) {
  check::floating("normal", mean);
  return normal(mean, scalar(std, mean.dtype(), mean.device()));
}
Tensor normal(double mean, const Tensor& std) {
  check::floating("normal", std);
  return normal(scalar(mean, std.dtype(), std.device()), std);
}

}  // namespace halftone
