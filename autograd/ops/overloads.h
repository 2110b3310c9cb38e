// The same operations in the forms that PyTorch users write: with a dtype, one dimension as a
// number, sizes one by one.
#pragma once

#include <halftone/autograd/ops/attention.h>
#include <halftone/autograd/ops/logical.h>

namespace halftone {

// With a dtype, x is cast to it before the reduction, and the result has it. As PyTorch's dtype=.
inline Tensor sum(const Tensor& x, const Dims& dims, bool keep, DType dtype) {
  return cast(sum(cast(x, dtype), dims, keep), dtype);
}
inline Tensor sum(const Tensor& x, DType dtype) { return sum(x, {}, false, dtype); }
inline Tensor mean(const Tensor& x, const Dims& dims, bool keep, DType dtype) {
  return cast(mean(cast(x, dtype), dims, keep), dtype);
}
inline Tensor mean(const Tensor& x, DType dtype) { return mean(x, {}, false, dtype); }
inline Tensor prod(const Tensor& x, const Dims& dims, bool keep, DType dtype) {
  return cast(prod(cast(x, dtype), dims, keep), dtype);
}
inline Tensor prod(const Tensor& x, DType dtype) { return prod(x, {}, false, dtype); }
inline Tensor cumsum(const Tensor& x, int dim, DType dtype) {
  return cast(cumsum(cast(x, dtype), dim), dtype);
}
inline Tensor cumprod(const Tensor& x, int dim, DType dtype) {
  return cast(cumprod(cast(x, dtype), dim), dtype);
}
inline Tensor softmax(const Tensor& x, int dim, DType dtype) {
  return cast(softmax(cast(x, dtype), dim), dtype);
}
inline Tensor log_softmax(const Tensor& x, int dim, DType dtype) {
  return cast(log_softmax(cast(x, dtype), dim), dtype);
}

/// A whole number that is not a bool: in sum(x, true) the dimension would be unclear.
template <class T>
concept WholeNumber = std::integral<T> && !std::same_as<T, bool>;

template <WholeNumber T> Tensor sum(const Tensor& x, T dim, bool keep = false) {
  return sum(x, Dims{int64_t(dim)}, keep);
}
template <WholeNumber T> Tensor sum(const Tensor& x, T dim, bool keep, DType dtype) {
  return sum(x, Dims{int64_t(dim)}, keep, dtype);
}
template <WholeNumber T> Tensor mean(const Tensor& x, T dim, bool keep = false) {
  return mean(x, Dims{int64_t(dim)}, keep);
}
template <WholeNumber T> Tensor mean(const Tensor& x, T dim, bool keep, DType dtype) {
  return mean(x, Dims{int64_t(dim)}, keep, dtype);
}
template <WholeNumber T>
Tensor var(const Tensor& x, T dim, double correction = 1, bool keep = false) {
  return var(x, Dims{int64_t(dim)}, correction, keep);
}
template <WholeNumber T>
Tensor std(const Tensor& x, T dim, double correction = 1, bool keep = false) {
  return std(x, Dims{int64_t(dim)}, correction, keep);
}
template <WholeNumber T> Tensor max(const Tensor& x, T dim, bool keep = false) {
  return max(x, Dims{int64_t(dim)}, keep);
}
template <WholeNumber T> Tensor min(const Tensor& x, T dim, bool keep = false) {
  return min(x, Dims{int64_t(dim)}, keep);
}
template <WholeNumber T> Tensor prod(const Tensor& x, T dim, bool keep = false) {
  return prod(x, Dims{int64_t(dim)}, keep);
}
template <WholeNumber T> Tensor prod(const Tensor& x, T dim, bool keep, DType dtype) {
  return prod(x, Dims{int64_t(dim)}, keep, dtype);
}
template <WholeNumber T> Tensor norm(const Tensor& x, T dim, bool keep = false) {
  return norm(x, Dims{int64_t(dim)}, keep);
}
template <WholeNumber T> Tensor any(const Tensor& x, T dim, bool keep = false) {
  return any(x, Dims{int64_t(dim)}, keep);
}
template <WholeNumber T> Tensor all(const Tensor& x, T dim, bool keep = false) {
  return all(x, Dims{int64_t(dim)}, keep);
}

/// reshape(x, 2, -1), permute(x, 1, 0), expand(x, 4, -1)
template <WholeNumber... T>
requires(sizeof...(T) > 0) Tensor reshape(const Tensor& x, T... sizes) {
  return reshape(x, Shape{int64_t(sizes)...});
}
template <WholeNumber... T>
requires(sizeof...(T) > 0) Tensor permute(const Tensor& x, T... dims) {
  return permute(x, Dims{int64_t(dims)...});
}
template <WholeNumber... T>
requires(sizeof...(T) > 0) Tensor expand(const Tensor& x, T... sizes) {
  return expand(x, Shape{int64_t(sizes)...});
}

}  // namespace halftone
