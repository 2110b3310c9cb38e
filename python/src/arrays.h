// Memory that Python and halftone share: numpy arrays as tensors, tensors as numpy arrays. bf16,
// which numpy lacks, travels as u16 with the name of its dtype. Memory of a GPU comes and goes in
// DLPack capsules.
#pragma once

#include <string>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <halftone/core/tensor.h>

namespace halftone::python {

namespace nb = nanobind;

using Array = nb::ndarray<nb::ro>;

/// Returns a tensor over the array's memory, which it keeps alive. Strides must not be negative.
/// The GPU of an array must work in the caller's stream (Backend::use_stream). dtype: "bf16" for an
/// array of u16 that holds such numbers; else "". Throws DTypeError for dtypes without a
/// counterpart, ShapeError for more than 8 dimensions.
Tensor borrowed(const Array& array, const std::string& dtype);
/// Returns a numpy array over the tensor's memory, which it keeps alive; on a GPU, a DLPack
/// capsule.
nb::object given(const Tensor& x);

/// The three parts of the module.
void add_numbers(nb::module_& module);
void add_policies(nb::module_& module);
void add_runs(nb::module_& module);

}  // namespace halftone::python
