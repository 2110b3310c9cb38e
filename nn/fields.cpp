// Extends and shortens the dotted path here, so that walks need not do it.
#include <halftone/nn/fields.h>

#include <utility>

#include <halftone/core/error.h>
#include <halftone/nn/module.h>

namespace halftone::nn {

namespace {
/// Runs an action when the scope ends, also by an exception: a describe() may throw.
template <class F> struct AtEnd {
  F action;
  explicit AtEnd(F at_end) : action(std::move(at_end)) {}
  ~AtEnd() { action(); }
};
}  // namespace

void Fields::walk(Module& root) {
  if (open_.empty()) met_.clear();
  enter(root);
}

void Fields::enter(Module& entered) {
  for (const auto& [known, path] : open_)
    if (known == &entered)
      fail<UsageError>("Module.describe", "the field \"", prefix_, "\" is ",
                       path.empty() ? "the module that is described" : '"' + path + '"',
                       ", which contains it. Leave it out of describe().");
  if (!module(prefix_, entered)) return;
  open_.emplace_back(&entered, prefix_);
  const AtEnd closes([this] { open_.pop_back(); });
  entered.describe(*this);
}

void Fields::operator()(std::string_view name, Parameter& field) {
  if (!field.defined()) return;
  if (field.meta()) field.meta()->unclaimed = false;
  parameter(new_path(name), field);
}

void Fields::operator()(std::string_view name, Buffer& field) {
  if (field.defined()) buffer(new_path(name), field);
}

void Fields::operator()(std::string_view name, Module& child) {
  std::string outside = std::exchange(prefix_, new_path(name));
  const AtEnd returns([&] { prefix_ = std::move(outside); });
  enter(child);
}

void Fields::parameter(const std::string&, Parameter&) {}
void Fields::buffer(const std::string&, Buffer&) {}
bool Fields::module(const std::string&, Module&) { return true; }

std::string Fields::new_path(std::string_view name) {
  std::string path = path_of(name);
  if (!met_.insert(path).second)
    fail<UsageError>("Module.describe", "two fields are called \"", path,
                     "\", and a saved state would keep one of them. Give each a name of its own.");
  return path;
}

std::string Fields::path_of(std::string_view name) const {
  return prefix_.empty() ? std::string(name) : prefix_ + "." + std::string(name);
}

}  // namespace halftone::nn
