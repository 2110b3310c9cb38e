// Shapes and strides: the short list itself, element counts, layouts, broadcasting.
#include <doctest/doctest.h>

#include <sstream>
#include <vector>

#include <halftone/core/tensor.h>

#include "../support.h"

namespace halftone::test::shape_test {

TEST_CASE("Dims is a list of at most eight numbers") {
  Dims dims{2, 3};
  dims.push_back(4);
  dims.insert(0, 1);
  CHECK(dims == Dims{1, 2, 3, 4});
  dims.insert(4, 5);
  dims.erase(1);
  CHECK(dims == Dims{1, 3, 4, 5});
  CHECK(dims != Dims{1, 3, 4});
  CHECK(dims.rank() == 4);
  CHECK(Dims{}.empty());
  CHECK(Dims::filled(3, 7) == Dims{7, 7, 7});
  std::ostringstream text;
  text << dims << Dims{} << Dims{9};
  CHECK(text.str() == "[1, 3, 4, 5][][9]");

  Dims full = Dims::filled(8, 1);
  const std::string too_many = "[shape] more than 8 dimensions. Reshape to fewer.";
  CHECK(message_of<ShapeError>([&] { full.push_back(1); }) == too_many);
  CHECK(message_of<ShapeError>([&] { full.insert(0, 1); }) == too_many);
  CHECK(message_of<ShapeError>([] { Dims{1, 2, 3, 4, 5, 6, 7, 8, 9}; }) == too_many);
  CHECK(message_of<ShapeError>([] { Dims::filled(9, 1); }) == too_many);
  CHECK(full.rank() == 8);
}

TEST_CASE("numel_of") {
  CHECK(numel_of({}) == 1);
  CHECK(numel_of({2, 3, 4}) == 24);
  CHECK(numel_of({5, 0, 3}) == 0);
  CHECK(numel_of({int64_t(1) << 31, int64_t(1) << 31}) == int64_t(1) << 62);
  // The product of the sizes before the zero does not count.
  CHECK(numel_of({int64_t(1) << 62, int64_t(1) << 62, 0}) == 0);
  CHECK(message_of<ShapeError>([] {
          numel_of({3, -1});
        }) == "[shape] negative size in [3, -1]. Sizes must be at least 0.");
  CHECK(message_of<ShapeError>([] {
          numel_of({0, -1});
        }) == "[shape] negative size in [0, -1]. Sizes must be at least 0.");
  CHECK(message_of<ShapeError>([] {
          numel_of({int64_t(1) << 32, int64_t(1) << 31});
        }) == "[shape] too many elements in [4294967296, 2147483648]. Use a smaller shape.");
}

TEST_CASE("layouts") {
  CHECK(contiguous_strides({2, 3, 4}) == Strides{12, 4, 1});
  CHECK(contiguous_strides({}) == Strides{});
  CHECK(contiguous_strides({2, 0, 4}) == Strides{4, 4, 1});
  CHECK(channels_last_strides({2, 3, 4, 5}) == Strides{60, 1, 15, 3});

  CHECK(is_dense({2, 3}, {3, 1}));
  CHECK(is_dense({2, 3}, {1, 2}));
  CHECK(is_dense({2, 3, 4, 5}, channels_last_strides({2, 3, 4, 5})));
  CHECK(is_dense({}, {}));
  CHECK(is_dense({1, 3}, {77, 1}));       // the stride of a size of 1 is never used
  CHECK_FALSE(is_dense({2, 3}, {4, 1}));  // holes
  CHECK_FALSE(is_dense({2, 3}, {0, 1}));  // overlaps
  CHECK_FALSE(is_dense({2, 3}, {1, 1}));
  CHECK_FALSE(is_dense({2}, {2}));

  CHECK(strides_in_order_of({2, 3}, {1, 2}) == Strides{1, 2});
  CHECK(strides_in_order_of({2, 3, 4, 5}, {60, 1, 15, 3}) == Strides{60, 1, 15, 3});
  CHECK(strides_in_order_of({2, 3}, {6, 2}) == Strides{3, 1});
  CHECK(strides_in_order_of({4, 3}, {0, 1}) == Strides{3, 1});
}

TEST_CASE("broadcasting") {
  struct Case {
    Shape a, b, result;
  };
  for (const Case& c :
       {Case{{2, 3}, {2, 3}, {2, 3}}, Case{{2, 1}, {1, 3}, {2, 3}}, Case{{3}, {2, 1}, {2, 3}},
        Case{{}, {4, 5}, {4, 5}}, Case{{}, {}, {}}, Case{{1}, {0}, {0}}, Case{{0, 1}, {3}, {0, 3}},
        Case{{5, 1, 4, 1}, {3, 1, 2}, {5, 3, 4, 2}}}) {
    CHECK(broadcast_shapes("add", c.a, c.b) == c.result);
    CHECK(broadcast_shapes("add", c.b, c.a) == c.result);
  }
  CHECK(message_of<ShapeError>([] {
          broadcast_shapes("add", {2, 3}, {4, 3});
        }) ==
        "[add] shapes do not broadcast: [2, 3] and [4, 3] differ in dimension 0. Sizes must be "
        "equal, or one of them "
        "1.");
  CHECK(contains(message_of<ShapeError>([] {
                   broadcast_shapes("mul", {7, 2, 3}, {2});
                 }),
                 "differ in dimension 2"));
  CHECK(contains(message_of<ShapeError>([] { broadcast_shapes("mul", {0}, {2}); }), "[mul]"));
}

TEST_CASE("normalize_dim") {
  CHECK(normalize_dim("sum", 1, 3) == 1);
  CHECK(normalize_dim("sum", -1, 3) == 2);
  CHECK(normalize_dim("sum", -3, 3) == 0);
  CHECK(normalize_dim("sum", 0, 0) == 0);
  CHECK(normalize_dim("sum", -1, 0) == 0);
  CHECK(message_of<ShapeError>([] { normalize_dim("sum", 3, 3); }) ==
        "[sum] dimension 3 is out of range for rank 3. Use -3 to 2.");
  CHECK(message_of<ShapeError>([] { normalize_dim("sum", -4, 3); }) ==
        "[sum] dimension -4 is out of range for rank 3. Use -3 to 2.");
  CHECK(message_of<ShapeError>([] { normalize_dim("sum", 1, 0); }) ==
        "[sum] dimension 1 is out of range for rank 0. Use -1 to 0.");
  CHECK(contains(message_of<ShapeError>([] { normalize_dim("sum", int64_t(1) << 32, 3); }),
                 "4294967296"));
}

}  // namespace halftone::test::shape_test
