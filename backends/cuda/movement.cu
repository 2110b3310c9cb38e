// Operations that move values without changing them: filling, converting copies, selection.
#include <type_traits>

#include <halftone/backends/cuda/cuda_backend.h>
#include <halftone/backends/cuda/elementwise.h>
#include <halftone/backends/cuda/launch.h>
#include <halftone/backends/cuda/values.h>

namespace halftone {

namespace cuda {
namespace {

template <class T> __global__ void fill_dense_kernel(T value, T* y, int64_t n) {
  using Values = Pack<T>;
  Values values;
  for (int i = 0; i < Values::size; ++i) values.values[i] = value;
  for (int64_t pack = global_thread(); pack < n / Values::size; pack += all_threads())
    reinterpret_cast<Values*>(y)[pack] = values;
  const int64_t i = n - n % Values::size + global_thread();
  if (i < n) y[i] = value;
}
template <class T> __global__ void fill_kernel(T value, Layout<1> layout, bool small, T* y) {
  for (int64_t turn = global_thread(); turn < layout.turns; turn += all_threads())
    y[layout.at_turn(turn, small).of[0]] = value;
}

/// For tensors with one dense layout; 4 elements of each at a time.
template <class From, class To>
__global__ void convert_dense_kernel(const From* x, To* y, int64_t n) {
  constexpr int size = 4;
  for (int64_t pack = global_thread(); pack < n / size; pack += all_threads()) {
    const auto in = reinterpret_cast<const Pack<From, size>*>(x)[pack];
    Pack<To, size> out;
    for (int i = 0; i < size; ++i) out.values[i] = cast_to<To>(in.values[i]);
    reinterpret_cast<Pack<To, size>*>(y)[pack] = out;
  }
  const int64_t i = n - n % size + global_thread();
  if (i < n) y[i] = cast_to<To>(x[i]);
}

/// Copies the same bytes in another order; Word is an unsigned integer of the element's size.
template <class Word>
__global__ void permute_kernel(Layout<2> layout, bool small, const Word* x, Word* y) {
  for (int64_t turn = global_thread(); turn < layout.turns; turn += all_threads()) {
    const Places<2> at = layout.at_turn(turn, small);
    y[at.of[0]] = x[at.of[1]];
  }
}

/// Converts one dtype to any other: the destination is looked up.
template <class From>
__global__ void convert_kernel(Layout<2> layout, bool small, const From* x, Operand y) {
  for (int64_t turn = global_thread(); turn < layout.turns; turn += all_threads()) {
    const Places<2> at = layout.at_turn(turn, small);
    store_as<From>(y, at.of[0], x[at.of[1]]);
  }
}

template <class T>
__global__ void select_kernel(Layout<4> layout, bool small, const bool* condition, Operand a,
                              Operand b, T* y) {
  for (int64_t turn = global_thread(); turn < layout.turns; turn += all_threads()) {
    const Places<4> at = layout.at_turn(turn, small);
    y[at.of[0]] = condition[at.of[1]] ? load_as<T>(a, at.of[2]) : load_as<T>(b, at.of[3]);
  }
}

/// Calls visitor.operator()<T>() for the dtypes that training converts between.
template <class Visitor> bool visit_common(DType dtype, Visitor&& visitor) {
  switch (dtype) {
    case f32: return visitor.template operator()<float>(), true;
    case f16: return visitor.template operator()<Float16>(), true;
    case bf16: return visitor.template operator()<BFloat16>(), true;
    default: return false;
  }
}

void permute(const Context& context, const Layout<2>& layout, const Tensor& x, Tensor& y) {
  const auto run = [&]<class Word>(Word) {
    launch(context, permute_kernel<Word>, shape_for(context, layout.turns), layout,
           layout.is_small(), reinterpret_cast<const Word*>(x.raw_data()),
           reinterpret_cast<Word*>(y.raw_data()));
  };
  switch (size_of(x.dtype())) {
    case 1: return run(uint8_t{});
    case 2: return run(uint16_t{});
    case 4: return run(uint32_t{});
    default: return run(uint64_t{});
  }
}

bool convert_dense(const Context& context, const Tensor& x, Tensor& y) {
  if (!begins_aligned(x) || !begins_aligned(y)) return false;
  bool done = false;
  visit_common(x.dtype(), [&]<class From>() {
    done = visit_common(y.dtype(), [&]<class To>() {
      if constexpr (!std::is_same_v<From, To>)
        launch(context, convert_dense_kernel<From, To>, shape_for(context, y.numel(), 4),
               x.data<From>(), y.data<To>(), y.numel());
    });
  });
  return done;
}

}  // namespace
}  // namespace cuda

using namespace cuda;

void CudaBackend::fill(Number value, Tensor& y) {
  const Layout<1> layout(y);
  if (layout.turns == 0) return;
  visit_any(y.dtype(), [&]<class T>() {
    const T element = value.as<T>();
    if (layout.is_dense() && begins_aligned(y))
      launch(context_, fill_dense_kernel<T>, shape_for(context_, layout.turns, pack_size<T>),
             element, y.data<T>(), layout.turns);
    else
      launch(context_, fill_kernel<T>, shape_for(context_, layout.turns), element, layout,
             layout.is_small(), y.data<T>());
  });
}

void CudaBackend::copy(const Tensor& x, Tensor& y) {
  const Layout<2> layout(y, x);
  if (layout.turns == 0) return;
  const bool same = x.dtype() == y.dtype();
  if (same && layout.is_dense()) {
    context_.activate();
    return check(cudaMemcpyAsync(y.raw_data(), x.raw_data(), std::size_t(y.bytes()),
                                 cudaMemcpyDeviceToDevice, context_.stream()),
                 "copying on the device");
  }
  if (same) return permute(context_, layout, x, y);
  if (layout.is_dense() && convert_dense(context_, x, y)) return;
  visit_any(x.dtype(), [&]<class From>() {
    launch(context_, convert_kernel<From>, shape_for(context_, layout.turns), layout,
           layout.is_small(), x.data<From>(), Operand(y));
  });
}

void CudaBackend::select(const Tensor& condition, const Tensor& a, const Tensor& b, Tensor& y) {
  const Layout<4> layout(y, condition, a, b);
  if (layout.turns == 0) return;
  visit_any(y.dtype(), [&]<class T>() {
    launch(context_, select_kernel<T>, shape_for(context_, layout.turns), layout, layout.is_small(),
           condition.data<bool>(), Operand(a), Operand(b), y.data<T>());
  });
}

// Adds onto a tensor, and moves a tensor part of the way to another: sums of gradients, running
// statistics.

namespace cuda {
namespace {

struct Added {
  template <class C> __device__ C operator()(C x, C y) const { return y + x; }
};
struct Moved {
  double weight;
  template <class C> __device__ C operator()(C x, C y) const { return y + C(weight) * (x - y); }
};

template <class C, class F>
__global__ void strided_kernel(F f, Layout<2> layout, bool small, Operand y, Operand x) {
  for (int64_t turn = global_thread(); turn < layout.turns; turn += all_threads()) {
    const Places<2> at = layout.at_turn(turn, small);
    store_as<C>(y, at.of[0], f(load_as<C>(x, at.of[1]), load_as<C>(y, at.of[0])));
  }
}

/// Computes y = f(x, y), in place.
template <class F> void combine(const Context& context, F f, const Tensor& x, Tensor& y) {
  const Layout<2> layout(y, x);
  const auto of_two = [&]<class A, class B>() {
    launch(context, mixed_kernel<A, B, B, F>, shape_for(context, y.numel(), 4), f, x.data<A>(),
           y.data<B>(), y.data<B>(), y.numel());
  };
  if (layout.turns > 0 && dense_alike(y, x)) {
    visit_floating(y.dtype(), "accumulate", [&]<class T>() { dense<T>(context, f, y, x, y); });
  } else if (layout.turns > 0 && !visit_mixed(x, y, y, of_two)) {
    const bool wide = x.dtype() == f64 || !is_floating(y.dtype()) || y.dtype() == f64;
    launch(context, wide ? strided_kernel<double, F> : strided_kernel<float, F>,
           shape_for(context, layout.turns), f, layout, layout.is_small(), Operand(y), Operand(x));
  }
  y.storage()->bump_version();
}

}  // namespace
}  // namespace cuda

void CudaBackend::accumulate(const Tensor& x, Tensor& y) {
  cuda::combine(context_, cuda::Added{}, x, y);
}

void CudaBackend::lerp(const Tensor& x, double weight, Tensor& y) {
  cuda::combine(context_, cuda::Moved{weight}, x, y);
}

}  // namespace halftone
