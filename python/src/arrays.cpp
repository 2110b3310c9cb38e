#include "arrays.h"

#include <halftone/core/error.h>
#include <halftone/core/factory.h>

namespace halftone::python {

namespace {

DType dtype_of_array(const Array& array, const std::string& named) {
  if (named == "bf16" && array.dtype() == nb::dtype<uint16_t>()) return bf16;
  const nb::dlpack::dtype dtype = array.dtype();
  if (dtype.lanes == 1) {
    if (dtype == nb::dtype<double>()) return f64;
    if (dtype == nb::dtype<float>()) return f32;
    if (dtype.code == uint8_t(nb::dlpack::dtype_code::Float) && dtype.bits == 16) return f16;
    if (dtype == nb::dtype<int64_t>()) return i64;
    if (dtype == nb::dtype<int32_t>()) return i32;
    if (dtype == nb::dtype<int16_t>()) return i16;
    if (dtype == nb::dtype<uint8_t>()) return u8;
    if (dtype == nb::dtype<bool>()) return boolean;
  }
  fail<DTypeError>("array", "there is no dtype for numbers of ", int(dtype.bits),
                   " bits of this kind. Use float64, float32, float16, bfloat16, int64, int32, "
                   "int16, uint8 or bool.");
}

nb::dlpack::dtype dtype_of_tensor(DType dtype) {
  switch (dtype) {
    case f64: return nb::dtype<double>();
    case f32: return nb::dtype<float>();
    case f16: return {uint8_t(nb::dlpack::dtype_code::Float), 16, 1};
    case bf16: return nb::dtype<uint16_t>();
    case i64: return nb::dtype<int64_t>();
    case i32: return nb::dtype<int32_t>();
    case i16: return nb::dtype<int16_t>();
    case boolean: return nb::dtype<bool>();
    case f8_e4m3:
    case f8_e5m2:
    case u8: break;
  }
  return nb::dtype<uint8_t>();
}

}  // namespace

Tensor borrowed(const Array& array, const std::string& named) {
  const DType dtype = dtype_of_array(array, named);
  Shape shape;
  Strides strides;
  int64_t last = 0;
  for (std::size_t i = 0; i < array.ndim(); ++i) {
    const auto size = int64_t(array.shape(i)), stride = int64_t(array.stride(i));
    if (stride < 0)
      fail<ShapeError>("array", "dimension ", i, " has the stride ", stride,
                       ". Copy the array: numpy.ascontiguousarray(x).");
    shape.push_back(size), strides.push_back(stride);
    last += (size - 1) * stride;
  }
  if (numel_of(shape) == 0) return empty(shape, dtype);
  auto* const data = static_cast<std::byte*>(const_cast<void*>(array.data()));
  auto storage =
      std::make_shared<Storage>(data, (last + 1) * size_of(dtype), std::make_shared<Array>(array));
  return Tensor(std::make_shared<TensorBody>(TensorBody{
      .storage = std::move(storage), .shape = shape, .strides = strides, .dtype = dtype}));
}

nb::object given(const Tensor& x) {
  std::vector<std::size_t> shape(x.shape().begin(), x.shape().end());
  const std::vector<int64_t> strides(x.strides().begin(), x.strides().end());
  auto owner = std::make_unique<Tensor>(x.detach());
  const nb::capsule keeps(owner.release(),
                          [](void* tensor) noexcept { delete static_cast<Tensor*>(tensor); });
  return nb::cast(nb::ndarray<nb::numpy>(x.raw_data(), shape.size(), shape.data(), keeps,
                                         strides.data(), dtype_of_tensor(x.dtype())));
}

}  // namespace halftone::python
