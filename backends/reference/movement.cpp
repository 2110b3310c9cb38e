// Operations that move values without changing them: filling, converting copies, selection, and
// rows gathered from a table (embedding) with their adjoint.
#include <halftone/backends/reference/reference.h>

#include <algorithm>
#include <limits>
#include <utility>

#include <halftone/backends/reference/runs.h>

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

}  // namespace halftone
