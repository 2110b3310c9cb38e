// Sums of products named by letters.
#pragma once

#include <string_view>
#include <vector>

#include <halftone/autograd/ops/matmul.h>

namespace halftone {

/// einsum("bij,bjk->bik", {a, b}): dimensions of any number of operands by letter. Letters that the
/// result lacks are summed over; a letter twice in one operand takes its diagonal; "..." stands for
/// the dimensions that have no letter, which broadcast. Without "->" the result has "..." and the
/// letters that occur once, in alphabetical order. Operands are multiplied from left to right. As
/// torch.einsum.
Tensor einsum(std::string_view equation, const std::vector<Tensor>& operands);
template <std::same_as<Tensor>... More>
Tensor einsum(std::string_view equation, const Tensor& first, const More&... more) {
  return einsum(equation, std::vector<Tensor>{first, more...});
}

}  // namespace halftone
