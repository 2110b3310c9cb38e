#include <halftone/core/pending.h>

#include <string_view>
#include <utility>

#include <halftone/core/backend.h>
#include <halftone/core/error.h>
#include <halftone/core/factory.h>
#include <halftone/core/files.h>

namespace halftone {

namespace {

uint64_t versions_of(const std::vector<Tensor>& inputs) {
  uint64_t sum = 0;
  for (const Tensor& x : inputs)
    if (x.defined()) sum += x.storage()->version();
  return sum;
}

std::shared_ptr<const PendingResult> pending_of(const Tensor& x) {
  return x.defined() ? x.storage()->pending() : nullptr;
}

Tensor copied(const Tensor& x, DType dtype) {
  Tensor y = empty_like(x, dtype);
  backend_for(x).copy(x, y);
  return y;
}

/// A cast to a wider dtype.
class Widened final : public PendingResult {
 public:
  Widened(const Tensor& x, DType dtype) : PendingResult(dtype, {x}), x_(x) {}
  Tensor make(DType dtype) const override { return dtype == x_.dtype() ? x_ : copied(x_, dtype); }
  bool gives(DType dtype) const override { return is_floating(dtype); }
  Tensor narrower() const override { return x_; }

 private:
  Tensor x_;
};

}  // namespace

PendingResult::PendingResult(DType dtype, std::vector<Tensor> inputs)
    : dtype_(dtype), inputs_(std::move(inputs)), versions_(versions_of(inputs_)) {}

void PendingResult::check_inputs() const {
  if (versions_of(inputs_) == versions_) return;
  fail<UsageError>("tensor",
                   "a tensor was written in place before a result that depends on it was read. "
                   "Write a clone(), or set HALFTONE_PENDING=off.");
}

bool may_wait(int64_t bytes) {
  static const bool off = [] {
    const char* const set = environment_variable("HALFTONE_PENDING");
    return set && std::string_view(set) == "off";
  }();
  return bytes >= least_pending_bytes && !off;
}

Tensor pending_tensor(const Shape& shape, const Strides& strides, Device device,
                      std::shared_ptr<const PendingResult> result) {
  const DType dtype = result->dtype();
  auto storage =
      std::make_shared<Storage>(numel_of(shape) * size_of(dtype), device, std::move(result));
  return Tensor(
      std::make_shared<TensorBody>(TensorBody{std::move(storage), 0, shape, strides, dtype}));
}

Tensor widened_later(const Tensor& x, DType dtype) {
  const bool wider =
      is_floating(x.dtype()) && is_floating(dtype) && size_of(dtype) > size_of(x.dtype());
  if (!wider || !x.is_dense() || pending_of(x) || !may_wait(x.numel() * size_of(dtype)))
    return converted(x, dtype);
  return pending_tensor(x.shape(), x.strides(), x.device(),
                        std::make_shared<Widened>(x.detach(), dtype));
}

/// The whole storage in another dtype, seen as x sees it.
static Tensor seen_as(const Tensor& x, const Tensor& whole) {
  return whole.view_as(x.shape(), x.strides(), whole.offset() + x.offset());
}

Tensor converted(const Tensor& x, DType dtype) {
  const auto pending = pending_of(x);
  if (!pending || !pending->gives(dtype) || x.bytes() != x.storage()->bytes())
    return copied(x, dtype);
  pending->check_inputs();
  return seen_as(x, pending->make(dtype));
}

Tensor narrowest(const Tensor& x) {
  const auto pending = pending_of(x);
  if (!pending) return x;
  const Tensor other = pending->narrower();
  if (!other.defined()) return x;
  pending->check_inputs();
  return seen_as(x, other);
}

}  // namespace halftone
