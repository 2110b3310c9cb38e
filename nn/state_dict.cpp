// Loading compares first and copies afterwards, so that a state that does not fit leaves the module
// unchanged.
#include <halftone/nn/state_dict.h>

#include <sstream>

#include <halftone/core/in_place.h>
#include <halftone/core/error.h>
#include <halftone/core/quoted.h>

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
  std::vector<std::string> misshapen;
};

Difference compare(const NamedTensors& own, const NamedTensors& given) {
  Difference result;
  for (const auto& [name, x] : own) {
    const auto found = given.find(name);
    if (found == given.end() || !found->second.defined()) {
      result.names.missing.push_back(name);
    } else if (found->second.shape() != x.shape()) {
      PlainText text;
      text << shortened(name, 80) << " (" << x.shape() << " here, " << found->second.shape()
           << " given)";
      result.misshapen.push_back(text.str());
    }
  }
  for (const auto& [name, x] : given) {
    if (!own.contains(name)) result.names.unexpected.push_back(name);
  }
  return result;
}

std::string line_of(std::string_view title, const std::vector<std::string>& names) {
  if (names.empty()) return {};
  std::string line(1, ' ');
  return line.append(title).append(": ").append(listed(names)).append(".");
}

void refuse(const Difference& difference, std::string_view source) {
  const std::string lists = line_of("Missing", difference.names.missing) +
                            line_of("Unexpected", difference.names.unexpected) +
                            line_of("Misshapen", difference.misshapen);
  if (!difference.misshapen.empty())
    fail<ShapeError>("load_state_dict", source, " does not fit the module:", lists,
                     " Build the module with the sizes that were saved.");
  fail<UsageError>("load_state_dict", source, " does not fit the module:", lists,
                   " Rename them, or pass .strict = false to load what agrees.");
}

LoadReport load_from(Module& module, const NamedTensors& given, LoadOptions options,
                     std::string_view source) {
  NamedTensors own = state_dict(module);
  const Difference difference = compare(own, given);
  const bool names_agree = difference.names.missing.empty() && difference.names.unexpected.empty();
  if (!difference.misshapen.empty() || (options.strict && !names_agree)) refuse(difference, source);
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
  return load_from(module, state, options, "the state");
}

void save(const Module& module, const std::filesystem::path& path) {
  save_safetensors(path, state_dict(module), {{"format", "pt"}});  // "pt": PyTorch's layouts
}

LoadReport load(Module& module, const std::filesystem::path& path, LoadOptions options) {
  const MemoryScope scope(MemoryUse::workspace);  // the file's tensors live until copied
  return load_from(module, load_safetensors(path).tensors, options, path.string());
}

}  // namespace halftone::nn
