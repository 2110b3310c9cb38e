// Formats and quantizers of a policy file: those that it defines, and those that every file knows.
#pragma once

#include <map>
#include <set>
#include <string>

#include <halftone/core/formats/quantizer.h>
#include <halftone/policy/json_value.h>

namespace halftone::policy {

/// Quantizer::hadamard_signs of every rotation that a file requests.
inline constexpr uint64_t rotation_signs = 0x9e3779b97f4a7c15u;

/// The words of a block scale's rounding in files: "nearest", "up", "stochastic".
std::string_view scale_rounding_word(Rounding rounding);

/// Returns whether a format has no sign bit: ueXmY and e8m0. Such formats are for scales.
bool is_unsigned(const NumberFormat& format);

class QuantizerReader {
 public:
  /// Reads "formats": name -> {exponent, fraction, max, infinity, subnormals}.
  void read_formats(const JsonValue& formats);
  /// Reads "quantizers": name -> quantizer, in order: one may be like another one before it.
  void read_quantizers(const JsonValue& quantizers);

  /// Reads a format's name, or an object as above.
  NumberFormat format_in(const JsonValue& value) const;
  /// Reads a name (quantizer, format), or {like, format or table, rounding, random_bits, hadamard,
  /// clip, average, scale}.
  Quantizer quantizer_in(const JsonValue& value) const;

  /// Refuses a format or quantizer of `defined` that the base also defines, if nothing has read the
  /// new one. kind: "formats" or "quantizers", the entry that defines them.
  void require_used(std::string_view kind, const JsonValue& defined) const;

 private:
  Scaling scaling_in(const JsonValue& value, float max) const;
  Scaling block_scaling(const JsonValue& value, float max) const;
  Quantizer quantizer_named_at(const JsonValue& value) const;
  std::map<std::string, NumberFormat> formats_{};
  std::map<std::string, Quantizer> quantizers_{};
  mutable std::set<std::string> redefined_{};  // and not read since: "formats/x", "quantizers/x"
};

}  // namespace halftone::policy
