// The one main() of all doctest files.
#include "support.h"

#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

// The one file of the tests that is compiled with the path of the checkout.

namespace halftone::test {

std::string fixtures_directory() { return HALFTONE_FIXTURES; }
std::filesystem::path policies_directory() { return HALFTONE_POLICIES; }

}  // namespace halftone::test
