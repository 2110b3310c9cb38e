// A layer that makes the columns of a table comparable, so that a model's file includes the numbers
// that its inputs and predictions need.
#pragma once

#include <cstdint>

#include <halftone/nn/module.h>

namespace halftone::nn {

/// (x - mean) / std of each column. Mean and standard deviation (with divisor n, not n - 1) are
/// buffers: they are saved with the model and are not trained. They stay f32 in a model that is cast
/// to a short dtype, so that a large mean costs no digits. As scikit-learn's StandardScaler.
struct Standardizer final : Layer {
  Buffer mean, std;  // f32 [columns]

  /// Starts with mean 0 and std 1, which change nothing: for models that load them from a file.
  explicit Standardizer(int64_t columns);
  /// Returns a layer with the means and deviations of x: floating [rows, columns], one row or more.
  /// Pass the training rows only: test rows would make the measured accuracy too good. A constant
  /// column becomes 0. Throws ShapeError.
  static Standardizer of(const Tensor& x);

  /// x: floating [.., columns]. Throws ShapeError for another number of columns.
  Tensor forward(const Tensor& x) const override;
  /// Reverses forward(), for predictions of a standardized target.
  Tensor undo(const Tensor& x) const;

  void describe(Fields& field) override { field("mean", mean), field("std", std); }
};

}  // namespace halftone::nn
