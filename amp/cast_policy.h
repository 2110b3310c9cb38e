// A policy decides how each operation is cast under autocast: a table from operation names to cast
// classes, as data that can be changed, printed and compared.
//   operation asks (OpInfo) -> policy decides -> region casts (autocast.h) -> operation computes
// The default gives each operation the class that it asks for, which is PyTorch's list for CUDA.
// Published lists are presets (cast_policy.cpp).
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

/// The decision for an operation: a class and, for low_precision, a dtype instead of the region's.
/// A class converts to a decision: `policy["softmax"] = CastClass::full_precision`;
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
  /// Throws DTypeError in the name of `where` if a dtype is not bf16 or f16, or if a class other
  /// than low_precision has a dtype.
  void check(std::string_view where) const;
};
/// Returns "low_precision", "low_precision f16" or "low_precision bf16 (cuda f16)".
std::string described(const CastDecision& decision);

class CastPolicy {
 public:
  /// Makes the preset "pytorch-cuda".
  CastPolicy();
  CastPolicy(const CastPolicy&) = default;
  CastPolicy& operator=(const CastPolicy&) = default;
  virtual ~CastPolicy() = default;

  /// Returns the preset with this name: pytorch-cuda, pytorch-cpu, apex-o1, paddle-o1,
  /// flashlight-o1, none (everything as_is) or all-low (everything that any other policy would
  /// cast). Throws UsageError for other names.
  static CastPolicy preset(std::string_view name);
  static std::span<const std::string_view> preset_names();
  /// Returns the name of the preset that this policy started from.
  const std::string& name() const { return name_; }

  /// Returns the decision for an operation, to read or to change. Throws UsageError for unknown
  /// names.
  CastDecision& operator[](std::string_view op);
  const CastDecision& operator[](std::string_view op) const;
  /// The same for an operation defined outside the library (UserOp), such as
  /// policy[SwishGate::info]. Before it is changed, its decision is the class that it asks for.
  CastDecision& operator[](const OpInfo& op);
  /// Returns all operations that a policy decides on, in alphabetical order.
  static std::span<const std::string_view> operations();
  /// Returns the OpInfo of the operation with this name; null for users' operations.
  static const OpInfo* info(std::string_view op);
  /// Returns whether an operation has one input; false for names that are not in operations().
  static bool takes_one_input(std::string_view op);
  /// Returns the names of the operations for which a member of OpFacts is true, as in a sentence:
  /// "linear and matmul" for &OpFacts::accumulator.
  static std::string operations_with(bool OpFacts::*fact);
  /// Returns the operations that are losses (OpInfo::is_loss).
  static std::span<const std::string_view> losses();

  /// Returns the decision for an operation with these inputs (some may be undefined). Override it
  /// to use the inputs; this one uses the name, and gives users' operations the class they ask for.
  virtual CastDecision decide(const OpInfo& op, std::span<const Tensor> inputs) const;

  /// Returns a region with this policy that casts to `dtype` (f16 or bf16). Throws UsageError for a
  /// derived policy: use Region{.policy = std::make_shared<Derived>(...)}.
  Region with(DType dtype) const;

  /// Prints a table: one line per class, and dtype if it has one, with its operations.
  friend std::ostream& operator<<(std::ostream& out, const CastPolicy& policy);

 private:
  std::string name_;
  std::map<std::string_view, CastDecision> decisions_;  // of every operation
};

// Published casting lists, as data: the casts of each system, with the source of its list.

struct Preset {
  struct List {
    CastClass cast_class;
    std::vector<std::string_view> operations;
  };
  std::string_view name;
  /// Returns the class of an operation that no list names, from the class that it asks for.
  CastClass (*otherwise)(CastClass asked);
  std::vector<List> lists;
};
std::span<const Preset> presets();

}  // namespace halftone::amp
