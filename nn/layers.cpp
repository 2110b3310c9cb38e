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
#include <halftone/nn/standardizer.h>

namespace halftone::nn {

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

}  // namespace halftone::nn
