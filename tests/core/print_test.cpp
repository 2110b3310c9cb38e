// The exact text of printed tensors.
#include <doctest/doctest.h>

#include <limits>
#include <sstream>

#include <halftone/core/factory.h>
#include <halftone/core/tensor.h>

namespace halftone::test::print_test {
namespace {
std::string printed(const Tensor& x) {
  std::ostringstream text;
  text << x;
  return text.str();
}
std::string described_as(const Tensor& x) {
  std::ostringstream text;
  text << described(x);
  return text.str();
}
}  // namespace

TEST_CASE("scalars, vectors, matrices") {
  CHECK(printed(scalar(2.5)) == "2.5  [] f32");
  CHECK(printed(from({1, -2.5, 1e-7})) == "[    1,  -2.5, 1e-07]  [3] f32");
  CHECK(printed(from({{1, 10}, {100, 2}}, i64)) == "[[  1,  10],\n [100,   2]]  [2, 2] i64");
  CHECK(printed(from({1.0 / 3, 2.0 / 3}, f64)) == "[0.33333, 0.66667]  [2] f64");
  CHECK(printed(from({1.0 / 3}, bf16)) == "[0.33398]  [1] bf16");
  CHECK(printed(from({1, 0}, boolean)) == "[ true, false]  [2] bool");
  CHECK(printed(views::transpose(from({{1, 2}, {3, 4}}, u8), 0, 1)) ==
        "[[1, 3],\n [2, 4]]  [2, 2] u8");
  const double infinity = std::numeric_limits<double>::infinity();
  CHECK(printed(from({infinity, -infinity, std::numeric_limits<double>::quiet_NaN()})) ==
        "[ inf, -inf,  nan]  [3] f32");
}

TEST_CASE("more dimensions are indented") {
  CHECK(printed(from_vector<double>({1, 2, 3, 4, 5, 6, 7, 8}, {2, 2, 2}, i32)) ==
        "[[[1, 2],\n  [3, 4]],\n [[5, 6],\n  [7, 8]]]  [2, 2, 2] i32");
}

TEST_CASE("long dimensions are shortened") {
  CHECK(printed(arange(8)) == "[0, 1, 2, 3, 4, 5, 6, 7]  [8] i64");
  CHECK(printed(arange(9)) == "[0, 1, 2, ..., 6, 7, 8]  [9] i64");
  CHECK(printed(zeros({9, 1}, u8)) == "[[0],\n [0],\n [0],\n ...,\n [0],\n [0],\n [0]]  [9, 1] u8");
}

TEST_CASE("nothing to print") {
  CHECK(printed(Tensor{}) == "undefined tensor");
  CHECK(printed(empty({0})) == "[]  [0] f32");
  CHECK(printed(empty({2, 0}, bf16)) == "[[],\n []]  [2, 0] bf16");
}

TEST_CASE("large integers keep every digit") {
  const int64_t large = std::numeric_limits<int64_t>::max();
  CHECK(printed(from_vector<int64_t>({large, large - 1}, {2}, i64)) ==
        "[9223372036854775807, 9223372036854775806]  [2] i64");
}

TEST_CASE("tensors in messages") {
  CHECK(described_as(empty({32, 784}, bf16)) == "[32, 784] bf16");
  CHECK(described_as(scalar(1)) == "[] f32");
  CHECK(described_as(Tensor{}) == "an undefined tensor");
}

}  // namespace halftone::test::print_test
