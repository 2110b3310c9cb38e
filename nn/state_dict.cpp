// Loading compares first and copies afterwards, so that a state that does not fit leaves the module
// unchanged.
#include <halftone/nn/state_dict.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <type_traits>

#include <halftone/core/backend.h>
#include <halftone/core/error.h>
#include <halftone/core/named_tensors.h>

namespace halftone::nn {
namespace {

struct CollectState final : Fields {
  NamedTensors state;
  explicit CollectState(const Module& root) { walk(const_cast<Module&>(root)); }
  void parameter(const std::string& path, Parameter& x) override { state[path] = x.detach(); }
  void buffer(const std::string& path, Buffer& x) override { state[path] = x.detach(); }
};

struct Difference {
  LoadReport names;
  std::vector<std::string> misshapen, contradictory, lost, overlapping;
};

std::string name_and(const std::string& name, const auto&... more) {
  PlainText text;
  text << shortened(name, 80) << " (";
  (text << ... << more) << ')';
  return text.str();
}

bool same_elements(const Tensor& a, const Tensor& b) {
  return a.storage() == b.storage() && a.offset() == b.offset() && a.shape() == b.shape() &&
         a.strides() == b.strides();
}

/// Compares what is given for the names of one tensor: the last would win without a word.
void compare_tied(const NamedTensors& own, const NamedTensors& given, Difference& result) {
  std::map<const Storage*, std::vector<NamedTensors::const_iterator>> seen;
  for (auto at = own.begin(); at != own.end(); ++at) {
    const auto found = given.find(at->first);
    if (found == given.end() || !found->second.defined()) continue;
    auto& others = seen[at->second.storage().get()];
    const auto tied = std::ranges::find_if(
        others, [&](const auto& other) { return same_elements(other->second, at->second); });
    if (tied == others.end()) others.push_back(at);
    else if (!same_values(given.at((*tied)->first), found->second))
      result.contradictory.push_back(name_and((*tied)->first, shortened(at->first, 80)));
  }
}

/// Returns the prefix with which most missing names are among the unexpected ones; empty if there
/// is none.
std::string prefix_of(const LoadReport& names) {
  const auto& [missing, unexpected] = names;
  if (missing.empty()) return {};
  const std::set<std::string> given(unexpected.begin(), unexpected.end());
  constexpr std::size_t most_tried = 8;
  std::set<std::string> prefixes;
  for (const std::string& own : {missing.front(), missing.back()})
    for (const std::string& name : unexpected)
      if (name.ends_with('.' + own) && prefixes.size() < most_tried)
        prefixes.insert(name.substr(0, name.size() - own.size()));
  for (const std::string& prefix : prefixes) {
    const auto found = std::ranges::count_if(
        missing, [&](const std::string& name) { return given.contains(prefix + name); });
    if (2 * std::size_t(found) > missing.size()) return prefix;
  }
  return {};
}

Difference compare(const NamedTensors& own, const NamedTensors& given) {
  Difference result;
  for (const auto& [name, x] : own) {
    const auto found = given.find(name);
    if (found == given.end() || !found->second.defined()) {
      result.names.missing.push_back(name);
    } else if (found->second.shape() != x.shape()) {
      result.misshapen.push_back(
          name_and(name, x.shape(), " here, ", found->second.shape(), " given"));
    } else if (has_overlap(x)) {
      result.overlapping.push_back(shortened(name, 80));
    } else if (const std::optional<double> lost = lost_value(found->second, x.dtype())) {
      result.lost.push_back(name_and(name, *lost, " given, ", x.dtype(), " here"));
    }
  }
  for (const auto& [name, x] : given) {
    if (!own.contains(name)) result.names.unexpected.push_back(name);
  }
  compare_tied(own, given, result);
  return result;
}

std::string line_of(std::string_view title, const std::vector<std::string>& names) {
  if (names.empty()) return {};
  std::string line(1, ' ');
  return line.append(title).append(": ").append(listed(names)).append(".");
}

/// `strict`: names that do not agree are errors as well. `prefix`: of the given names.
void refuse(const Difference& difference, std::string_view source, bool strict,
            const std::string& prefix) {
  const auto& [names, misshapen, contradictory, lost, overlapping] = difference;
  const bool names_agree = names.missing.empty() && names.unexpected.empty();
  const std::string lists = line_of("Missing", names.missing) +
                            line_of("Unexpected", names.unexpected) +
                            line_of("Misshapen", misshapen) +
                            line_of("Different under two names of one tensor", contradictory) +
                            line_of("Out of range", lost) + line_of("Expanded", overlapping);
  const auto refuse_as = [&]<class Kind>(const std::string& remedy) {
    fail<Kind>("load_state_dict", source, " does not fit the module:", lists, remedy);
  };
  if (!misshapen.empty())
    refuse_as.operator()<ShapeError>(" Build the module with the sizes that were saved.");
  if (!overlapping.empty())
    refuse_as.operator()<UsageError>(
        " Elements of an expanded tensor share their memory. Make the parameter from a clone().");
  if (!contradictory.empty())
    refuse_as.operator()<UsageError>(
        " Build a module that does not tie them, or give each tensor one value.");
  if (!lost.empty()) refuse_as.operator()<DTypeError>(" Load into a module of a wider dtype.");
  if (strict && !prefix.empty()) {
    const std::string quoted = in_quotes(prefix);
    refuse_as.operator()<UsageError>(" The names given begin with " + quoted +
                                     ": pass .strip_prefix = " + quoted + ".");
  }
  if (strict && !names_agree)
    refuse_as.operator()<UsageError>(" Rename them, or pass .strict = false to load what agrees.");
}

LoadReport load_from(Module& module, const NamedTensors& given, bool strict,
                     std::string_view source, std::string_view hidden = {}) {
  NamedTensors own = state_dict(module);
  Difference difference = compare(own, given);
  for (auto* names :
       {&difference.names.missing, &difference.names.unexpected, &difference.misshapen,
        &difference.contradictory, &difference.lost, &difference.overlapping})
    for (std::string& name : *names)
      if (!hidden.empty() && name.starts_with(hidden)) name.erase(0, hidden.size());
  refuse(difference, source, strict, prefix_of(difference.names));
  for (auto& [name, x] : own) {
    const auto found = given.find(name);
    if (found == given.end() || !found->second.defined()) continue;
    copy_into(x, found->second);
  }
  return difference.names;
}

}  // namespace

NamedTensors state_dict(const Module& module) { return CollectState(module).state; }

LoadReport load_state_dict(Module& module, const NamedTensors& state, LoadOptions options) {
  if (options.strip_prefix.empty()) return load_from(module, state, options.strict, "the state");
  SafetensorsFile file{.tensors = state};
  detail::strip_prefix(file, options.strip_prefix);
  return load_from(module, file.tensors, options.strict, "the state");
}

void save(const Module& module, const std::filesystem::path& path) {
  save_safetensors(path, state_dict(module), {{"format", "pt"}});  // "pt": PyTorch's layouts
}

LoadReport load(Module& module, const std::filesystem::path& path, LoadOptions options) {
  const MemoryScope scope(MemoryUse::workspace);  // the file's tensors live until copied
  return detail::load_file(module, load_safetensors(path), options, path);
}

namespace detail {

void strip_prefix(SafetensorsFile& file, const std::string& prefix) {
  if (prefix.empty()) return;
  std::set<std::string> names;
  const auto strip = [&](auto& named) {
    std::remove_cvref_t<decltype(named)> stripped;
    for (auto& [name, value] : named) {
      const std::string rest = name.starts_with(prefix) ? name.substr(prefix.size()) : name;
      if (!names.insert(rest).second)
        fail<UsageError>("load_state_dict", in_quotes(rest), " is given with the prefix ",
                         in_quotes(prefix), " and without. Remove one of the two.");
      stripped.emplace(rest, std::move(value));
    }
    named = std::move(stripped);
  };
  strip(file.tensors), strip(file.unsupported);
}

LoadReport load_file(Module& module, SafetensorsFile file, const LoadOptions& options,
                     const std::filesystem::path& path, std::string_view hidden) {
  strip_prefix(file, options.strip_prefix);
  const NamedTensors own = state_dict(module);
  for (const auto& [name, what] : file.unsupported) {
    if (own.contains(name)) {
      const std::size_t begin = name.starts_with(hidden) ? hidden.size() : 0;
      fail<UnsupportedError>("load_state_dict", path.string(), ": tensor ",
                             in_quotes(name.substr(begin)), " is ", what,
                             ", which no tensor can be here. Convert it before saving.");
    }
    file.tensors.emplace(name, Tensor());
  }
  return load_from(module, file.tensors, options.strict, path.string(), hidden);
}

}  // namespace detail

}  // namespace halftone::nn
