#include <halftone/backends/opened_library.h>

#include <dlfcn.h>

namespace halftone {

OpenedLibrary::OpenedLibrary(std::initializer_list<std::string> names, Symbols symbols) {
  const int flags = RTLD_NOW | (symbols == Symbols::global ? RTLD_GLOBAL : RTLD_LOCAL);
  for (const std::string& name : names) {
    library_ = dlopen(name.c_str(), flags);
    if (library_) {
      error_.clear();
      return;
    }
    const char* const why = dlerror();
    if (error_.empty() && why) error_ = why;
  }
}

void* OpenedLibrary::address_of(const char* name) {
  void* const address = library_ ? dlsym(library_, name) : nullptr;
  complete_ = complete_ && address;
  return address;
}

}  // namespace halftone
