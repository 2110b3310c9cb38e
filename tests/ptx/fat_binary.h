// Reads the PTX that nvcc links into a program.
#pragma once

#include <string>

namespace halftone::ptx {

/// Returns the PTX of the fat binary that a wrapper (__fatBinC_Wrapper_t) points to. Throws Fault
/// if it has none, or if it is compressed and libzstd cannot be opened.
std::string text_of_fat_binary(const void* wrapper);

}  // namespace halftone::ptx
