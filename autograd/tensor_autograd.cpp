// The autograd verbs of Tensor, which core/tensor.h declares.
#include <halftone/autograd/engine.h>
#include <halftone/autograd/node.h>
#include <halftone/autograd/ops/cast.h>
#include <halftone/core/factory.h>

namespace halftone {

bool Tensor::requires_grad() const { return meta_ && meta_->requires_grad; }

bool Tensor::is_leaf() const { return !meta_ || !meta_->creator; }

Tensor& Tensor::set_requires_grad(bool value) {
  if (!defined())
    fail<UsageError>("set_requires_grad", "this tensor is undefined. Make one first.");
  if (!is_leaf())
    fail<UsageError>("set_requires_grad", "only leaves can be changed; this ", described(*this),
                     " was computed. Use detach() first.");
  if (value && (!is_floating(dtype()) || size_of(dtype()) == 1))
    fail<DTypeError>("set_requires_grad",
                     "f64, f32, f16 and bf16 tensors have gradients, this one is ", dtype(),
                     ". Cast it first.");
  if (!meta_) meta_ = std::make_shared<AutogradMeta>();
  meta_->requires_grad = value;
  return *this;
}

Tensor Tensor::grad() const { return meta_ ? meta_->grad : Tensor{}; }

void Tensor::set_grad(const Tensor& grad) {
  if (!defined()) fail<UsageError>("set_grad", "this tensor is undefined. Make one first.");
  if (!is_leaf())
    fail<UsageError>("set_grad", "only leaves hold gradients; this ", described(*this),
                     " was computed. Use a leaf.");
  if (grad.defined() && grad.shape() != shape())
    fail<ShapeError>("set_grad", "the gradient is ", described(grad), ", the tensor is ",
                     described(*this), ". Shapes must agree.");
  if (grad.defined() && (!is_floating(grad.dtype()) || size_of(grad.dtype()) == 1))
    fail<DTypeError>("set_grad", "the gradient is ", described(grad), ", the tensor is ",
                     described(*this), ". Gradients are f64, f32, f16 or bf16: cast it.");
  if (grad.defined() && grad.device() != device())
    fail<DeviceError>("set_grad", "the gradient is on ", grad.device(), ", the tensor on ",
                      device(), ". Move the gradient there.");
  if (!meta_) meta_ = std::make_shared<AutogradMeta>();
  meta_->grad = grad;
  meta_->scaled_version.reset();
}

void Tensor::backward() const { run_backward(*this, {}, false); }

void Tensor::backward(const Tensor& gradient, bool retain_graph) const {
  if (!gradient.defined())
    fail<UsageError>("backward",
                     "the gradient to start from is undefined. Pass a tensor like this "
                     "one, ",
                     described(*this), ", or call backward() without it.");
  run_backward(*this, gradient, retain_graph);
}

Tensor Tensor::to(DType dtype) const { return cast(*this, dtype); }

}  // namespace halftone
