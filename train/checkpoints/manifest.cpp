// Numbers print in the shortest form that reads back to the same bits. JSON has no NaN and
// infinities, so these three are strings. The parser limits nesting.
#include <halftone/train/checkpoints/manifest.h>

#include <charconv>
#include <cmath>
#include <limits>

#include <nlohmann/json.hpp>

#include <halftone/core/error.h>

namespace halftone::train {

namespace {
using Json = nlohmann::ordered_json;
constexpr int64_t format_version = 1;
constexpr std::string_view format_name = "halftone checkpoint";
constexpr int depth_limit = 3;

[[noreturn]] void malformed(const std::string& path, std::string_view what) {
  fail<FormatError>("checkpoint", what, ", in ", path,
                    ". The file is damaged or no checkpoint's: use another checkpoint.");
}

Json parse(const std::string& text, const std::string& path) {
  try {
    return Json::parse(text, [&](int depth, Json::parse_event_t, Json&) {
      if (depth > depth_limit) malformed(path, "JSON nested too deeply");
      return true;
    });
  } catch (const Json::exception&) { malformed(path, "not valid JSON"); }
}

std::string hexadecimal(uint32_t value) {
  std::string text = "00000000";
  for (std::size_t i = 8; i-- > 0; value >>= 4) text[i] = "0123456789abcdef"[value & 15];
  return text;
}

uint32_t from_hexadecimal(const std::string& text) {
  uint32_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value, 16);
  return value;  // any value is accepted here: the spelling is compared afterwards
}

/// Accepts only numbers without a fraction or an exponent, because converting a float that does not
/// fit is undefined.
template <class Integer> Integer whole(const Json& value, const std::string& path) {
  if (!value.is_number_integer()) malformed(path, "something else where a whole number belongs");
  return value.get<Integer>();
}

Json number_json(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  return value;
}

double number_of(const Json& value) {
  if (!value.is_string()) return value.get<double>();
  const auto& text = value.get_ref<const std::string&>();
  constexpr double infinity = std::numeric_limits<double>::infinity();
  if (text == "inf") return infinity;
  return text == "-inf" ? -infinity : std::numeric_limits<double>::quiet_NaN();
}

std::string printed(const Json& json) { return json.dump(1) + '\n'; }
}  // namespace

std::string manifest_text(const Manifest& manifest) {
  Json files = Json::array();
  for (std::size_t i = 0; i < listed_files.size(); ++i)
    files.push_back({{"name", listed_files[i]},
                     {"bytes", manifest.files[i].bytes},
                     {"crc32", hexadecimal(manifest.files[i].crc32)}});
  return printed({{"format", format_name}, {"version", format_version}, {"files", files}});
}

Manifest parse_manifest(const std::string& text, const std::string& path) {
  const Json json = parse(text, path);
  Manifest manifest;
  try {
    if (json.at("format") != format_name) malformed(path, "no manifest of a checkpoint");
    if (const auto version = whole<int64_t>(json.at("version"), path); version != format_version)
      fail<FormatError>("checkpoint", "version ", version, " of the format, in ", path,
                        ". This build reads version ", format_version, ".");
    for (std::size_t i = 0; i < listed_files.size(); ++i) {
      const Json& entry = json.at("files").at(i);
      manifest.files[i] = {.bytes = whole<uint64_t>(entry.at("bytes"), path),
                           .crc32 = from_hexadecimal(entry.at("crc32").get<std::string>())};
    }
    if (manifest_text(manifest) != text)
      malformed(path, "entries, names or spellings that no manifest has");
  } catch (const Json::exception&) { malformed(path, "missing entries, or of other types"); }
  return manifest;
}

std::string state_text(const CheckpointState& state) {
  Json numbers = Json::object(), texts = Json::object();
  for (const auto& [name, value] : state.numbers) numbers[name] = number_json(value);
  for (const auto& [name, value] : state.texts) texts[name] = value;
  try {
    return printed({{"step", state.step},
                    {"epoch", state.epoch},
                    {"batches", state.batches},
                    {"numbers", numbers},
                    {"texts", texts}});
  } catch (const Json::exception&) {
    fail<UsageError>("checkpoint",
                     "a name or a text of the state is not UTF-8. Convert it, or "
                     "write it in another file.");
  }
}

CheckpointState parse_state(const std::string& text, const std::string& path) {
  const Json json = parse(text, path);
  CheckpointState state;
  try {
    state.step = whole<int64_t>(json.at("step"), path);
    state.epoch = whole<int64_t>(json.at("epoch"), path);
    state.batches = whole<int64_t>(json.at("batches"), path);
    for (const auto& [name, value] : json.at("numbers").items())
      state.numbers[name] = number_of(value);
    for (const auto& [name, value] : json.at("texts").items())
      state.texts[name] = value.get<std::string>();
    if (state.step < 0 || state.epoch < 0 || state.batches < 0)
      malformed(path, "a negative step, epoch or number of batches");
    if (state_text(state) != text) malformed(path, "entries or spellings that no state has");
  } catch (const Json::exception&) { malformed(path, "missing entries, or of other types"); }
  return state;
}

}  // namespace halftone::train
