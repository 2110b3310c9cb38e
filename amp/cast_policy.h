// A policy decides what each operation gets under autocast: a table from operation names to cast
// classes, as data that can be changed, printed and compared.
//   operation asks (OpInfo) -> policy decides -> region casts (autocast.h) -> operation computes
// The default is what the operations ask for themselves, which is PyTorch's list for CUDA.
// Published lists are presets (presets.cpp).
#pragma once

#include <iosfwd>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <halftone/core/op_info.h>
#include <halftone/core/tensor.h>

namespace halftone::amp {

using halftone::CastClass;
struct Region;  // amp/autocast.h

/// What an operation gets: a class and, of low_precision, a dtype in place of the region's. A class
/// alone is one, so `policy["softmax"] = CastClass::full_precision` reads as it says;
///   policy["softmax"] = {CastClass::low_precision, f16};         // and matmul bf16: the region's
///   policy["linear"] = {CastClass::low_precision, {}, f16};      // f16 on a GPU only
struct CastDecision {
  CastClass cast_class = CastClass::as_is;
  std::optional<DType> dtype{};       // bf16 or f16
  std::optional<DType> cuda_dtype{};  // the same for tensors on a GPU; absent: as dtype

  CastDecision() = default;
  CastDecision(CastClass asked, std::optional<DType> runs_in = {},
               std::optional<DType> runs_in_on_cuda = {})  // NOLINT: a class is a decision
      : cast_class(asked), dtype(runs_in), cuda_dtype(runs_in_on_cuda) {}
  bool operator==(const CastDecision&) const = default;
  auto operator<=>(const CastDecision&) const = default;

  std::optional<DType> dtype_on(Device device) const {
    return device.kind == DeviceKind::cuda && cuda_dtype ? cuda_dtype : dtype;
  }
  /// Throws DTypeError, in the name of `where`, for dtypes that no class computes in.
  void check(std::string_view where) const;
};
/// "low_precision", "low_precision f16", "low_precision bf16 (cuda f16)"
std::string described(const CastDecision& decision);

class CastPolicy {
 public:
  /// The preset "pytorch-cuda".
  CastPolicy();
  CastPolicy(const CastPolicy&) = default;
  CastPolicy& operator=(const CastPolicy&) = default;
  virtual ~CastPolicy() = default;

  /// pytorch-cuda, pytorch-cpu, apex-o1, paddle-o1, flashlight-o1, none (everything as_is),
  /// all-low (everything that any other policy would cast). Throws UsageError for other names.
  static CastPolicy preset(std::string_view name);
  static std::span<const std::string_view> preset_names();
  /// The name of the preset it started from.
  const std::string& name() const { return name_; }

  /// What an operation gets, to read or to change. Throws UsageError for names that no operation
  /// has.
  CastDecision& operator[](std::string_view op);
  const CastDecision& operator[](std::string_view op) const;
  /// The same for an operation defined outside the library (UserOp), which no list knows:
  /// policy[SwishGate::info]. It enters this policy with the class that it asks for.
  CastDecision& operator[](const OpInfo& op);
  /// All operations that a policy speaks of, in alphabetical order.
  static std::span<const std::string_view> operations();
  /// The OpInfo of the operation with this name; null for operations of users.
  static const OpInfo* info(std::string_view op);
  /// The names of those with a fact, as in a sentence: "linear and matmul" for
  /// &OpFacts::accumulator.
  static std::string operations_with(bool OpFacts::*fact);
  /// Those of them that are losses (OpInfo::is_loss).
  static std::span<const std::string_view> losses();

  /// What an operation gets here, with these inputs (some may be undefined). Override it to look at
  /// them; this one looks at the name, and gives operations of users what they ask for.
  virtual CastDecision decide(const OpInfo& op, std::span<const Tensor> inputs) const;

  /// A region with this policy that casts to `dtype` (f16 or bf16). For a derived policy use
  /// Region{.policy = std::make_shared<Derived>(...)}: this would copy only the base, and throws.
  Region with(DType dtype) const;

  /// A table: one line per class, and dtype if it has one, with the operations that have it.
  friend std::ostream& operator<<(std::ostream& out, const CastPolicy& policy);

 private:
  std::string name_;
  std::map<std::string_view, CastDecision> decisions_;  // of every operation
};

}  // namespace halftone::amp
