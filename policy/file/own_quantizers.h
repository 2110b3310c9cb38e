// Quantizers that a program adds to those that every policy file knows.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <halftone/core/formats/quantizer.h>

namespace halftone::policy {

/// Makes a quantizer usable in policy files by its name, in this process. Files that use it can be
/// written and read again here; in other processes the name is unknown. Tables print the name with
/// the hash. Throws UsageError for what check_own_quantizer() refuses, and for a name that is a
/// format, a quantizer, or a word of rules.
void add_quantizer(OwnQuantizer quantizer);

/// Returns the added quantizer of that name; null if there is none.
std::shared_ptr<const OwnQuantizer> own_quantizer_named(std::string_view name);

/// Returns the names of all added quantizers, in alphabetical order.
std::vector<std::string> own_quantizer_names();

}  // namespace halftone::policy
