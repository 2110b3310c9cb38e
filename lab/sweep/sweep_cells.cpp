// From axes to policy files.
#include <algorithm>
#include <array>
#include <charconv>
#include <set>

#include <nlohmann/json.hpp>

#include <halftone/core/error.h>
#include <halftone/core/files.h>
#include <halftone/lab/json_input.h>
#include <halftone/lab/sweep.h>
#include <halftone/policy/policy_file.h>

namespace halftone::lab {

namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

constexpr std::array<std::string_view, 6> run_options{"lr",       "steps", "optimizer",
                                                      "schedule", "from",  "workload"};
constexpr std::size_t most_cells = 10'000;

bool is_run_option(const std::string& name) {
  return std::ranges::find(run_options, name) != run_options.end();
}

std::vector<std::string> split(const std::string& text, char by) {
  std::vector<std::string> parts;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(by, at), text.size());
    parts.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

/// Splits at commas outside of lists, objects and quoted texts.
std::vector<std::string> split_values(const std::string& text) {
  std::vector<std::string> values(1);
  int depth = 0;
  bool quoted = false, escaped = false;
  for (const char c : text) {
    if (c == '"' && !escaped) quoted = !quoted;
    escaped = quoted && c == '\\' && !escaped;
    if (!quoted) depth += c == '[' || c == '{' ? 1 : c == ']' || c == '}' ? -1 : 0;
    if (c == ',' && depth <= 0 && !quoted) values.emplace_back();
    else values.back() += c;
  }
  return values;
}

/// Replaces characters that are not safe in a file name, and cuts after 60.
std::string plain(std::string text) {
  for (char& c : text)
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '.' && c != '_' && c != '=' &&
        c != '-' && c != '+')
      c = '_';
  return text.substr(0, 60);
}

/// A policy file as JSON, with the stem of its cells' names.
struct Source {
  std::string stem;
  Json json;
};

Source source_of(const std::string& policy) {
  if (!policy.ends_with(".json")) {
    policy::named_or_loaded(policy);  // throws for an unknown name
    return {policy, Json{{"halftone_policy", 1}, {"name", policy}, {"extends", policy}}};
  }
  policy::read(policy);  // throws if the file is invalid
  Json json = Json::parse(files::read_text("sweep", policy, 1 << 20));
  if (const auto base = json.find("extends"); base != json.end() && base->is_string()) {
    const auto& named = base->get_ref<const std::string&>();
    if (named.ends_with(".json"))
      *base = fs::absolute(fs::path(policy).parent_path() / named).string();
  }
  return {fs::path(policy).stem().string(), std::move(json)};
}

/// Parses a number, a list, true, "a text", ... A value that is not valid JSON is a text.
Json value_of(const std::string& text) {
  if (!is_within_limits(text))
    fail<FormatError>("sweep", "the value ", in_quotes(text), " has more than ", most_json_levels,
                      " levels of braces and brackets. Give a simpler one.");
  Json value = Json::parse(text, nullptr, false);
  return value.is_discarded() ? Json(text) : value;
}

/// Returns an option of `run` without spaces around it, and without the quotes of a JSON text.
std::string option_of(const std::string& value) {
  const Json json = value_of(value);
  if (json.is_string() && value.find('"') != std::string::npos) return json.get<std::string>();
  const std::size_t begin = value.find_first_not_of(' '), end = value.find_last_not_of(' ');
  return begin == std::string::npos ? "" : value.substr(begin, end - begin + 1);
}

void set_field(Json& json, const std::string& name, const std::string& value) {
  Json* at = &json;
  const std::vector<std::string> parts = split(name, '.');
  if (parts.size() > most_json_levels)
    fail<FormatError>("sweep", "the field ", in_quotes(name), " is ", parts.size(),
                      " levels deep. A policy has at most ", most_json_levels, ".");
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (at->is_array()) {
      std::size_t place = 0;
      const char* const end = parts[i].data() + parts[i].size();
      const auto read = std::from_chars(parts[i].data(), end, place);
      if (read.ec != std::errc() || read.ptr != end || place >= at->size())
        fail<FormatError>("sweep", name, ": the list there has ", at->size(), " entries, got \"",
                          parts[i], "\". Give a number below.");
      at = &(*at)[place];
    } else if (at->is_object() || at->is_null()) {
      at = &(*at)[parts[i]];  // reading the file later refuses an unknown field
    } else {
      fail<FormatError>("sweep", name, ": the entry before \"", parts[i],
                        "\" is not an object, so it has no fields. Name another field.");
    }
  }
  *at = value_of(value);
}

}  // namespace

Axis axis_of(const std::string& text) {
  const std::size_t equals = text.find('=');
  Axis axis{text.substr(0, equals), {}};
  if (equals != std::string::npos) axis.values = split_values(text.substr(equals + 1));
  if (run_options_of(axis).size() == split(axis.name, ',').size())
    for (std::string& value : axis.values) value = option_of(value);
  if (axis.name.empty() || axis.values.empty() ||
      std::ranges::find(axis.values, "") != axis.values.end())
    fail<UsageError>("sweep", "\"", text, "\" is not an axis. Write NAME=VALUE,VALUE.");
  std::set<Json> meant;
  for (const std::string& value : axis.values) meant.insert(value_of(value));
  if (meant.size() != axis.values.size())
    fail<UsageError>("sweep", "\"", text, "\" has a value twice. Give each once.");
  return axis;
}

std::vector<std::string> run_options_of(const Axis& axis) {
  std::vector<std::string> fields = split(axis.name, ',');
  std::erase_if(fields, [](const std::string& field) { return !is_run_option(field); });
  return fields;
}

namespace {
/// Returns the last name of a field: "history", or "block.1" for an entry of a list.
std::string last_name(const std::string& field) {
  std::size_t begin = field.rfind('.') + 1;  // 0 without a dot
  const bool is_number = field.find_first_not_of("0123456789", begin) == std::string::npos;
  if (begin > 1 && is_number) begin = field.rfind('.', begin - 2) + 1;
  return field.substr(begin);
}
}  // namespace

std::vector<std::string> short_names(const std::vector<Axis>& axes) {
  std::vector<std::string> last, names;
  for (const Axis& axis : axes) {
    std::string& joined = last.emplace_back();
    std::set<std::string> seen;
    for (const std::string& field : split(axis.name, ',')) {
      const std::string end = last_name(field);
      if (seen.insert(end).second) joined += (joined.empty() ? "" : "+") + end;
    }
  }
  for (std::size_t i = 0; i < axes.size(); ++i)
    names.push_back(std::ranges::count(last, last[i]) > 1 ? axes[i].name : last[i]);
  return names;
}

std::vector<Cell> cells_of(const std::string& policy, const std::vector<Axis>& axes) {
  const Source source = source_of(policy);
  const std::vector<std::string> names = short_names(axes);
  std::size_t count = 1;
  std::set<std::string> fields;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    for (const std::string& field : split(axes[i].name, ','))
      if (!fields.insert(field).second)
        fail<UsageError>("sweep", "two axes have the field ", in_quotes(field),
                         ". Give each field once.");
    count *= axes[i].values.size();
    if (count > most_cells)
      fail<UsageError>("sweep", "the axes have more than ", most_cells, " cells. Give fewer.");
  }
  std::vector<Cell> cells;
  std::set<std::string> taken;
  for (std::size_t number = 0; number < count; ++number) {
    Cell cell{.name = plain(source.stem), .policy = {}};
    Json json = source.json, record{{"policy", source.stem}, {"axes", Json::object()}};
    std::size_t rest = number, below = count;
    for (std::size_t i = 0; i < axes.size(); ++i) {
      below /= axes[i].values.size();
      const std::string& value = axes[i].values[rest / below];
      cell.places.push_back(rest / below);
      rest %= below;
      cell.name += "-" + plain(names[i] + "=" + value);
      record["axes"][names[i]] = value;
      for (const std::string& field : split(axes[i].name, ','))
        if (is_run_option(field)) cell.options.emplace_back("--" + field, option_of(value));
        else set_field(json, field, value);
    }
    while (!taken.insert(cell.name).second) cell.name += "-" + std::to_string(number);
    json["name"] = cell.name;
    try {
      cell.policy = json.dump(2) + "\n", cell.record = record.dump(2) + "\n";
    } catch (const Json::exception&) {
      fail<FormatError>("sweep", "the fields of the cell ", in_quotes(cell.name),
                        " are not UTF-8. Write them in UTF-8.");
    }
    cells.push_back(std::move(cell));
  }
  return cells;
}

}  // namespace halftone::lab
