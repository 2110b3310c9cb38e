// Returns the folder of the committed fixtures. A function, and not a macro of every file, so that
// a compiler cache can use objects of one checkout for another.
#pragma once

#include <string>

namespace halftone::test {

std::string fixtures_directory();

}  // namespace halftone::test
