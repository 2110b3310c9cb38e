// The dotted path grows and shrinks here, so that no walk has to think of it.
#include <halftone/nn/fields.h>

#include <utility>

#include <halftone/nn/module.h>

namespace halftone::nn {

void Fields::walk(Module& root) {
  if (module(prefix_, root)) root.describe(*this);
}

void Fields::operator()(std::string_view name, Parameter& field) {
  if (!field.defined()) return;
  if (field.meta()) field.meta()->unclaimed = false;
  parameter(path_of(name), field);
}

void Fields::operator()(std::string_view name, Buffer& field) {
  if (field.defined()) buffer(path_of(name), field);
}

void Fields::operator()(std::string_view name, Module& child) {
  const std::string outside = std::exchange(prefix_, path_of(name));
  walk(child);
  prefix_ = outside;
}

void Fields::parameter(const std::string&, Parameter&) {}
void Fields::buffer(const std::string&, Buffer&) {}
bool Fields::module(const std::string&, Module&) { return true; }

std::string Fields::path_of(std::string_view name) const {
  return prefix_.empty() ? std::string(name) : prefix_ + "." + std::string(name);
}

}  // namespace halftone::nn
