// A shared library that is opened at run time, when it is needed. Programs do not depend on it and
// do not load it at their start. NCCL, cuBLASLt, cuDNN and MPI are opened in this way.
#pragma once

#include <dlfcn.h>
#include <initializer_list>
#include <string>

namespace halftone {

class OpenedLibrary {
 public:
  /// Where a library's symbols are visible: only to this class, or also to libraries opened later,
  /// which MPI's own plug-ins need.
  enum class Symbols { local, global };

  /// Opens the first of `names` (file names for the loader, or paths) that can be opened.
  explicit OpenedLibrary(std::initializer_list<std::string> names,
                         Symbols symbols = Symbols::local);

  bool is_open() const { return library_ != nullptr; }
  /// The loader's message about the first name. Empty if a library was opened.
  const std::string& error() const { return error_; }

  /// Sets `pointer` to the address of a function or variable; null if the library lacks it.
  template <class P> void find(const char* name, P& pointer) {
    pointer = reinterpret_cast<P>(address_of(name));
  }
  /// Returns whether find() has found everything so far.
  bool complete() const { return complete_; }

 private:
  void* address_of(const char* name);

  void* library_ = nullptr;  // never closed: pointers into it stay valid
  std::string error_{};
  bool complete_ = true;
};

/// The functions of a library, which is opened once, at their first use.
template <class Functions> struct LibraryFunctions {
  Functions functions{};
  std::string refusal{};  // why they are not used; empty if they are used

  const Functions* get() const { return refusal.empty() ? &functions : nullptr; }
  /// Returns the result of open(), which is called once.
  template <LibraryFunctions (*open)()> static const LibraryFunctions& once() {
    static const LibraryFunctions result = open();
    return result;
  }
};

inline OpenedLibrary::OpenedLibrary(std::initializer_list<std::string> names, Symbols symbols) {
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

inline void* OpenedLibrary::address_of(const char* name) {
  void* const address = library_ ? dlsym(library_, name) : nullptr;
  complete_ = complete_ && address;
  return address;
}

}  // namespace halftone
