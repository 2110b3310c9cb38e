// Returns the folder of the policies that the library installs.
#pragma once

#include <filesystem>

namespace halftone::test {

std::filesystem::path policies_directory();

}  // namespace halftone::test
