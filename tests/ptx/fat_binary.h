// The PTX in what nvcc links into a program.
#pragma once

#include <string>

namespace halftone::ptx {

/// The PTX of the fat binary that a wrapper (__fatBinC_Wrapper_t) points to. Throws Fault if there
/// is none, or if it is compressed and libzstd cannot be opened.
std::string text_of_fat_binary(const void* wrapper);

}  // namespace halftone::ptx
