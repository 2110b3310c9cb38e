// Tests of features that only a GPU has. On a machine without a GPU each test prints its name and
// that it was skipped; the emulated GPU of tests/cuda_emulation runs them all.
#pragma once

#include <doctest/doctest.h>

#include <optional>
#include <string>

#include <halftone/core/backend.h>

namespace halftone::test {

/// Returns the first GPU. Without a GPU it returns none and prints that with the name of the test.
inline std::optional<Device> gpu_or_skip() {
  for (const BackendStatus& status : backend_statuses())
    if (status.name == "cuda" && status.backend) return Device::cuda();
  const doctest::TestCaseData* const running = doctest::getContextOptions()->currentTest;
  MESSAGE("skipped, there is no GPU: ", std::string(running ? running->m_name : "?"));
  return std::nullopt;
}

}  // namespace halftone::test
