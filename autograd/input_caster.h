// The slot for a precision policy. apply() passes an operation's inputs to the active caster
// before it computes, and the caster may replace them by recorded casts. autograd/ only declares
// the slot; amp/ fills it. The slot is per thread and empty in a new one. It holds a shared
// pointer so that a checkpointed segment or a custom function can keep its caster beyond the
// region's end.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <utility>

#include <halftone/core/formats/number_format.h>
#include <halftone/core/language.h>
#include <halftone/core/op_info.h>
#include <halftone/core/tensor.h>

namespace halftone {

class OpTap;

/// The caster's requests for one operation beyond the casts of its inputs.
struct CastPlan {
  bool f32_result = false;                  // compute from short floats straight to f32
  std::optional<DType> result{};            // return the result in this dtype, by a recorded cast
  std::shared_ptr<OpTap> tap{};             // wraps the operation; null: none
  std::optional<Accumulator> accumulate{};  // for operations that declare a member `accumulate`
  std::optional<bool> tf32{};               // core/device.h, forward and backward
};

class InputCaster {
 public:
  virtual ~InputCaster() = default;
  /// Returns the plan of an operation; may replace inputs (undefined ones stay) by casts. Called
  /// with recording on as the user set it. If the operation can compute from short floats to f32
  /// (`has_f32_result`), the plan may choose that instead of casts to f32.
  virtual CastPlan plan(const OpInfo& op, std::span<Tensor> inputs, bool has_f32_result) = 0;
  /// Returns whether it may round tensors to grids: then operations get their inputs in the dtype
  /// that they compute in.
  virtual bool treats() const { return false; }
  /// Casts only, for a function that computes this operation out of other ones.
  virtual void cast_inputs(const OpInfo& op, std::span<Tensor> inputs) = 0;
};

using CasterSlot = Slot<std::shared_ptr<InputCaster>>;
using CasterScope = CasterSlot::Scope;
inline InputCaster* active_caster() { return CasterSlot::current().get(); }
inline const std::shared_ptr<InputCaster>& shared_active_caster() { return CasterSlot::current(); }

}  // namespace halftone
