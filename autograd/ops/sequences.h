// Operations on sequences: softmax and dropout, the attention that is made of both, and recurrent
// layers.
#pragma once

#include <optional>

#include <halftone/autograd/ops/elementwise.h>
#include <halftone/autograd/ops/matmul.h>
#include <halftone/autograd/ops/reduce.h>
#include <halftone/autograd/ops/shape.h>

namespace halftone {

// Softmax, dropout, and the attention that is made of both.

// Softmax and its logarithm along one dimension, and the log of the sum of exponentials. Computed
// in f32 or wider with the row maximum subtracted, so no input overflows.

/// y_i = exp(x_i) / sum_j exp(x_j) along the last dimension;  dx = y (dy - sum(y dy)).
struct Softmax {
  static constexpr OpInfo info{"softmax", CastClass::full_precision, cast_reason::exp_inside};
  bool f32_result = false;
  Tensor y{};
  DType from{};

  Tensor forward(const Tensor& x) {
    check::floating("softmax", x);
    from = x.dtype();
    y = empty(x.shape(), f32_result ? f32 : from, x.device());
    backend_for(x).softmax(views::contiguous(x), false, y);
    return y;
  }
  std::array<Tensor, 1> backward(const Tensor& dy) const {
    Tensor dx = empty_like(y, from);
    backend_for(y).softmax_backward(y, views::contiguous(dy), false, dx);
    return {dx};
  }
  std::vector<Tensor> recorded_backward(const Tensor& dy, const History& history) const;
};

/// y_i = x_i - log sum_j exp(x_j) along the last dimension;  dx = dy - exp(y) sum(dy).
struct LogSoftmax {
  static constexpr OpInfo info{"log_softmax", CastClass::full_precision, cast_reason::exp_inside};
  bool f32_result = false;
  Tensor y{};
  DType from{};

  Tensor forward(const Tensor& x) {
    check::floating("log_softmax", x);
    from = x.dtype();
    y = empty(x.shape(), f32_result ? f32 : from, x.device());
    backend_for(x).softmax(views::contiguous(x), true, y);
    return y;
  }
  std::array<Tensor, 1> backward(const Tensor& dy) const {
    Tensor dx = empty_like(y, from);
    backend_for(y).softmax_backward(y, views::contiguous(dy), true, dx);
    return {dx};
  }
  std::vector<Tensor> recorded_backward(const Tensor& dy, const History& history) const;
};

/// y = log sum_j exp(x_j) along the last dimension, which is removed;  dx = softmax(x) dy, and 0 if
/// all of x are -inf.
struct LogSumExp {
  static constexpr OpInfo info{"logsumexp", CastClass::full_precision, cast_reason::exp_inside};
  bool f32_result = false;
  Tensor x{}, y{};

  Tensor forward(const Tensor& in) {
    check::floating("logsumexp", in);
    x = views::contiguous(in);
    Shape shape = x.shape();
    shape.erase(x.rank() - 1);
    y = empty(shape, f32_result ? f32 : x.dtype(), x.device());
    backend_for(x).log_sum_exp(x, y);
    return y;
  }
  std::array<Tensor, 1> backward(const Tensor& dy) const;
  std::vector<Tensor> recorded_backward(const Tensor& dy, const History& history) const;
};

inline Tensor softmax(const Tensor& x, int dim) { return detail::along_dim(Softmax{}, x, dim); }
inline Tensor log_softmax(const Tensor& x, int dim) {
  return detail::along_dim(LogSoftmax{}, x, dim);
}
/// Returns log(sum(exp(x))) over one dimension, several, or all (if `dims` is empty).
inline Tensor logsumexp(const Tensor& x, const Dims& dims, bool keep = false) {
  check::defined("logsumexp", "the input", x);
  const ReduceDims over{dims, keep};
  const Shape result = over.result_shape("logsumexp", x.shape());
  if (x.rank() == 0) return x;
  const Dims reduced = dims.empty() ? Dims::filled(x.rank(), 1) : over.named("logsumexp", x.rank());
  Dims order, last;
  Shape rows;
  for (int i = 0; i < x.rank(); ++i) {
    (reduced[i] ? last : order).push_back(i);
    if (!reduced[i]) rows.push_back(x.shape()[i]);
  }
  int64_t count = 1;
  for (const int64_t i : last) order.push_back(i), count *= x.shape()[int(i)];
  rows.push_back(count);
  return reshape(apply(LogSumExp{}, reshape(permute(x, order), rows)), result);
}
inline Tensor logsumexp(const Tensor& x, int dim, bool keep = false) {
  return logsumexp(x, Dims{dim}, keep);
}

// dropout: zeroes elements at random and scales the rest (Srivastava et al. 2014). The mask is not
// stored: the counter-based generator makes it again in backward from the same key.

struct Dropout {
  static constexpr OpInfo info{"dropout", CastClass::as_is, cast_reason::rounds_once};
  double p;
  RandomKey key;
  Strides order{};  // the mask runs in x's memory order

  Tensor masked(const Tensor& x) const {
    Tensor y = empty_like(x);
    backend_for(x).dropout(x, p, key, y);
    return y;
  }
  Tensor forward(const Tensor& x) {
    check::floating("dropout", x);
    order = strides_in_order_of(x.shape(), x.strides());
    return masked(views::with_strides(x, order));
  }
  std::array<Tensor, 1> backward(const Tensor& dy) const {
    return {masked(views::with_strides(dy, order))};
  }
  std::vector<Tensor> recorded_backward(const Tensor& dy, const History& history) const;
};

/// As torch.nn.functional.dropout; draws from the default generator.
inline Tensor dropout(const Tensor& x, double p, bool training = true) {
  check::defined("dropout", "the input", x);
  if (!(p >= 0 && p <= 1)) fail<UsageError>("dropout", "p is ", p, ". It must be on [0, 1].");
  if (!training || p == 0) return x;
  return apply(Dropout{.p = p, .key = default_generator().reserve(uint64_t(x.numel()))}, x);
}

/// Returns 1 with the probabilities p, else 0, in p's dtype, without history. Probabilities outside
/// of [0, 1] are an error on the CPU. As torch.bernoulli.
Tensor bernoulli(const Tensor& p);
/// Return normal numbers with these means and standard deviations, which broadcast; without
/// history. A negative deviation is an error on the CPU. As torch.normal.
Tensor normal(const Tensor& mean, const Tensor& std);
Tensor normal(const Tensor& mean, double std = 1);
Tensor normal(double mean, const Tensor& std);

/// Zeroes whole channels: x is [n, channels, ...]. As torch.nn.functional.dropout2d, which reads an
/// x of rank 3 in this way as well.
Tensor dropout2d(const Tensor& x, double p, bool training = true);

// Scaled dot-product attention (Vaswani et al. 2017): y = softmax(scale q k^T + mask) v. It is one
// operation, so that no backend ever stores the weights, [l, s] per head: backward recomputes them
// from their logarithmic sums (Dao et al. 2022). Under autocast the products are low precision, the
// softmax inside stays f32.

struct AttentionOptions {
  /// Broadcasts to [..., l, s]. A bool mask is true where a query sees a key; a floating one is
  /// added to the scaled products.
  Tensor mask{};
  double dropout = 0;  // probability for weights; no training flag, as in PyTorch
  bool causal = false;
  std::optional<double> scale{};  // absent: 1 / sqrt(e)
  /// k and v may have fewer heads than q, a number that divides q's: neighboring heads of q share
  /// one. As PyTorch's; nothing is repeated in memory (Ainslie et al. 2023).
  bool enable_gqa = false;
};

/// q: [n, heads, l, e]; k: [n, key heads, s, e]; v: [n, key heads, s, ev]; mask: [n, heads, l, s]
/// or undefined. y: [n, heads, l, ev], its dimensions in q's order in memory.
struct Attention {
  static constexpr OpInfo info{"scaled_dot_product_attention",
                               CastClass::low_precision,
                               cast_reason::products,
                               {.sums = sums_over_last}};
  AttentionSettings settings;
  Tensor q{}, k{}, v{}, mask{}, y{}, log_sum_exp{};

  Tensor forward(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& m);
  std::array<Tensor, 4> backward(const Tensor& dy) const;
  std::vector<Tensor> recorded_backward(const Tensor& dy, const History& history) const;
};

/// Self-attention of one tensor qkv [n, l, 3 heads e], the output of one linear layer: queries,
/// then keys, then values, each with its heads next to each other. y: [n, l, heads e]. The gradient
/// of qkv is one tensor as well.
struct PackedAttention {
  static constexpr OpInfo info = Attention::info;
  int64_t heads;
  AttentionSettings settings;
  Attention inner{};
  Tensor qkv{};

  Tensor forward(const Tensor& x, const Tensor& mask);
  std::array<Tensor, 2> backward(const Tensor& dy) const;
  std::vector<Tensor> recorded_backward(const Tensor& dy, const History& history) const;
};

// Attention in three operations, in f32 or f64, that store its weights: for a caster that rounds
// tensors inside of attention (InputCaster::open).

namespace detail {
/// Throws unless a [.., m, k] and b [.., k, n] have rank 4, one floating dtype and the same heads.
void check_inner_product(std::string_view op, const Tensor& a, const Tensor& b);
}  // namespace detail

constexpr std::string_view inside_attention = "its inputs are cast as attention's";

/// One of the two products: q k^T, [n, heads, l, s], or the probabilities times the values, [n,
/// heads, l, ev].
template <bool of_values> struct AttentionProduct {
  static constexpr OpInfo info{of_values ? "attention_values" : "attention_scores",
                               CastClass::widest_input,
                               inside_attention,
                               {.accumulator = true, .sums = Matmul::sums}};
  Matmul product{};
  Needs<2> needs{};
  std::optional<Accumulator> accumulate{};

  Tensor forward(const Tensor& a, const Tensor& b) {
    detail::check_inner_product(info.name, a, b);
    product.needs = needs, product.accumulate = accumulate;
    return product.forward(a, b);
  }
  std::array<Tensor, 2> backward(const Tensor& dy) const { return product.backward(dy); }
  std::vector<Tensor> recorded_backward(const Tensor& dy, const History& history) const {
    return product.recorded_backward(dy, history);
  }
};
/// The softmax of scaled scores under a mask: bool, true where a query sees a key, or floating,
/// added to them; it broadcasts to the scores, or is undefined. A query that sees no key gets 0.
struct AttentionProbabilities {
  static constexpr OpInfo info{"attention_probabilities", CastClass::as_is, inside_attention};
  Tensor y{};

  Tensor forward(const Tensor& scores, const Tensor& mask);
  std::array<Tensor, 2> backward(const Tensor& dy) const;
  std::vector<Tensor> recorded_backward(const Tensor& dy, const History& history) const;
};

/// As torch.nn.functional.scaled_dot_product_attention, in memory linear in l and s. Ranks 2 to 4;
/// leading dimensions must agree, except for heads with enable_gqa. A mask that requires a gradient
/// gets one, by operations that store the weights. Throws UsageError for causal with a mask.
Tensor scaled_dot_product_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                    const AttentionOptions& options = {});
/// Returns the attention of each position to all positions of its row: [n, l, width]. qkv: [n, l, 3
/// width], width divisible by heads. Throws UnsupportedError for a mask that requires a gradient.
Tensor self_attention(const Tensor& qkv, int64_t heads, const AttentionOptions& options = {});

// Recurrent layers: one direction of one layer, over all time steps, as one operation. One node per
// step would cost a dozen kernels and, in backward, a gradient of the whole sequence at each step.
// Here the gradients of the weights are one product over all steps. The projection of the inputs is
// separate: one `linear` before it.

/// x: [time, n, 4h], the inputs' contributions to the gates (in, forget, cell, out); h0, c0: [n,
/// h]; weight: [4h, h]; bias: [4h] or undefined. The result [time + 1, n, h]: the states of all
/// steps, then the last cell. Between the steps, cells are stored in f32 even if the data is short:
/// they are sums over time.
struct Lstm {
  static constexpr OpInfo info{
      "lstm", CastClass::low_precision, cast_reason::made_of_products, {.sums = sums_over_last}};
  static constexpr std::array wide_gradients{false, false, false, true, true};
  bool reverse;  // from the last step to the first
  Tensor h0{}, c0{}, weight{}, y{}, gates{}, cells{};
  Needs<5> needs{};

  Tensor forward(const Tensor& x, const Tensor& h, const Tensor& c, const Tensor& w,
                 const Tensor& bias);
  std::array<Tensor, 5> backward(const Tensor& dy) const;
  std::vector<Tensor> recorded_backward(const Tensor& dy, const History& history) const;
};

/// x: [time, n, 3h], the inputs' contributions to (reset, update, new); h0: [n, h]; weight: [3h,
/// h]; bias: [3h] or undefined. The result [time, n, h]: the states of all steps.
struct Gru {
  static constexpr OpInfo info{
      "gru", CastClass::low_precision, cast_reason::made_of_products, {.sums = sums_over_last}};
  static constexpr std::array wide_gradients{false, false, true, true};
  bool reverse;
  Tensor h0{}, weight{}, y{}, gates{};
  Needs<4> needs{};

  Tensor forward(const Tensor& x, const Tensor& h, const Tensor& w, const Tensor& bias);
  std::array<Tensor, 4> backward(const Tensor& dy) const;
  std::vector<Tensor> recorded_backward(const Tensor& dy, const History& history) const;
};

struct LstmStates {
  Tensor y;     // [time, n, h]
  Tensor h, c;  // [n, h], after the last step
};
/// Runs one direction of a torch.nn.LSTM layer on projected inputs; see Lstm for the shapes.
LstmStates lstm(const Tensor& x, const Tensor& h0, const Tensor& c0, const Tensor& weight,
                const Tensor& bias = {}, bool reverse = false);

struct GruStates {
  Tensor y;  // [time, n, h]
  Tensor h;  // [n, h], after the last step
};
/// Runs one direction of a torch.nn.GRU layer on projected inputs; see Gru for the shapes.
GruStates gru(const Tensor& x, const Tensor& h0, const Tensor& weight, const Tensor& bias = {},
              bool reverse = false);

}  // namespace halftone
