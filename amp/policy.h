// A policy decides what each operation gets under autocast: a table from operation names to cast
// classes, as data that can be changed, printed and compared.
//   operation asks (OpInfo) -> policy decides -> region casts (autocast.h) -> operation computes
// The default is what the operations ask for themselves, which is PyTorch's list for CUDA.
// Published lists are presets (presets.cpp).
#pragma once

#include <iosfwd>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <halftone/core/op_info.h>
#include <halftone/core/tensor.h>

namespace halftone::amp {

using halftone::CastClass;
struct Region;  // amp/autocast.h

class Policy {
 public:
  /// The preset "pytorch-cuda".
  Policy();
  Policy(const Policy&) = default;
  Policy& operator=(const Policy&) = default;
  virtual ~Policy() = default;

  /// pytorch-cuda, pytorch-cpu, apex-o1, paddle-o1, flashlight-o1, none (everything as_is),
  /// all-low (everything that any other policy would cast). Throws UsageError for other names.
  static Policy preset(std::string_view name);
  static std::span<const std::string_view> preset_names();
  /// The name of the preset it started from.
  const std::string& name() const { return name_; }

  /// The class of an operation, to read or to change. Throws UsageError for names that no operation
  /// has.
  CastClass& operator[](std::string_view op);
  CastClass operator[](std::string_view op) const;
  /// The same for an operation defined outside the library (UserOp), which no list knows:
  /// policy[SwishGate::info]. It enters this policy with the class that it asks for.
  CastClass& operator[](const OpInfo& op);
  /// All operations that a policy speaks of, in alphabetical order.
  static std::span<const std::string_view> operations();

  /// What an operation gets here, with these inputs (some may be undefined). Override it to look at
  /// them; this one looks at the name, and gives operations of users what they ask for.
  virtual CastClass decide(const OpInfo& op, std::span<const Tensor> inputs) const;

  /// A region with this policy that casts to `dtype` (f16 or bf16). For a derived policy use
  /// Region{.policy = std::make_shared<Derived>(...)}: this would copy only the base, and throws.
  Region with(DType dtype) const;

  /// A table: one line per class with the operations that have it.
  friend std::ostream& operator<<(std::ostream& out, const Policy& policy);

 private:
  std::string name_;
  std::map<std::string_view, CastClass> classes_;  // of every operation
};

}  // namespace halftone::amp
