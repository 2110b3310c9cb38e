// Strict reading. Files come from anywhere: every entry has an effect, or is an error.
#include <halftone/core/json_value.h>

#include <algorithm>
#include <cmath>
#include <set>

#include <halftone/core/error.h>

namespace halftone {

namespace {
constexpr std::size_t most_bytes = 1 << 20;
constexpr int most_levels = 64;
constexpr std::size_t most_entries = 10'000;  // they are searched one by one

std::string in_short(std::string_view text) {
  return shortened(text, text.size() <= 60 ? 60 : 57);
}

[[noreturn]] void refuse_at(const std::string& where, std::string_view text, std::size_t byte,
                            std::string_view problem) {
  const std::string_view before = text.substr(0, std::min(byte, text.size()));
  const auto line = 1 + std::ranges::count(before, '\n');
  const std::size_t begin = before.rfind('\n') + 1;  // npos + 1 is 0
  fail<FormatError>(where, "line ", line, ", column ", before.size() - begin + 1, ": ", problem);
}

/// Checks keys and levels, which the JSON library accepts.
class Guard {
 public:
  explicit Guard(const std::string& where) : where_(where) {}
  bool operator()(int depth, Json::parse_event_t event, const Json& parsed) {
    using Event = Json::parse_event_t;
    if (event == Event::object_start || event == Event::array_start) {
      if (depth >= most_levels)
        fail<FormatError>(where_, "there are more than ", most_levels,
                          " levels of braces and brackets.");
      if (event == Event::object_start) keys_.emplace_back();
    } else if (event == Event::object_end) {
      keys_.pop_back();
    } else if (event == Event::value && parsed.is_string()) {
      check_text(parsed.get_ref<const std::string&>());
    } else if (event == Event::key) {
      const std::string& key = parsed.get_ref<const std::string&>();
      check_text(key);
      if (!keys_.back().insert(key).second)
        fail<FormatError>(where_, "the entry \"", in_short(key),
                          "\" occurs twice in one object. Keep one of them.");
      if (keys_.back().size() > most_entries)
        fail<FormatError>(where_, "an object has more than ", most_entries, " entries.");
    }
    return true;
  }

 private:
  /// Messages quote texts, and what() ends at a character U+0000.
  void check_text(const std::string& text) const {
    if (text.find('\0') != std::string::npos)
      fail<FormatError>(where_, "the text \"", in_short(text),
                        "\" has a character U+0000. Leave it out.");
  }

  const std::string& where_;
  std::vector<std::set<std::string>> keys_{};
};

/// Returns where a number begins that the JSON library quotes in a message: "... parsing '1e400'".
std::size_t place_of_number(std::string_view text, std::string_view message) {
  const std::size_t end = message.rfind('\''), begin = message.rfind('\'', end - 1) + 1;
  const std::size_t at = text.find(message.substr(begin, end - begin));
  return at == std::string_view::npos ? 0 : at;
}

/// Returns a key as a JSON pointer spells it.
std::string escaped(std::string_view key) {
  std::string text;
  for (const char c : in_short(key)) {
    if (c == '~') text += "~0";
    else if (c == '/') text += "~1";
    else text += c;
  }
  return text;
}

std::string_view kind_of(const Json& json) {
  if (json.is_null()) return "null";
  if (json.is_object()) return "an object";
  if (json.is_array()) return "a list";
  if (json.is_string()) return "a text";
  return json.is_boolean() ? "true or false" : "a number";
}
}  // namespace

Json parsed_json(const std::string& where, std::string_view text) {
  if (text.size() > most_bytes)
    fail<FormatError>(where, "the file has ", text.size(), " bytes. A policy has at most ",
                      most_bytes, ".");
  try {
    return Json::parse(text.begin(), text.end(), Guard(where));
  } catch (const nlohmann::json::parse_error& error) {
    refuse_at(where, text, error.byte > 0 ? error.byte - 1 : 0,
              "not JSON. Remarks go into \"about\".");
  } catch (const nlohmann::json::out_of_range& error) {
    refuse_at(where, text, place_of_number(text, error.what()),
              "the number does not fit in 64 bits. Choose a number up to 1.7e308.");
  } catch (const nlohmann::json::exception&) {
    fail<FormatError>(where, "not JSON: a text is not UTF-8.");
  }
}

JsonValue::JsonValue(const JsonValue& object, std::string_view key, const Json& json)
    : where_(object.where_),
      pointer_(object.pointer_ + '/' + escaped(key)),
      key_(key),
      json_(json) {}

void JsonValue::refuse_unknown(std::string_view kind, std::string_view given,
                               std::span<const std::string_view> known) const {
  const std::string name = in_short(given);
  refuse("there is no ", kind, " named \"", name, "\". ", suggestion(name, known));
}

void JsonValue::only(std::string_view what, std::span<const std::string_view> known) const {
  if (!json_.is_object()) refuse(what, " is an object, got ", kind_of(json_), '.');
  for (const auto& [key, value] : json_.items()) {
    if (std::ranges::find(known, key) != known.end()) continue;
    const std::string name = in_short(key);
    JsonValue(*this, key, value)
        .refuse(what, " has no entry \"", name, "\". ", suggestion(name, known));
  }
}

std::optional<JsonValue> JsonValue::find(std::string_view key) const {
  const auto found = json_.find(std::string(key));
  if (found == json_.end()) return {};
  return JsonValue(*this, key, *found);
}

std::vector<JsonValue> JsonValue::members() const {
  if (!json_.is_object()) refuse("expected an object, got ", kind_of(json_), '.');
  std::vector<JsonValue> result;
  for (const auto& [key, value] : json_.items()) result.push_back(JsonValue(*this, key, value));
  return result;
}

std::vector<JsonValue> JsonValue::elements() const {
  if (!json_.is_array()) refuse("expected a list, got ", kind_of(json_), '.');
  std::vector<JsonValue> result;
  for (std::size_t i = 0; i < json_.size(); ++i)
    result.emplace_back(where_, pointer_ + '/' + std::to_string(i), json_[i]);
  return result;
}

void JsonValue::require_printable_key() const {
  if (printable(key_) != key_) refuse("a name has letters that are not printable. Leave them out.");
}

std::string JsonValue::text() const {
  if (!json_.is_string()) refuse("expected a text, got ", kind_of(json_), '.');
  return json_.get<std::string>();
}

bool JsonValue::boolean() const {
  if (!json_.is_boolean()) refuse("expected true or false, got ", kind_of(json_), '.');
  return json_.get<bool>();
}

double JsonValue::number() const {
  if (!json_.is_number()) refuse("expected a number, got ", kind_of(json_), '.');
  const double value = json_.get<double>();
  if (!std::isfinite(value)) refuse("the number is not finite.");
  return value;
}

int64_t JsonValue::integer(int64_t least, int64_t most) const {
  const double value = number();
  if (!json_.is_number_integer() && value == std::floor(value))
    refuse("expected a whole number from ", least, " to ", most, ", got ", json_.dump(),
           ". Write it without a point and an exponent.");
  const bool fits = value >= double(least) && value <= double(most) &&
                    // As a double it may have been rounded to `most`.
                    !(json_.is_number_unsigned() && json_.get<uint64_t>() > uint64_t(most));
  if (!fits || !json_.is_number_integer())
    refuse("expected a whole number from ", least, " to ", most, ", got ", json_.dump(), '.');
  return json_.get<int64_t>();
}

std::size_t JsonValue::word(std::span<const std::string_view> words) const {
  const std::string given = text();
  const auto found = std::ranges::find(words, given);
  if (found != words.end()) return std::size_t(found - words.begin());
  std::string list;
  for (std::size_t i = 0; i < words.size(); ++i)
    list += (i == 0 ? "" : (i + 1 == words.size() ? " or " : ", ")) + std::string(words[i]);
  refuse(list, ", got \"", in_short(given), "\".");
}

}  // namespace halftone
