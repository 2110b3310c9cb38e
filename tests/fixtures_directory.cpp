// The one file of the tests that is compiled with the path of the checkout.
#include "fixtures_directory.h"
#include "policies_directory.h"

namespace halftone::test {

std::string fixtures_directory() { return HALFTONE_FIXTURES; }
std::filesystem::path policies_directory() { return HALFTONE_POLICIES; }

}  // namespace halftone::test
