// Whether NVIDIA's libraries may be used if the build has them; without them the own kernels run,
// which are slower and tested. HALFTONE_CUDA_LIBRARIES=off switches them off for a whole run.
#pragma once

#include <string_view>

#include <halftone/core/files.h>

namespace halftone::cuda {

inline bool libraries_wanted() {
  static const bool wanted = [] {
    const char* const text = environment_variable("HALFTONE_CUDA_LIBRARIES");
    return !text || std::string_view(text) != "off";
  }();
  return wanted;
}

}  // namespace halftone::cuda
