// Updates of parameters and running values in place: optimizer steps by PyTorch's formulas, in
// float (in double for f64 parameters) whatever the storage, each value rounded once when it is
// written. Every kernel here bumps the version of the storages it writes, which is what invalidates
// casts of a parameter.
#include <halftone/backends/reference/reference.h>

#include <cmath>

#include <halftone/backends/reference/map.h>

namespace halftone {

using namespace reference;

namespace {

/// One element under update: the rule reads and writes them.
template <class T> struct Element {
  T parameter, gradient;
  std::array<T, 3> state;
};

constexpr int slot_tensors = 5;  // parameter, gradient, state

template <class T, class Rule> void update_slot_as(UpdateSlot& slot, const Rule& rule) {
  const Tensor* const tensors[] = {&slot.parameter, &slot.gradient, &slot.state[0], &slot.state[1],
                                   &slot.state[2]};
  const LoopNest<slot_tensors> nest(slot.parameter, slot.gradient, slot.state[0], slot.state[1],
                                    slot.state[2]);
  nest.parallel_runs(
      [&](const Offsets<slot_tensors>& offsets, const Offsets<slot_tensors>& steps, int64_t count) {
        T values[slot_tensors][block_length];
        for (std::size_t t = 0; t < slot_tensors; ++t)
          load(*tensors[t], offsets[t], steps[t], count, values[t]);
        for (int64_t i = 0; i < count; ++i) {
          Element<T> e{values[0][i], values[1][i], {values[2][i], values[3][i], values[4][i]}};
          rule(e);
          values[0][i] = e.parameter;
          for (std::size_t s = 0; s < 3; ++s) values[2 + s][i] = e.state[s];
        }
        for (std::size_t t = 0; t < slot_tensors; ++t)
          if (t != 1 && tensors[t]->defined())
            store(values[t], count, *tensors[t], offsets[t], steps[t]);
      });
  for (std::size_t t = 0; t < slot_tensors; ++t)
    if (t != 1 && tensors[t]->defined()) tensors[t]->storage()->bump_version();
}

template <class Rule> void update_slots(std::span<UpdateSlot> slots, const Rule& rule) {
  for (UpdateSlot& slot : slots) {
    if (slot.parameter.dtype() == f64) update_slot_as<double>(slot, rule);
    else update_slot_as<float>(slot, rule);
  }
}

}  // namespace

/// torch.optim.SGD
void ReferenceBackend::sgd_step(std::span<UpdateSlot> slots, const SgdUpdate& u) {
  update_slots(slots, [&]<class T>(Element<T>& e) {
    T step = e.gradient + T(u.weight_decay) * e.parameter;
    if (u.momentum != 0) {
      T& buffer = e.state[0];
      buffer = u.first_step ? step : T(u.momentum) * buffer + T(1 - u.dampening) * step;
      step = u.nesterov ? step + T(u.momentum) * buffer : buffer;
    }
    e.parameter -= T(u.lr) * step;
  });
}

/// torch.optim.Adam (Kingma & Ba 2015) and AdamW (Loshchilov & Hutter 2019)
void ReferenceBackend::adam_step(std::span<UpdateSlot> slots, const AdamUpdate& u) {
  const double step_size = u.lr / u.correction1, root_correction = std::sqrt(u.correction2);
  update_slots(slots, [&]<class T>(Element<T>& e) {
    if (u.decoupled) e.parameter *= T(1 - u.lr * u.weight_decay);
    const T g = u.decoupled ? e.gradient : e.gradient + T(u.weight_decay) * e.parameter;
    T &first = e.state[0], &second = e.state[1];
    first += T(1 - u.beta1) * (g - first);
    second = T(u.beta2) * second + T(1 - u.beta2) * g * g;
    const T denominator = std::sqrt(second) / T(root_correction) + T(u.eps);
    e.parameter -= T(step_size) * first / denominator;
  });
}

/// torch.optim.RMSprop (Hinton 2012; centred: Graves 2013)
void ReferenceBackend::rmsprop_step(std::span<UpdateSlot> slots, const RmspropUpdate& u) {
  update_slots(slots, [&]<class T>(Element<T>& e) {
    const T g = e.gradient + T(u.weight_decay) * e.parameter;
    T &square = e.state[0], &buffer = e.state[1], &average = e.state[2];
    square = T(u.alpha) * square + T(1 - u.alpha) * g * g;
    if (u.centered) average += T(1 - u.alpha) * (g - average);
    const T variance = u.centered ? square - average * average : square;
    T step = g / (std::sqrt(variance) + T(u.eps));
    if (u.momentum != 0) step = buffer = T(u.momentum) * buffer + step;
    e.parameter -= T(u.lr) * step;
  });
}

void ReferenceBackend::accumulate(const Tensor& x, Tensor& y) {
  map<double>([](double a, double b) { return a + b; }, y, x, y);
  y.storage()->bump_version();
}

void ReferenceBackend::lerp(const Tensor& x, double weight, Tensor& y) {
  map<double>([&](double a, double b) { return b + weight * (a - b); }, y, x, y);
  y.storage()->bump_version();
}

void ReferenceBackend::scale_all(std::span<Tensor> tensors, const Tensor& factor) {
  const double scale = load_one(factor, 0);
  for (Tensor& y : tensors) {
    map<double>([&](double value) { return value * scale; }, y, y);
    y.storage()->bump_version();
  }
}

void ReferenceBackend::sum_of_squares(std::span<const Tensor> tensors, Tensor& total) {
  double sum = 0;
  for (const Tensor& x : tensors) {
    const LoopNest<1> nest(x);
    Workspace<double> partial(pieces_of(nest.turns(), grain_length));
    parallel_pieces(nest.turns(), grain_length, [&](int64_t begin, int64_t end) {
      double piece_sum = 0;
      nest.runs(begin, end, [&](Offsets<1> offset, Offsets<1> step, int64_t count) {
        double values[block_length];
        load(x, offset[0], step[0], count, values);
        for (int64_t i = 0; i < count; ++i) piece_sum += values[i] * values[i];
      });
      partial[begin / grain_length] = piece_sum;
    });
    for (int64_t piece = 0; piece < partial.size(); ++piece) sum += partial[piece];
  }
  store_one(sum, total, 0);
}

}  // namespace halftone
