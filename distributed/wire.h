// The wire format of a batch's gradient on its way to the sum, and a gradient in it. One process
// rounds in the same way, so it computes the same as several.
//
//   own                 its own dtype: nothing is lost
//   f32  bf16           rounded once
//   f16  f8_e4m3 f8_e5m2   rounded once under a power-of-two scale for each piece of 1024 elements
//
// The scale is the smallest with which nothing in its piece overflows; a piece that is not finite
// has none. Infinity and NaN are sent, so that an overflow is found; f8_e4m3, which has no
// infinity, sends both as NaN. A gradient whose dtype the wire holds exactly is not changed, and
// those of f64 weights are sent as f64.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <halftone/core/random.h>
#include <halftone/core/tensor.h>

namespace halftone::distributed {

/// The format in which gradients are sent to be summed.
struct WireFormat {
  std::optional<DType> dtype{};  // f32, bf16, f16, f8_e4m3, f8_e5m2; none: the gradient's own
  /// Rounds at random, with an exact expected value; false: to nearest even.
  bool stochastic = false;
  /// Adds the rounding error to the next gradient of the same batch of a step (Seide et al. 2014):
  /// an f32 number for each element and each batch that a rank computes.
  bool error_feedback = false;

  /// Parses "own", "f32", "bf16", "f16", "f8_e4m3", "f8_e5m2". "-sr" (stochastic) may follow the
  /// last four, "+feedback" all. Throws UsageError for others, with the nearest name.
  static WireFormat named(std::string_view name);
  static std::span<const std::string_view> names();
  bool operator==(const WireFormat&) const = default;
};
std::string name(const WireFormat& format);
/// Throws UsageError for a dtype that no wire has, and for random rounding to a dtype to which
/// nothing is rounded.
void check_wire(const WireFormat& format);

/// Returns the dtype in which a gradient of `own` dtype is sent.
DType dtype_on_wire(const WireFormat& format, DType own);
/// Returns whether the dtype of the wire holds all numbers of dtype `own`.
bool is_lossless(const WireFormat& format, DType own);
/// Returns whether to_wire() leaves every gradient on its own device.
bool stays_on_device(const WireFormat& format);

/// A range of a parameter's gradient in its wire format.
struct Payload {
  static constexpr int64_t piece_length = 1024;  // counted from the parameter's start

  Tensor values{};    // 1-D
  Tensor scales{};    // f32, of the pieces in the range; undefined if there are none
  int64_t begin = 0;  // start of the range

  /// Returns elements [from, from + count) of this payload, whose own range must begin at 0.
  Payload part(int64_t from, int64_t count) const;
  /// Returns the tensors to send: none for an empty range.
  std::vector<Tensor> tensors() const;
  /// Returns a payload, not yet written, for elements [from, from + count) of a gradient of dtype
  /// `own`.
  static Payload empty(const WireFormat& format, DType own, int64_t from, int64_t count,
                       Device device = Device::cpu());
};

/// Error feedback. `rest`, the error of earlier roundings, times `factor` is added to a gradient;
/// the error of its rounding is then stored in `rest`. Pieces that are not finite keep their old
/// rest. rest: f32, of the gradient's size, on the host; undefined: none.
struct Feedback {
  Tensor rest{};
  double factor = 1;
};
/// Returns a dense gradient in its wire format: on its own device if at most its dtype is
/// converted, else on the host. key: for random rounding; element i uses its random number i.
Payload to_wire(const Tensor& gradient, const WireFormat& format, RandomKey key = {},
                const Feedback& feedback = {});
/// Returns a received payload as the sum adds it: 1-D, f32 (f64 for f64).
Tensor from_wire(const Payload& payload);

// The options of a step that several processes, or several batches of one process, make together.

struct Options {
  /// The wire format of a batch's gradient; absent: that of the strategy, which is the gradient's
  /// own dtype unless a policy file says otherwise. One process rounds in the same way, so it
  /// computes the same as several.
  std::optional<WireFormat> wire{};
  /// Each rank stores the optimizer's state and the masters of its share of all elements, and
  /// updates only these. With one process, or with an optimizer that is not elementwise, nothing is
  /// shared out. False: every rank stores and computes all of it.
  bool shard_optimizer = true;
  /// Gradients are sent together, up to this many bytes; a larger one is sent alone.
  int64_t bucket_bytes = int64_t(25) << 20;
};

}  // namespace halftone::distributed
