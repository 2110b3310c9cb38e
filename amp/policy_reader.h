// Formats and quantizers of a policy file: those that it defines, and those that every file knows.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <halftone/amp/policy.h>
#include <halftone/amp/rules.h>
#include <halftone/core/formats/number_format.h>
#include <halftone/core/formats/quantizer.h>
#include <halftone/core/op_info.h>
#include <halftone/core/record.h>

namespace halftone::policy {

/// The value of Quantizer::hadamard_signs for every rotation that a file requests.
inline constexpr uint64_t rotation_signs = 0x9e3779b97f4a7c15u;

/// Returns whether a format has no sign bit: ueXmY and e8m0. Such formats are for scales.
bool is_unsigned(const NumberFormat& format);

/// The formats and quantizers that a file can name: those that every file knows, and its own.
class Grids {
 public:
  /// Returns an empty object. It makes writers write all fields of a format that has a name.
  static Grids writer_for_hashes() {
    Grids grids;
    grids.for_hashes_ = true;
    return grids;
  }
  bool for_hashes() const { return for_hashes_; }

  /// Reads "formats": name -> {exponent, fraction, max, infinity, subnormals}.
  void read_formats(const JsonValue& formats);
  /// Reads "quantizers": name -> quantizer, in order. A quantizer may be "like" one before it.
  void read_quantizers(const JsonValue& quantizers);

  /// Reads a format's name, or an object as in read_formats().
  NumberFormat format_in(const JsonValue& value) const;
  /// Reads a name (quantizer, format), or {like, format or table, rounding, random_bits, hadamard,
  /// clip, average, scale}.
  Quantizer quantizer_in(const JsonValue& value) const;

  /// Reads the name of a quantizer or a format.
  Quantizer quantizer_named_at(const JsonValue& value) const;
  /// Reads {format, rounding, chunk}.
  Accumulator accumulator_in(const JsonValue& value) const;

  /// Throws FormatError for a format or quantizer of `defined` that the extended file also defines,
  /// if nothing has read the new one. kind: "formats" or "quantizers", the entry that defines them.
  void require_used(std::string_view kind, const JsonValue& defined) const;

 private:
  bool for_hashes_ = false;
  std::map<std::string, NumberFormat> formats_{};
  std::map<std::string, Quantizer> quantizers_{};
  mutable std::set<std::string> redefined_{};  // and not read since: "formats/x", "quantizers/x"
};

// Formats and quantizers as policy files write them, and distinct texts for tables and hashes.

/// Returns a name, or {exponent, fraction, max, infinity, subnormals}. Throws UsageError for a grid
/// that no file can express, such as one with a least exponent of its own.
Json json_of(const NumberFormat& format);
/// Returns an object of the grammar with every field that has an effect. Throws UsageError for a
/// grid with a least exponent of its own and for rotation signs other than `rotation_signs`.
Json json_of(const Quantizer& quantizer);
/// Returns "none", "as_used", or the quantizer.
Json json_of(const RoleRule& said);
Json json_of(const Accumulator& accumulator);

/// Returns every field that has an effect, also those that no file can express, for hashes.
Json content_of(const Quantizer& quantizer);
Json content_of(const RoleRule& said);
Json content_of(const Accumulator& accumulator);

/// Returns one line: described(), and in braces the fields that it omits, so that different
/// quantizers have different lines: "e5m2, scaled per tensor {least 100}".
std::string told_apart(const Quantizer& quantizer);

// Checks that the entries of a policy file fit together.

/// Throws FormatError, with the place of the entry in `top`, if settings of a policy contradict
/// each other: f32 or f64 weights in a form that they do not have; f64 weights with autocast or a
/// wire format; "low" without autocast; a grid of parameters, and a form that stores what it loses.
void require_sensible(const JsonValue& top, const amp::Policy& policy);

/// Reads a rule. `grids`: the formats and quantizers that the file knows. `autocast`: the dtype of
/// "compute": "low". Throws FormatError for unknown entries, and for grids that the dtype of
/// "compute" does not hold.
Rule rule_in(const JsonValue& value, const Grids& grids, std::optional<DType> autocast);

}  // namespace halftone::policy
