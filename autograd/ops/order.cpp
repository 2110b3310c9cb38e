// Operations composed of sorting and indexing: extremes with their indices, medians, quantiles,
// unique.
#include <cmath>

#include <halftone/autograd/ops/logical.h>
#include <halftone/autograd/ops/mixing.h>
#include <halftone/autograd/ops/sort.h>

namespace halftone {

namespace {
/// Returns the elements at `index`, which has size 1 along dimension d.
Sorted picked(const Tensor& x, int d, const Tensor& index, bool keep) {
  const Tensor values = gather(x, d, index);
  return keep ? Sorted{values, index} : Sorted{squeeze(values, d), squeeze(index, d)};
}
Tensor flat(const Tensor& x) { return reshape(x, {x.numel()}); }
}  // namespace

Sorted max_with_indices(const Tensor& x, int dim, bool keep) {
  const Tensor index = argmax(x, dim, true);
  return picked(x, normalize_dim("max_with_indices", dim, x.rank()), index, keep);
}
Sorted min_with_indices(const Tensor& x, int dim, bool keep) {
  const Tensor index = argmin(x, dim, true);
  return picked(x, normalize_dim("min_with_indices", dim, x.rank()), index, keep);
}

Sorted median(const Tensor& x, int dim, bool keep) {
  check::numbers("median", x);
  const int d = normalize_dim("median", dim, x.rank());
  if (x.rank() == 0) return {x, zeros({}, i64, x.device())};
  detail::require_elements("median", x, {.dims = {d}});
  const int64_t n = x.shape()[d], middle = (n - 1) / 2;
  Tensor index = slice(argsort(x.detach(), d), d, middle, middle + 1);
  // NaN sorts as largest: x has NaN if the largest is NaN, and argmax() gives the first.
  if (is_floating(x.dtype()) && n > 0) {
    const Sorted largest = max_with_indices(x.detach(), d, true);
    index = where(isnan(largest.values), largest.indices, index);
  }
  return picked(x, d, index, keep);
}

Tensor median(const Tensor& x) {
  check::numbers("median", x);
  if (x.numel() == 0 && !is_floating(x.dtype()))
    fail<ShapeError>("median", described(x), " has no elements. Pass at least one.");
  if (x.numel() == 0)
    return full({}, std::numeric_limits<double>::quiet_NaN(), x.dtype(), x.device());
  const Tensor middle = median(flat(x.detach()), 0).values;
  if (!x.requires_grad()) return middle;
  // The maximum over the elements equal to the median, which share the gradient of max().
  const Tensor lowest = full({}, -std::numeric_limits<double>::infinity(), x.dtype(), x.device());
  const Tensor attains = logical_or(x.detach() == middle, isnan(x.detach()));
  return max(where(attains, x, lowest));
}

Tensor quantile(const Tensor& x, const std::vector<double>& q, std::optional<int> dim, bool keep) {
  check::defined("quantile", "the input", x);
  if (x.dtype() != f32 && x.dtype() != f64)
    fail<DTypeError>("quantile", "needs f32 or f64, got ", described(x), ". Cast it first.");
  if (x.numel() == 0)
    fail<ShapeError>("quantile", described(x), " has no elements. Pass at least one.");
  const int d = dim ? normalize_dim("quantile", *dim, x.rank()) : 0;
  const Tensor rows = dim && x.rank() > 0 ? transpose(x, d, -1) : flat(x);
  const int64_t last = rows.size(-1) - 1;
  const Tensor sorted = sort(rows, -1).values;
  const Tensor largest = slice(sorted, -1, last, last + 1);
  std::vector<Tensor> results;
  for (const double value : q) {
    if (!(value >= 0 && value <= 1))
      fail<UsageError>("quantile", "q is ", value, ". It must be on [0, 1].");
    // The position is rounded as PyTorch's, which computes it in x's dtype.
    const double place =
        x.dtype() == f64 ? value * double(last) : double(float(value) * float(last));
    const auto below = int64_t(std::floor(place)), above = int64_t(std::ceil(place));
    const Tensor y = lerp(slice(sorted, -1, below, below + 1), slice(sorted, -1, above, above + 1),
                          place - double(below));
    Tensor result = where(isnan(largest.detach()), largest, y);
    if (dim && x.rank() > 0) result = transpose(result, d, -1);
    if (dim && x.rank() > 0) results.push_back(keep ? result : squeeze(result, d));
    else results.push_back(reshape(result, keep ? Dims::filled(x.rank(), 1) : Shape{}));
  }
  return stack(results);
}
Tensor quantile(const Tensor& x, double q, std::optional<int> dim, bool keep) {
  return squeeze(quantile(x, std::vector<double>{q}, dim, keep), 0);
}

Unique unique(const Tensor& in) {
  check::numbers_or_bool("unique", in);
  const NoGrad no_grad;
  const Tensor x = flat(in.detach()), order = argsort(x, 0), sorted = gather(x, 0, order);
  const int64_t n = x.numel();
  if (n == 0) return {x, zeros(in.shape(), i64, in.device()), zeros({0}, i64, in.device())};
  const Tensor differs = slice(sorted, 0, 0, n - 1) != slice(sorted, 0, 1, n);
  const Tensor is_first = cat({ones({1}, boolean, in.device()), differs}, 0);
  const Tensor number = cumsum(is_first, 0) - 1, values = masked_select(sorted, is_first);
  const Tensor counts =
      scatter_add(zeros(values.shape(), i64, in.device()), 0, number, ones({n}, i64, in.device()));
  return {values, reshape(scatter_add(zeros_like(number), 0, order, number), in.shape()), counts};
}

}  // namespace halftone
