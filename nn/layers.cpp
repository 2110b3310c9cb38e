// The formulas of torch.nn.init, made of the backend's fill, uniform and normal. Two of them have
// no kernels (truncated normal, orthogonal) and are computed in f64 on the host.
#include <halftone/nn/layers.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <halftone/autograd/ops/elementwise.h>
#include <halftone/core/backend.h>
#include <halftone/core/error.h>
#include <halftone/core/factory.h>

namespace halftone::nn::init {
namespace {

/// Random kernels need dense memory; a view with holes is written through a dense copy.
template <class Draw> Tensor fill_random(Tensor x, Draw draw) {
  if (x.numel() == 0) return x;
  Backend& backend = backend_for(x);
  const RandomKey key = default_generator().reserve(uint64_t(x.numel()));
  Tensor dense = x.is_dense() ? x : empty_like(x);
  draw(backend, key, dense);
  if (x.is_dense()) mark_written(x);
  else copy_into(x, dense);
  return x;
}

/// values: row-major, one for each element of x.
Tensor copy_from_host(const std::vector<double>& values, const Tensor& x) {
  copy_into(x, from_vector(values, x.shape(), f64));
  return x;
}

/// Returns the z with Phi(z) = p, by bisection on erfc: 60 halvings of [-9, 9], enough for any
/// double used here.
double normal_quantile(double p) {
  double low = -9, high = 9;
  for (int i = 0; i < 60; ++i) {
    const double middle = 0.5 * (low + high);
    (0.5 * std::erfc(-middle / std::numbers::sqrt2) < p ? low : high) = middle;
  }
  return 0.5 * (low + high);
}

double normal_cdf(double z) { return 0.5 * std::erfc(-z / std::numbers::sqrt2); }

double kaiming_std(const Tensor& x, const KaimingOptions& options) {
  const Fans fans = fans_of(x);
  const double fan = double(options.fan == Fan::in ? fans.in : fans.out);
  return gain_of(options.nonlinearity, options.slope) / std::sqrt(fan);
}

double xavier_std(const Tensor& x, double gain) {
  const Fans fans = fans_of(x);
  return gain * std::sqrt(2.0 / double(fans.in + fans.out));
}

/// U(-bound, bound) has the standard deviation bound / sqrt(3).
Tensor uniform_with_std(const Tensor& x, double std) {
  const double bound = std::sqrt(3.0) * std;
  return uniform(x, -bound, bound);
}

/// Gram-Schmidt on the rows, each projected twice, which makes them orthogonal up to rounding
/// (Kahan, Parlett). rows <= columns.
void orthonormalize_rows(std::vector<double>& q, int64_t rows, int64_t columns) {
  const auto dot = [&](const double* a, const double* b) {
    double sum = 0;
    for (int64_t j = 0; j < columns; ++j) sum += a[j] * b[j];
    return sum;
  };
  for (int64_t i = 0; i < rows; ++i) {
    double* row = q.data() + i * columns;
    for (int pass = 0; pass < 2; ++pass) {
      for (int64_t k = 0; k < i; ++k) {
        const double* before = q.data() + k * columns;
        const double projection = dot(row, before);
        for (int64_t j = 0; j < columns; ++j) row[j] -= projection * before[j];
      }
    }
    const double length = std::sqrt(dot(row, row));
    for (int64_t j = 0; j < columns; ++j) row[j] /= length;
  }
}

}  // namespace

Tensor constant(const Tensor& x, double value) {
  fill_with(x, value);
  return x;
}

Tensor zeros(const Tensor& x) { return constant(x, 0); }
Tensor ones(const Tensor& x) { return constant(x, 1); }

Tensor uniform(const Tensor& x, double low, double high) {
  if (!(low <= high))
    fail<UsageError>("init.uniform", "low ", low, " is above high ", high, ". Swap them.");
  return fill_random(
      x, [&](Backend& backend, RandomKey key, Tensor& y) { backend.uniform(low, high, key, y); });
}

Tensor normal(const Tensor& x, double mean, double std) {
  if (!(std >= 0)) fail<UsageError>("init.normal", "std ", std, " is negative. Use 0 or more.");
  return fill_random(
      x, [&](Backend& backend, RandomKey key, Tensor& y) { backend.normal(mean, std, key, y); });
}

Tensor trunc_normal(const Tensor& x, double mean, double std, double low, double high) {
  if (!(std > 0))
    fail<UsageError>("init.trunc_normal", "std ", std, " is not positive. Use more than 0.");
  if (!(low <= high))
    fail<UsageError>("init.trunc_normal", "low ", low, " is above high ", high, ". Swap them.");
  // A uniform number between Phi(low) and Phi(high), mapped by the inverse of Phi.
  const double from = normal_cdf((low - mean) / std), to = normal_cdf((high - mean) / std);
  std::vector<double> values = uniform(empty({x.numel()}, f64), from, to).to_vector<double>();
  for (double& value : values) value = std::clamp(mean + std * normal_quantile(value), low, high);
  return copy_from_host(values, x);
}

Fans fans_of(const Tensor& weight) {
  if (weight.rank() < 2)
    fail<ShapeError>("init", "fans need a weight [out, in, ...], got ", described(weight),
                     ". Use uniform or normal for vectors.");
  int64_t window = 1;
  for (int i = 2; i < weight.rank(); ++i) window *= weight.shape()[i];
  return {weight.shape()[1] * window, weight.shape()[0] * window};
}

double gain_of(Nonlinearity nonlinearity, double slope) {
  switch (nonlinearity) {
    case Nonlinearity::tanh: return 5.0 / 3;
    case Nonlinearity::relu: return std::numbers::sqrt2;
    case Nonlinearity::leaky_relu: return std::sqrt(2 / (1 + slope * slope));
    case Nonlinearity::selu: return 0.75;
    default: return 1;
  }
}

Tensor xavier_uniform(const Tensor& x, double gain) {
  return uniform_with_std(x, xavier_std(x, gain));
}
Tensor xavier_normal(const Tensor& x, double gain) { return normal(x, 0, xavier_std(x, gain)); }

Tensor kaiming_uniform(const Tensor& x, KaimingOptions options) {
  return uniform_with_std(x, kaiming_std(x, options));
}
Tensor kaiming_normal(const Tensor& x, KaimingOptions options) {
  return normal(x, 0, kaiming_std(x, options));
}

Tensor orthogonal(const Tensor& x, double gain) {
  if (x.rank() < 2)
    fail<ShapeError>("init.orthogonal", "needs a matrix or more, got ", described(x),
                     ". Use normal for vectors.");
  if (x.numel() == 0) return x;
  const int64_t rows = x.shape()[0], columns = x.numel() / rows;
  const int64_t fewer = std::min(rows, columns), more = std::max(rows, columns);
  std::vector<double> q = init::normal(empty({fewer * more}, f64)).to_vector<double>();
  orthonormalize_rows(q, fewer, more);
  std::vector<double> values(q.size());  // q, or its transpose for a tall x
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j)
      values[std::size_t(i * columns + j)] =
          gain * q[std::size_t(rows <= columns ? i * more + j : j * more + i)];
  }
  return copy_from_host(values, x);
}

void layer_default(const Tensor& weight, const Tensor& bias) {
  kaiming_uniform(weight,
                  {.slope = std::sqrt(5.0)});  // gain sqrt(1/3): the bound is 1 / sqrt(fan_in)
  if (!bias.defined()) return;
  const double bound = 1 / std::sqrt(double(fans_of(weight).in));
  uniform(bias, -bound, bound);
}

}  // namespace halftone::nn::init

// Layers: allocation, first values, forward.

namespace halftone::nn {

Linear::Linear(int64_t in_features, int64_t out_features, LinearOptions options) {
  detail::require_positive("Linear", "in_features", in_features);
  detail::require_positive("Linear", "out_features", out_features);
  weight = Parameter(Shape{out_features, in_features});
  if (options.bias) bias = Parameter(Shape{out_features});
  init::layer_default(weight, bias);
}

Prelu::Prelu(int64_t num_parameters, double init) {
  detail::require_positive("Prelu", "num_parameters", num_parameters);
  weight = Parameter(Shape{num_parameters});
  init::constant(weight, init);
}

Router::Router(int64_t features, int64_t experts) {
  detail::require_positive("Router", "features", features);
  detail::require_positive("Router", "experts", experts);
  weight = Parameter(Shape{experts, features});
  Parameter none;
  init::layer_default(weight, none);
}
Tensor Router::forward(const Tensor& x) const {
  const DType wide = x.dtype() == f64 ? f64 : f32;
  return router_scores(cast(x, wide), cast(weight, wide));
}

// Embedding: allocation and first values.

Embedding::Embedding(int64_t count, int64_t width, EmbeddingOptions options)
    : padding_index(options.padding_index) {
  detail::require_positive("Embedding", "count", count);
  detail::require_positive("Embedding", "width", width);
  if (padding_index < -1 || padding_index >= count)
    fail<UsageError>("Embedding", "padding_index ", padding_index, " is not one of the ", count,
                     " rows. Use a row, or -1 for none.");
  weight = Parameter(Shape{count, width});
  init::normal(weight);
  if (padding_index >= 0) init::zeros(weight.detach().view_as({width}, {1}, padding_index * width));
}

// Sequential: calls its layers one after the other.

Layer& Sequential::operator[](int place) const {
  return *layers_[detail::place_among("Sequential", place, layers_.size())];
}

Tensor Sequential::forward(const Tensor& x) const {
  Tensor y = x;
  for (const auto& layer : layers_) y = (*layer)(y);
  return y;
}

void Sequential::describe(Fields& field) {
  for (std::size_t i = 0; i < layers_.size(); ++i) field(std::to_string(i), *layers_[i]);
}

namespace {
void check_columns(std::string_view what, const Tensor& x, int64_t columns) {
  if (!x.defined() || x.rank() < 1 || !is_floating(x.dtype()) || x.size(-1) != columns)
    fail<ShapeError>("Standardizer", what, " ", described(x), ", it knows ", columns,
                     " columns. Pass floating [.., ", columns, "].");
}

/// Returns mean and deviation. A constant column gets its exact value as mean and 1 as deviation.
std::pair<double, double> mean_and_std(std::span<const double> column) {
  const auto [least, most] = std::ranges::minmax(column);
  if (least == most) return {least, 1};
  double mean = 0, square = 0;
  for (const double value : column) mean += value / double(column.size());
  for (const double value : column)
    square += (value - mean) * (value - mean) / double(column.size());
  return {mean, std::sqrt(square)};
}
}  // namespace

Standardizer::Standardizer(int64_t columns)
    : mean(full({columns}, 0, f32)), std(full({columns}, 1, f32)) {
  mean.stays_wide = std.stays_wide = true;
}

Standardizer Standardizer::of(const Tensor& x) {
  if (!x.defined() || x.rank() != 2 || !is_floating(x.dtype()) || x.numel() == 0)
    fail<ShapeError>("Standardizer", "needs floating [rows, columns] with rows, got ", described(x),
                     ". Pass the training data.");
  const int64_t columns = x.size(1);
  const std::vector<double> values = x.to_vector<double>();
  Standardizer result(columns);
  std::vector<double> mean(static_cast<std::size_t>(columns)), std = mean;
  for (int64_t i = 0; i < columns; ++i) {
    std::vector<double> column;
    for (auto at = std::size_t(i); at < values.size(); at += std::size_t(columns))
      column.push_back(values[at]);
    std::tie(mean[std::size_t(i)], std[std::size_t(i)]) = mean_and_std(column);
  }
  copy_into(result.mean, from_vector(mean, {columns}, f32));
  copy_into(result.std, from_vector(std, {columns}, f32));
  return result;
}

Tensor Standardizer::forward(const Tensor& x) const {
  check_columns("got", x, mean.size(0));
  return (x - mean) / std;
}

Tensor Standardizer::undo(const Tensor& x) const {
  check_columns("undoes", x, mean.size(0));
  return x * std + mean;
}

// Allocation, first values, and the two paths: packed if queries, keys and values come from one
// tensor.

MultiheadAttention::MultiheadAttention(int64_t width, int64_t head_count,
                                       MultiheadAttentionOptions options)
    : out_proj(width, width, {.bias = options.bias}), heads(head_count), dropout(options.dropout) {
  detail::require_positive("MultiheadAttention", "heads", heads);
  detail::require_divisible("MultiheadAttention", "width", width, heads);
  const int64_t kdim = options.kdim ? options.kdim : width;
  const int64_t vdim = options.vdim ? options.vdim : width;
  detail::require_positive("MultiheadAttention", "kdim", kdim);
  detail::require_positive("MultiheadAttention", "vdim", vdim);
  const auto map = [&](int64_t rows, int64_t columns) {
    Parameter weight(Shape{rows, columns});
    init::xavier_uniform(weight);
    return weight;
  };
  if (kdim == width && vdim == width) in_proj_weight = map(3 * width, width);
  else
    q_proj_weight = map(width, width), k_proj_weight = map(width, kdim),
    v_proj_weight = map(width, vdim);
  if (!options.bias) return;
  in_proj_bias = Parameter(Shape{3 * width});
  init::zeros(in_proj_bias), init::zeros(out_proj.bias);
}

namespace {
/// Returns the options with a mask that also hides, or changes, the padding: [n, s].
AttentionOptions with_padding(AttentionOptions options, const Tensor& padding, const Tensor& query,
                              const Tensor& key) {
  if (!padding.defined()) return options;
  constexpr std::string_view layer = "MultiheadAttention";
  const int64_t n = key.size(0), l = query.size(1), s = key.size(1);
  if (padding.dtype() != boolean) check::floating(layer, padding);
  if (padding.shape() != Shape{n, s})
    fail<ShapeError>(layer, "key_padding_mask is ", described(padding), ". It must be ",
                     Shape{n, s}, ".");
  if (options.causal && !options.mask.defined()) {
    options.mask = unsqueeze(arange(l, i64, key.device()), 1) >= arange(s, i64, key.device());
    options.causal = false;
  }
  constexpr double hidden = -std::numeric_limits<double>::infinity();
  Tensor& mask = options.mask;
  const Tensor keys = reshape(padding, {n, 1, 1, s});
  const bool seen = mask.defined() && mask.dtype() == boolean;
  if (keys.dtype() != boolean)
    mask = !mask.defined() ? keys : seen ? where(mask, keys, hidden) : mask + keys;
  else if (!mask.defined() || seen)
    mask = seen ? logical_and(mask, logical_not(keys)) : logical_not(keys);
  else mask = where(keys, hidden, mask);
  return options;
}
}  // namespace

Tensor MultiheadAttention::operator()(const Tensor& x, const AttentionOptions& options,
                                      const Tensor& key_padding_mask) const {
  return (*this)(x, x, x, options, key_padding_mask);
}

Tensor MultiheadAttention::operator()(const Tensor& query, const Tensor& key, const Tensor& value,
                                      const AttentionOptions& options,
                                      const Tensor& key_padding_mask) const {
  return called([&] { return attended(query, key, value, options, key_padding_mask); }, query, key,
                value);
}

Tensor MultiheadAttention::attended(const Tensor& query, const Tensor& key, const Tensor& value,
                                    const AttentionOptions& given, const Tensor& padding) const {
  for (const auto& [what, x] : {std::pair{"query", &query}, {"key", &key}, {"value", &value}})
    check::rank("MultiheadAttention", what, *x, 3);
  AttentionOptions options = with_padding(given, padding, query, key);
  options.dropout = training ? dropout : 0;
  const bool packed = in_proj_weight.defined() && query.body() == key.body() &&
                      key.body() == value.body() &&
                      !(options.mask.defined() && options.mask.requires_grad());
  if (packed)
    return out_proj(self_attention(linear(query, in_proj_weight, in_proj_bias), heads, options));
  const int64_t width = out_proj.weight.size(1);
  /// Maps x, [n, l, ...], by part 0, 1 or 2, and returns it as [n, heads, l, width / heads].
  const auto mapped = [&](const Tensor& x, int part, const Tensor& own) {
    const auto of = [&](const Tensor& all) {
      return all.defined() ? slice(all, 0, part * width, (part + 1) * width) : Tensor{};
    };
    const Tensor y = linear(x, own.defined() ? own : of(in_proj_weight), of(in_proj_bias));
    return transpose(reshape(y, {x.size(0), x.size(1), heads, width / heads}), 1, 2);
  };
  const Tensor y =
      scaled_dot_product_attention(mapped(query, 0, q_proj_weight), mapped(key, 1, k_proj_weight),
                                   mapped(value, 2, v_proj_weight), options);
  return out_proj(reshape(transpose(y, 1, 2), {query.size(0), query.size(1), width}));
}

void MultiheadAttention::describe(Fields& field) {
  field("in_proj_weight", in_proj_weight), field("q_proj_weight", q_proj_weight);
  field("k_proj_weight", k_proj_weight), field("v_proj_weight", v_proj_weight);
  field("in_proj_bias", in_proj_bias), field("out_proj", out_proj);
}

// Parts of WeightNorm and SpectralNorm.

Tensor detail::norm_except_dim(const Tensor& x, int dim) {
  if (dim == -1) return norm(x);
  Dims others;
  const int kept = normalize_dim("weight_norm", dim, x.rank());
  for (int i = 0; i < x.rank(); ++i)
    if (i != kept) others.push_back(i);
  return norm(x, others, true);
}

Tensor detail::rows_along(const Tensor& x, int dim) {
  Dims order{normalize_dim("spectral_norm", dim, x.rank())};
  for (int i = 0; i < x.rank(); ++i)
    if (i != order[0]) order.push_back(i);
  return flatten(permute(x, order), 1);
}

void detail::iterate_power(const Tensor& matrix, const Tensor& u, const Tensor& v, int64_t times,
                           double eps) {
  const NoGrad no_grad;
  for (int64_t i = 0; i < times; ++i) {
    copy_into(u, normalize(matmul(matrix, v), 2, 0, eps));
    copy_into(v, normalize(matmul(transpose(matrix, 0, 1), u), 2, 0, eps));
  }
}

Tensor detail::singular_value(const Tensor& matrix, const Tensor& u, const Tensor& v) {
  return sum(u.clone() * matmul(matrix, v.clone()));
}

}  // namespace halftone::nn
