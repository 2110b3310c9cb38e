// Copies, fills and choices in every dtype; moving averages; gradients of sums by their formula.
#include <halftone/autograd/ops.h>
#include <halftone/core/error.h>
#include <halftone/core/formulas.h>

#include "against_reference.h"

namespace halftone::test {
namespace {

constexpr DType every_dtype[] = {f64, f32, f16, bf16, f8_e4m3, f8_e5m2, i64, i32, i16, u8, boolean};

Tensor ones_and_zeros(const Shape& shape, DType dtype) {
  Tensor x = empty(shape, dtype);
  backend_for(x).copy(randint(0, 2, shape), x);
  return x;
}

TEST_CASE("kernels: fills, choices and conversions in every dtype") {
  for (const DType dtype : every_dtype) {
    INFO(dtype);
    const Tensor a = ones_and_zeros({9, 10}, dtype), b = ones_and_zeros({9, 10}, dtype),
                 turned = views::transpose(ones_and_zeros({10, 9}, dtype), 0, 1);
    check_against_reference({}, {a, b}, 0, [](Backend& backend, const Tensors&, Tensors& out) {
      backend.fill(1, out[0]);
      Tensor columns = views::slice(out[1], 1, 1, 3, 3);
      backend.fill(1, columns);
    });
    check_against_reference({ones_and_zeros({9, 10}, boolean), a, turned}, {b}, 0,
                            [](Backend& backend, const Tensors& in, Tensors& out) {
                              backend.select(in[0], in[1], in[2], out[0]);
                            });
    check_against_reference({turned, a}, {zeros({9, 10}), zeros({9, 10}, f64)}, 0,
                            [](Backend& backend, const Tensors& in, Tensors& out) {
                              backend.copy(in[0], out[0]);
                              Tensor columns = views::slice(out[1], 1, 0, 5, 2);
                              backend.copy(views::slice(in[1], 1, 1, 5, 2), columns);
                            });
  }
}

TEST_CASE("kernels: copies between floats, of equal layouts and of others") {
  struct Layout {
    Shape x;
    Dims order;
  };
  const std::vector<Layout> layouts = sizes<Layout>({{{1}, {0}},
                                                     {{7}, {0}},
                                                     {{1000}, {0}},
                                                     {{5, 70, 1, 7}, {0, 2, 3, 1}},
                                                     {{33, 1, 65}, {2, 0, 1}},
                                                     {{2, 3, 2}, {2, 1, 0}}},
                                                    {{{100003}, {0}},
                                                     {{64, 17, 3, 3}, {0, 2, 3, 1}},
                                                     {{64, 3, 3, 17}, {0, 3, 1, 2}},
                                                     {{3, 40, 2, 31}, {2, 3, 0, 1}},
                                                     {{2, 9, 9, 130}, {3, 1, 2, 0}},
                                                     {{1000, 37}, {1, 0}}});
  for (const DType from : {f32, bf16, f16})
    for (const DType to : {f32, bf16, f16})
      for (const Layout& layout : layouts) {
        INFO(from, " to ", to, ", ", layout.x);
        const Tensor x = views::permute(cast(randn(layout.x) * 1000.0, from), layout.order);
        check_against_reference(
            {x}, {zeros(x.shape(), to)}, same,
            [](Backend& backend, const Tensors& in, Tensors& out) { backend.copy(in[0], out[0]); });
      }
}

TEST_CASE("kernels: moving averages") {
  const auto check = [](const Tensor& x, const Tensor& y) {
    INFO(described(x), " into ", described(y));
    check_against_reference({x}, {y}, 8, [](Backend& backend, const Tensors& in, Tensors& out) {
      backend.lerp(in[0], 0.3, out[0]);
    });
  };
  for (const DType dtype : floating_dtypes)
    for (const int64_t n : {1, 37, 1030}) {
      check(randn({n}, dtype), randn({n}, dtype));
      check(randn({n}, dtype), randn({n}, f32));
      check(randn({n}, f32), randn({n}, dtype));
    }
  for (const DType dtype : {f64, f32})
    check(randn({5, 7}, dtype), views::transpose(randn({7, 5}, dtype), 0, 1));
}

TEST_CASE("kernels: formulas of a tensor and a vector that repeats along its rows") {
  for (const DType dtype : floating_dtypes)
    for (const int64_t width : {8, 24, 30})
      for (const Shape& shape : {Shape{5, 3, width}, Shape{67, width}}) {
        const Tensor full = randn(shape, dtype);
        for (const Shape& of_row : {Shape{width}, Shape{3, width}}) {
          if (of_row.rank() == shape.rank()) continue;
          const Tensor row = randn(of_row, dtype);
          for (const bool first : {false, true})
            for_each_type(
                TypeList<formula::Add, formula::Sub, formula::Mul, formula::Div>{}, [&]<class F>() {
                  INFO(F::info.name, ", ", shape, ", ", of_row, ", ", dtype,
                       first ? ", the vector first" : "");
                  check_against_reference(
                      {full, row}, {empty(shape, dtype)}, 1,
                      [&](Backend& backend, const Tensors& in, Tensors& out) {
                        const Tensor repeated = views::expand(in[1], shape);
                        const Tensor &a = first ? repeated : in[0], &b = first ? in[0] : repeated;
                        backend.binary(call_of<BinaryFormulas>(F{}), a, b, out[0]);
                      });
                });
        }
      }
}

TEST_CASE("kernels: gradients of sums and differences by their formula") {
  const FormulaCall add = call_of<BinaryFormulas>(formula::Add{}),
                    sub = call_of<BinaryFormulas>(formula::Sub{});
  for (const DType dtype : floating_dtypes)
    for (const auto& [call, input] : {std::pair(add, 0), {add, 1}, {sub, 0}, {sub, 1}}) {
      INFO(dtype, ", input ", input);
      check_against_reference({randn({77}, dtype), randn({77}, dtype), randn({77}, dtype)},
                              {empty({77}, dtype)}, 1,
                              [&](Backend& backend, const Tensors& in, Tensors& out) {
                                backend.binary_backward(call, input, in[0], in[1], in[2], out[0]);
                              });
    }
}

}  // namespace

// Elements gathered by indices along a dimension, their adjoint, the order of rows, and integers.

namespace {

Tensor numbers(const Shape& shape, DType dtype) {
  Tensor x = empty(shape, dtype);
  backend_for(x).copy(randint(0, 90, shape), x);
  return x;
}

TEST_CASE("kernels: elements by index along each dimension") {
  for (const DType dtype : {f64, f32, f16, bf16, i64, i32, u8, boolean})
    for (const int dim : {0, 1, 2}) {
      INFO(std::string(name(dtype)), ", dimension ", dim);
      const Shape shape{3, 5, 7};
      const Tensor x = numbers({5, 6, 8}, dtype), index = randint(0, x.shape()[dim], shape);
      const auto reached = [=](const Tensor& whole) {  // in other dimensions the index's sizes
        Tensor part = whole;
        for (int d = 0; d < 3; ++d)
          if (d != dim) part = views::slice(part, d, 0, shape[d]);
        return part;
      };
      check_against_reference({x, index}, {empty(shape, dtype)}, 0,
                              [=](Backend& backend, const Tensors& in, Tensors& out) {
                                backend.gather(reached(in[0]), dim, in[1], out[0]);
                              });
      if (dtype == u8 || dtype == boolean) continue;  // sums do not support them
      check_against_reference({numbers(shape, dtype), index}, {x}, 60,
                              [=](Backend& backend, const Tensors& in, Tensors& out) {
                                Tensor part = reached(out[0]);
                                backend.scatter_add(in[0], dim, in[1], part);
                              });
    }
}

TEST_CASE("kernels: the order of rows") {
  for (const DType dtype : {f64, f32, f16, bf16, i64, i32, u8, boolean})
    for (const auto& [rows, n] : {std::pair{1, 1}, {3, 700}, {300, 5}, {1, 2100}})
      for (const bool descending : {false, true}) {
        INFO(std::string(name(dtype)), ", ", rows, " x ", n, ", descending ", descending);
        Tensor x = empty({rows, n}, dtype);
        backend_for(x).copy(randint(-40, 40, {rows, n}), x);
        if (is_floating(dtype) && n >= 5) {
          const Tensor odd = from_vector<double>({NAN, -INFINITY, INFINITY, -0.0, 0.0}, {5}, dtype);
          Tensor part = views::slice(x, 1, 0, 5);
          backend_for(x).copy(views::expand(odd, {rows, 5}), part);
        }
        check_against_reference({x}, {empty({rows, n}, i64)}, 0,
                                [=](Backend& backend, const Tensors& in, Tensors& out) {
                                  backend.argsort(in[0], descending, out[0]);
                                });
      }
}

TEST_CASE("kernels: an index out of range along a dimension is reported, and nothing is written") {
  if (!with_gpu()) return;
  Backend& backend = backend_for(Device::cuda());
  const Tensor x = randn({2, 4}, f32).to(Device::cuda());
  const Tensor index =
      from_vector<int64_t>({3, 4, -1, 0, 1, int64_t(1) << 40}, {2, 3}, i64).to(Device::cuda());
  Tensor y = empty({2, 3}, f32, Device::cuda()), sums = zeros({2, 4}, f32, Device::cuda());
  backend.gather(x, 1, index, y);
  CHECK_THROWS_WITH_AS(backend.synchronize(),
                       doctest::Contains("index 4 is out of range for a dimension of size 4"),
                       UsageError);
  const Values read = y.to_vector<double>(), of_x = x.to_vector<double>();
  CHECK(read == Values{of_x[3], 0, 0, of_x[4], of_x[5], 0});
  backend.scatter_add(ones({2, 3}, f32, Device::cuda()), 1, index, sums);
  CHECK_THROWS_AS(backend.synchronize(), UsageError);
  CHECK(sums.to_vector<double>() == Values{0, 0, 0, 1, 1, 1, 0, 0});
}

TEST_CASE("kernels: formulas of integers") {
  const Tensor a = from_vector<int64_t>({INT64_MIN, INT64_MAX, -7, 7, 0, INT64_MIN}, {6}, i64),
               b = from_vector<int64_t>({-1, 2, 2, -2, 3, 0}, {6}, i64);
  for_each_type(TypeList<formula::Add, formula::Sub, formula::Mul, formula::Maximum,
                         formula::Minimum, formula::Remainder, formula::FloorDivide>{},
                [&]<class F>() {
                  INFO(std::string(F::info.name));
                  for (const DType dtype : {i64, i32}) {
                    Tensor u = empty({6}, dtype), v = empty({6}, dtype);
                    backend_for(u).copy(a, u), backend_for(v).copy(b, v);
                    check_against_reference({u, v}, {empty({6}, dtype)}, 0,
                                            [](Backend& backend, const Tensors& in, Tensors& out) {
                                              backend.binary(call_of<BinaryFormulas>(F{}), in[0],
                                                             in[1], out[0]);
                                            });
                  }
                });
  for_each_type(
      TypeList<formula::Neg, formula::Abs, formula::Sign, formula::Square>{}, [&]<class F>() {
        check_against_reference({a}, {empty({6}, i64)}, 0,
                                [](Backend& backend, const Tensors& in, Tensors& out) {
                                  backend.unary(call_of<UnaryFormulas>(F{}), in[0], out[0]);
                                });
      });
}

}  // namespace

// Rows of a table and their gradient, with many positions of one row, pieces that rows cross, and
// more than one digit to sort by; cells of recurrent networks.

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
  if (!with_gpu()) return;
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
  if (!with_gpu()) return;
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
                                backend.lstm_cell({.x = in[0],
                                                   .recurrent = in[1],
                                                   .cell_before = in[2],
                                                   .gates = out[0],
                                                   .cell = out[1],
                                                   .y = out[2]});
                              });
      check_against_reference({random(4 * h, dtype), random(h, wide), random(h, wide),
                               random(h, dtype), random(h, wide)},
                              {random(h, wide), result(4 * h, dtype)}, 64,
                              [](Backend& backend, const Tensors& in, Tensors& out) {
                                backend.lstm_cell_backward({.gates = in[0],
                                                            .cell_before = in[1],
                                                            .cell = in[2],
                                                            .dy = in[3],
                                                            .dstate = in[4],
                                                            .dcell = out[0],
                                                            .dgates = out[1]});
                              });
      check_against_reference({random(3 * h, dtype), random(3 * h, wide), random(h, dtype)},
                              {result(4 * h, dtype), result(h, dtype)}, 16,
                              [](Backend& backend, const Tensors& in, Tensors& out) {
                                backend.gru_cell(in[0], in[1], in[2], out[0], out[1]);
                              });
      check_against_reference({random(4 * h, dtype), random(h, dtype), random(h, dtype)},
                              {random(h, wide), result(3 * h, dtype), result(3 * h, dtype)}, 64,
                              [](Backend& backend, const Tensors& in, Tensors& out) {
                                backend.gru_cell_backward({.gates = in[0],
                                                           .state = in[1],
                                                           .dy = in[2],
                                                           .dstate = out[0],
                                                           .dx = out[1],
                                                           .drecurrent = out[2]});
                              });
    }
}

}  // namespace
}  // namespace halftone::test
