#include "modules.h"

#include <unistd.h>

#include <cstdio>
#include <map>
#include <string>

#include <halftone/core/files.h>

#include "fat_binary.h"
#include "fuse.h"

namespace halftone::ptx {

namespace {

struct Modules {
  std::map<const void*, std::unique_ptr<Module>> all{};
  /// HALFTONE_PTX_COVERAGE=file: writes a line for each kernel, and for each instruction of kernels
  /// that ran. A folder, which ends in /, gets a file for each process.
  ~Modules();
};
Modules& modules() {
  static Modules instance;
  return instance;  // destroyed at the end of the program
}

void write_kernel(std::FILE* file, const Kernel& kernel) {
  std::size_t executed = 0;
  for (const uint64_t times : kernel.executed) executed += times != 0;
  std::fprintf(file, "kernel %s %llu launches %zu of %zu instructions\n", kernel.name.c_str(),
               static_cast<unsigned long long>(kernel.launches), executed, kernel.code.size());
  for (std::size_t n = 0; n < kernel.code.size(); ++n) {
    const std::string text(kernel.text_of(kernel.code[n]));
    std::fprintf(file, "%llu %zu %s\n", static_cast<unsigned long long>(kernel.executed[n]), n,
                 text.c_str());
  }
}

Modules::~Modules() {
  const char* const wanted = environment_variable("HALFTONE_PTX_COVERAGE");
  if (!wanted) return;
  std::string path = wanted;
  if (path.ends_with('/')) path += std::to_string(getpid());
  std::FILE* const file = std::fopen(path.c_str(), "w");
  if (!file) return;
  for (const auto& [wrapper, module] : all)
    for (const auto& [name, kernel] : module_of(wrapper).kernels) write_kernel(file, *kernel);
  std::fprintf(file, "fused %lld\n", static_cast<long long>(fused_sums()));
  std::fclose(file);
}

}  // namespace

void register_binary(const void* wrapper) { modules().all[wrapper] = nullptr; }

Module& module_of(const void* wrapper) {
  std::unique_ptr<Module>& module = modules().all[wrapper];
  if (!module) module = std::make_unique<Module>(text_of_fat_binary(wrapper));
  return *module;
}

std::vector<Module*> all_modules() {
  std::vector<Module*> list;
  for (const auto& [wrapper, module] : modules().all) list.push_back(&module_of(wrapper));
  return list;
}

}  // namespace halftone::ptx
