// The one main() of all doctest files, and the one file of the tests that is compiled with the path
// of the checkout.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include "support.h"

namespace halftone::test {

std::string fixtures_directory() { return HALFTONE_FIXTURES; }
std::filesystem::path policies_directory() { return HALFTONE_POLICIES; }

}  // namespace halftone::test
