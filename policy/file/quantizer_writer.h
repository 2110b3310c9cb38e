// Formats and quantizers as policy files write them, and distinct texts for tables and hashes.
#pragma once

#include <string>

#include <halftone/core/formats/number_format.h>
#include <halftone/policy/json_value.h>
#include <halftone/policy/rules.h>

namespace halftone::policy {

/// Returns a name, or {exponent, fraction, max, infinity, subnormals}. Throws UsageError for a grid
/// that no file can express, such as one with a least exponent of its own.
Json json_of(const NumberFormat& format);
/// Returns an object of the grammar with every field that has an effect. Throws UsageError if no
/// file can express it: such a grid, or rotation signs other than those of files.
Json json_of(const Quantizer& quantizer);
/// Returns "none", "as_used", or the quantizer.
Json json_of(const RoleRule& said);
Json json_of(const Accumulator& accumulator);

/// Returns every field that has an effect, even if no file can express it: for hashes, comparisons.
Json content_of(const Quantizer& quantizer);
Json content_of(const RoleRule& said);
Json content_of(const Accumulator& accumulator);

/// Returns one line: described(), and in braces the fields that it omits, so that different
/// quantizers have different lines: "e5m2, scaled per tensor {least 100}".
std::string told_apart(const Quantizer& quantizer);

}  // namespace halftone::policy
