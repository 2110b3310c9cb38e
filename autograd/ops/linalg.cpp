// Linear algebra of batches, and its gradients made of operations
// (Giles 2008, "Collected matrix derivative results"; Townsend 2016, "Differentiating the singular
// value decomposition"; for wide matrices in qr: Roberts and Roberts, arXiv 2009.10071).
#include <halftone/autograd/ops/linalg.h>

#include <algorithm>
#include <cmath>

#include <halftone/autograd/ops.h>
#include <halftone/core/linear_algebra.h>

namespace halftone {

namespace {

// --- batches

int64_t height_of(const Shape& shape) { return shape[shape.rank() - 2]; }
int64_t width_of(const Shape& shape) { return shape[shape.rank() - 1]; }
/// Returns the shape of a batch with other last dimensions than a matrix's.
Shape batch_of(const Shape& matrix, const Dims& last) {
  Shape shape = matrix;
  shape.erase(shape.rank() - 1), shape.erase(shape.rank() - 1);
  for (const int64_t size : last) shape.push_back(size);
  return shape;
}
int64_t matrices_in(const Shape& shape) { return numel_of(batch_of(shape, {})); }

void require_matrix(std::string_view op, const Tensor& a) {
  check::floating(op, a);
  if (a.rank() < 2) fail<ShapeError>(op, described(a), " is not a matrix. It must be [..., m, n].");
}
void require_square(std::string_view op, const Tensor& a) {
  require_matrix(op, a);
  if (height_of(a.shape()) != width_of(a.shape()))
    fail<ShapeError>(op, described(a), " is not square. It must be [..., n, n].");
}
void require_finite(std::string_view op, const Tensor& a, const Tensor& host) {
  const double* const values = host.data<double>();
  if (!std::all_of(values, values + host.numel(), [](double x) { return std::isfinite(x); }))
    fail<UsageError>(op, described(a),
                     " has elements that are not finite. Look for their origin with isfinite().");
}

Tensor on_host(const Tensor& x) {
  return views::contiguous(cast(views::contiguous(x), f64).to(Device::cpu()));
}
DType wide_of(DType dtype) { return dtype == f64 ? f64 : f32; }
/// Returns a host's result in f32 or wider on the device of the input.
Tensor kept(const Tensor& host, const Tensor& like) {
  return cast(host, wide_of(like.dtype())).to(like.device());
}

/// Calls body(matrix number) for each matrix of a batch that has elements.
template <class Body> void each_matrix(const Shape& shape, const Body& body) {
  if (numel_of(shape) == 0) return;
  for (int64_t i = 0, count = matrices_in(shape); i < count; ++i) body(i);
}

// --- what gradients are made of

Tensor flipped(const Tensor& x) { return transpose(x, -2, -1); }
Tensor eye_like(const Tensor& x) { return eye(width_of(x.shape()), -1, x.dtype(), x.device()); }
/// Returns y with y a = b.
Tensor solved_from_right(const Tensor& a, const Tensor& b) {
  return flipped(linalg::solve(flipped(a), flipped(b)));
}
Tensor lower_mirrored(const Tensor& x) { return tril(x) + flipped(tril(x, -1)); }

/// Returns the part of `packed` that begins at `start`, and moves `start` to its end.
Tensor piece(const Tensor& packed, int64_t& start, const Shape& shape, int dims) {
  int64_t size = 1;
  for (int d = shape.rank() - dims; d < shape.rank(); ++d) size *= shape[d];
  const Tensor cut = slice(packed, packed.rank() - 1, start, start + size);
  start += size;
  return reshape(cut, shape);
}
/// Joins tensors [..., size] to one.
Tensor packed_of(const Shape& matrix, const std::vector<Tensor>& parts) {
  std::vector<Tensor> rows;
  for (const Tensor& part : parts) {
    const int64_t count = matrices_in(matrix);
    rows.push_back(
        views::reshaped(part, batch_of(matrix, {count == 0 ? 0 : part.numel() / count})));
  }
  return cat(rows, matrix.rank() - 2);
}

linalg::QrFactors qr_pieces(const Tensor& packed, const Shape& a) {
  const int64_t m = height_of(a), n = width_of(a), k = std::min(m, n);
  int64_t start = 0;
  const Tensor q = piece(packed, start, batch_of(a, {m, k}), 2);
  return {q, piece(packed, start, batch_of(a, {k, n}), 2)};
}
linalg::SvdFactors svd_pieces(const Tensor& packed, const Shape& a) {
  const int64_t m = height_of(a), n = width_of(a), k = std::min(m, n);
  int64_t start = 0;
  const Tensor u = piece(packed, start, batch_of(a, {m, k}), 2);
  const Tensor s = piece(packed, start, batch_of(a, {k}), 1);
  return {u, s, piece(packed, start, batch_of(a, {k, n}), 2)};
}
linalg::EighFactors eigh_pieces(const Tensor& packed, const Shape& a) {
  const int64_t n = width_of(a);
  int64_t start = 0;
  const Tensor values = piece(packed, start, batch_of(a, {n}), 1);
  return {values, piece(packed, start, batch_of(a, {n, n}), 2)};
}
}  // namespace

// --- operations

Tensor Inverse::forward(const Tensor& a) {
  require_square("inv", a);
  from = a.dtype();
  const Tensor host = on_host(a), result = empty(a.shape(), f64);
  const int64_t n = width_of(a.shape());
  each_matrix(a.shape(), [&](int64_t i) {
    linear_algebra::invert(host.data<double>() + i * n * n, n, result.data<double>() + i * n * n,
                           i);
  });
  y = kept(result, a);
  return cast(y, from);
}
Tensor Inverse::gradient(const Tensor& inverse, const Tensor& dy) const {
  const Tensor t = flipped(inverse);
  return cast(-matmul(matmul(t, cast(dy, inverse.dtype())), t), from);
}

Tensor Solve::forward(const Tensor& a_in, const Tensor& b) {
  require_square("solve", a_in);
  require_matrix("solve", b);
  check::same_dtype("solve", a_in, b);
  const int64_t n = width_of(a_in.shape()), k = width_of(b.shape());
  if (b.shape() != batch_of(a_in.shape(), {n, k}))
    fail<ShapeError>("solve", "a is ", described(a_in), ", b is ", described(b),
                     ". They must be [..., n, n] and [..., n, k].");
  from = a_in.dtype();
  a = cast(a_in, wide_of(from));
  const Tensor left = on_host(a_in), right = on_host(b), result = empty(b.shape(), f64);
  each_matrix(b.shape(), [&](int64_t i) {
    linear_algebra::solve(left.data<double>() + i * n * n, right.data<double>() + i * n * k, n, k,
                          result.data<double>() + i * n * k, i);
  });
  x = kept(result, b);
  return cast(x, from);
}
std::array<Tensor, 2> Solve::backward(const Tensor& dx) const {
  const Tensor db = linalg::solve(flipped(a), cast(dx, a.dtype()));
  return {cast(-matmul(db, flipped(x)), from), cast(db, from)};
}
Gradients Solve::recorded_backward(const Tensor& dx, const History& history) const {
  const Tensor db = linalg::solve(flipped(history.input(0, a)), cast(dx, a.dtype()));
  return {cast(-matmul(db, flipped(history.output(x))), from), cast(db, from)};
}

Tensor Cholesky::forward(const Tensor& a) {
  require_square("cholesky", a);
  from = a.dtype();
  const Tensor host = on_host(a), result = empty(a.shape(), f64);
  const int64_t n = width_of(a.shape());
  each_matrix(a.shape(), [&](int64_t i) {
    linear_algebra::cholesky(host.data<double>() + i * n * n, n, result.data<double>() + i * n * n,
                             i);
  });
  l = kept(result, a);
  return cast(l, from);
}
Tensor Cholesky::gradient(const Tensor& factor, const Tensor& dl) const {
  const Tensor t = flipped(factor);
  const Tensor phi = lower_mirrored(matmul(t, cast(dl, factor.dtype())));
  return cast(solved_from_right(factor, linalg::solve(t, phi)) * 0.5, from);
}

template <> Tensor Qr::forward(const Tensor& a) {
  require_matrix("qr", a);
  from = a.dtype(), of = a.shape();
  const int64_t m = height_of(of), n = width_of(of), k = std::min(m, n);
  const Tensor host = on_host(a), q = empty(batch_of(of, {m, k}), f64),
               r = empty(batch_of(of, {k, n}), f64);
  each_matrix(of, [&](int64_t i) {
    linear_algebra::qr(host.data<double>() + i * m * n, m, n, q.data<double>() + i * m * k,
                       r.data<double>() + i * k * n);
  });
  packed = kept(packed_of(of, {q, r}), a);
  return cast(packed, from);
}
template <> Tensor Qr::gradient(const Tensor& result, const Tensor& dy) const {
  const int64_t m = height_of(of), n = width_of(of);
  const auto [q, r] = qr_pieces(result, of);
  auto [dq, dr] = qr_pieces(cast(dy, result.dtype()), of);
  // The gradient of the square or tall matrix a = q r.
  const auto tall = [&columns = q](const Tensor& square, const Tensor& of_q, const Tensor& of_r) {
    const Tensor both = matmul(square, flipped(of_r)) - matmul(flipped(of_q), columns);
    return solved_from_right(flipped(square), of_q + matmul(columns, lower_mirrored(both)));
  };
  if (m >= n) return cast(tall(r, dq, dr), from);
  // The columns beyond the square are q v: their gradient reaches v and q.
  const Tensor square = slice(r, r.rank() - 1, 0, m), v = slice(r, r.rank() - 1, m, n);
  const Tensor dv = slice(dr, r.rank() - 1, m, n);
  const Tensor of_square =
      tall(square, dq + matmul(matmul(q, v), flipped(dv)), slice(dr, r.rank() - 1, 0, m));
  return cast(cat({of_square, matmul(q, dv)}, r.rank() - 1), from);
}

template <> Tensor Svd::forward(const Tensor& a) {
  require_matrix("svd", a);
  from = a.dtype(), of = a.shape();
  const int64_t m = height_of(of), n = width_of(of), k = std::min(m, n);
  const Tensor host = on_host(a), u = empty(batch_of(of, {m, k}), f64),
               s = empty(batch_of(of, {k}), f64), vh = empty(batch_of(of, {k, n}), f64);
  require_finite("svd", a, host);
  each_matrix(of, [&](int64_t i) {
    linear_algebra::svd(host.data<double>() + i * m * n, m, n, u.data<double>() + i * m * k,
                        s.data<double>() + i * k, vh.data<double>() + i * k * n);
  });
  packed = kept(packed_of(of, {u, s, vh}), a);
  return cast(packed, from);
}
template <> Tensor Svd::gradient(const Tensor& result, const Tensor& dy) const {
  const int64_t m = height_of(of), n = width_of(of), k = std::min(m, n);
  const auto [u, s, vh] = svd_pieces(result, of);
  const auto [du, ds, dvh] = svd_pieces(cast(dy, result.dtype()), of);
  const Tensor row = unsqueeze(s, -2), column = unsqueeze(s, -1), one = eye_like(row);
  const Tensor apart = (row - column) * (row + column) + one;
  const Tensor of_u = matmul(flipped(u), du), of_v = matmul(dvh, flipped(vh));  // [k, k] each
  const Tensor core = (of_u - flipped(of_u)) / apart * row +
                      column * ((flipped(of_v) - of_v) / apart) + one * unsqueeze(ds, -1);
  Tensor da = matmul(u, matmul(core, vh));
  if (m > k) da = da + matmul((du - matmul(u, of_u)) / row, vh);
  if (n > k) da = da + matmul(u, (dvh - matmul(of_v, vh)) / column);
  return cast(da, from);
}

template <> Tensor Eigh::forward(const Tensor& a) {
  require_square("eigh", a);
  from = a.dtype(), of = a.shape();
  const int64_t n = width_of(of);
  const Tensor host = on_host(a), values = empty(batch_of(of, {n}), f64), vectors = empty(of, f64);
  require_finite("eigh", a, host);
  each_matrix(of, [&](int64_t i) {
    linear_algebra::eigh(host.data<double>() + i * n * n, n, values.data<double>() + i * n,
                         vectors.data<double>() + i * n * n, i);
  });
  packed = kept(packed_of(of, {values, vectors}), a);
  return cast(packed, from);
}
template <> Tensor Eigh::gradient(const Tensor& result, const Tensor& dy) const {
  const auto [values, vectors] = eigh_pieces(result, of);
  const auto [dvalues, dvectors] = eigh_pieces(cast(dy, result.dtype()), of);
  const Tensor row = unsqueeze(values, -2), one = eye_like(row);
  const Tensor apart = row - unsqueeze(values, -1) + one;
  const Tensor core =
      matmul(flipped(vectors), dvectors) / apart * (1 - one) + one * unsqueeze(dvalues, -1);
  return cast(matmul(vectors, matmul(core, flipped(vectors))), from);
}

// --- functions

namespace linalg {

Tensor inv(const Tensor& a) { return apply(Inverse{}, a); }

Tensor solve(const Tensor& a, const Tensor& b) {
  require_square("solve", a);
  check::defined("solve", "b", b);
  // As in PyTorch: vectors are b of rank 1, or of a's shape without its last dimension.
  Shape of_vectors = a.shape();
  of_vectors.erase(a.rank() - 1);
  const bool vectors = b.rank() == 1 || b.shape() == of_vectors;
  const Tensor right = vectors ? unsqueeze(b, -1) : b;
  require_matrix("solve", right);
  const Shape batch =
      broadcast_shapes("solve", batch_of(a.shape(), {}), batch_of(right.shape(), {}));
  const auto joined = [&](const Tensor& x) {
    Shape shape = batch;
    shape.push_back(height_of(x.shape())), shape.push_back(width_of(x.shape()));
    return expand(x, shape);
  };
  const Tensor x = detail::apply_promoted(Solve{}, joined(a), joined(right));
  return vectors ? squeeze(x, -1) : x;
}

Tensor cholesky(const Tensor& a) { return apply(Cholesky{}, a); }

QrFactors qr(const Tensor& a) {
  require_matrix("qr", a);
  return qr_pieces(apply(Qr{}, a), a.shape());
}
SvdFactors svd(const Tensor& a) {
  require_matrix("svd", a);
  return svd_pieces(apply(Svd{}, a), a.shape());
}
EighFactors eigh(const Tensor& a) {
  require_square("eigh", a);
  return eigh_pieces(apply(Eigh{}, a), a.shape());
}

Tensor lstsq(const Tensor& a, const Tensor& b) {
  require_matrix("lstsq", a);
  require_matrix("lstsq", b);
  if (height_of(a.shape()) != height_of(b.shape()))
    fail<ShapeError>("lstsq", "a is ", described(a), ", b is ", described(b),
                     ". They must be [..., m, n] and [..., m, k].");
  if (height_of(a.shape()) >= width_of(a.shape())) {
    const auto [q, r] = qr(a);
    return solve(r, matmul(flipped(q), b));
  }
  const auto [q, r] = qr(flipped(a));
  return matmul(q, solve(flipped(r), b));
}

}  // namespace linalg
}  // namespace halftone
