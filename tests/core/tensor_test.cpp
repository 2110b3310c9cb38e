// Tensors as data: factories, access from the host, layouts, copies, and the message of every
// mistake.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <span>
#include <sstream>
#include <vector>

#include <doctest/doctest.h>

#include <halftone/halftone.h>

#include "../support.h"

namespace halftone::test::tensor_test {
namespace {
using Values = std::vector<double>;
constexpr DType all[]{f64, f32, f16, bf16, f8_e4m3, f8_e5m2, i64, i32, u8, boolean};
Values values_of(const Tensor& x) { return x.to_vector<double>(); }
}  // namespace

TEST_CASE("whole numbers stay integers, unless a dtype is given") {
  const Tensor labels = from({0, 1, 2});
  CHECK(labels.dtype() == i64);
  CHECK(values_of(labels) == Values{0, 1, 2});
  const Tensor table = from({{1, -2}, {3, 4}});
  CHECK(table.dtype() == i64);
  CHECK(table.shape() == Shape{2, 2});
  CHECK(values_of(table) == Values{1, -2, 3, 4});
  CHECK(from({1, 2.5}).dtype() == f32);
  CHECK(from({{1.0, 2}, {3, 4}}).dtype() == f32);
  CHECK(from({1, 2}, bf16).dtype() == bf16);
  CHECK(from({true, false}).dtype() == boolean);
  CHECK(from_vector(std::vector<int64_t>{3, 4}, {2}).dtype() == i64);
  CHECK(from_vector(std::vector<int32_t>{3, 4}, {2}).dtype() == i64);
  CHECK(from_vector(std::vector<uint8_t>{3, 255}, {2}).dtype() == u8);
  CHECK(from_vector({1, 2}, {2}).dtype() == i64);
  CHECK(from_vector(std::vector<float>{3, 4}, {2}).dtype() == f32);
  CHECK(from_vector(std::vector<double>{3, 4}, {2}).dtype() == f32);
  const std::vector<std::size_t> sizes{7, 0, 5};
  const Tensor counts = from_vector(sizes, {3});
  CHECK(counts.dtype() == i64);
  CHECK(values_of(counts) == Values{7, 0, 5});
  CHECK(values_of(from_vector(sizes, {3}, f32)) == Values{7, 0, 5});
  const std::vector<int16_t> shorts{-3};
  CHECK(values_of(from_vector(shorts, {1})) == Values{-3});
  CHECK(MESSAGE_OF(UsageError, from_vector(std::vector<uint64_t>{1, uint64_t(1) << 63}, {2})) ==
        "[from_vector] the value 9223372036854775808 at position 1 is larger than an i64 can be. "
        "Use smaller ones.");
}

TEST_CASE("factories, in every dtype") {
  for (const DType dtype : all) {
    CAPTURE(name(dtype));
    CHECK(values_of(zeros({2, 2}, dtype)) == Values{0, 0, 0, 0});
    CHECK(values_of(ones({3}, dtype)) == Values{1, 1, 1});
    CHECK(values_of(from({1, 0, 1}, dtype)) == Values{1, 0, 1});
    CHECK(scalar(1, dtype).item() == 1);
    const Tensor x = empty({2, 3}, dtype);
    CHECK(x.dtype() == dtype);
    CHECK(x.numel() == 6);
    CHECK(x.bytes() == 6 * size_of(dtype));
    CHECK(x.storage()->bytes() == x.bytes());
    CHECK(reinterpret_cast<std::uintptr_t>(x.raw_data()) % 64 == 0);
    CHECK(values_of(zeros_like(x)) == Values(6, 0.0));
    CHECK(values_of(ones_like(x)) == Values(6, 1.0));
  }
  CHECK(values_of(full({2}, -2.5)) == Values{-2.5, -2.5});
  CHECK(values_of(from({{1.0, 2}, {3, 4}})) == Values{1, 2, 3, 4});
  CHECK(from({{1.0, 2, 3}, {4, 5, 6}}).shape() == Shape{2, 3});
  CHECK(from_vector<double>({}, {0}).shape() == Shape{0});
  CHECK(values_of(from_vector<int32_t>({3, 300}, {2}, u8)) == Values{3, 44});
  CHECK(values_of(from_vector<double>({1 + 0x1p-8, 3}, {1, 2}, bf16)) == Values{1, 3});
  CHECK(empty({0, 3}).numel() == 0);
  CHECK(values_of(empty({0, 3})).empty());
  CHECK(empty({}).numel() == 1);
}

TEST_CASE("arange") {
  CHECK(values_of(arange(4)) == Values{0, 1, 2, 3});
  CHECK(arange(4).dtype() == i64);
  CHECK(values_of(arange(1, 2, 0.25)) == Values{1, 1.25, 1.5, 1.75});
  CHECK(values_of(arange(3, 0, -1)) == Values{3, 2, 1});
  CHECK(values_of(arange(0, 5, 2, i32)) == Values{0, 2, 4});
  CHECK(arange(3, 0, 1).numel() == 0);
  CHECK(arange(-3).numel() == 0);
}

TEST_CASE("whole numbers that a double does not hold") {
  constexpr int64_t ns = 1764144000123456789, most = std::numeric_limits<int64_t>::max(),
                    least = std::numeric_limits<int64_t>::min();
  using Whole = std::vector<int64_t>;
  for (const int64_t value : {ns, most, least, (int64_t(1) << 53) + 1}) {
    CHECK(full({2}, value, i64).to_vector<int64_t>() == Whole{value, value});
    CHECK(scalar(value, i64).item<int64_t>() == value);
    Tensor filled = zeros({2}, i64);
    fill_with(filled, value);
    CHECK(filled.to_vector<int64_t>() == Whole{value, value});
  }
  CHECK(arange(ns, ns + 3).to_vector<int64_t>() == Whole{ns, ns + 1, ns + 2});
  CHECK(arange(ns, ns - 5, -2).to_vector<int64_t>() == Whole{ns, ns - 2, ns - 4});
  CHECK(arange(ns, ns).numel() == 0);
  CHECK(arange(most - 1, most).item<int64_t>() == most - 1);
  CHECK(arange(least, most, most).to_vector<int64_t>() == Whole{least, -1, most - 1});
  CHECK(full({}, most, i32).item() == std::numeric_limits<int32_t>::max());
  CHECK_THROWS_AS(full({}, std::numeric_limits<uint64_t>::max(), i64), UsageError);
}

TEST_CASE("empty_like keeps the order of dimensions, not holes") {
  const Tensor x = empty_channels_last({2, 3, 4, 5}, f32, {});
  CHECK(x.is_channels_last());
  CHECK_FALSE(x.is_contiguous());
  CHECK(x.is_dense());
  CHECK(empty_like(x).strides() == x.strides());
  CHECK(empty_like(x, bf16).strides() == x.strides());
  CHECK(empty_like(x, bf16).dtype() == bf16);
  CHECK(empty_like(views::slice(x, 3, 0, 2)).is_contiguous());
  CHECK(empty_like(views::transpose(empty({2, 3}), 0, 1)).strides() == Strides{1, 3});
  CHECK(empty_strided({2, 3}, {1, 2}, f32, {}).strides() == Strides{1, 2});
}

TEST_CASE("layout predicates") {
  CHECK(empty({2, 3}).is_contiguous());
  CHECK(empty({}).is_contiguous());
  CHECK(empty({2, 0, 3}).is_contiguous());
  CHECK_FALSE(views::transpose(empty({2, 3}), 0, 1).is_contiguous());
  CHECK(views::transpose(empty({1, 3}), 0, 1).is_contiguous());  // [3, 1]: one order of elements
  CHECK(empty({2, 1, 4, 5}).is_channels_last());  // one channel: both layouts at once
  CHECK(empty({2, 3, 1, 1}).is_channels_last());
  CHECK_FALSE(empty({2, 3, 4, 5}).is_channels_last());
  CHECK_FALSE(empty({2, 3, 4}).is_channels_last());
}

TEST_CASE("reading elements") {
  const Tensor x = from({{1.0, 2, 3}, {4, 5, 6}});
  CHECK(x.at({1, 2}) == 6);
  CHECK(x.at({0, 1}) == 2);
  const Tensor t = views::transpose(views::slice(x, 1, 1, 2), 0, 1);  // [[2, 5], [3, 6]]
  CHECK(t.at({1, 0}) == 3);
  CHECK(values_of(t) == Values{2, 5, 3, 6});
  CHECK(t.to_vector<int64_t>() == std::vector<int64_t>{2, 5, 3, 6});
  CHECK(t.to_vector<float>() == std::vector<float>{2, 5, 3, 6});
  CHECK(t.to_vector<uint8_t>() == std::vector<uint8_t>{2, 5, 3, 6});
  CHECK(from({0.0, -3}).to_vector<bool>() == std::vector<bool>{false, true});
  CHECK(scalar(2.5).at({}) == 2.5);
  CHECK(full({1, 1}, 7).item() == 7);
  CHECK(scalar(2.5, i32).item() == 2);
  CHECK(x.size(-1) == 3);
  CHECK(x.size(0) == 2);
  CHECK(values_of(views::expand(from({1.0, 2}), {2, 2})) == Values{1, 2, 1, 2});
}

TEST_CASE("copies, handles and detached tensors") {
  Tensor x = from({1.0, 2, 3});
  const Tensor handle = x, copy = x.clone(), bare = x.detach();
  backend_for(x).fill(9, x);
  CHECK(values_of(handle) == Values{9, 9, 9});
  CHECK(values_of(bare) == Values{9, 9, 9});
  CHECK(values_of(copy) == Values{1, 2, 3});
  CHECK(bare.storage() == x.storage());
  CHECK(x.to(Device::cpu()).storage() == x.storage());
  const Tensor image = empty_channels_last({1, 2, 3, 4}, f32, {});
  CHECK(image.clone().is_channels_last());
  const Tensor shifted = views::slice(from({1.0, 2, 3, 4}), 0, 1, 2).clone();
  CHECK(values_of(shifted) == Values{2, 3});
  CHECK(shifted.storage()->bytes() == 8);
  CHECK_FALSE(Tensor{}.defined());

  const uint64_t version = x.storage()->version();
  x.storage()->bump_version();
  CHECK(handle.storage()->version() == version + 1);
}

TEST_CASE("copies convert between all dtypes as convert<>() does") {
  // Large enough for the vectorized paths, with a tail.
  Values values(1003);
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = std::ldexp(double(i % 301) - 150.3, int(i % 23) - 11);
  values[17] = std::numeric_limits<double>::infinity(), values[900] = -values[17];
  values[18] = std::numeric_limits<double>::quiet_NaN(), values[901] = -0.0;
  const Tensor wide = from_vector(values, {1003}, f64);
  for (const std::string_view backend : {"reference", "cpu"}) {
    const CpuBackendScope scope(backend);
    for (const DType from_dtype : all) {
      Tensor source = empty({1003}, from_dtype);
      backend_for(source).copy(wide, source);
      for (const DType to_dtype : all) {
        Tensor target = empty({1003}, to_dtype);
        backend_for(source).copy(source, target);
        int wrong = 0;
        visit_any(from_dtype, [&]<class From>() {
          visit_any(to_dtype, [&]<class To>() {
            for (int64_t i = 0; i < 1003; ++i) {
              const double got = convert<double>(target.data<To>()[i]);
              const double want = convert<double>(convert<To>(source.data<From>()[i]));
              wrong += !(got == want || (std::isnan(got) && std::isnan(want)));
            }
          });
        });
        CAPTURE(backend);
        CAPTURE(name(from_dtype));
        CAPTURE(name(to_dtype));
        CHECK(wrong == 0);
      }
    }
  }
}

TEST_CASE("view_as stays inside the storage") {
  const Tensor x = arange(12, f32);
  CHECK(values_of(x.view_as({2, 2}, {6, 2}, 3)) == Values{3, 5, 9, 11});
  CHECK(values_of(x.view_as({3}, {-2}, 5)) == Values{5, 3, 1});
  CHECK(x.view_as({2, 0}, {99, 99}, 0).numel() == 0);
  CHECK(MESSAGE_OF(ShapeError, x.view_as({3, 5}, {5, 1}, 0)) ==
        "[view_as] shape [3, 5] with strides [5, 1] and offset 0 leaves the 48 bytes of the "
        "storage. Use sizes that "
        "fit.");
  const auto refused = [&](const Shape& shape, const Strides& strides, int64_t offset) {
    return test::contains(MESSAGE_OF(ShapeError, x.view_as(shape, strides, offset)), "[view_as]");
  };
  CHECK(refused({2}, {1}, 11));
  CHECK(refused({1}, {1}, -1));
  CHECK(refused({2}, {1, 1}, 0));
  CHECK(MESSAGE_OF(ShapeError, x.view_as({-1}, {1}, 0)) ==
        "[shape] negative size in [-1]. Sizes must be at least 0.");
  CHECK(refused({3}, {-1}, 1));                                   // before the start
  CHECK(refused({2, 2}, {-4, 12}, 2));                            // beyond both ends
  CHECK(refused({3}, {std::numeric_limits<int64_t>::max()}, 0));  // the reach overflows
  CHECK(refused({2, 2}, {int64_t(1) << 62, int64_t(1) << 62}, 0));
}

TEST_CASE("mistakes with elements and factories") {
  const Tensor x = from({{1.0, 2, 3}, {4, 5, 6}});
  CHECK(MESSAGE_OF(ShapeError, x.item()) ==
        "[item] needs one element, got [2, 3] f32. Reduce or index first.");
  CHECK(MESSAGE_OF(ShapeError, Tensor{}.item()) ==
        "[item] needs one element, got an undefined tensor. Reduce or index first.");
  CHECK(MESSAGE_OF(ShapeError, empty({0}).item()) ==
        "[item] needs one element, got [0] f32. Reduce or index first.");
  CHECK(MESSAGE_OF(ShapeError, x.at({1})) ==
        "[at] 1 coordinates for [2, 3] f32. Give one per dimension.");
  CHECK(MESSAGE_OF(ShapeError, x.at({1, 3})) ==
        "[at] index 3 is out of range for dimension 1 of [2, 3] f32. Use 0 to 2.");
  CHECK(test::contains(MESSAGE_OF(ShapeError, x.at({-1, 0})),
                       "index -1 is out of range for dimension 0"));
  CHECK(MESSAGE_OF(ShapeError, x.size(2)) ==
        "[size] dimension 2 is out of range for rank 2. Use -2 to 1.");
  CHECK(MESSAGE_OF(ShapeError, from_vector<double>({1, 2, 3}, {2, 2})) ==
        "[from] 3 values do not fill shape [2, 2], which has 4 elements. Give as many values as "
        "elements.");
  CHECK(MESSAGE_OF(ShapeError, from({{1.0, 2}, {3}})) ==
        "[from] rows of 2 and 1 values. Rows must be equally long.");
  CHECK(MESSAGE_OF(ShapeError, empty({int64_t(1) << 61}, f64)) ==
        "[empty] too many bytes for [2305843009213693952] f64. Use a smaller shape.");
  CHECK(MESSAGE_OF(ShapeError, empty({2, -2})) ==
        "[shape] negative size in [2, -2]. Sizes must be at least 0.");
  CHECK(MESSAGE_OF(UsageError, arange(0, 1, 0)) ==
        "[arange] start 0, end 1, step 0. Numbers must be finite and step not 0.");
  CHECK(test::contains(MESSAGE_OF(UsageError, arange(0, NAN, 1)), "[arange]"));
  CHECK(test::contains(MESSAGE_OF(UsageError, arange(0, INFINITY, 1)), "[arange]"));
  CHECK(MESSAGE_OF(ShapeError, arange(0, 1e13, 1)) ==
        "[arange] 1e+13 elements are too many. Use a larger step.");
  CHECK(MESSAGE_OF(UsageError, randint(3, 3, {2})) ==
        "[randint] the range [3, 3) is empty. Use low < high.");
}

TEST_CASE("devices") {
  CHECK(Device::cpu() == Device{});
  CHECK_FALSE(Device::cpu() == Device::cuda());
  CHECK_FALSE(Device::cuda(0) == Device::cuda(1));
  std::ostringstream text;
  text << Device::cpu() << ' ' << Device::cuda(1);
  CHECK(text.str() == "cpu cuda:1");
  const std::string message = MESSAGE_OF(DeviceError, empty({1}, f32, Device::cuda(1000)));
  CHECK(message.starts_with("["));
  CHECK(message.ends_with("."));
  CHECK(MESSAGE_OF(UsageError, const CpuBackendScope scope("fpga")) ==
        "[CpuBackendScope] there is no CPU backend named \"fpga\". Use cpu or reference.");
}

}  // namespace halftone::test::tensor_test

// Shapes and strides: the short list itself, element counts, layouts, broadcasting.

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
  CHECK(MESSAGE_OF(ShapeError, full.push_back(1)) == too_many);
  CHECK(MESSAGE_OF(ShapeError, full.insert(0, 1)) == too_many);
  CHECK(MESSAGE_OF(ShapeError, Dims{1, 2, 3, 4, 5, 6, 7, 8, 9}) == too_many);
  CHECK(MESSAGE_OF(ShapeError, Dims::filled(9, 1)) == too_many);
  CHECK(full.rank() == 8);
}

TEST_CASE("a span of sizes is a shape") {
  const std::vector<int64_t> sizes{2, 3};
  const std::span<const int64_t> all(sizes);
  CHECK(zeros(all.first(1)).shape() == Shape{2});
  CHECK(reshape(arange(6), all).shape() == Shape{2, 3});
}

TEST_CASE("numel_of") {
  CHECK(numel_of({}) == 1);
  CHECK(numel_of({2, 3, 4}) == 24);
  CHECK(numel_of({5, 0, 3}) == 0);
  CHECK(numel_of({int64_t(1) << 31, int64_t(1) << 31}) == int64_t(1) << 62);
  // The product of the sizes before the zero does not count.
  CHECK(numel_of({int64_t(1) << 62, int64_t(1) << 62, 0}) == 0);
  CHECK(MESSAGE_OF(ShapeError, numel_of({3, -1})) ==
        "[shape] negative size in [3, -1]. Sizes must be at least 0.");
  CHECK(MESSAGE_OF(ShapeError, numel_of({0, -1})) ==
        "[shape] negative size in [0, -1]. Sizes must be at least 0.");
  CHECK(MESSAGE_OF(ShapeError, numel_of({int64_t(1) << 32, int64_t(1) << 31})) ==
        "[shape] too many elements in [4294967296, 2147483648]. Use a smaller shape.");
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
  CHECK(MESSAGE_OF(ShapeError, broadcast_shapes("add", {2, 3}, {4, 3})) ==
        "[add] shapes do not broadcast: [2, 3] and [4, 3] differ in dimension 0. Sizes must be "
        "equal, or one of them "
        "1.");
  CHECK(contains(MESSAGE_OF(ShapeError, broadcast_shapes("mul", {7, 2, 3}, {2})),
                 "differ in dimension 2"));
  CHECK(contains(MESSAGE_OF(ShapeError, broadcast_shapes("mul", {0}, {2})), "[mul]"));
}

TEST_CASE("normalize_dim") {
  CHECK(normalize_dim("sum", 1, 3) == 1);
  CHECK(normalize_dim("sum", -1, 3) == 2);
  CHECK(normalize_dim("sum", -3, 3) == 0);
  CHECK(normalize_dim("sum", 0, 0) == 0);
  CHECK(normalize_dim("sum", -1, 0) == 0);
  CHECK(MESSAGE_OF(ShapeError, normalize_dim("sum", 3, 3)) ==
        "[sum] dimension 3 is out of range for rank 3. Use -3 to 2.");
  CHECK(MESSAGE_OF(ShapeError, normalize_dim("sum", -4, 3)) ==
        "[sum] dimension -4 is out of range for rank 3. Use -3 to 2.");
  CHECK(MESSAGE_OF(ShapeError, normalize_dim("sum", 1, 0)) ==
        "[sum] dimension 1 is out of range for rank 0. Use -1 to 0.");
  CHECK(contains(MESSAGE_OF(ShapeError, normalize_dim("sum", int64_t(1) << 32, 3)), "4294967296"));
}

}  // namespace halftone::test::shape_test

// Views compared with copies. The property test draws random shapes, permutes, slices and
// broadcasts them, and asks reshape() for other random shapes. It must give a view exactly if
// strides can express one.

namespace halftone::test::views_test {
namespace {

using Values = std::vector<double>;

/// Calls visit(index) for every index of the shape, in row-major order.
template <class Visit> void for_each_index(const Shape& shape, Visit visit) {
  Dims index = Dims::filled(shape.rank(), 0);
  for (int64_t n = numel_of(shape); n > 0; --n) {
    visit(index);
    for (int i = shape.rank() - 1; i >= 0 && ++index[i] == shape[i]; --i) index[i] = 0;
  }
}

/// Positions in the storage, in row-major order of the elements: they define a view.
std::vector<int64_t> places_of(const Tensor& x) {
  std::vector<int64_t> places;
  for_each_index(x.shape(), [&](const Dims& index) {
    int64_t place = x.offset();
    for (int i = 0; i < x.rank(); ++i) place += index[i] * x.strides()[i];
    places.push_back(place);
  });
  return places;
}

/// Returns whether some strides give these positions in this shape: the only candidates are the
/// distances between neighbors.
bool can_be_strided(const std::vector<int64_t>& places, const Shape& shape) {
  const Strides row_major = contiguous_strides(shape);
  bool fits = true;
  std::size_t i = 0;
  for_each_index(shape, [&](const Dims& index) {
    int64_t place = places[0];
    for (int d = 0; d < shape.rank(); ++d)
      if (shape[d] > 1) place += index[d] * (places[std::size_t(row_major[d])] - places[0]);
    fits = fits && place == places[i++];
  });
  return fits;
}

int64_t between(std::mt19937& random, int64_t low, int64_t high) {
  return low + int64_t(random() % unsigned(high - low + 1));
}

/// A tensor of distinct numbers seen through random slices, permutations and broadcasts.
Tensor random_view(std::mt19937& random) {
  const int64_t sizes[]{1, 1, 2, 2, 3, 4, 6};
  Shape shape;
  for (int64_t rank = between(random, 0, 4); rank > 0; --rank) shape.push_back(sizes[random() % 7]);
  Tensor x = views::reshaped(arange(numel_of(shape), f32), shape);
  Dims order;
  for (int i = 0; i < x.rank(); ++i) order.push_back(i);
  if (random() % 2) std::shuffle(order.begin(), order.end(), random);
  x = views::permute(x, order);
  for (int d = 0; d < x.rank(); ++d) {
    const int64_t size = x.shape()[d];
    if (random() % 4 == 0) {
      const int64_t step = between(random, 1, 2), start = between(random, 0, size - 1);
      x = views::slice(x, d, start, (size - start + step - 1) / step, step);
    } else if (size == 1 && random() % 3 == 0) {
      Shape wider = x.shape();
      wider[d] = between(random, 1, 3);
      x = views::expand(x, wider);
    }
  }
  return x;
}

/// Returns a random shape with as many elements, with dimensions of 1.
Shape random_shape(std::mt19937& random, int64_t elements) {
  Shape shape;
  while (elements > 1 && shape.rank() < 6) {
    std::vector<int64_t> divisors;
    for (int64_t d = 1; d <= elements; ++d)
      if (elements % d == 0) divisors.push_back(d);
    shape.push_back(divisors[random() % divisors.size()]);
    elements /= shape[shape.rank() - 1];
  }
  shape.push_back(elements);
  if (random() % 4 == 0) shape.insert(int(random() % unsigned(shape.rank() + 1)), 1);
  return shape;
}

}  // namespace

TEST_CASE("reshape gives a view exactly if strides can express it") {
  std::mt19937 random(5);
  int seen = 0, given = 0;
  for (int round = 0; round < 20000; ++round) {
    const Tensor x = random_view(random);
    const Shape shape = random_shape(random, x.numel());
    const std::vector<int64_t> places = places_of(x);
    const std::optional<Tensor> view = views::reshape(x, shape);
    const bool possible = can_be_strided(places, shape);
    if (view.has_value() != possible || (view && places_of(*view) != places)) {
      FAIL_CHECK("shape " << x.shape() << " strides " << x.strides() << " to " << shape << ": "
                          << (view ? "a view" : "none"));
      continue;
    }
    ++seen, given += possible;
    if (round % 20 != 0) continue;
    const Tensor copy = views::reshaped(x, shape);
    CHECK(copy.shape() == shape);
    CHECK(copy.to_vector<double>() == x.to_vector<double>());
    CHECK((copy.storage() == x.storage()) == possible);
  }
  CHECK(seen == 20000);
  CHECK(given > 5000);  // both answers must occur
  CHECK(given < 19000);
}

TEST_CASE("reshape of views, by example") {
  const Tensor x = arange(24, f32);
  const Tensor matrix = views::reshaped(x, {4, 6});
  const Tensor half = views::slice(matrix, 1, 0, 4);  // strides [6, 1]
  CHECK(views::reshape(half, {4, 2, 2})->strides() == Strides{6, 2, 1});
  CHECK(views::reshape(half, {2, 2, 4})->strides() == Strides{12, 6, 1});
  CHECK_FALSE(views::reshape(half, {16}));
  const Tensor turned = views::transpose(matrix, 0, 1);  // [6, 4], strides [1, 6]
  CHECK(views::reshape(turned, {2, 3, 2, 2})->strides() == Strides{3, 1, 12, 6});
  CHECK_FALSE(views::reshape(turned, {24}));
  const Tensor every_other = views::slice(x, 0, 1, 12, 2);  // stride 2
  CHECK(views::reshape(every_other, {3, 4})->strides() == Strides{8, 2});
  const Tensor repeated = views::expand(views::reshaped(x, {24, 1}), {24, 2});
  CHECK(views::reshape(repeated, {4, 6, 2})->strides() == Strides{6, 1, 0});
  CHECK(views::reshape(scalar(1), {1, 1, 1})->shape() == Shape{1, 1, 1});
  CHECK(views::reshape(full({1, 1}, 3), {})->item() == 3);
  CHECK(views::reshape(empty({0, 3}), {3, 0, 7})->numel() == 0);
  CHECK(views::reshaped(views::transpose(empty({0, 3}), 0, 1), {0}).numel() == 0);
}

TEST_CASE("slice, transpose, permute, expand") {
  const Tensor x = views::reshaped(arange(24, f32), {2, 3, 4});
  CHECK(views::slice(x, 2, 1, 2, 2).to_vector<double>() ==
        Values{1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23});
  CHECK(views::slice(x, 1, 3, 0).numel() == 0);
  CHECK(views::transpose(x, 0, 2).shape() == Shape{4, 3, 2});
  CHECK(views::transpose(x, 0, 2).at({3, 1, 1}) == x.at({1, 1, 3}));
  const Tensor p = views::permute(x, {2, 0, 1});
  CHECK(p.shape() == Shape{4, 2, 3});
  CHECK(p.at({3, 1, 2}) == x.at({1, 2, 3}));
  const Tensor wide = views::expand(views::reshaped(from({1.0, 2}), {2, 1}), {3, 2, 2});
  CHECK(wide.strides() == Strides{0, 1, 0});
  CHECK(wide.to_vector<double>() == Values{1, 1, 2, 2, 1, 1, 2, 2, 1, 1, 2, 2});
  CHECK(views::expand(x, x.shape()).storage() == x.storage());
  CHECK(views::expand(scalar(4), {2, 0}).numel() == 0);
}

TEST_CASE("copies are made only if the layout differs") {
  const Tensor x = views::reshaped(arange(120, f32), {2, 3, 4, 5});
  CHECK(views::contiguous(x).storage() == x.storage());
  const Tensor last = views::channels_last(x);
  CHECK(last.is_channels_last());
  CHECK(last.to_vector<double>() == x.to_vector<double>());
  CHECK(views::channels_last(last).storage() == last.storage());
  CHECK(views::contiguous(last).is_contiguous());
  CHECK(views::contiguous(last).to_vector<double>() == x.to_vector<double>());
  CHECK(views::with_strides(x, last.strides()).strides() == last.strides());
  CHECK(views::with_strides(x, x.strides()).storage() == x.storage());
}

}  // namespace halftone::test::views_test

// The exact text of printed tensors.

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
