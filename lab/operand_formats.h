// The numbers that a model's products multiply: how many bits they have, and of which kind.
#pragma once

#include <array>
#include <string_view>

#include <halftone/policy/session.h>

namespace halftone::lab {

/// Mean of the formats of one role over a model's products, weighted by their floating-point
/// operations. Unrounded operands count as their dtype.
struct OperandFormat {
  double bits = 32;      // of an element, with its share of a block's scale
  double exponent = 8;   // bits of the exponent; 0 for integers and tables
  double fraction = 23;  // bits of the fraction
  double block = 1;      // elements that share a scale; 1: no scale, or one of the tensor
};

/// The roles whose formats are recorded, in this order.
inline constexpr std::size_t operand_roles = 3;
inline constexpr std::array<std::string_view, operand_roles> operand_role_names{"weight", "input",
                                                                                "grad_output"};

/// Returns the formats of a session's roles, after at least one pass. A product without a parameter
/// has two inputs. A gradient without a quantizer has the dtype of the result. A model without
/// products counts as f32.
std::array<OperandFormat, operand_roles> operand_formats(const policy::PolicySession& session);

}  // namespace halftone::lab
