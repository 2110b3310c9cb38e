// The visitor to which a module describes itself. Everything that modules can do without knowing
// their own class (collect parameters, save, convert, switch to evaluation) is one Fields that
// walks over describe(). Derive from it for a walk of your own; the paths it receives are PyTorch's
// dotted names.
#pragma once

#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include <halftone/nn/parameter.h>

namespace halftone::nn {

struct Module;

class Fields {
 public:
  Fields() = default;
  virtual ~Fields() = default;
  Fields(const Fields&) = delete;
  Fields& operator=(const Fields&) = delete;

  /// Walks over a module and all its children, in the order in which they describe themselves.
  /// Throws UsageError for two fields under one path, and for a module that is part of itself.
  void walk(Module& root);

  // --- what describe() calls. Undefined tensors (an absent bias) are passed over.
  void operator()(std::string_view name, Parameter& parameter);
  void operator()(std::string_view name, Buffer& buffer);
  void operator()(std::string_view name, Module& child);

 protected:
  // --- what a walk receives. The path of the root is "".
  virtual void parameter(const std::string& path, Parameter& parameter);
  virtual void buffer(const std::string& path, Buffer& buffer);
  /// Comes before the module's fields; false passes over them.
  virtual bool module(const std::string& path, Module& module);

 private:
  std::string path_of(std::string_view name) const;
  /// The path of a field that is met for the first time.
  std::string new_path(std::string_view name);
  void enter(Module& module);

  std::string prefix_;                   // "" or the path of the module that is being described
  std::unordered_set<std::string> met_;  // paths of fields, since the root
  std::vector<std::pair<const Module*, std::string>> open_;  // being described, from the root on
};

}  // namespace halftone::nn
