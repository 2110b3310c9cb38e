// Lists of types, at compile time and visited, and the names of cast classes.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include <halftone/core/language.h>
#include <halftone/core/op_info.h>

namespace halftone::test::type_list_test {
namespace {
using Some = TypeList<int, char, double>;
template <class T> struct Box {};

static_assert(Some::size == 3 && TypeList<>::size == 0);
static_assert(std::same_as<Concat<TypeList<int>, TypeList<>, TypeList<char, double>>, Some>);
static_assert(std::same_as<Wrap<Box, TypeList<int, char>>, TypeList<Box<int>, Box<char>>>);
static_assert(is_in_list<char, Some> && !is_in_list<float, Some> && !is_in_list<int, TypeList<>>);
static_assert(index_of<int, Some> == 0 && index_of<double, Some> == 2 &&
              index_of<float, Some> == -1);
}  // namespace

TEST_CASE("visiting a list of types") {
  std::vector<std::size_t> sizes;
  for_each_type(Some{}, [&]<class T>() { sizes.push_back(sizeof(T)); });
  CHECK(sizes == std::vector<std::size_t>{4, 1, 8});
  for (int index = -1; index <= 3; ++index) {
    std::size_t seen = 0;
    const bool there = visit_index(Some{}, index, [&]<class T>() { seen = sizeof(T); });
    CHECK(there == (index >= 0 && index < 3));
    CHECK(seen == (there ? sizes[std::size_t(index)] : 0));
  }
}

TEST_CASE("names of cast classes") {
  CHECK(name(CastClass::low_precision) == "low_precision");
  CHECK(name(CastClass::full_precision) == "full_precision");
  CHECK(name(CastClass::widest_input) == "widest_input");
  CHECK(name(CastClass::as_is) == "as_is");
  CHECK(name(CastClass::banned) == "banned");
}

}  // namespace halftone::test::type_list_test
