// Formats and quantizers of a policy file: those that it defines, and those that every file knows.
#pragma once

#include <map>
#include <string>

#include <halftone/core/quantizer.h>
#include <halftone/policy/file/json_value.h>

namespace halftone::policy {

/// Quantizer::hadamard_signs of every rotation that a file requests.
inline constexpr uint64_t rotation_signs = 0x9e3779b97f4a7c15u;

/// The words of a block scale's rounding in files: "nearest", "up", "stochastic".
std::string_view scale_rounding_word(Rounding rounding);

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

 private:
  Scaling scaling_in(const JsonValue& value, float max) const;
  Scaling block_scaling(const JsonValue& value, float max) const;
  Quantizer quantizer_named_at(const JsonValue& value) const;
  std::map<std::string, NumberFormat> formats_{};
  std::map<std::string, Quantizer> quantizers_{};
};

}  // namespace halftone::policy
