// Sums of products named by letters.
#pragma once

#include <string_view>
#include <vector>

#include <halftone/autograd/ops/matmul.h>

namespace halftone {

/// Returns einsum("bij,bjk->bik", {a, b}): dimensions of any number of operands are named by
/// letters. Letters that the result lacks are summed over. A letter twice in one operand takes its
/// diagonal. "..." means the dimensions without a letter, which broadcast. Without "->" the result
/// has "..." and the letters that occur once, in alphabetical order. Operands are multiplied from
/// left to right. As torch.einsum.
Tensor einsum(std::string_view equation, const std::vector<Tensor>& operands);
template <std::same_as<Tensor>... More>
Tensor einsum(std::string_view equation, const Tensor& first, const More&... more) {
  return einsum(equation, std::vector<Tensor>{first, more...});
}

}  // namespace halftone
