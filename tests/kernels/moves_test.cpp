// Rows of a table and their gradient, with many positions of one row, pieces that rows cross, and
// more than one digit to sort by; cells of recurrent networks.
#include <halftone/core/error.h>

#include "against_reference.h"

namespace halftone::test {
namespace {

TEST_CASE("kernels: gathered rows") {
  for (const DType dtype : {f64, f32, f16, bf16, i64, u8})
    for (const int64_t width : {1, 3, 8, 16, 100}) {
      Tensor table = empty({50, width}, dtype);
      backend_for(table).copy(randint(0, 100, {50, width}), table);
      INFO(described(table));
      check_against_reference({table, random_indices(67, 50)}, {empty({67, width}, dtype)}, 0,
                              [](Backend& backend, const Tensors& in, Tensors& out) {
                                backend.gather_rows(in[0], in[1], out[0]);
                              });
    }
}

void check_scatter(int64_t rows, int64_t width, const Tensor& indices, DType dtype, DType dtable) {
  const int64_t count = indices.numel();
  INFO(count, " rows into ", rows, " x ", width, ", ", dtype, " to ", dtable);
  check_against_reference({randn({count, width}, dtype), indices}, {empty({rows, width}, dtable)},
                          8 + 4 * std::sqrt(double(count)),
                          [](Backend& backend, const Tensors& in, Tensors& out) {
                            backend.scatter_add_rows(in[0], in[1], 1, out[0]);
                          });
}
void check_scatter(int64_t rows, int64_t width, int64_t count, int64_t different, DType dtype,
                   DType dtable) {
  check_scatter(rows, width, random_indices(count, different), dtype, dtable);
}

/// Row r occurs lengths[r] times, in a mixed order. The last index is that of row 0.
Tensor indices_of_lengths(const std::vector<int64_t>& lengths) {
  std::vector<int64_t> sorted, mixed;
  for (std::size_t r = 0; r < lengths.size(); ++r)
    sorted.insert(sorted.end(), std::size_t(lengths[r]), int64_t(r));
  for (std::size_t i = sorted.size(); i-- > 0;) mixed.push_back(sorted[i * 7 % sorted.size()]);
  return from_vector(mixed, {int64_t(mixed.size())}, i64);
}

TEST_CASE("kernels: gradients of gathered rows") {
  for (const DType dtype : floating_dtypes) {
    check_scatter(50, 3, 67, 50, dtype, dtype);
    check_scatter(50, 16, 0, 50, dtype, dtype);
    check_scatter(3, 16, 1000, 3, dtype, dtype);  // rows that cross many pieces
    check_scatter(1, 8, 1, 1, dtype, dtype);
    check_scatter(70000, 8, 3000, 70000, dtype, dtype);  // three digits
    check_scatter(300, 8, 2500, 300, dtype, statistics(dtype));
  }
  check_scatter(300, 9, 2500, 17, f32, f16);
  check_scatter(20, 8, 100, 20, f16, f64);
  for (const int64_t width : {8, 9})
    for (const DType dtable : {f16, bf16}) check_scatter(20, width, 100, 20, f32, dtable);
}

TEST_CASE("kernels: gradients of rows that begin, end and continue at the cuts between stretches") {
  // Stretches have 32 positions. Row 1 is skipped, so row 0 has two stretches and the rows after
  // row 1 begin at 64, 96, 97, 128 (three whole stretches and a half), 240, 288.
  const Tensor indices = indices_of_lengths({64, 5, 32, 1, 31, 112, 48, 70});
  REQUIRE(indices.numel() % 7 != 0);
  for (const int64_t width : {8, 9}) {
    for (const DType dtype : floating_dtypes) {
      check_scatter(8, width, indices, dtype, dtype);
      check_scatter(8, width, indices, dtype, statistics(dtype));
    }
    for (const DType dtable : {f16, bf16}) check_scatter(8, width, indices, f32, dtable);
  }
  // More packs of columns than two blocks have threads.
  const auto check_many = [](DType dtype, DType dtable) {
    check_scatter(40, 15 * 16 / size_of(dtable), 1400, 40, dtype, dtable);
  };
  for (const DType dtype : floating_dtypes) check_many(dtype, dtype);
  for (const DType dtype : {f16, bf16}) check_many(dtype, f32), check_many(f32, dtype);
}

TEST_CASE("kernels: rows of an index out of range are zeros, for words of every size") {
  Backend& backend = backend_for(Device::cuda());
  for (const auto& [dtype, width] :
       {std::pair{f64, 3}, {f32, 3}, {f32, 8}, {bf16, 3}, {u8, 3}, {u8, 16}}) {
    INFO(dtype, ", ", width);
    const Tensor table = ones({4, width}, dtype, Device::cuda());
    const auto bad = std::vector<int64_t>{3, 4, -1, 0};
    const Tensor indices = from_vector(bad, {4}, i64).to(Device::cuda());
    Tensor y = full({4, width}, 7, dtype, Device::cuda());
    backend.gather_rows(table, indices, y);
    CHECK_THROWS_AS(backend.synchronize(), UsageError);
    const Values rows = y.to_vector<double>();
    for (int64_t i = 0; i < 4 * width; ++i)
      CHECK(rows[std::size_t(i)] == (i / width == 0 || i / width == 3 ? 1 : 0));
  }
}

TEST_CASE("kernels: an index out of range is reported, and nothing out of bounds is touched") {
  Backend& backend = backend_for(Device::cuda());
  const Tensor table = randn({4, 8}, f32).to(Device::cuda());
  const Tensor indices = from_vector(std::vector<int64_t>{2, 4, -7}, {3}, i64).to(Device::cuda());
  Tensor y = empty({3, 8}, f32, Device::cuda()), dtable = empty_like(table);
  backend.gather_rows(table, indices, y);
  CHECK_THROWS_WITH_AS(backend.synchronize(),
                       doctest::Contains("index 4 is out of range for a table of 4 rows"),
                       UsageError);
  const Values rows = y.to_vector<double>();
  CHECK(rows[0] == table.to_vector<double>()[16]);
  for (std::size_t i = 8; i < 24; ++i) CHECK(rows[i] == 0);
  backend.scatter_add_rows(y, indices, 99, dtable);
  CHECK_THROWS_AS(backend.synchronize(), UsageError);
  CHECK(dtable.to_vector<double>()[16] == rows[0]);
  CHECK(dtable.to_vector<double>()[31] == 0);
}

TEST_CASE("kernels: steps of recurrent cells") {
  for (const DType dtype : floating_dtypes)
    for (const int64_t h : {1, 7, 64, 300}) {
      const int64_t n = 3;
      const DType wide = statistics(dtype);
      const auto random = [&](int64_t width, DType of) { return randn({n, width}, of); };
      const auto result = [&](int64_t width, DType of) { return empty({n, width}, of); };
      INFO(h, " states of ", dtype);
      check_against_reference({random(4 * h, dtype), random(4 * h, wide), random(h, wide)},
                              {result(4 * h, dtype), result(h, wide), result(h, dtype)}, 16,
                              [](Backend& backend, const Tensors& in, Tensors& out) {
                                backend.lstm_cell(in[0], in[1], in[2], out[0], out[1], out[2]);
                              });
      check_against_reference({random(4 * h, dtype), random(h, wide), random(h, wide),
                               random(h, dtype), random(h, wide)},
                              {random(h, wide), result(4 * h, dtype)}, 64,
                              [](Backend& backend, const Tensors& in, Tensors& out) {
                                backend.lstm_cell_backward(in[0], in[1], in[2], in[3], in[4],
                                                           out[0], out[1]);
                              });
      check_against_reference({random(3 * h, dtype), random(3 * h, wide), random(h, dtype)},
                              {result(4 * h, dtype), result(h, dtype)}, 16,
                              [](Backend& backend, const Tensors& in, Tensors& out) {
                                backend.gru_cell(in[0], in[1], in[2], out[0], out[1]);
                              });
      check_against_reference({random(4 * h, dtype), random(h, dtype), random(h, dtype)},
                              {random(h, wide), result(3 * h, dtype), result(3 * h, dtype)}, 64,
                              [](Backend& backend, const Tensors& in, Tensors& out) {
                                backend.gru_cell_backward(in[0], in[1], in[2], out[0], out[1],
                                                          out[2]);
                              });
    }
}

}  // namespace
}  // namespace halftone::test
