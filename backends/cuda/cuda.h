// The entry to the CUDA backend: builds without it use absent.cpp, which returns null.
#pragma once

#include <string>

#include <halftone/core/backend.h>

namespace halftone {

/// Returns the backend of that GPU, or null if this build or this machine has none.
Backend* cuda_backend(int index);
/// Returns what the backend runs on, or why it is missing and what to do.
std::string cuda_description();
/// Returns a description of the kernels and libraries of that GPU, which must exist.
std::string cuda_kernels(int index);

}  // namespace halftone
