// A value in a JSON file, and the pointer that leads to it, for errors that name the place.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include <halftone/core/error.h>

namespace halftone {

using Json = nlohmann::ordered_json;

/// Reads JSON strictly: at most a megabyte, 64 levels, 10,000 entries per object, no duplicate key,
/// no U+0000. Throws FormatError in the name of `where` ("policy my.json"), with line and column.
Json parsed_json(const std::string& where, std::string_view text);

class JsonValue {
 public:
  JsonValue(std::string where, std::string pointer, const Json& json)
      : where_(std::move(where)), pointer_(std::move(pointer)), json_(json) {}

  const Json& json() const { return json_; }
  const std::string& pointer() const { return pointer_; }
  bool is_object() const { return json_.is_object(); }
  bool is_text() const { return json_.is_string(); }
  bool is_null() const { return json_.is_null(); }

  /// Throws FormatError, with the nearest known name, unless this is an object whose entries all
  /// have names in `known`. `what`: what the object is, "a rule".
  void only(std::string_view what, std::span<const std::string_view> known) const;
  std::optional<JsonValue> find(std::string_view key) const;
  std::vector<JsonValue> members() const;          // of an object, in the file's order
  std::vector<JsonValue> elements() const;         // of a list
  const std::string& key() const { return key_; }  // of a member, as in the file
  /// Throws FormatError for a key that tables could not print unchanged.
  void require_printable_key() const;

  // --- this value as a C++ type; each throws FormatError if the JSON value has another type
  std::string text() const;
  bool boolean() const;
  double number() const;
  int64_t integer(int64_t least, int64_t most) const;
  /// Returns the index of this text in `words`; throws FormatError, with `words`, for other texts.
  std::size_t word(std::span<const std::string_view> words) const;

  /// Throws FormatError: "[policy my.json] /rules/2: message".
  template <class... Parts> [[noreturn]] void refuse(const Parts&... parts) const {
    PlainText text;
    (text << ... << parts);
    fail<FormatError>(where_, pointer_.empty() ? "/" : pointer_, ": ", printable(text.str()));
  }
  /// Throws FormatError: "there is no `kind` named "given". Did you mean ...".
  [[noreturn]] void refuse_unknown(std::string_view kind, std::string_view given,
                                   std::span<const std::string_view> known) const;

 private:
  /// Makes the member of `object` with this key. In its pointer the key is escaped and shortened.
  JsonValue(const JsonValue& object, std::string_view key, const Json& json);

  std::string where_, pointer_, key_{};
  const Json& json_;
};

/// Calls check(). Turns a UsageError into a FormatError with the same message, which names the
/// position of `at` in the file.
template <class Check> void checked_at(const JsonValue& at, const Check& check) {
  try {
    check();
  } catch (const UsageError& error) { at.refuse(error.message()); }
}

}  // namespace halftone
