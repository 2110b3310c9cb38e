// A map that the whole process shares.
#include <halftone/policy/file/own_quantizers.h>

#include <map>
#include <mutex>

#include <halftone/core/error.h>
#include <halftone/core/formats/quantizer.h>

namespace halftone::policy {

namespace {

struct Added {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<const OwnQuantizer>, std::less<>> by_name;
};
Added& added() {
  static Added all;
  return all;
}

}  // namespace

void add_quantizer(OwnQuantizer quantizer) {
  constexpr const char* op = "add_quantizer";
  check_own_quantizer(op, quantizer);
  const std::string name = quantizer.name;
  const std::lock_guard lock(added().mutex);
  if (name == "none" || name == "as_used" || quantizer_named(name) ||
      added().by_name.contains(name))
    fail<UsageError>(op, "the name \"", name, "\" has a meaning already. Choose another name.");
  added().by_name[name] = std::make_shared<const OwnQuantizer>(std::move(quantizer));
}

std::shared_ptr<const OwnQuantizer> own_quantizer_named(std::string_view name) {
  const std::lock_guard lock(added().mutex);
  const auto found = added().by_name.find(name);
  return found == added().by_name.end() ? nullptr : found->second;
}

std::vector<std::string> own_quantizer_names() {
  const std::lock_guard lock(added().mutex);
  std::vector<std::string> names;
  for (const auto& [name, quantizer] : added().by_name) names.push_back(name);
  return names;
}

}  // namespace halftone::policy
