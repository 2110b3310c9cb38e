// embedding: rows of a table by index; the gradient scatters back into the table.
#pragma once

#include <halftone/autograd/ops/index.h>
#include <halftone/autograd/ops/reduce.h>

namespace halftone {

/// y[i.., :] = table[indices[i..], :]. Index `padding_index`, if not negative, gives no gradient.
struct Embedding {
  static constexpr OpInfo info{"embedding", CastClass::as_is, cast_reason::moves};
  int64_t padding_index;
  Tensor indices{};
  Shape table_shape{};

  Tensor forward(const Tensor& table, const Tensor& which) {
    check::rank("embedding", "the table", table, 2);
    check::floating("embedding", table);
    indices = views::contiguous(detail::wide_indices("embedding", "indices", which));
    table_shape = table.shape();
    Shape shape = which.shape();
    shape.push_back(table.shape()[1]);
    Tensor y = empty(shape, table.dtype(), table.device());
    Tensor rows = detail::as_shape(y, {indices.numel(), table.shape()[1]});
    backend_for(table).gather_rows(views::contiguous(table),
                                   detail::as_shape(indices, {indices.numel()}), rows);
    return y;
  }
  std::array<Tensor, 2> backward(const Tensor& dy) const {
    Tensor dtable = empty(table_shape, dy.dtype(), dy.device());
    const Tensor rows = detail::as_shape(views::contiguous(dy), {indices.numel(), table_shape[1]});
    backend_for(dy).scatter_add_rows(rows, detail::as_shape(indices, {indices.numel()}),
                                     padding_index, dtable);
    return {dtable, Tensor{}};
  }
};

/// As torch.nn.functional.embedding(indices, table, padding_idx).
inline Tensor embedding(const Tensor& indices, const Tensor& table, int64_t padding_index = -1) {
  return apply(Embedding{.padding_index = padding_index}, table, indices);
}

}  // namespace halftone
