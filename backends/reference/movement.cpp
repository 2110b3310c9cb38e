// Operations that move values without changing them: filling, converting copies, selection, and
// rows gathered from a table (embedding) with their adjoint.
#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>

#include <halftone/backends/reference/loops.h>
#include <halftone/backends/reference/reference.h>
#include <halftone/backends/reference/rows.h>
#include <halftone/core/memory.h>
#include <halftone/core/op_info.h>

namespace halftone {

using namespace reference;

void ReferenceBackend::fill(Number value, Tensor& y) {
  visit_any(y.dtype(), [&]<class T>() {
    const T element = value.as<T>();
    const LoopNest<1> nest(y);
    nest.parallel_runs([&](Offsets<1> offset, Offsets<1> step, int64_t count) {
      T* out = y.data<T>() + offset[0];
      for (int64_t i = 0; i < count; ++i) out[i * step[0]] = element;
    });
  });
}

void ReferenceBackend::copy(const Tensor& x, Tensor& y) {
  const LoopNest<2> nest(y, x);
  nest.parallel_runs([&](Offsets<2> offsets, Offsets<2> steps, int64_t count) {
    convert_run(count, run_of(x, offsets[1], steps[1]), run_of(y, offsets[0], steps[0]));
  });
}

void ReferenceBackend::select(const Tensor& condition, const Tensor& a, const Tensor& b,
                              Tensor& y) {
  const LoopNest<4> nest(y, condition, a, b);
  visit_any(y.dtype(), [&]<class T>() {
    nest.parallel_runs([&](const Offsets<4>& offsets, const Offsets<4>& steps, int64_t count) {
      bool chosen[block_length];
      T first[block_length], second[block_length];
      load(condition, offsets[1], steps[1], count, chosen);
      convert_run(count, run_of(a, offsets[2], steps[2]), run_of(first));
      convert_run(count, run_of(b, offsets[3], steps[3]), run_of(second));
      for (int64_t i = 0; i < count; ++i) first[i] = chosen[i] ? first[i] : second[i];
      store(first, count, y, offsets[0], steps[0]);
    });
  });
}

namespace {

Dims slice(const Dims& dims, int begin, int end) {
  Dims part;
  for (int d = begin; d < end; ++d) part.push_back(dims[d]);
  return part;
}

/// table: [rows, ..row..], indices: [..positions..], picked: [..positions.., ..row..].
struct RowLoops {
  LoopNest<2> positions;  // of picked and indices
  LoopNest<2> row;        // of picked and table
  int64_t row_step;       // of table

  RowLoops(const Tensor& table, const Tensor& indices, const Tensor& picked)
      : positions(indices.shape(), {slice(picked.strides(), 0, indices.rank()), indices.strides()}),
        row(slice(table.shape(), 1, table.rank()),
            {slice(picked.strides(), indices.rank(), picked.rank()),
             slice(table.strides(), 1, table.rank())}),
        row_step(table.strides()[0]) {}
};

constexpr int64_t skip_none = std::numeric_limits<int64_t>::min();

void check_indices(const Tensor& indices, int64_t rows, int64_t skip) {
  const LoopNest<1> nest(indices);
  nest.runs(0, nest.turns(), [&](Offsets<1> offset, Offsets<1> step, int64_t count) {
    int64_t values[block_length];
    load(indices, offset[0], step[0], count, values);
    for (int64_t i = 0; i < count; ++i)
      if (values[i] != skip && (values[i] < 0 || values[i] >= rows))
        fail<UsageError>("embedding", "index ", values[i], " is out of range for a table of ", rows,
                         " rows. Indices must be from 0 to ", rows - 1, ".");
  });
}

}  // namespace

void ReferenceBackend::gather_rows(const Tensor& table, const Tensor& indices, Tensor& y) {
  if (y.numel() == 0) return;
  check_indices(indices, table.size(0), skip_none);
  const RowLoops loops(table, indices, y);
  const auto copy_row = [&](int64_t from, int64_t to) {
    loops.row.runs(0, loops.row.turns(), [&](Offsets<2> at, Offsets<2> steps, int64_t count) {
      convert_run(count, run_of(table, from + at[1], steps[1]), run_of(y, to + at[0], steps[0]));
    });
  };
  const int64_t rows_at_a_time = std::max<int64_t>(1, grain_length / loops.row.turns());
  parallel_pieces(loops.positions.turns(), rows_at_a_time, [&](int64_t begin, int64_t end) {
    loops.positions.runs(begin, end, [&](Offsets<2> at, Offsets<2> steps, int64_t count) {
      int64_t index[block_length];
      load(indices, at[1], steps[1], count, index);
      for (int64_t i = 0; i < count; ++i) copy_row(index[i] * loops.row_step, at[0] + i * steps[0]);
    });
  });
}

void ReferenceBackend::scatter_add_rows(const Tensor& dy, const Tensor& indices, int64_t skip,
                                        Tensor& dtable) {
  ReferenceBackend::fill(0, dtable);
  if (dy.numel() == 0) return;
  check_indices(indices, dtable.size(0), skip);
  const RowLoops loops(dtable, indices, dy);

  // Sorted pairs of (index, offset of the row in dy). The pairs of a table row are neighbors; they
  // are summed in double and rounded once. Their offsets ascend, so the order of the sum is fixed.
  using Pick = std::pair<int64_t, int64_t>;
  Workspace<Pick> picks(loops.positions.turns());
  int64_t pick_count = 0;
  for (int64_t turn = 0; turn < loops.positions.turns(); ++turn) {
    const Offsets<2> at = loops.positions.at(turn);
    int64_t index;
    load(indices, at[1], 1, &index);
    if (index != skip) picks[pick_count++] = {index, at[0]};
  }
  Pick* const end = picks.data() + pick_count;
  std::sort(picks.data(), end);

  parallel_tasks(pick_count, [&](int64_t i) {
    const Pick* const first = picks.data() + i;
    if (i > 0 && first[-1].first == first->first) return;  // not the first of its row
    const int64_t table_row = first->first * loops.row_step;
    loops.row.runs(0, loops.row.turns(), [&](Offsets<2> at, Offsets<2> steps, int64_t count) {
      double sums[block_length] = {}, values[block_length];
      for (const Pick* pick = first; pick != end && pick->first == first->first; ++pick) {
        load(dy, pick->second + at[0], steps[0], count, values);
        for (int64_t j = 0; j < count; ++j) sums[j] += values[j];
      }
      store(sums, count, dtable, table_row + at[1], steps[1]);
    });
  });
}

// Gathers elements by indices along one dimension, its adjoint, and sorting.

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

// Memory of the host: the caching allocator, and plain copies. Kernels finish before they return,
// so synchronization does nothing.

void* ReferenceBackend::allocate(std::size_t bytes) { return cached_allocate(bytes); }
void ReferenceBackend::release(void* data, std::size_t bytes) noexcept {
  cached_release(data, bytes);
}
void ReferenceBackend::copy_to_host(const void* device, void* host, std::size_t bytes) {
  if (bytes > 0) std::memcpy(host, device, bytes);
}
void ReferenceBackend::copy_from_host(const void* host, void* device, std::size_t bytes) {
  if (bytes > 0) std::memcpy(device, host, bytes);
}

}  // namespace halftone
