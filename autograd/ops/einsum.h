// Sums of products named by letters.
#pragma once

#include <string_view>

#include <halftone/autograd/ops/matmul.h>

namespace halftone {

/// einsum("bij,bjk->bik", a, b): dimensions of the operands by letter. Letters that the result
/// lacks are summed over; those in both operands are what a batched matrix product contracts or
/// repeats. Without "->" the result has the letters that occur once, in alphabetical order. As
/// torch.einsum with two operands; a letter twice in one operand (a diagonal) and "..." are
/// refused.
Tensor einsum(std::string_view equation, const Tensor& a, const Tensor& b);

}  // namespace halftone
