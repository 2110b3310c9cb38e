// Results that are computed when they are first read. If the next operation can read or write
// another dtype, the result is never computed as it is: a bf16 tensor and its cast to f32 have the
// same values, so cross-entropy reads the bf16 logits; and a gradient whose next step is a cast to
// bf16 is written in bf16 at once. The values are always those of the two operations one after the
// other. HALFTONE_PENDING=off turns all of it off.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <halftone/core/tensor.h>

namespace halftone {

/// Computes a result that waits.
class PendingResult {
 public:
  /// inputs: the tensors that make() reads. Writing one of them before make() is an error.
  PendingResult(DType dtype, std::vector<Tensor> inputs);
  virtual ~PendingResult() = default;
  DType dtype() const { return dtype_; }
  /// Returns the result as a new tensor of `dtype`, which is dtype() or one for which gives(dtype)
  /// is true. Each element is rounded to dtype() first, and to `dtype` afterwards.
  virtual Tensor make(DType dtype) const = 0;
  virtual bool gives(DType dtype) const = 0;
  /// Returns a tensor of a shorter dtype with the same values and layout, or an undefined one.
  virtual Tensor narrower() const { return {}; }
  /// Throws UsageError if an input was written since the constructor.
  void check_inputs() const;

 private:
  DType dtype_;
  std::vector<Tensor> inputs_;
  uint64_t versions_;
};

/// Results of fewer bytes are computed at once: a pass over them costs less than the bookkeeping.
inline constexpr int64_t least_pending_bytes = int64_t(1) << 20;
/// Returns whether a result of this size may wait.
bool may_wait(int64_t bytes);
/// Returns a dense tensor of this layout whose numbers `result` computes when they are first read.
Tensor pending_tensor(const Shape& shape, const Strides& strides, Device device,
                      std::shared_ptr<const PendingResult> result);

/// Returns x in a wider dtype, computed when it is first read (at once if may_wait() is false).
/// Reading it throws UsageError if x was written in between, so pass results of operations.
Tensor widened_later(const Tensor& x, DType dtype);
/// Returns x in another dtype, at once; a result that waits is computed directly in this dtype if
/// it can be.
Tensor converted(const Tensor& x, DType dtype);
/// Returns a tensor with the values of x that takes fewer bytes to read, if x waits and has a
/// narrower() one, else x itself.
Tensor narrowest(const Tensor& x);

/// An operand of a product that reads numbers and their scales: `numbers` (f8_e4m3 or f8_e5m2; f32
/// for a product that is emulated, with one factor) times `factor`, f32 on the same device: a
/// scalar, one for each row of numbers (all dimensions but the last), or [rows, blocks], one for
/// each `block` neighbors in a row; times `whole`, an f32 scalar, or undefined for 1.
inline constexpr int64_t f8_block = 32;
struct F8Operand {
  Tensor numbers, factor;
  int64_t block = f8_block;
  Tensor whole{};
};
/// Returns a tensor with the values of an operand, rounded to `dtype`, computed if they are read.
Tensor waiting_operand(const F8Operand& operand, DType dtype);
/// Returns the operand that x was made of, with numbers that are seen as x is; absent if x is
/// another tensor, or was read. The factor's rows are those of the numbers as they are in memory.
std::optional<F8Operand> f8_operand(const Tensor& x);

}  // namespace halftone
