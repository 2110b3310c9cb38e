// Tests of what only a GPU has. On a machine without one each says by name that it was skipped; the
// emulated GPU of tests/cuda_emulation runs them all.
#pragma once

#include <doctest/doctest.h>

#include <optional>
#include <string>

#include <halftone/core/backend.h>

namespace halftone::test {

/// The first GPU; none if there is none, which is printed with the name of the running test.
inline std::optional<Device> gpu_or_skip() {
  for (const BackendStatus& status : backend_statuses())
    if (status.name == "cuda" && status.backend) return Device::cuda();
  const doctest::TestCaseData* const running = doctest::getContextOptions()->currentTest;
  MESSAGE("skipped, there is no GPU: ", std::string(running ? running->m_name : "?"));
  return std::nullopt;
}

}  // namespace halftone::test
