// Where the committed fixtures lie. A function and not a macro of every file: objects of one
// checkout then serve a compiler cache for another.
#pragma once

#include <string>

namespace halftone::test {

std::string fixtures_directory();

}  // namespace halftone::test
