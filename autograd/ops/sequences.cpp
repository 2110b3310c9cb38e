// The loops over time. A step is one product of the state with the recurrent weights, in f32, and
// one kernel for everything else.
#include <halftone/autograd/ops/norm.h>
#include <halftone/autograd/ops/recurrent.h>

namespace halftone {

namespace {

/// Returns step t of a contiguous [time, n, width].
Tensor at(const Tensor& x, int64_t t) {
  const int64_t n = x.size(1), width = x.size(2);
  return x.view_as({n, width}, {width, 1}, x.offset() + t * n * width);
}
Tensor all_rows(const Tensor& x) { return detail::as_shape(x, {x.size(0) * x.size(1), x.size(2)}); }
Tensor statistics_copy(const Tensor& x, DType dtype) {
  Tensor y = empty(x.shape(), dtype, x.device());
  backend_for(x).copy(x, y);
  return y;
}
DType statistics(DType dtype) { return dtype == f64 ? f64 : f32; }

/// The order of the time steps.
struct Steps {
  int64_t count;
  bool reverse;
  int64_t of(int64_t step) const { return reverse ? count - 1 - step : step; }
  int64_t first() const { return of(0); }
  int64_t last() const { return of(count - 1); }
  int64_t before(int64_t t) const { return reverse ? t + 1 : t - 1; }
};

void check_state(std::string_view op, std::string_view what, const Tensor& x, const Tensor& state,
                 int64_t hidden) {
  check::rank(op, what, state, 2);
  check::same_dtype(op, x, state);
  if (state.size(0) != x.size(1) || state.size(1) != hidden)
    fail<ShapeError>(op, what, " is ", described(state), " for x ", described(x),
                     " and weights of ", hidden, " states. It must be [", x.size(1), ", ", hidden,
                     "].");
}

void check_inputs(std::string_view op, int64_t gates, const Tensor& x, const Tensor& w,
                  const Tensor& bias) {
  check::rank(op, "x", x, 3);
  check::floating(op, x);
  check::rank(op, "weight", w, 2);
  const int64_t h = w.size(1);
  if (h < 1 || w.size(0) != gates * h || x.size(2) != gates * h)
    fail<ShapeError>(op, "x is ", described(x), ", weight is ", described(w),
                     ". With h states they "
                     "must be [time, n, ",
                     gates, " h] and [", gates, " h, h].");
  if (x.size(0) < 1) fail<ShapeError>(op, "x is ", described(x), ". It must have steps.");
  check::vector_of(op, "bias", bias, gates * h);
}

/// Returns the states before each step, in the order of time: [time * n, h].
Tensor states_before(const Tensor& y, const Tensor& h0, const Steps& steps) {
  const int64_t n = y.size(1), h = y.size(2);
  Tensor states = empty({steps.count, n, h}, y.dtype(), y.device());
  Tensor first = at(states, steps.first());
  backend_for(y).copy(h0, first);
  const int64_t shift = steps.reverse ? 0 : 1;
  Tensor rest = views::slice(states, 0, shift, steps.count - 1);
  backend_for(y).copy(views::slice(y, 0, 1 - shift, steps.count - 1), rest);
  return all_rows(states);
}

/// Returns the gradients of recurrent weights and bias, from the gate gradients of all steps.
template <int N>
std::array<Tensor, 2> weight_gradients(const Needs<N>& needs, const Tensor& dgates, const Tensor& y,
                                       const Tensor& h0, const Steps& steps) {
  const Tensor rows = all_rows(dgates);
  const int64_t width = rows.size(1);
  Tensor dweight, dbias;
  if (needs[N - 2])
    dweight =
        Matmul::product(detail::transposed(rows), states_before(y, h0, steps), needs.dtype(N - 2));
  if (needs[N - 1])
    dbias = detail::as_shape(reduce_to(rows, {1, width}, needs.dtype(N - 1)), {width});
  return {dweight, dbias};
}

}  // namespace

Tensor Lstm::forward(const Tensor& x_in, const Tensor& h, const Tensor& c, const Tensor& w,
                     const Tensor& bias) {
  check_inputs("lstm", 4, x_in, w, bias);
  check_state("lstm", "h0", x_in, h, w.size(1));
  check_state("lstm", "c0", x_in, c, w.size(1));
  check::same_dtype("lstm", x_in, w);
  if (bias.defined()) check::same_dtype("lstm", x_in, bias);
  const Tensor x = views::contiguous(x_in);
  const int64_t n = x.size(1), width = w.size(1);
  const Steps steps{x.size(0), reverse};
  const DType wide = statistics(x.dtype());
  const bool kept = needs[0] || needs[1] || needs[2] || needs[3] || needs[4];

  h0 = views::contiguous(h), c0 = statistics_copy(c, wide), weight = detail::matrix_layout(w);
  y = empty({steps.count + 1, n, width}, x.dtype(), x.device());
  cells = empty({steps.count, n, width}, wide, x.device());
  gates = empty({kept ? steps.count : 1, n, 4 * width}, x.dtype(), x.device());
  Tensor recurrent = empty({n, 4 * width}, wide, x.device());
  Backend& backend = backend_for(x);
  for (int64_t step = 0; step < steps.count; ++step) {
    const int64_t t = steps.of(step);
    const bool first = step == 0;
    backend.matmul(first ? h0 : at(y, steps.before(t)), detail::transposed(weight),
                   detail::contiguous_or_undefined(bias), recurrent);
    Tensor step_gates = at(gates, kept ? t : 0), cell = at(cells, t), state = at(y, t);
    backend.lstm_cell(at(x, t), recurrent, first ? c0 : at(cells, steps.before(t)), step_gates,
                      cell, state);
  }
  Tensor last_cell = at(y, steps.count);
  backend.copy(at(cells, steps.last()), last_cell);
  return y;
}

std::array<Tensor, 5> Lstm::backward(const Tensor& dy_in) const {
  const Tensor dy = views::contiguous(dy_in);
  const Steps steps{gates.size(0), reverse};
  const DType wide = statistics(y.dtype());
  Tensor dgates = empty_like(gates);
  Tensor dstate = zeros(h0.shape(), wide, y.device());
  Tensor dcell = statistics_copy(at(dy, steps.count), wide);
  Backend& backend = backend_for(y);
  for (int64_t step = steps.count - 1; step >= 0; --step) {
    const int64_t t = steps.of(step);
    Tensor step_dgates = at(dgates, t);
    backend.lstm_cell_backward(at(gates, t), step == 0 ? c0 : at(cells, steps.before(t)),
                               at(cells, t), at(dy, t), dstate, dcell, step_dgates);
    if (step > 0 || needs[1]) backend.matmul(step_dgates, weight, {}, dstate);
  }
  const auto [dweight, dbias] = weight_gradients(needs, dgates, y, h0, steps);
  return {dgates, needs[1] ? statistics_copy(dstate, y.dtype()) : Tensor{},
          needs[2] ? statistics_copy(dcell, y.dtype()) : Tensor{}, dweight, dbias};
}

Tensor Gru::forward(const Tensor& x_in, const Tensor& h, const Tensor& w, const Tensor& bias) {
  check_inputs("gru", 3, x_in, w, bias);
  check_state("gru", "h0", x_in, h, w.size(1));
  check::same_dtype("gru", x_in, w);
  if (bias.defined()) check::same_dtype("gru", x_in, bias);
  const Tensor x = views::contiguous(x_in);
  const int64_t n = x.size(1), width = w.size(1);
  const Steps steps{x.size(0), reverse};
  const bool kept = needs[0] || needs[1] || needs[2] || needs[3];

  h0 = views::contiguous(h), weight = detail::matrix_layout(w);
  y = empty({steps.count, n, width}, x.dtype(), x.device());
  gates = empty({kept ? steps.count : 1, n, 4 * width}, x.dtype(), x.device());
  Tensor recurrent = empty({n, 3 * width}, statistics(x.dtype()), x.device());
  Backend& backend = backend_for(x);
  for (int64_t step = 0; step < steps.count; ++step) {
    const int64_t t = steps.of(step);
    const Tensor before = step == 0 ? h0 : at(y, steps.before(t));
    backend.matmul(before, detail::transposed(weight), detail::contiguous_or_undefined(bias),
                   recurrent);
    Tensor step_gates = at(gates, kept ? t : 0), state = at(y, t);
    backend.gru_cell(at(x, t), recurrent, before, step_gates, state);
  }
  return y;
}

std::array<Tensor, 4> Gru::backward(const Tensor& dy_in) const {
  const Tensor dy = views::contiguous(dy_in);
  const int64_t n = y.size(1), width = y.size(2);
  const Steps steps{gates.size(0), reverse};
  const DType wide = statistics(y.dtype());
  Tensor dx = empty({steps.count, n, 3 * width}, y.dtype(), y.device());
  Tensor drecurrent = empty_like(dx), dstate = zeros(h0.shape(), wide, y.device());
  Tensor through_weights = empty_like(dstate);
  Backend& backend = backend_for(y);
  for (int64_t step = steps.count - 1; step >= 0; --step) {
    const int64_t t = steps.of(step);
    Tensor step_dx = at(dx, t), step_drecurrent = at(drecurrent, t);
    backend.gru_cell_backward(at(gates, t), step == 0 ? h0 : at(y, steps.before(t)), at(dy, t),
                              dstate, step_dx, step_drecurrent);
    if (step == 0 && !needs[1]) break;
    backend.matmul(step_drecurrent, weight, {}, through_weights);
    backend.accumulate(through_weights, dstate);
  }
  const auto [dweight, dbias] = weight_gradients(needs, drecurrent, y, h0, steps);
  return {dx, needs[1] ? statistics_copy(dstate, y.dtype()) : Tensor{}, dweight, dbias};
}

LstmStates lstm(const Tensor& x, const Tensor& h0, const Tensor& c0, const Tensor& weight,
                const Tensor& bias, bool reverse) {
  const Tensor all = apply(Lstm{.reverse = reverse}, x, h0, c0, weight, bias);
  const int64_t steps = all.size(0) - 1;
  return {slice(all, 0, 0, steps), select(all, 0, reverse ? 0 : steps - 1), select(all, 0, steps)};
}

GruStates gru(const Tensor& x, const Tensor& h0, const Tensor& weight, const Tensor& bias,
              bool reverse) {
  const Tensor y = apply(Gru{.reverse = reverse}, x, h0, weight, bias);
  return {y, select(y, 0, reverse ? 0 : y.size(0) - 1)};
}

}  // namespace halftone
