// Which way a tensor is seen when it is quantized: as a matrix whose columns run along the
// dimension that a product sums over, for blocks of scales and rotations lie along that one.
#pragma once

#include <string_view>

#include <halftone/core/quantized.h>

namespace halftone::policy {

/// The summed dimension of a tensor.
enum class Sums : uint8_t {
  over_last,
  over_rows,      // the one before the last: the right operand of a matrix product
  over_tokens,    // all but the last together: for gradients of a linear layer's weight
  over_channels,  // dimension 1, of images and of weights of convolutions
  over_first,     // the other channels of those weights
};

/// What the products of an operation sum over, for operand `input` of forward.
Sums forward_sums(std::string_view op, std::size_t input);
/// The same for that operand in backward, where it meets the gradient of the result.
Sums backward_sums(std::string_view op, std::size_t input);
/// The gradient of the result, in the product that gives the gradient of operand `input`.
Sums gradient_sums(std::string_view op, std::size_t input);

/// quantized(), seen that way; shape, dtype and device of x.
Tensor quantized_along(const Tensor& x, Sums sums, const QuantizeCall& call);

}  // namespace halftone::policy
