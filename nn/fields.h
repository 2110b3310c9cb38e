// The visitor to which a module describes itself. Every function on modules that need not know the
// class (collect parameters, save, convert, switch to evaluation) is a Fields that walks over
// describe(). Derive from it for a walk of your own. The paths it receives are PyTorch's dotted
// names.
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

  // --- called by describe(). Undefined tensors (an absent bias) are skipped.
  void operator()(std::string_view name, Parameter& parameter);
  void operator()(std::string_view name, Buffer& buffer);
  void operator()(std::string_view name, Module& child);

 protected:
  // --- received by a walk. The path of the root is "".
  virtual void parameter(const std::string& path, Parameter& parameter);
  virtual void buffer(const std::string& path, Buffer& buffer);
  /// Called before the module's fields; return false to skip them.
  virtual bool module(const std::string& path, Module& module);

 private:
  std::string path_of(std::string_view name) const;
  /// Returns the path of a field, and throws if a field already has it.
  std::string new_path(std::string_view name);
  void enter(Module& module);

  std::string prefix_;                   // "" or the path of the module that is being described
  std::unordered_set<std::string> met_;  // paths of fields, since the root
  std::vector<std::pair<const Module*, std::string>> open_;  // open modules, from the root on
};

}  // namespace halftone::nn
