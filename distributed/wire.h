// What a batch's gradient is on its way to the sum: a format, and a gradient in it. One process
// rounds alike, so it computes what many would.
//
//   own                 its own dtype: nothing is lost
//   f32  bf16           rounded once
//   f16  f8_e4m3 f8_e5m2   rounded once under a power-of-two scale for each piece of 1024 elements
//
// The scale is the least under which nothing of its piece is too large; a piece that is not finite
// has none. Infinity and NaN travel, so that an overflow is found: in f8_e4m3, which has no
// infinity, both as NaN. A gradient whose dtype the wire holds exactly is not touched, and those of
// f64 weights go as they are.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <halftone/core/random.h>
#include <halftone/core/tensor.h>

namespace halftone::distributed {

/// A value, compared and printed by its name.
struct WireFormat {
  std::optional<DType> dtype{};  // f32, bf16, f16, f8_e4m3, f8_e5m2; none: the gradient's own
  /// What does not fit is rounded at random, right on average; else to nearest even.
  bool stochastic = false;
  /// What rounding took is added to the next gradient of the same batch of a step (Seide et al.
  /// 2014): an f32 number for each element and each batch that a rank computes.
  bool error_feedback = false;

  /// "own", "f32", "bf16", "f16", "f8_e4m3", "f8_e5m2"; the short ones with "-sr" for stochastic;
  /// each with "+feedback". Throws UsageError for others, with the nearest name.
  static WireFormat named(std::string_view name);
  static std::span<const std::string_view> names();
  bool operator==(const WireFormat&) const = default;
};
std::string name(const WireFormat& format);
/// Throws UsageError for a dtype that no wire has, and for random rounding to one that rounds
/// nothing.
void check_wire(const WireFormat& format);

/// The dtype in which a gradient of `own` dtype travels.
DType dtype_on_wire(const WireFormat& format, DType own);
/// Whether that dtype holds all of `own`.
bool is_lossless(const WireFormat& format, DType own);
/// Whether to_wire() leaves every gradient on its own device.
bool stays_on_device(const WireFormat& format);

/// A range of a parameter's gradient on its way.
struct Payload {
  static constexpr int64_t piece_length = 1024;  // from the parameter's beginning

  Tensor values{};    // 1-D
  Tensor scales{};    // f32, of the pieces that the range meets; undefined where there are none
  int64_t begin = 0;  // of the range

  /// Of this range, which begins at 0.
  Payload part(int64_t from, int64_t count) const;
  /// Those that travel: none of an empty range.
  std::vector<Tensor> tensors() const;
  /// One of that many elements, for a gradient of `own` dtype; not yet written.
  static Payload empty(const WireFormat& format, DType own, int64_t from, int64_t count,
                       Device device = Device::cpu());
};

/// What rounding took of the gradients before, times factor, is added to this one, and what it
/// takes now is left there; pieces that are not finite leave what was there. f32, of the gradient's
/// size, on the host; undefined: none.
struct Feedback {
  Tensor rest{};
  double factor = 1;
};
/// A dense gradient as it travels: on its own device where its dtype is converted at most, else on
/// the host. key: of random rounding, whose element i uses number i of it.
Payload to_wire(const Tensor& gradient, const WireFormat& format, RandomKey key = {},
                const Feedback& feedback = {});
/// What has come, as the sum adds it: 1-D, f32 (f64 for f64).
Tensor from_wire(const Payload& payload);

}  // namespace halftone::distributed
