// Libraries that are opened at run time: a missing one, a missing function, and one that works.
#include <doctest/doctest.h>

#include <halftone/backends/opened_library.h>

#include "../support.h"

namespace halftone::test::opened_library_test {
namespace {

TEST_CASE("a missing library is named in the refusal, and finds no functions") {
  OpenedLibrary library({"libno_such_library.so.1", "/nowhere/libno_such_library.so.1"});
  CHECK_FALSE(library.is_open());
  CHECK(contains(library.error(), "libno_such_library.so.1: cannot open shared object file"));
  double (*function)(double) = [](double x) { return x; };
  library.find("cos", function);
  CHECK((function == nullptr));
  CHECK_FALSE(library.complete());
}

TEST_CASE("the second name is used if the first cannot be opened") {
  OpenedLibrary library({"/nowhere/libm.so.6", "libm.so.6"});
  REQUIRE(library.is_open());
  CHECK(library.error().empty());
  double (*cosine)(double) = nullptr;
  library.find("cos", cosine);
  REQUIRE((cosine != nullptr));
  CHECK(cosine(0.0) == 1.0);
  CHECK(library.complete());
  library.find("no_such_function", cosine);
  CHECK((cosine == nullptr));
  CHECK_FALSE(library.complete());
}

TEST_CASE("functions of a library are available only if it was not refused") {
  struct Functions {
    double (*cosine)(double) = nullptr;
  };
  LibraryFunctions<Functions> found;
  CHECK(found.get() == &found.functions);
  found.refusal = "too old";
  CHECK(found.get() == nullptr);
}

}  // namespace
}  // namespace halftone::test::opened_library_test
