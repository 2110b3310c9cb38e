// Index arithmetic and launch shapes on the host, at sizes that no test could allocate.
#include <doctest/doctest.h>

#include <halftone/backends/cuda/launch.h>
#include <halftone/backends/cuda/update_slots.h>

namespace halftone::cuda {
namespace {

constexpr int64_t huge = (int64_t(1) << 33) + 5;

TEST_CASE("a layout merges adjacent dimensions and keeps the rest in order of steps") {
  const Shape shape{2, 3, 4};
  const Layout<1> dense(shape, {contiguous_strides(shape)});
  CHECK(dense.depth == 1);
  CHECK(dense.is_dense());
  CHECK(dense.turns == 24);
  const Layout<2> broadcast(shape, {contiguous_strides(shape), Strides{0, 4, 1}});
  CHECK(broadcast.depth == 2);
  CHECK_FALSE(broadcast.is_dense());
  const Layout<1> permuted(shape, {Strides{1, 2, 6}});
  CHECK(permuted.is_dense());  // dense, in another order
  const Layout<2> differently(shape, {contiguous_strides(shape), Strides{1, 2, 6}});
  CHECK_FALSE(differently.is_dense());
  const Layout<1> scalar(Shape{}, {Strides{}}), ones(Shape{1, 1}, {Strides{7, 9}}),
      empty(Shape{3, 0}, {Strides{0, 1}});
  CHECK(scalar.turns == 1);
  CHECK(ones.is_dense());
  CHECK(empty.turns == 0);
}

TEST_CASE("every element is visited once, at the place that its strides give") {
  const Shape shape{3, 1, 5, 2};
  const Strides a{10, 10, 2, 1}, b{1, 0, 3, 15};
  const Layout<2> layout(shape, {a, b});
  std::vector<int> seen(30, 0);
  for (int64_t turn = 0; turn < layout.turns; ++turn) {
    const Places<2> at = layout.at_turn(turn, true), wide = layout.at_turn(turn, false);
    CHECK(at.of[0] == wide.of[0]);
    CHECK(at.of[1] == wide.of[1]);
    ++seen[std::size_t(at.of[0])];
    const int64_t i = at.of[0] / 10, k = at.of[0] % 10 / 2, l = at.of[0] % 2;
    CHECK(at.of[1] == i + 3 * k + 15 * l);
  }
  CHECK(seen == std::vector<int>(30, 1));
}

TEST_CASE("more than 2^31 elements are counted in 64 bits") {
  const Layout<2> layout(Shape{huge, 3}, {Strides{3, 1}, Strides{1, 0}});
  CHECK_FALSE(layout.is_small());
  CHECK(layout.turns == 3 * huge);
  const Places<2> last = layout.at_turn(layout.turns - 1, layout.is_small());
  CHECK(last.of[0] == 3 * huge - 1);
  CHECK(last.of[1] == huge - 1);
  const Layout<1> border(Shape{(int64_t(1) << 31) - 1}, {Strides{2}});
  CHECK(border.is_small());
  CHECK(border.at_turn(border.turns - 1, true).of[0] == 2 * (border.turns - 1));
}

TEST_CASE("launch shapes: at least one block, never more than the grid's limit, no overflow") {
  CHECK(blocks_for(0, 256) == 1);
  CHECK(blocks_for(1, 256) == 1);
  CHECK(blocks_for(256, 256) == 1);
  CHECK(blocks_for(257, 256) == 2);
  CHECK(blocks_for(7919, 256) == 31);
  CHECK(blocks_for(huge * 1000, 1) == 0x7fffffffu);
  CHECK(blocks_for(std::numeric_limits<int64_t>::max(), 1) == 0x7fffffffu);
  CHECK(blocks_for(huge, 256, 1000) == 1000);
}

TEST_CASE(
    "chunks of a list of tensors belong to the tensor they begin in, empty tensors have none") {
  ItemList<int, 8> list;
  const int64_t sizes[] = {0, 1, chunk_length, 0, chunk_length + 1, huge, 5};
  int item = 0;
  for (const int64_t size : sizes) list.add(item++, size);
  CHECK(list.chunks() == 0 + 1 + 1 + 0 + 2 + chunks_of(huge) + 1);
  CHECK(list.item_of(0) == 1);
  CHECK(list.item_of(1) == 2);
  CHECK(list.item_of(2) == 4);
  CHECK(list.item_of(3) == 4);
  CHECK(list.item_of(4) == 5);
  CHECK(list.item_of(list.chunks() - 2) == 5);
  CHECK(list.item_of(list.chunks() - 1) == 6);
}

}  // namespace
}  // namespace halftone::cuda
