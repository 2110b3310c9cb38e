// A table of vectors, looked up by integer. As torch.nn.Embedding: weight [count, width], from N(0,
// 1).
#pragma once

#include <halftone/autograd/ops.h>
#include <halftone/nn/module.h>

namespace halftone::nn {

struct EmbeddingOptions {
  int64_t padding_index = -1;  // this row starts at zero and gets no gradient; -1: no such row
};

struct Embedding final : Layer {
  Parameter weight;
  int64_t padding_index;
  Embedding(int64_t count, int64_t width, EmbeddingOptions options = {});
  /// indices: integers of any shape; the result has one more dimension, `width`.
  Tensor forward(const Tensor& indices) const override {
    return embedding(indices, weight, padding_index);
  }
  void describe(Fields& field) override { field("weight", weight); }
};

}  // namespace halftone::nn
