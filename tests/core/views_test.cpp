// Views compared with copies. The property test draws random shapes, permutes, slices and
// broadcasts them, and asks reshape() for other random shapes. It must give a view exactly if
// strides can express one.
#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include <halftone/core/factory.h>
#include <halftone/core/tensor.h>

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
