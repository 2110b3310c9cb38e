// convert_run(): converts every dtype to every other in one loop. It is compiled once here, so
// kernels need no instantiation per dtype.
#include <cmath>
#include <cstring>
#include <numbers>

#include <halftone/backends/reference/loops.h>
#include <halftone/backends/reference/reference.h>
#include <halftone/core/math.h>

namespace halftone::reference {

namespace {

template <class To, class From>
void convert_elements(int64_t count, const From* from, int64_t from_step, To* to, int64_t to_step) {
  if (from_step == 1 && to_step == 1) {
    for (int64_t i = 0; i < count; ++i) to[i] = convert<To>(from[i]);
  } else {
    for (int64_t i = 0; i < count; ++i) to[i * to_step] = convert<To>(from[i * from_step]);
  }
}

}  // namespace

void convert_run(int64_t count, Run from, Run to) {
  if (count <= 0) return;
  if (from.dtype == to.dtype && from.step == 1 && to.step == 1) {
    std::memmove(to.data, from.data, std::size_t(count * size_of(to.dtype)));
    return;
  }
  visit_any(from.dtype, [&]<class From>() {
    visit_any(to.dtype, [&]<class To>() {
      convert_elements(count, reinterpret_cast<const From*>(from.data), from.step,
                       reinterpret_cast<To*>(to.data), to.step);
    });
  });
}

void widen(const Tensor& x, int64_t offset, int64_t count, double* values) {
  parallel_pieces(count, grain_length, [&](int64_t begin, int64_t end) {
    load(x, offset + begin, end - begin, values + begin);
  });
}

void narrow(const double* values, int64_t count, const Tensor& y, int64_t offset) {
  parallel_pieces(count, grain_length, [&](int64_t begin, int64_t end) {
    store(values + begin, end - begin, y, offset + begin);
  });
}

}  // namespace halftone::reference

// The formulas of core/formulas.h over strided tensors, in double with one rounding, for integers
// in 64 bits. map() walks and converts; each formula is compiled once per list entry.

namespace halftone {

using namespace reference;

void ReferenceBackend::unary(FormulaCall call, const Tensor& x, Tensor& y) {
  visit_index(UnaryFormulas{}, call.index, [&]<class F>() {
    const F f = formula_of<F>(call);
    if constexpr (takes_integers<F>)
      if (!is_floating(y.dtype()))
        return map<int64_t>([&](int64_t value) { return f.integer(value); }, y, x);
    map<double>([&](double value) { return f.forward(value); }, y, x);
  });
}

void ReferenceBackend::unary_backward(FormulaCall call, const Tensor& saved, const Tensor& dy,
                                      Tensor& dx) {
  visit_index(UnaryFormulas{}, call.index, [&]<class F>() {
    const F f = formula_of<F>(call);
    // The formula reads only the one of x and y that it asked to save.
    map<double>([&](double x_or_y, double d) { return gradient_of(f, d, x_or_y); }, dx, saved, dy);
  });
}

void ReferenceBackend::binary(FormulaCall call, const Tensor& a, const Tensor& b, Tensor& y) {
  visit_index(BinaryFormulas{}, call.index, [&]<class F>() {
    const F f = formula_of<F>(call);
    if constexpr (takes_integers<F>)
      if (!is_floating(y.dtype()))
        return map<int64_t>([&](int64_t u, int64_t v) { return f.integer(u, v); }, y, a, b);
    map<double>([&](double u, double v) { return f.forward(u, v); }, y, a, b);
  });
}

void ReferenceBackend::binary_backward(FormulaCall call, int input, const Tensor& a,
                                       const Tensor& b, const Tensor& dy, Tensor& dx) {
  visit_index(BinaryFormulas{}, call.index, [&]<class F>() {
    const F f = formula_of<F>(call);
    if (input == 0)
      map<double>([&](double u, double v, double d) { return gradient_of<0>(f, d, u, v); }, dx, a,
                  b, dy);
    else
      map<double>([&](double u, double v, double d) { return gradient_of<1>(f, d, u, v); }, dx, a,
                  b, dy);
  });
}

void ReferenceBackend::unary_derivative(FormulaCall call, Derivatives d, const Tensor& saved,
                                        Tensor& y) {
  visit_index(UnaryFormulas{}, call.index, [&]<class F>() {
    const F f = formula_of<F>(call);
    map<double>([&](double s) { return higher_derivative(f, d, s); }, y, saved);
  });
}

void ReferenceBackend::binary_derivative(FormulaCall call, Derivatives d, const Tensor& a,
                                         const Tensor& b, Tensor& y) {
  visit_index(BinaryFormulas{}, call.index, [&]<class F>() {
    const F f = formula_of<F>(call);
    map<double>([&](double u, double v) { return higher_derivative(f, d, u, v); }, y, a, b);
  });
}

void ReferenceBackend::compare(FormulaCall call, const Tensor& a, const Tensor& b, Tensor& y) {
  visit_index(CompareFormulas{}, call.index, [&]<class F>() {
    const F f = formula_of<F>(call);
    // 64-bit integers do not fit in a double.
    if (is_floating(a.dtype()) || is_floating(b.dtype()))
      map<double>([&](double u, double v) { return f.forward(u, v); }, y, a, b);
    else map<int64_t>([&](int64_t u, int64_t v) { return f.forward(u, v); }, y, a, b);
  });
}

// Random numbers: element i in memory order uses word i % 4 of Philox counter offset + i / 4 on
// every device, so results depend only on the key. Values are computed in double and rounded once.

using namespace reference;

namespace {

/// Calls body(first, count, words) for blocks of a dense tensor; words has whole groups of four.
template <class Body> void each_random_block(RandomKey key, int64_t numel, const Body& body) {
  parallel_pieces(numel, block_length, [&](int64_t begin, int64_t end) {
    std::array<uint32_t, 4> words[block_length / 4];
    for (int64_t i = begin; i < end; i += 4)
      words[(i - begin) / 4] = Philox::words(key.seed, key.offset + uint64_t(i) / 4);
    body(begin, end - begin, words[0].data());
  });
}

}  // namespace

void ReferenceBackend::uniform(double low, double high, RandomKey key, Tensor& y) {
  const double below =
      visit_floating(y.dtype(), "uniform", [&]<class T>() { return largest_below<T>(high); });
  each_random_block(key, y.numel(), [&](int64_t first, int64_t count, const uint32_t* words) {
    double values[block_length];
    for (int64_t i = 0; i < count; ++i) {
      const double value = low + (high - low) * double(Philox::uniform(words[i]));
      values[i] = std::min(value, below);  // rounding to y's dtype could give `high`
    }
    store(values, count, y, first);
  });
}

void ReferenceBackend::normal(double mean, double std, RandomKey key, Tensor& y) {
  each_random_block(key, y.numel(), [&](int64_t first, int64_t count, const uint32_t* words) {
    double values[block_length];
    // Box & Muller 1958: two uniform numbers, the first on (0, 1], give two normal ones.
    for (int64_t i = 0; i < count; i += 2) {
      const double u1 = 1.0 - double(Philox::uniform(words[i]));
      const double angle = 2 * std::numbers::pi * double(Philox::uniform(words[i + 1]));
      const double radius = std::sqrt(-2 * elementary::log(u1));
      values[i] = mean + std * (radius * elementary::cos(angle));
      values[i + 1] = mean + std * (radius * elementary::sin(angle));
    }
    store(values, count, y, first);
  });
}

void ReferenceBackend::random_integers(int64_t low, int64_t high, RandomKey key, Tensor& y) {
  const uint64_t range = uint64_t(high) - uint64_t(low);
  if (high <= low || range > (uint64_t(1) << 32))
    fail<UsageError>("randint", "cannot draw from [", low, ", ", high,
                     "): the range must hold 1 to 2^32 integers. Choose other bounds.");
  each_random_block(key, y.numel(), [&](int64_t first, int64_t count, const uint32_t* words) {
    int64_t values[block_length];
    for (int64_t i = 0; i < count; ++i) values[i] = low + int64_t((words[i] * range) >> 32);
    store(values, count, y, first);
  });
}

void ReferenceBackend::dropout(const Tensor& x, double p, RandomKey key, Tensor& y) {
  each_random_block(key, y.numel(), [&](int64_t first, int64_t count, const uint32_t* words) {
    double values[block_length];
    load(x, first, count, values);
    for (int64_t i = 0; i < count; ++i) {
      const bool kept = double(Philox::uniform(words[i])) >= p;
      values[i] = kept ? values[i] / (1 - p) : 0.0;
    }
    store(values, count, y, first);
  });
}

}  // namespace halftone
