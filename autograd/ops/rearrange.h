// Functions that split and join tensors along dimensions: flip, split, chunk, triangles of
// matrices, and borders that repeat inner elements.
#pragma once

#include <halftone/autograd/ops/shape.h>

namespace halftone {

/// The elements of some dimensions in the opposite order; its own gradient.
struct Flip {
  static constexpr OpInfo info{"flip", CastClass::as_is, cast_reason::moves};
  Dims dims;  // each once

  Tensor flipped(const Tensor& x) const {
    Strides strides = x.strides();
    int64_t first = x.offset();
    for (const int64_t d : dims) {
      first += (x.shape()[int(d)] - 1) * strides[int(d)];
      strides[int(d)] *= -1;
    }
    Tensor y = empty_like(x);
    if (x.numel() > 0) backend_for(x).copy(x.view_as(x.shape(), strides, first), y);
    return y;
  }
  Tensor forward(const Tensor& x) { return flipped(x); }
  std::array<Tensor, 1> backward(const Tensor& dy) const { return {flipped(dy)}; }
};

/// As torch.flip.
Tensor flip(const Tensor& x, const Dims& dims);
/// Returns views of `size` elements each along a dimension; the last has the rest. As torch.split.
std::vector<Tensor> split(const Tensor& x, int64_t size, int dim = 0);
/// Returns views of these sizes, which must add up to the dimension.
std::vector<Tensor> split(const Tensor& x, const std::vector<int64_t>& sizes, int dim = 0);
/// Returns `count` views of one size, the last of them smaller; fewer if the dimension ends
/// earlier. As torch.chunk.
std::vector<Tensor> chunk(const Tensor& x, int64_t count, int dim = 0);
/// Return matrices [.., m, n] with 0 above the diagonal, or below it; diagonal k > 0 is above the
/// main one. As torch.tril and torch.triu.
Tensor tril(const Tensor& x, int64_t diagonal = 0);
Tensor triu(const Tensor& x, int64_t diagonal = 0);

/// Repeats x as often as `times` says along each dimension, aligned at the last. As torch.tile.
Tensor tile(const Tensor& x, const Dims& times);
/// Shifts elements along dimensions; elements that leave at the end enter at the start. Without
/// dimensions all elements form one. As torch.roll.
Tensor roll(const Tensor& x, const Dims& shifts, const Dims& dims = {});
/// Returns the diagonals of the matrices of two dimensions, as the last dimension; `offset` > 0 is
/// above the main one. As torch.diagonal.
Tensor diagonal(const Tensor& x, int64_t offset = 0, int dim1 = 0, int dim2 = 1);
/// Returns vectors (or numbers) as the coordinates of a grid, each expanded to its shape: x[i]
/// varies along dimension i. As torch.meshgrid; with "xy" the first two dimensions are exchanged.
std::vector<Tensor> meshgrid(const std::vector<Tensor>& x, std::string_view indexing = "ij");
/// Returns [.., c r r, h, w] as [.., c, h r, w r]. As torch.nn.functional.pixel_shuffle.
Tensor pixel_shuffle(const Tensor& x, int64_t factor);

enum class PadMode : uint8_t {
  reflect,    // 2 1 | 0 1 2 3 | 2 1
  replicate,  // 0 0 | 0 1 2 3 | 3 3
  circular,   // 2 3 | 0 1 2 3 | 0 1
};
/// As torch.nn.functional.pad with these modes, for any dimensions; negative amounts crop.
Tensor pad(const Tensor& x, const Dims& pairs_from_last, PadMode mode);

}  // namespace halftone
