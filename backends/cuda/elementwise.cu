// The formulas of core/formulas.h over whole tensors, random numbers, rotary positions.
#include <halftone/backends/cuda/elementwise.h>

#include <cmath>

#include <halftone/backends/cuda/cuda_backend.h>
#include <halftone/backends/cuda/launch.h>
#include <halftone/backends/cuda/values.h>
#include <halftone/core/math.h>

namespace halftone {

namespace cuda {
namespace {

template <class F> struct ForwardOfOne {
  F f;
  template <class C> __device__ C operator()(C x) const { return f.forward(x); }
};
template <class F> struct ForwardOfTwo {
  F f;
  template <class C> __device__ C operator()(C a, C b) const { return f.forward(a, b); }
};

/// Computes y[i] = a[i] compared with b[i]: dtypes are looked up, C holds both exactly.
template <class C>
__global__ void compare_kernel(FormulaCall call, Layout<3> layout, bool small, bool* y, Operand a,
                               Operand b) {
  for (int64_t turn = global_thread(); turn < layout.turns; turn += all_threads()) {
    const Places<3> at = layout.at_turn(turn, small);
    const C u = load_as<C>(a, at.of[1]), v = load_as<C>(b, at.of[2]);
    visit_index(CompareFormulas{}, call.index,
                [&]<class F>() { y[at.of[0]] = formula_of<F>(call).forward(u, v); });
  }
}

/// Handles sums and differences of f32 and short floats, such as a residual connection.
bool mixed(const Context& context, FormulaCall call, const Tensor& a, const Tensor& b, Tensor& y) {
  if (y.dtype() != f32 || y.numel() == 0) return false;
  bool done = false;
  visit_index(BinaryFormulas{}, call.index, [&]<class F>() {
    if constexpr (is_in_list<F, TypeList<formula::Add, formula::Sub>>)
      done = visit_mixed(a, b, y, [&]<class A, class B>() {
        launch(context, mixed_kernel<A, B, float, ForwardOfTwo<F>>,
               shape_for(context, y.numel(), 4), ForwardOfTwo<F>{formula_of<F>(call)}, a.data<A>(),
               b.data<B>(), y.data<float>(), y.numel());
      });
  });
  return done;
}

/// Computes y[i] = f(full[i], row[i % row_packs]) in packs, for a vector that repeats along the
/// rows, such as a position embedding.
template <int size, class T, class F>
__global__ void repeated_row_kernel(F f, const T* full, const T* row, T* y, uint32_t packs,
                                    uint32_t row_packs) {
  using Values = Pack<T, size>;
  for (int64_t pack = global_thread(); pack < packs; pack += all_threads()) {
    const Values a = reinterpret_cast<const Values*>(full)[pack];
    const Values b = reinterpret_cast<const Values*>(row)[uint32_t(pack) % row_packs];
    Values out;
    for (int i = 0; i < size; ++i)
      out.values[i] = narrow<T>(f(widen(a.values[i]), widen(b.values[i])));
    reinterpret_cast<Values*>(y)[pack] = out;
  }
}

/// Handles a dense tensor with a vector that repeats along its rows. The vector may come first if
/// the formula is commutative.
bool repeated_row(const Context& context, FormulaCall call, const Tensor& a, const Tensor& b,
                  Tensor& y) {
  if (!is_floating(y.dtype()) || size_of(y.dtype()) == 1 || a.dtype() != y.dtype() ||
      b.dtype() != y.dtype() || !begins_aligned(a) || !begins_aligned(b) || !begins_aligned(y))
    return false;
  const Layout<3> layout(y, a, b);
  if (layout.depth != 2) return false;
  const auto [inner, outer] = std::pair(layout.steps[0], layout.steps[1]);
  const int64_t row = layout.counts[0];
  const bool b_repeats = outer[1] == row && outer[2] == 0,
             a_repeats = outer[2] == row && outer[1] == 0;
  if (inner[0] != 1 || inner[1] != 1 || inner[2] != 1 || outer[0] != row) return false;
  bool done = false;
  visit_index(BinaryFormulas{}, call.index, [&]<class F>() {
    constexpr bool commutes = is_in_list<F, TypeList<formula::Add, formula::Mul>>;
    if constexpr (commutes || is_in_list<F, TypeList<formula::Sub, formula::Div>>) {
      if (!b_repeats && !(commutes && a_repeats)) return;
      visit_floating(y.dtype(), "binary", [&]<class T>() {
        constexpr int size = pack_size<T>;
        if (row % size != 0 || y.numel() / size > std::numeric_limits<uint32_t>::max()) return;
        launch(context, repeated_row_kernel<size, T, ForwardOfTwo<F>>,
               shape_for(context, y.numel(), size), ForwardOfTwo<F>{formula_of<F>(call)},
               (b_repeats ? a : b).data<T>(), (b_repeats ? b : a).data<T>(), y.data<T>(),
               uint32_t(y.numel() / size), uint32_t(row / size));
        done = true;
      });
    }
  });
  return done;
}

bool fits_float(const Tensor& x) { return is_floating(x.dtype()) && x.dtype() != f64; }

}  // namespace
}  // namespace cuda

using namespace cuda;

void CudaBackend::unary(FormulaCall call, const Tensor& x, Tensor& y) {
  if (!dense_alike(y, x)) return unary_strided(context_, call, x, y);
  visit_index(UnaryFormulas{}, call.index, [&]<class F>() {
    visit_floating(y.dtype(), "unary", [&]<class T>() {
      dense<T>(context_, ForwardOfOne<F>{formula_of<F>(call)}, y, x);
    });
  });
}

void CudaBackend::binary(FormulaCall call, const Tensor& a, const Tensor& b, Tensor& y) {
  if (!dense_alike(y, a, b)) {
    if (!mixed(context_, call, a, b, y) && !repeated_row(context_, call, a, b, y))
      binary_strided(context_, call, a, b, y);
    return;
  }
  visit_index(BinaryFormulas{}, call.index, [&]<class F>() {
    visit_floating(y.dtype(), "binary", [&]<class T>() {
      dense<T>(context_, ForwardOfTwo<F>{formula_of<F>(call)}, y, a, b);
    });
  });
}

void CudaBackend::compare(FormulaCall call, const Tensor& a, const Tensor& b, Tensor& y) {
  const Layout<3> layout(y, a, b);
  if (layout.turns == 0) return;
  const auto run = [&](auto kernel) {
    launch(context_, kernel, shape_for(context_, layout.turns), call, layout, layout.is_small(),
           y.data<bool>(), Operand(a), Operand(b));
  };
  if (fits_float(a) && fits_float(b)) run(compare_kernel<float>);
  else if (is_floating(a.dtype()) || is_floating(b.dtype())) run(compare_kernel<double>);
  else run(compare_kernel<int64_t>);
}

// The derivatives of core/formulas.h over whole tensors, times the incoming gradient.

namespace cuda {
namespace {

/// The formula reads only the one of x and y that it asked to save.
template <class F> struct BackwardOfOne {
  F f;
  template <class C> __device__ C operator()(C saved, C dy) const {
    return gradient_of(f, dy, saved);
  }
  template <class C> __device__ C operator()(C dy) const { return gradient_of(f, dy, C(0)); }
};
template <class F, int input> struct BackwardOfTwo {
  F f;
  template <class C> __device__ C operator()(C a, C b, C dy) const {
    return gradient_of<input>(f, dy, a, b);
  }
  template <class C> __device__ C operator()(C dy) const { return (*this)(C(0), C(0), dy); }
};

template <int input>
void binary_backward_dense(const Context& context, FormulaCall call, const Tensor& a,
                           const Tensor& b, const Tensor& dy, Tensor& dx) {
  visit_index(BinaryFormulas{}, call.index, [&]<class F>() {
    visit_floating(dx.dtype(), "binary", [&]<class T>() {
      const BackwardOfTwo<F, input> f{formula_of<F>(call)};
      if constexpr (F::constant_derivative) dense<T>(context, f, dx, dy);
      else dense<T>(context, f, dx, a, b, dy);
    });
  });
}

}  // namespace
}  // namespace cuda

using namespace cuda;

void CudaBackend::unary_backward(FormulaCall call, const Tensor& saved, const Tensor& dy,
                                 Tensor& dx) {
  const bool dense_all = saved.defined() ? dense_alike(dx, saved, dy) : dense_alike(dx, dy);
  if (!dense_all) return unary_backward_strided(context_, call, saved, dy, dx);
  visit_index(UnaryFormulas{}, call.index, [&]<class F>() {
    visit_floating(dx.dtype(), "unary", [&]<class T>() {
      const BackwardOfOne<F> f{formula_of<F>(call)};
      if constexpr (F::saves == Saves::nothing) dense<T>(context_, f, dx, dy);
      else dense<T>(context_, f, dx, saved, dy);
    });
  });
}

void CudaBackend::binary_backward(FormulaCall call, int input, const Tensor& a, const Tensor& b,
                                  const Tensor& dy, Tensor& dx) {
  const bool reads = a.defined();
  const bool dense_all = reads ? dense_alike(dx, a, b, dy) : dense_alike(dx, dy);
  if (!dense_all) binary_backward_strided(context_, call, input, a, b, dy, dx);
  else if (input == 0) binary_backward_dense<0>(context_, call, a, b, dy, dx);
  else binary_backward_dense<1>(context_, call, a, b, dy, dx);
}

}  // namespace halftone

// Elementwise formulas for tensors that broadcast, have strides or differ in dtype, and for
// integers: one kernel per arity, which looks up the formula and the dtypes. All threads take the
// same branches.

namespace halftone::cuda {

namespace {

template <class C>
__global__ void unary_kernel(FormulaCall call, Layout<2> layout, bool small, Operand y, Operand x) {
  for (int64_t turn = global_thread(); turn < layout.turns; turn += all_threads()) {
    const Places<2> at = layout.at_turn(turn, small);
    const C in = load_as<C>(x, at.of[1]);
    C out{};
    visit_index(UnaryFormulas{}, call.index, [&]<class F>() {
      if constexpr (std::is_floating_point_v<C>) out = formula_of<F>(call).forward(in);
      else if constexpr (takes_integers<F>) out = formula_of<F>(call).integer(in);
    });
    store_as<C>(y, at.of[0], out);
  }
}

template <class C>
__global__ void unary_backward_kernel(FormulaCall call, Layout<3> layout, bool small, Operand dx,
                                      Operand saved, Operand dy) {
  for (int64_t turn = global_thread(); turn < layout.turns; turn += all_threads()) {
    const Places<3> at = layout.at_turn(turn, small);
    const C s = saved.data ? load_as<C>(saved, at.of[1]) : C(0);
    C out = load_as<C>(dy, at.of[2]);
    visit_index(UnaryFormulas{}, call.index,
                [&]<class F>() { out = gradient_of(formula_of<F>(call), out, s); });
    store_as<C>(dx, at.of[0], out);
  }
}

template <class C>
__global__ void binary_kernel(FormulaCall call, Layout<3> layout, bool small, Operand y, Operand a,
                              Operand b) {
  for (int64_t turn = global_thread(); turn < layout.turns; turn += all_threads()) {
    const Places<3> at = layout.at_turn(turn, small);
    const C u = load_as<C>(a, at.of[1]), v = load_as<C>(b, at.of[2]);
    C out{};
    visit_index(BinaryFormulas{}, call.index, [&]<class F>() {
      if constexpr (std::is_floating_point_v<C>) out = formula_of<F>(call).forward(u, v);
      else if constexpr (takes_integers<F>) out = formula_of<F>(call).integer(u, v);
    });
    store_as<C>(y, at.of[0], out);
  }
}

template <class C>
__global__ void binary_backward_kernel(FormulaCall call, int input, Layout<4> layout, bool small,
                                       Operand dx, Operand a, Operand b, Operand dy) {
  for (int64_t turn = global_thread(); turn < layout.turns; turn += all_threads()) {
    const Places<4> at = layout.at_turn(turn, small);
    const C u = a.data ? load_as<C>(a, at.of[1]) : C(0),
            v = b.data ? load_as<C>(b, at.of[2]) : C(0);
    C out = load_as<C>(dy, at.of[3]);
    visit_index(BinaryFormulas{}, call.index, [&]<class F>() {
      const F f = formula_of<F>(call);
      out = input == 0 ? gradient_of<0>(f, out, u, v) : gradient_of<1>(f, out, u, v);
    });
    store_as<C>(dx, at.of[0], out);
  }
}

// Higher derivatives, in double for any dtype: they are not part of a training step without them.

__global__ void unary_derivative_kernel(FormulaCall call, Derivatives d, Layout<2> layout,
                                        bool small, Operand y, Operand saved) {
  for (int64_t turn = global_thread(); turn < layout.turns; turn += all_threads()) {
    const Places<2> at = layout.at_turn(turn, small);
    const double s = load_as<double>(saved, at.of[1]);
    double out = 0;
    visit_index(UnaryFormulas{}, call.index,
                [&]<class F>() { out = higher_derivative(formula_of<F>(call), d, s); });
    store_as<double>(y, at.of[0], out);
  }
}

__global__ void binary_derivative_kernel(FormulaCall call, Derivatives d, Layout<3> layout,
                                         bool small, Operand y, Operand a, Operand b) {
  for (int64_t turn = global_thread(); turn < layout.turns; turn += all_threads()) {
    const Places<3> at = layout.at_turn(turn, small);
    const double u = load_as<double>(a, at.of[1]), v = load_as<double>(b, at.of[2]);
    double out = 0;
    visit_index(BinaryFormulas{}, call.index,
                [&]<class F>() { out = higher_derivative(formula_of<F>(call), d, u, v); });
    store_as<double>(y, at.of[0], out);
  }
}

/// Returns the kernel that computes in float, in double if any tensor is f64, or in integers if all
/// are integers.
template <class Kernel, class... T>
Kernel* chosen(Kernel* of_float, Kernel* of_double, Kernel* of_integers, const Tensor& y,
               const T&... inputs) {
  if (!is_floating(y.dtype())) return of_integers;
  return ((inputs.dtype() == f64) || ...) || y.dtype() == f64 ? of_double : of_float;
}
/// Returns whether any tensor is f64.
template <class... T> bool any_double(const T&... tensors) {
  return ((tensors.defined() && tensors.dtype() == f64) || ...);
}

}  // namespace

void unary_strided(const Context& context, FormulaCall call, const Tensor& x, Tensor& y) {
  const Layout<2> layout(y, x);
  if (layout.turns == 0) return;
  launch(context, chosen(unary_kernel<float>, unary_kernel<double>, unary_kernel<int64_t>, y, x),
         shape_for(context, layout.turns), call, layout, layout.is_small(), Operand(y), Operand(x));
}

void unary_backward_strided(const Context& context, FormulaCall call, const Tensor& saved,
                            const Tensor& dy, Tensor& dx) {
  const Layout<3> layout(dx, saved, dy);
  if (layout.turns == 0) return;
  launch(context,
         any_double(saved, dy, dx) ? unary_backward_kernel<double> : unary_backward_kernel<float>,
         shape_for(context, layout.turns), call, layout, layout.is_small(), Operand(dx),
         Operand(saved), Operand(dy));
}

void binary_strided(const Context& context, FormulaCall call, const Tensor& a, const Tensor& b,
                    Tensor& y) {
  const Layout<3> layout(y, a, b);
  if (layout.turns == 0) return;
  launch(context,
         chosen(binary_kernel<float>, binary_kernel<double>, binary_kernel<int64_t>, y, a, b),
         shape_for(context, layout.turns), call, layout, layout.is_small(), Operand(y), Operand(a),
         Operand(b));
}

void binary_backward_strided(const Context& context, FormulaCall call, int input, const Tensor& a,
                             const Tensor& b, const Tensor& dy, Tensor& dx) {
  const Layout<4> layout(dx, a, b, dy);
  if (layout.turns == 0) return;
  launch(context,
         any_double(a, b, dy, dx) ? binary_backward_kernel<double> : binary_backward_kernel<float>,
         shape_for(context, layout.turns), call, input, layout, layout.is_small(), Operand(dx),
         Operand(a), Operand(b), Operand(dy));
}

}  // namespace halftone::cuda

namespace halftone {

using namespace cuda;

void CudaBackend::unary_derivative(FormulaCall call, Derivatives d, const Tensor& saved,
                                   Tensor& y) {
  const Layout<2> layout(y, saved);
  if (layout.turns == 0) return;
  launch(context_, unary_derivative_kernel, shape_for(context_, layout.turns), call, d, layout,
         layout.is_small(), Operand(y), Operand(saved));
}

void CudaBackend::binary_derivative(FormulaCall call, Derivatives d, const Tensor& a,
                                    const Tensor& b, Tensor& y) {
  const Layout<3> layout(y, a, b);
  if (layout.turns == 0) return;
  launch(context_, binary_derivative_kernel, shape_for(context_, layout.turns), call, d, layout,
         layout.is_small(), Operand(y), Operand(a), Operand(b));
}

}  // namespace halftone

// Random numbers: element i in memory order uses word i % 4 of Philox counter offset + i / 4, as on
// every device. A thread computes the words of one counter. Values are computed in double, which
// only initialization pays for. Dropout compares words with integers, so the mask is exact.

namespace halftone {

namespace cuda {
namespace {

/// Calls make(words, values) for the four elements of each counter and stores the values.
template <class Make> __global__ void draw_kernel(Make make, DeviceKey key, Operand y, int64_t n) {
  for (int64_t group = global_thread(); group * 4 < n; group += all_threads()) {
    typename Make::Value values[4];
    make(Philox::words(key.seed, key.first() + uint64_t(group)), values);
    for (int i = 0; i < 4 && group * 4 + i < n; ++i) store_as(y, group * 4 + i, values[i]);
  }
}

struct Uniform {
  using Value = double;
  double low, high, below;  // below: the value before `high` on y's grid
  __device__ void operator()(const std::array<uint32_t, 4>& words, double* values) const {
    for (int i = 0; i < 4; ++i) {
      const double value = low + (high - low) * double(Philox::uniform(words[std::size_t(i)]));
      values[i] = value < below ? value : below;
    }
  }
};

/// Box & Muller 1958: two uniform numbers, the first on (0, 1], give two normal ones.
struct Normal {
  using Value = double;
  double mean, std;
  __device__ void operator()(const std::array<uint32_t, 4>& words, double* values) const {
    constexpr double two_pi = 6.283185307179586;
    for (std::size_t i = 0; i < 4; i += 2) {
      const double u1 = 1.0 - double(Philox::uniform(words[i]));
      const double angle = two_pi * double(Philox::uniform(words[i + 1]));
      const double radius = ::sqrt(-2 * ::log(u1));
      values[i] = mean + std * (radius * ::cos(angle));
      values[i + 1] = mean + std * (radius * ::sin(angle));
    }
  }
};

struct Integers {
  using Value = int64_t;
  int64_t low;
  uint64_t range;
  __device__ void operator()(const std::array<uint32_t, 4>& words, int64_t* values) const {
    for (std::size_t i = 0; i < 4; ++i) values[i] = low + int64_t((words[i] * range) >> 32);
  }
};

/// threshold: an element is kept if the upper 24 bits of its word reach it.
template <class T>
__global__ void dropout_kernel(uint32_t threshold, compute_t<T> scale, DeviceKey key, const T* x,
                               T* y, int64_t n) {
  constexpr int size = 4;
  using Values = Pack<T, size>;
  const uint64_t first = key.first();
  for (int64_t group = global_thread(); group * size < n; group += all_threads()) {
    const std::array<uint32_t, 4> words = Philox::words(key.seed, first + uint64_t(group));
    const int64_t begin = group * size;
    Values values{};
    if (begin + size <= n) values = reinterpret_cast<const Values*>(x)[group];
    else
      for (int i = 0; begin + i < n; ++i) values.values[i] = x[begin + i];
    for (int i = 0; i < size; ++i) {
      const bool kept = (words[std::size_t(i)] >> 8) >= threshold;
      values.values[i] = narrow<T>(kept ? widen(values.values[i]) * scale : compute_t<T>(0));
    }
    if (begin + size <= n) reinterpret_cast<Values*>(y)[group] = values;
    else
      for (int i = 0; begin + i < n; ++i) y[begin + i] = values.values[i];
  }
}
/// The same if x or y is not aligned.
template <class T>
__global__ void dropout_unaligned_kernel(uint32_t threshold, compute_t<T> scale, DeviceKey key,
                                         const T* x, T* y, int64_t n) {
  for (int64_t i = global_thread(); i < n; i += all_threads()) {
    const uint32_t word =
        Philox::words(key.seed, key.first() + uint64_t(i) / 4)[std::size_t(i) % 4];
    y[i] = narrow<T>((word >> 8) >= threshold ? widen(x[i]) * scale : compute_t<T>(0));
  }
}

template <class Make>
void draw(const Context& context, const Make& make, RandomKey key, Tensor& y) {
  if (y.numel() == 0) return;
  launch(context, draw_kernel<Make>, shape_for(context, y.numel(), 4), make,
         device_key(context, key), Operand(y), y.numel());
}

}  // namespace
}  // namespace cuda

using namespace cuda;

void CudaBackend::uniform(double low, double high, RandomKey key, Tensor& y) {
  const double below =
      visit_floating(y.dtype(), "uniform", [&]<class T>() { return largest_below<T>(high); });
  draw(context_, Uniform{low, high, below}, key, y);
}

void CudaBackend::normal(double mean, double std, RandomKey key, Tensor& y) {
  draw(context_, Normal{mean, std}, key, y);
}

void CudaBackend::random_integers(int64_t low, int64_t high, RandomKey key, Tensor& y) {
  const uint64_t range = uint64_t(high) - uint64_t(low);
  if (high <= low || range > (uint64_t(1) << 32))
    fail<UsageError>("randint", "cannot draw from [", low, ", ", high,
                     "): the range must hold 1 to 2^32 integers. Choose other bounds.");
  draw(context_, Integers{low, range}, key, y);
}

void CudaBackend::dropout(const Tensor& x, double p, RandomKey key, Tensor& y) {
  if (y.numel() == 0) return;
  // A word's upper 24 bits k mean k 2^-24; the word keeps an element if that is at least p.
  const auto threshold = uint32_t(std::ceil(p * 0x1p24));
  visit_floating(y.dtype(), "dropout", [&]<class T>() {
    const auto scale = compute_t<T>(1 / (1 - p));
    const bool aligned = begins_aligned4(x) && begins_aligned4(y);
    launch(context_, aligned ? dropout_kernel<T> : dropout_unaligned_kernel<T>,
           shape_for(context_, y.numel(), aligned ? 4 : 1), threshold, scale,
           device_key(context_, key), x.data<T>(), y.data<T>(), y.numel());
  });
}

}  // namespace halftone

// Rotary positions. A thread computes the angle of one row and pair, in double, and turns this pair
// in every parts-th head of all samples: enough parts to fill the device.

namespace halftone {

namespace cuda {
namespace {

constexpr int64_t resident_threads = 2048;  // at most, on a multiprocessor

struct RopeShape {
  int64_t samples, heads, rows, pairs, parts;
  int64_t x[3], y[3];  // strides of samples, heads and rows
};

template <class T>
__global__ void rope_kernel(RopeOptions options, bool inverse, RopeShape shape, const T* x, T* y) {
  using C = compute_t<T>;
  const int64_t places = shape.rows * shape.pairs;
  for (int64_t k = global_thread(); k < places * shape.parts; k += all_threads()) {
    const int64_t part = k / places, row = k % places / shape.pairs, pair = k % shape.pairs;
    const double angle = rope_angle(options, row, rope_frequency(options, pair, shape.pairs));
    const C cosine = C(::cos(angle)), sine = C(inverse ? -::sin(angle) : ::sin(angle));
    const int64_t first = options.interleaved ? 2 * pair : pair,
                  second = options.interleaved ? first + 1 : first + shape.pairs;
    const int64_t more_samples = shape.parts / shape.heads, more_heads = shape.parts % shape.heads;
    int64_t sample = part / shape.heads, head = part % shape.heads;
#pragma unroll 4
    for (int64_t i = part; i < shape.samples * shape.heads; i += shape.parts) {
      const T* const from = x + sample * shape.x[0] + head * shape.x[1] + row * shape.x[2];
      T* const to = y + sample * shape.y[0] + head * shape.y[1] + row * shape.y[2];
      const C a = widen(from[first]), b = widen(from[second]);
      to[first] = narrow<T>(a * cosine - b * sine);
      to[second] = narrow<T>(b * cosine + a * sine);
      sample += more_samples, head += more_heads;
      if (head >= shape.heads) head -= shape.heads, ++sample;
    }
  }
}

}  // namespace
}  // namespace cuda

void CudaBackend::rope(const Tensor& x, const RopeOptions& options, bool inverse, Tensor& y) {
  if (x.numel() == 0) return;
  const Strides &from = x.strides(), &to = y.strides();
  const int64_t places = x.size(2) * (x.size(3) / 2), all = x.size(0) * x.size(1);
  const int64_t wanted = int64_t(context_.multiprocessors()) * resident_threads / places;
  const RopeShape shape{x.size(0),
                        x.size(1),
                        x.size(2),
                        x.size(3) / 2,
                        std::clamp<int64_t>(wanted, 1, all),
                        {from[0], from[1], from[2]},
                        {to[0], to[1], to[2]}};
  visit_floating(x.dtype(), "rope", [&]<class T>() {
    launch(context_, rope_kernel<T>, shape_for(context_, places * shape.parts), options, inverse,
           shape, x.data<T>(), y.data<T>());
  });
}

}  // namespace halftone
