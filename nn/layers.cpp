// Layers: allocation, first values, forward.
#include <halftone/nn/layers.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <halftone/autograd/ops/elementwise.h>
#include <halftone/core/backend.h>
#include <halftone/core/error.h>
#include <halftone/nn/init.h>

namespace halftone::nn {

Linear::Linear(int64_t in_features, int64_t out_features, LinearOptions options) {
  detail::require_positive("Linear", "in_features", in_features);
  detail::require_positive("Linear", "out_features", out_features);
  weight = Parameter(Shape{out_features, in_features});
  if (options.bias) bias = Parameter(Shape{out_features});
  init::layer_default(weight, bias);
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
  const int at = place < 0 ? place + size() : place;
  if (at < 0 || at >= size())
    fail<UsageError>("Sequential", "there is no layer ", place, " among ", size(),
                     ". Count from 0, or back from -1.");
  return *layers_[std::size_t(at)];
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
  in_proj_weight = Parameter(Shape{3 * width, width});
  init::xavier_uniform(in_proj_weight);
  if (!options.bias) return;
  in_proj_bias = Parameter(Shape{3 * width});
  init::zeros(in_proj_bias), init::zeros(out_proj.bias);
}

AttentionOptions MultiheadAttention::with_dropout(const AttentionOptions& options) const {
  AttentionOptions result = options;
  result.dropout = training ? dropout : 0;
  return result;
}

Tensor MultiheadAttention::operator()(const Tensor& x, const AttentionOptions& options) const {
  const CallScope scope = call_scope();
  const Tensor qkv = linear(x, in_proj_weight, in_proj_bias);
  return out_proj(self_attention(qkv, heads, with_dropout(options)));
}

Tensor MultiheadAttention::operator()(const Tensor& query, const Tensor& key, const Tensor& value,
                                      const AttentionOptions& options) const {
  const CallScope scope = call_scope();
  const int64_t width = in_proj_weight.shape()[1];
  /// Maps x, [n, l, width], by part 0, 1 or 2, and returns it as [n, heads, l, width / heads].
  const auto mapped = [&](const Tensor& x, int part) {
    const auto of = [&](const Tensor& all) {
      return all.defined() ? slice(all, 0, part * width, (part + 1) * width) : Tensor{};
    };
    const Tensor y = linear(x, of(in_proj_weight), of(in_proj_bias));
    return transpose(reshape(y, {x.size(0), x.size(1), heads, width / heads}), 1, 2);
  };
  const Tensor y = scaled_dot_product_attention(mapped(query, 0), mapped(key, 1), mapped(value, 2),
                                                with_dropout(options));
  return out_proj(reshape(transpose(y, 1, 2), {query.size(0), query.size(1), width}));
}

void MultiheadAttention::describe(Fields& field) {
  field("in_proj_weight", in_proj_weight), field("in_proj_bias", in_proj_bias);
  field("out_proj", out_proj);
}

}  // namespace halftone::nn
