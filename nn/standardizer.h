// Columns of a table made comparable, as a layer, so that a model's file holds what its inputs and
// predictions need.
#pragma once

#include <cstdint>

#include <halftone/nn/module.h>

namespace halftone::nn {

/// (x - mean) / std of each column. Mean and standard deviation (of n, not n - 1) are buffers: they
/// are saved with the model and are not trained. As scikit-learn's StandardScaler. A model that is
/// cast has them in the short dtype, too.
struct Standardizer final : Layer {
  Buffer mean, std;  // f32 [columns]

  /// Changes nothing until numbers are loaded into it.
  explicit Standardizer(int64_t columns);
  /// Of floating [rows, columns], one row or more: the training data alone, for a model that has
  /// seen its test data is measured too well. A column that never changes becomes 0.
  static Standardizer of(const Tensor& x);

  /// x: floating [.., columns]. Throws ShapeError for another number of columns.
  Tensor forward(const Tensor& x) const override;
  /// The way back, for predictions of a standardised target.
  Tensor undo(const Tensor& x) const;

  void describe(Fields& field) override { field("mean", mean), field("std", std); }
};

}  // namespace halftone::nn
