// Reductions over any dimensions of strided tensors, positions of extremes, and running sums and
// products. A
// reduction is cut into (block of outputs) x (chunk of reduced elements). The partial results of
// the chunks are joined in order, so neither the cut nor the result depends on the number of
// threads.
#include <halftone/backends/reference/reference.h>

#include <limits>

#include <halftone/backends/reference/rows.h>

namespace halftone {

using namespace reference;

namespace {

// Each kind has the start of a reduction, the way it adds an element, and the way it joins two
// partial results. Integers overflow modulo 2^64.
struct Sum {
  template <class T> static T start() { return T(0); }
  template <class T> static T add(T sum, T value) {
    if constexpr (std::is_integral_v<T>) return math::wrapped_sum(sum, value);
    else return sum + value;
  }
  template <class T> static T join(T a, T b) { return add(a, b); }
};
struct SumOfSquares {
  template <class T> static T start() { return T(0); }
  template <class T> static T add(T sum, T value) { return sum + value * value; }
  template <class T> static T join(T a, T b) { return a + b; }
};
template <class T> constexpr T highest_of() {
  using Limits = std::numeric_limits<T>;
  return Limits::has_infinity ? Limits::infinity() : Limits::max();
}
template <class T> constexpr T lowest_of() {
  using Limits = std::numeric_limits<T>;
  return Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
}
struct Max {  // keeps a NaN once it has met one
  template <class T> static T start() { return lowest_of<T>(); }
  template <class T> static T add(T a, T b) { return a >= b || a != a ? a : b; }
  template <class T> static T join(T a, T b) { return add(a, b); }
};
struct Min {
  template <class T> static T start() { return highest_of<T>(); }
  template <class T> static T add(T a, T b) { return a <= b || a != a ? a : b; }
  template <class T> static T join(T a, T b) { return add(a, b); }
};
struct Prod {
  template <class T> static T start() { return T(1); }
  template <class T> static T add(T product, T value) {
    return math::running_product(product, value);
  }
  template <class T> static T join(T a, T b) { return add(a, b); }
};

/// Outputs that a task computes together.
constexpr int64_t most_outputs = 256;

/// The loops of one reduction: `kept` over x and y, `reduced` over x.
struct ReduceLoops {
  LoopNest<2> kept;
  LoopNest<1> reduced;

  static Shape kept_shape(const Tensor& x, const Tensor& y, bool kept) {
    Shape shape = x.shape();
    for (int d = 0; d < x.rank(); ++d)
      if ((y.shape()[d] == x.shape()[d]) != kept) shape[d] = 1;
    return shape;
  }
  ReduceLoops(const Tensor& x, const Tensor& y)
      : kept(kept_shape(x, y, true), {x.strides(), contiguous_strides(y.shape())}),
        reduced(kept_shape(x, y, false), {x.strides()}) {}

  /// Returns whether neighbors in memory belong to different outputs, as in a sum over the rows of
  /// a matrix.
  bool across_outputs() const {
    return kept.inner_step(0) < reduced.inner_step(0) && kept.inner_count() >= 16;
  }
};

/// Reduces neighboring elements in eight partial results: the chains of additions are shorter and
/// do not wait for each other.
template <class Kind, class T> T result_of(const T* values, int64_t count) {
  constexpr int64_t ways = 8;
  T results[ways];
  std::fill_n(results, ways, Kind::template start<T>());
  int64_t i = 0;
  for (; i + ways <= count; i += ways)
    for (int64_t k = 0; k < ways; ++k) results[k] = Kind::add(results[k], values[i + k]);
  for (; i < count; ++i) results[i % ways] = Kind::add(results[i % ways], values[i]);
  for (int64_t half = ways / 2; half > 0; half /= 2)
    for (int64_t k = 0; k < half; ++k) results[k] = Kind::join(results[k], results[k + half]);
  return results[0];
}

/// Results; for sums of doubles, also their rounding errors.
template <class Kind, class T> class Results {
 public:
  void begin(int64_t count) {
    if constexpr (compensated) std::fill_n(sums_, count, CompensatedSum{});
    else std::fill_n(values_, count, Kind::template start<T>());
  }
  void take(int64_t i, T x) {
    if constexpr (compensated) sums_[i].add(x);
    else values_[i] = Kind::join(values_[i], x);
  }
  T operator[](int64_t i) const {
    if constexpr (compensated) return sums_[i].value();
    else return values_[i];
  }

 private:
  static constexpr bool compensated =
      std::is_same_v<T, double> &&
      (std::is_same_v<Kind, Sum> || std::is_same_v<Kind, SumOfSquares>);
  T values_[compensated ? 1 : most_outputs];
  CompensatedSum sums_[compensated ? most_outputs : 1];
};

/// Adds the reduced elements begin..end to `count` outputs, whose first elements are `step` apart.
template <class Kind, class T>
void take_in(const Tensor& x, const ReduceLoops& loops, int64_t first, int64_t step, int64_t count,
             int64_t begin, int64_t end, Results<Kind, T>& results) {
  T values[block_length];
  if (loops.across_outputs()) {
    constexpr int64_t rows = 8;  // rows that are added up before they join the total
    T some[block_length];
    for (int64_t from = begin; from < end; from += rows) {
      std::fill_n(some, count, Kind::template start<T>());
      loops.reduced.runs(from, std::min(end, from + rows),
                         [&](Offsets<1> at, Offsets<1> reduced_step, int64_t length) {
                           for (int64_t r = 0; r < length; ++r) {
                             load(x, first + at[0] + r * reduced_step[0], step, count, values);
                             for (int64_t i = 0; i < count; ++i)
                               some[i] = Kind::add(some[i], values[i]);
                           }
                         });
      for (int64_t i = 0; i < count; ++i) results.take(i, some[i]);
    }
    return;
  }
  for (int64_t i = 0; i < count; ++i)
    loops.reduced.runs(begin, end, [&](Offsets<1> at, Offsets<1> reduced_step, int64_t length) {
      load(x, first + i * step + at[0], reduced_step[0], length, values);
      constexpr int64_t piece = 128;
      for (int64_t from = 0; from < length; from += piece)
        results.take(i, result_of<Kind>(values + from, std::min(piece, length - from)));
    });
}

/// Computes y = the reduction of x, divided by `divisor` if T is double.
template <class Kind, class T> void reduce_as(const Tensor& x, Tensor& y, double divisor) {
  constexpr int64_t chunk_length = 8 * block_length, lanes = most_outputs;
  const ReduceLoops loops(x, y);
  const int64_t outputs = y.numel(), reduced = loops.reduced.turns();
  const int64_t chunks = std::max<int64_t>(1, pieces_of(reduced, chunk_length));
  const int64_t reduced_at_once = std::clamp<int64_t>(reduced, 1, chunk_length);
  const int64_t block = std::clamp<int64_t>(grain_length / reduced_at_once, 1, lanes);
  const int64_t outputs_at_once = loops.across_outputs() ? lanes : block;
  const int64_t blocks = pieces_of(outputs, outputs_at_once);

  Workspace<T> partial(chunks * outputs);  // [chunks, outputs]
  std::fill_n(partial.data(), partial.size(), Kind::template start<T>());
  parallel_tasks(blocks * chunks, [&](int64_t task) {
    const int64_t chunk = task / blocks, output = task % blocks * outputs_at_once;
    const int64_t begin = chunk * chunk_length, end = std::min(reduced, begin + chunk_length);
    const int64_t output_end = std::min(outputs, output + outputs_at_once);
    Results<Kind, T> results;
    loops.kept.runs(output, output_end, [&](Offsets<2> at, Offsets<2> steps, int64_t count) {
      results.begin(count);
      take_in<Kind>(x, loops, at[0], steps[0], count, begin, end, results);
      T* const to = partial.data() + chunk * outputs + at[1];
      for (int64_t i = 0; i < count; ++i) to[i * steps[1]] = results[i];
    });
  });
  parallel_pieces(outputs, grain_length, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      T result = partial[i];
      for (int64_t chunk = 1; chunk < chunks; ++chunk)
        result = Kind::join(result, partial[chunk * outputs + i]);
      if constexpr (std::is_same_v<T, double>) result /= divisor;
      partial[i] = result;
    }
    store(partial.data() + begin, end - begin, y, begin);
  });
}

/// Reduces integers to integers exactly.
template <class Kind> void reduce_any(const Tensor& x, Tensor& y, double divisor = 1) {
  if (is_floating(x.dtype()) || is_floating(y.dtype())) reduce_as<Kind, double>(x, y, divisor);
  else reduce_as<Kind, int64_t>(x, y, divisor);
}

}  // namespace

void ReferenceBackend::reduce(Reduction kind, const Tensor& x, Tensor& y) {
  if (y.numel() == 0) return;
  switch (kind) {
    case Reduction::sum: return reduce_any<Sum>(x, y);
    case Reduction::mean: return reduce_any<Sum>(x, y, double(x.numel()) / double(y.numel()));
    case Reduction::sum_of_squares: return reduce_any<SumOfSquares>(x, y);
    case Reduction::max: return reduce_any<Max>(x, y);
    case Reduction::min: return reduce_any<Min>(x, y);
    case Reduction::prod: return reduce_any<Prod>(x, y);
  }
}

namespace {

template <class T> int64_t place_of_extreme(bool largest, const Tensor& x, int64_t row, int64_t n) {
  T values[block_length], best{};
  int64_t place = 0;
  for (int64_t first = 0; first < n; first += block_length) {
    const int64_t count = std::min(block_length, n - first);
    load(x, row * n + first, count, values);
    for (int64_t i = 0; i < count; ++i) {
      const bool better = largest ? values[i] > best : values[i] < best;
      const bool first_nan = values[i] != values[i] && best == best;
      if (first + i == 0 || better || first_nan) best = values[i], place = first + i;
    }
  }
  return place;
}

}  // namespace

void ReferenceBackend::arg_reduce(bool largest, const Tensor& x, Tensor& index) {
  const int64_t rows = index.numel(), n = rows == 0 ? 0 : x.numel() / rows;
  each_row(rows, n, [&](int64_t row) {
    index.data<int64_t>()[row] = is_floating(x.dtype())
                                     ? place_of_extreme<double>(largest, x, row, n)
                                     : place_of_extreme<int64_t>(largest, x, row, n);
  });
}

void ReferenceBackend::extremum_backward(const Tensor& x, const Tensor& y, const Tensor& dy,
                                         Tensor& dx) {
  const int64_t rows = y.numel(), n = rows == 0 ? 0 : x.numel() / rows;
  each_row(rows, n, [&](int64_t row) {
    const double extremum = load_one(y, row);
    int64_t count = 0;
    for (int64_t i = row * n; i < row * n + n; ++i) count += load_one(x, i) == extremum;
    double share = load_one(dy, row) / double(count);
    if (x.dtype() != f64) share = double(float(share));
    const double otherwise = extremum == extremum ? 0 : extremum;
    for (int64_t i = row * n; i < row * n + n; ++i)
      store_one(load_one(x, i) == extremum ? share : otherwise, dx, i);
  });
}

namespace {

template <class T>
void cumulative_sum_of_row(const Tensor& x, int64_t begin, int64_t n, bool reverse, Tensor& y) {
  T values[block_length], sum = 0;
  for (int64_t done = 0; done < n; done += block_length) {
    const int64_t count = std::min(block_length, n - done);
    const int64_t first = begin + (reverse ? n - done - count : done);
    load(x, first, count, values);
    for (int64_t i = 0; i < count; ++i) {
      T& value = values[reverse ? count - 1 - i : i];
      value = sum = Sum::add(sum, value);
    }
    store(values, count, y, first);
  }
}

}  // namespace

void ReferenceBackend::cumulative_sum(const Tensor& x, bool reverse, Tensor& y) {
  const auto [rows, n] = rows_of(x);
  const int64_t length = n;
  parallel_tasks(rows, [&](int64_t row) {
    if (is_floating(x.dtype())) cumulative_sum_of_row<double>(x, row * length, length, reverse, y);
    else cumulative_sum_of_row<int64_t>(x, row * length, length, reverse, y);
  });
}

namespace {

template <class T> void cumulative_product_of_row(const Tensor& x, int64_t row, const Tensor& y) {
  const int64_t n = rows_of(x).columns;
  Workspace<T> values(n);
  load(x, row * n, n, values.data());
  T product = 1;
  for (int64_t i = 0; i < n; ++i) values[i] = product = math::running_product(product, values[i]);
  store(values.data(), n, y, row * n);
}

}  // namespace

void ReferenceBackend::cumulative_product(const Tensor& x, Tensor& y) {
  parallel_tasks(rows_of(x).rows, [&](int64_t row) {
    if (is_floating(x.dtype())) cumulative_product_of_row<double>(x, row, y);
    else cumulative_product_of_row<int64_t>(x, row, y);
  });
}

// dx[i] = (x[0] .. x[i - 1]) s[i] with s[i] = dy[i] + x[i + 1] s[i + 1].
void ReferenceBackend::cumulative_product_backward(const Tensor& x, const Tensor& dy, Tensor& dx) {
  const auto [rows, n] = rows_of(x);
  const int64_t length = n;
  parallel_tasks(rows, [&](int64_t row) {
    Workspace<double> factors(length), slopes(length), before(length);
    load(x, row * length, length, factors.data());
    load(dy, row * length, length, slopes.data());
    double product = 1, after = 0;
    for (int64_t i = 0; i < length; ++i)
      before[i] = product, product = math::running_product(product, factors[i]);
    for (int64_t i = length; i-- > 0; after = math::running_product_slope(factors[i], after)) {
      after += slopes[i];
      slopes[i] = math::running_product_slope(before[i], after);
    }
    store(slopes.data(), length, dx, row * length);
  });
}

}  // namespace halftone
