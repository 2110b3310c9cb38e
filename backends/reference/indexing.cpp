// Gathers elements by indices along one dimension, its adjoint, and sorting.
#include <halftone/backends/reference/reference.h>

#include <algorithm>
#include <numeric>

#include <halftone/backends/reference/indices.h>
#include <halftone/backends/reference/rows.h>
#include <halftone/core/op_info.h>

namespace halftone {

using namespace reference;

void reference::check_indices(const Tensor& index, int64_t size) {
  const LoopNest<1> nest(index);
  nest.runs(0, nest.turns(), [&](Offsets<1> offset, Offsets<1> step, int64_t count) {
    const int64_t* const values = index.data<int64_t>() + offset[0];
    for (int64_t i = 0; i < count; ++i)
      if (const int64_t value = values[i * step[0]]; value < 0 || value >= size)
        fail<UsageError>(running_operation("gather"), "index ", value,
                         " is out of range for a dimension of size ", size,
                         ". Indices must be from 0 to ", size - 1, ".");
  });
}

namespace {

/// Returns strides in which the dimension that indices replace has stride 0.
Strides without(Strides strides, int dim) {
  strides[dim] = 0;
  return strides;
}

}  // namespace

void ReferenceBackend::gather(const Tensor& x, int dim, const Tensor& index, Tensor& y) {
  if (y.numel() == 0) return;
  check_indices(index, x.shape()[dim]);
  const int64_t stride = x.strides()[dim];
  const LoopNest<3> nest(y.shape(), {y.strides(), index.strides(), without(x.strides(), dim)});
  visit_any(y.dtype(), [&]<class T>() {
    nest.parallel_runs([&](const Offsets<3>& at, const Offsets<3>& step, int64_t count) {
      const T* const from = x.data<T>() + at[2];
      const int64_t* const which = index.data<int64_t>() + at[1];
      T* const to = y.data<T>() + at[0];
      for (int64_t i = 0; i < count; ++i)
        to[i * step[0]] = from[i * step[2] + which[i * step[1]] * stride];
    });
  });
}

namespace {

/// Goes through lines of y along the dimension; each line is held in T while x is added to it.
template <class T>
void scatter_add_as(const Tensor& x, int dim, const Tensor& index, const Tensor& y) {
  const int64_t length = y.shape()[dim], count = x.shape()[dim];
  Shape across = x.shape();
  across[dim] = 1;
  const LoopNest<3> lines(across, {y.strides(), x.strides(), index.strides()});
  const int64_t at_a_time =
      std::max<int64_t>(1, grain_length / std::max<int64_t>({1, length, count}));
  parallel_pieces(lines.turns(), at_a_time, [&](int64_t begin, int64_t end) {
    Workspace<T> line(length);
    T values[block_length];
    int64_t places[block_length];
    for (int64_t turn = begin; turn < end; ++turn) {
      const Offsets<3> at = lines.at(turn);
      load(y, at[0], y.strides()[dim], length, line.data());
      for (int64_t first = 0; first < count; first += block_length) {
        const int64_t some = std::min(block_length, count - first);
        load(x, at[1] + first * x.strides()[dim], x.strides()[dim], some, values);
        load(index, at[2] + first * index.strides()[dim], index.strides()[dim], some, places);
        for (int64_t i = 0; i < some; ++i) {
          T& sum = line[places[i]];
          if constexpr (std::is_integral_v<T>) sum = math::wrapped_sum(sum, values[i]);
          else sum += values[i];
        }
      }
      store(line.data(), length, y, at[0], y.strides()[dim]);
    }
  });
}

}  // namespace

void ReferenceBackend::scatter_add(const Tensor& x, int dim, const Tensor& index, Tensor& y) {
  if (x.numel() == 0) return;
  check_indices(index, y.shape()[dim]);
  if (is_floating(y.dtype())) scatter_add_as<double>(x, dim, index, y);
  else scatter_add_as<int64_t>(x, dim, index, y);
}

namespace {

/// Returns whether a comes before b in ascending order; NaN comes last.
template <class T> bool ascends(T a, T b) { return a < b || (b != b && a == a); }

template <class T> void argsort_row(const Tensor& x, int64_t row, bool descending, Tensor& index) {
  const int64_t n = x.size(-1);
  Workspace<T> values(n);
  load(x, row * n, n, values.data());
  int64_t* const order = index.data<int64_t>() + row * n;
  std::iota(order, order + n, int64_t(0));
  const T* const v = values.data();
  std::stable_sort(order, order + n, [v, descending](int64_t i, int64_t j) {
    return descending ? ascends(v[j], v[i]) : ascends(v[i], v[j]);
  });
}

}  // namespace

void ReferenceBackend::argsort(const Tensor& x, bool descending, Tensor& index) {
  if (x.numel() == 0) return;
  const auto [rows, n] = rows_of(x);
  parallel_pieces(rows, std::max<int64_t>(1, grain_length / (8 * n)),
                  [&](int64_t begin, int64_t end) {
                    for (int64_t row = begin; row < end; ++row) {
                      if (is_floating(x.dtype())) argsort_row<double>(x, row, descending, index);
                      else argsort_row<int64_t>(x, row, descending, index);
                    }
                  });
}

}  // namespace halftone
