// Where the policies lie that are shipped with the library.
#pragma once

#include <filesystem>

namespace halftone::test {

std::filesystem::path policies_directory();

}  // namespace halftone::test
