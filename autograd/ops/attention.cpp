// Shapes and checks of attention, and separate operations for masks that are trained.
#include <halftone/autograd/ops/sequences.h>

#include <cmath>

#include <halftone/autograd/ops/matmul.h>

namespace halftone {

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
  backend_for(q).attention(q, k, v, mask, settings, y, log_sum_exp);
  return y;
}

std::array<Tensor, 4> Attention::backward(const Tensor& dy) const {
  const auto like = [](const Tensor& x) {
    return empty_strided(x.shape(), strides_in_order_of(x.shape(), x.strides()), x.dtype(),
                         x.device());
  };
  Tensor dq = like(q), dk = like(k), dv = like(v);
  backend_for(q).attention_backward(q, k, v, mask, settings, y, log_sum_exp, with_unit_rows(dy), dq,
                                    dk, dv);
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
  backend_for(qkv).attention_backward(inner.q, inner.k, inner.v, inner.mask, settings, inner.y,
                                      inner.log_sum_exp, heads_of(views::contiguous(dy), heads), dq,
                                      dk, dv);
  return {dx, {}};
}

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
  if (mask.defined() && mask.requires_grad() && grad_enabled())
    return by_steps(q, r > 2 ? repeated(k, q.shape()[r - 3]) : k,
                    r > 2 ? repeated(v, q.shape()[r - 3]) : v, options, settings.scale);
  const Tensor y =
      apply(Attention{.settings = settings}, as_rank_4(q), as_rank_4(k), as_rank_4(v), mask);
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
  return apply(PackedAttention{.heads = heads, .settings = settings}, qkv, mask);
}

}  // namespace halftone
