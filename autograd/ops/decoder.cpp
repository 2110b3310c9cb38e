// Checks and layouts of the decoders' operations.
#include <halftone/autograd/ops/decoder.h>

#include <cmath>

#include <halftone/autograd/ops/shape.h>

namespace halftone {

Tensor Rope::turned(const Tensor& x_in, bool back) const {
  const Tensor x = x_in.strides()[3] == 1 ? x_in : views::contiguous(x_in);
  Strides order = strides_in_order_of(x.shape(), x.strides());
  if (order[3] != 1) order = contiguous_strides(x.shape());
  Tensor y = empty_strided(x.shape(), order, x.dtype(), x.device());
  backend_for(x).rope(x, options, back, y);
  return y;
}

Tensor rope(const Tensor& x, const RopeOptions& options) {
  check::floating("rope", x);
  const int r = x.rank();
  if (r < 2 || r > 4 || x.shape()[r - 1] % 2 != 0 || x.shape()[r - 1] == 0)
    fail<ShapeError>("rope", described(x),
                     " has no pairs. It must be [..., l, e], of rank 2 to 4, ", "with e even.");
  if (!(options.theta > 0) || !std::isfinite(options.theta))
    fail<UsageError>("rope", "theta is ", options.theta, ". It must be positive.");
  if (options.position < 0 || options.position > (int64_t(1) << 52))
    fail<UsageError>("rope", "the first position is ", options.position, ". It must be 0 or more.");
  const RopeScaling& s = options.scaling;
  if (!(s.factor > 0) || (s.factor != 1 && !(s.low_frequency_factor < s.high_frequency_factor)) ||
      s.original_context < 1)
    fail<UsageError>("rope", "the scaling has the factor ", s.factor, ", the bounds ",
                     s.low_frequency_factor, " and ", s.high_frequency_factor,
                     " and the original context ", s.original_context,
                     ". Factor and context must be positive, the bounds must rise.");
  Tensor wide = x;
  while (wide.rank() < 4) wide = unsqueeze(wide, 0);
  const Tensor y = apply(Rope{.options = options}, wide);
  return r == 4 ? y : reshape(y, x.shape());
}

Tensor swiglu(const Tensor& x) {
  check::floating("swiglu", x);
  if (x.rank() == 0 || x.size(-1) % 2 != 0)
    fail<ShapeError>("swiglu", "the last dimension of ", described(x),
                     " has no halves. Its size must be even.");
  return apply(PackedSwiglu{}, x);
}

namespace {
Tensor matrix_of(const Tensor& x, int64_t i) {
  return x.view_as({x.size(1), x.size(2)}, {x.strides()[1], x.strides()[2]},
                   x.offset() + i * x.strides()[0]);
}
Tensor rows_of_group(const Tensor& x, int64_t begin, int64_t end) {
  return views::slice(x, 0, begin, end - begin);
}
}  // namespace

double GroupedLinear::flops(std::span<const Tensor> inputs) {
  return inputs[1].rank() == 3 ? 2 * double(inputs[0].numel()) * double(inputs[1].size(1)) : 0;
}

Tensor GroupedLinear::forward(const Tensor& in, const Tensor& w) {
  check::same_dtype(info.name, in, w);
  save(in, w);
  Tensor y = empty({x.size(0), weight.size(1)}, x.dtype(), x.device());
  each_group([&](int64_t group, int64_t begin, int64_t end) {
    Tensor rows = rows_of_group(y, begin, end);
    detail::multiply(rows_of_group(x, begin, end), detail::transposed(matrix_of(weight, group)), {},
                     accumulate, rows);
  });
  return y;
}

std::array<Tensor, 2> GroupedLinear::backward(const Tensor& dy_in) const {
  const Tensor dy = views::contiguous(dy_in);
  Tensor dx, dweight;
  if (needs[0]) {
    dx = empty(x.shape(), needs.dtype(0), x.device());
    each_group([&](int64_t group, int64_t begin, int64_t end) {
      Tensor rows = rows_of_group(dx, begin, end);
      detail::multiply(rows_of_group(dy, begin, end), matrix_of(weight, group), {}, accumulate,
                       rows);
    });
  }
  if (needs[1]) {
    dweight = zeros(weight.shape(), needs.dtype(1), x.device());  // groups without rows stay 0
    each_group([&](int64_t group, int64_t begin, int64_t end) {
      Tensor matrix = matrix_of(dweight, group);
      detail::multiply(detail::transposed(rows_of_group(dy, begin, end)),
                       rows_of_group(x, begin, end), {}, accumulate, matrix);
    });
  }
  return {dx, dweight};
}

Tensor grouped_linear(const Tensor& x, const Tensor& weight, const Tensor& ends_in) {
  constexpr std::string_view op = GroupedLinear::info.name;
  check::floating(op, x);
  check::floating(op, weight);
  check::defined(op, "ends", ends_in);
  if (x.rank() != 2 || weight.rank() != 3 || x.size(1) != weight.size(2))
    fail<ShapeError>(op, "x is ", described(x), ", weight is ", described(weight),
                     ". They must be [rows, in] and [groups, out, in].");
  if (ends_in.rank() != 1 || ends_in.size(0) != weight.size(0) || is_floating(ends_in.dtype()))
    fail<ShapeError>(op, "ends is ", described(ends_in), " for ", weight.size(0),
                     " groups. It must be integers, one for each group.");
  std::vector<int64_t> ends = ends_in.to(Device::cpu()).to_vector<int64_t>();
  int64_t before = 0;
  for (const int64_t end : ends) {
    if (end < before || end > x.size(0))
      fail<UsageError>(op, "a group ends at ", end, " after ", before, ", of ", x.size(0),
                       " rows. Ends must not fall, and be rows.");
    before = end;
  }
  if (before != x.size(0))
    fail<UsageError>(op, "the last group ends at ", before, " of ", x.size(0),
                     " rows. Each row must be in a group.");
  return apply(GroupedLinear{.ends = std::move(ends)}, x, weight);
}

Tensor router_scores(const Tensor& x, const Tensor& weight) {
  constexpr std::string_view op = RouterScores::info.name;
  check::floating(op, x), check::floating(op, weight);
  if (x.rank() < 1 || weight.rank() != 2 || x.size(-1) != weight.size(1))
    fail<ShapeError>(op, "x is ", described(x), ", weight is ", described(weight),
                     "; they must be [.., features] and [experts, features].");
  return apply(RouterScores{}, x, weight, Tensor{});
}

}  // namespace halftone
