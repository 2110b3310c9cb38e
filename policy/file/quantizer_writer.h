// Formats and quantizers as policy files spell them, and as tables and hashes tell them apart.
#pragma once

#include <string>

#include <halftone/core/accumulator.h>
#include <halftone/policy/file/json_value.h>
#include <halftone/policy/rules/rulebook.h>

namespace halftone::policy {

/// A name, or {exponent, fraction, max, infinity, subnormals}. Throws UsageError for a grid that no
/// file can say, such as one with a least exponent of its own.
Json json_of(const NumberFormat& format);
/// An object of the grammar with everything that has an effect. Throws UsageError for what no file
/// can say: such a grid, or signs of a rotation that are not those of files.
Json json_of(const Quantizer& quantizer);
/// "none", "as_used", or the quantizer.
Json json_of(const RoleRule& said);
Json json_of(const Accumulator& accumulator);

/// Every field that has an effect, also what no file can say: for hashes and comparisons.
Json content_of(const Quantizer& quantizer);
Json content_of(const RoleRule& said);
Json content_of(const Accumulator& accumulator);

/// In a line: described(), and in braces what that leaves out, so that quantizers that differ are
/// told apart: "e5m2, scaled per tensor {least 100}".
std::string told_apart(const Quantizer& quantizer);

}  // namespace halftone::policy
