// The operations that core/tensor.h declares as members: each calls the function of its name.
#include <halftone/autograd/ops.h>

namespace halftone {

Tensor Tensor::sum(const Dims& dims, bool keep) const { return halftone::sum(*this, dims, keep); }
Tensor Tensor::mean(const Dims& dims, bool keep) const { return halftone::mean(*this, dims, keep); }
Tensor Tensor::var(const Dims& dims, double correction, bool keep) const {
  return halftone::var(*this, dims, correction, keep);
}
Tensor Tensor::std(const Dims& dims, double correction, bool keep) const {
  return halftone::std(*this, dims, correction, keep);
}
Tensor Tensor::max(const Dims& dims, bool keep) const { return halftone::max(*this, dims, keep); }
Tensor Tensor::min(const Dims& dims, bool keep) const { return halftone::min(*this, dims, keep); }
Tensor Tensor::prod(const Dims& dims, bool keep) const { return halftone::prod(*this, dims, keep); }
Tensor Tensor::norm(const Dims& dims, bool keep) const { return halftone::norm(*this, dims, keep); }
Tensor Tensor::any(const Dims& dims, bool keep) const { return halftone::any(*this, dims, keep); }
Tensor Tensor::all(const Dims& dims, bool keep) const { return halftone::all(*this, dims, keep); }
Tensor Tensor::argmax(std::optional<int> dim, bool keep) const {
  return halftone::argmax(*this, dim, keep);
}
Tensor Tensor::argmin(std::optional<int> dim, bool keep) const {
  return halftone::argmin(*this, dim, keep);
}
Tensor Tensor::softmax(int dim) const { return halftone::softmax(*this, dim); }
Tensor Tensor::abs() const { return halftone::abs(*this); }
Tensor Tensor::exp() const { return halftone::exp(*this); }
Tensor Tensor::log() const { return halftone::log(*this); }
Tensor Tensor::sqrt() const { return halftone::sqrt(*this); }
Tensor Tensor::pow(Number exponent) const { return halftone::pow(*this, exponent); }
Tensor Tensor::clamp(std::optional<Number> low, std::optional<Number> high) const {
  return halftone::clamp(*this, low, high);
}
Tensor Tensor::matmul(const Tensor& other) const { return halftone::matmul(*this, other); }
Tensor Tensor::operator[](int64_t i) const { return select(*this, 0, i); }
Tensor Tensor::reshape(const Shape& shape) const { return halftone::reshape(*this, shape); }
Tensor Tensor::permute(const Dims& order) const { return halftone::permute(*this, order); }
Tensor Tensor::expand(const Shape& shape) const { return halftone::expand(*this, shape); }
Tensor Tensor::transpose(int a, int b) const { return halftone::transpose(*this, a, b); }
Tensor Tensor::flatten(int start, int end) const { return halftone::flatten(*this, start, end); }
Tensor Tensor::squeeze() const { return halftone::squeeze(*this); }
Tensor Tensor::squeeze(int dim) const { return halftone::squeeze(*this, dim); }
Tensor Tensor::unsqueeze(int dim) const { return halftone::unsqueeze(*this, dim); }
Tensor Tensor::contiguous() const { return halftone::contiguous(*this); }

}  // namespace halftone
