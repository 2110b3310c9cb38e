// The entry to the CUDA backend: present in builds that have it, null from absent.cpp in others.
#pragma once

#include <string>

#include <halftone/core/backend.h>

namespace halftone {

/// The backend of that GPU, or null if this build or this machine has none.
Backend* cuda_backend(int index);
/// What it runs on, or why there is none and what to do.
std::string cuda_description();
/// What computes on that GPU, which is there.
std::string cuda_kernels(int index);

}  // namespace halftone
