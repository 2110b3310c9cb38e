// Updates of parameters and running values in place: optimizer steps by PyTorch's formulas, in
// float (in double for f64 parameters) whatever the storage, each value rounded once when it is
// written. Every kernel here bumps the version of the storages it writes, which is what invalidates
// casts of a parameter.
#include <halftone/backends/reference/reference.h>

#include <algorithm>
#include <atomic>
#include <cmath>

#include <halftone/backends/reference/map.h>
#include <halftone/backends/reference/update_scalars.h>

namespace halftone {

using namespace reference;

namespace {

/// One element under update: the rule reads and writes them.
template <class T> struct Element {
  T parameter, gradient;
  std::array<T, 3> state;
};

enum SlotTensor : std::size_t { parameter, gradient, state, companion = state + 3, slot_tensors };
using SlotOffsets = Offsets<int(slot_tensors)>;

/// A run of one slot's elements on its way between memory and T.
template <class T> struct SlotRun {
  const UpdateSlot& slot;
  const SlotOffsets &offset, &step;
  int64_t count;

  void read(const Tensor& x, std::size_t t, T* values) const {
    load(x, offset[t], step[t], count, values);
  }
  void write(const T* values, const Tensor& x, std::size_t t) const {
    if (x.defined()) store(values, count, x, offset[t], step[t]);
  }
  BFloat16& upper(int64_t i) const {
    return slot.parameter.data<BFloat16>()[offset[parameter] + i * step[parameter]];
  }
  int16_t& lower(int64_t i) const {
    return slot.companion.data<int16_t>()[offset[companion] + i * step[companion]];
  }

  /// The weights themselves, whatever form they are kept in.
  void read_weights(T* weights) const {
    switch (slot.form) {
      case WeightForm::master: return read(slot.companion, companion, weights);
      case WeightForm::split:
        for (int64_t i = 0; i < count; ++i) weights[i] = T(join({upper(i), lower(i)}));
        return;
      case WeightForm::split_rounded:
        for (int64_t i = 0; i < count; ++i) weights[i] = T(join_rounded({upper(i), lower(i)}));
        return;
      case WeightForm::kahan: {
        T rest[block_length];
        read(slot.parameter, parameter, weights);
        read(slot.companion, companion, rest);
        for (int64_t i = 0; i < count; ++i) weights[i] += rest[i];
        return;
      }
      default: return read(slot.parameter, parameter, weights);
    }
  }

  void write_weights(T* weights) const {
    switch (slot.form) {
      case WeightForm::split:
      case WeightForm::split_rounded:
        for (int64_t i = 0; i < count; ++i) {
          const bool rounds = slot.form == WeightForm::split_rounded;
          const SplitFloat s = rounds ? split_rounded(float(weights[i])) : split(float(weights[i]));
          upper(i) = s.upper, lower(i) = s.lower;
        }
        return;
      case WeightForm::stochastic:
        for (int64_t i = 0; i < count; ++i) {
          const int64_t place = offset[parameter] + i * step[parameter];
          upper(i) =
              round_stochastically(float(weights[i]), random_half(slot.key, uint64_t(place)));
        }
        return;
      case WeightForm::kahan: {
        T rounded[block_length];
        write(weights, slot.parameter, parameter);
        read(slot.parameter, parameter, rounded);
        for (int64_t i = 0; i < count; ++i) weights[i] -= rounded[i];
        return write(weights, slot.companion, companion);
      }
      default:
        write(weights, slot.parameter, parameter);
        return write(weights, slot.companion, companion);
    }
  }
};

template <class T, class Rule> void update_slot_as(UpdateSlot& slot, const Rule& rule) {
  const LoopNest<int(slot_tensors)> nest(slot.parameter, slot.gradient, slot.state[0],
                                         slot.state[1], slot.state[2], slot.companion);
  const T factor = slot.gradient_factor.defined() ? T(load_one(slot.gradient_factor, 0)) : T(1);
  nest.parallel_runs([&](const SlotOffsets& offsets, const SlotOffsets& steps, int64_t count) {
    const SlotRun<T> run{slot, offsets, steps, count};
    T weights[block_length], gradients[block_length], states[3][block_length];
    run.read_weights(weights);
    run.read(slot.gradient, gradient, gradients);
    for (std::size_t s = 0; s < 3; ++s) run.read(slot.state[s], state + s, states[s]);
    for (int64_t i = 0; i < count; ++i) {
      Element<T> e{weights[i], gradients[i] * factor, {states[0][i], states[1][i], states[2][i]}};
      rule(e);
      weights[i] = e.parameter;
      for (std::size_t s = 0; s < 3; ++s) states[s][i] = e.state[s];
    }
    run.write_weights(weights);
    for (std::size_t s = 0; s < 3; ++s) run.write(states[s], slot.state[s], state + s);
  });
  for (const Tensor* x :
       {&slot.parameter, &slot.companion, &slot.state[0], &slot.state[1], &slot.state[2]})
    if (x->defined()) x->storage()->bump_version();
}

template <class Rule> void update_slot(UpdateSlot& slot, const Rule& rule) {
  if (slot.parameter.dtype() == f64) update_slot_as<double>(slot, rule);
  else update_slot_as<float>(slot, rule);
  count_update(slot);
}

}  // namespace

/// torch.optim.SGD
void ReferenceBackend::sgd_step(std::span<UpdateSlot> slots, const SgdUpdate& u) {
  if (skips(u)) return;
  const double lr = rate_of(u);
  for (UpdateSlot& slot : slots) {
    const bool first = steps_before(slot, u.steps) == 0;
    update_slot(slot, [&]<class T>(Element<T>& e) {
      T step = e.gradient + T(u.weight_decay) * e.parameter;
      if (u.momentum != 0) {
        T& buffer = e.state[0];
        buffer = first ? step : T(u.momentum) * buffer + T(1 - u.dampening) * step;
        step = u.nesterov ? step + T(u.momentum) * buffer : buffer;
      }
      e.parameter -= T(lr) * step;
    });
  }
}

/// torch.optim.Adam (Kingma & Ba 2015) and AdamW (Loshchilov & Hutter 2019)
void ReferenceBackend::adam_step(std::span<UpdateSlot> slots, const AdamUpdate& u) {
  if (skips(u)) return;
  const double lr = rate_of(u);
  for (UpdateSlot& slot : slots) {
    const auto [correction1, correction2] = bias_corrections(u, steps_before(slot, u.steps));
    const double step_size = lr / correction1, root_correction = std::sqrt(correction2);
    update_slot(slot, [&]<class T>(Element<T>& e) {
      if (u.decoupled) e.parameter *= T(1 - lr * u.weight_decay);
      const T g = u.decoupled ? e.gradient : e.gradient + T(u.weight_decay) * e.parameter;
      T &first = e.state[0], &second = e.state[1];
      first += T(1 - u.beta1) * (g - first);
      second = T(u.beta2) * second + T(1 - u.beta2) * g * g;
      const T denominator = std::sqrt(second) / T(root_correction) + T(u.eps);
      e.parameter -= T(step_size) * first / denominator;
    });
  }
}

/// torch.optim.RMSprop (Hinton 2012; centred: Graves 2013)
void ReferenceBackend::rmsprop_step(std::span<UpdateSlot> slots, const RmspropUpdate& u) {
  if (skips(u)) return;
  const double lr = rate_of(u);
  for (UpdateSlot& slot : slots)
    update_slot(slot, [&]<class T>(Element<T>& e) {
      const T g = e.gradient + T(u.weight_decay) * e.parameter;
      T &square = e.state[0], &buffer = e.state[1], &average = e.state[2];
      square = T(u.alpha) * square + T(1 - u.alpha) * g * g;
      if (u.centered) average += T(1 - u.alpha) * (g - average);
      const T variance = u.centered ? square - average * average : square;
      T step = g / (std::sqrt(variance) + T(u.eps));
      if (u.momentum != 0) step = buffer = T(u.momentum) * buffer + step;
      e.parameter -= T(lr) * step;
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

void ReferenceBackend::unscale(std::span<Tensor> tensors, const Tensor& factor, Tensor& found_inf) {
  std::atomic<bool> found = false;
  for (const Tensor& x : tensors) {
    const LoopNest<1> nest(x);
    nest.parallel_runs([&](const Offsets<1>& offset, const Offsets<1>& step, int64_t count) {
      double values[block_length];
      load(x, offset[0], step[0], count, values);
      const bool finite =
          std::all_of(values, values + count, [](double v) { return std::isfinite(v); });
      if (!finite) found = true;
    });
  }
  if (found) store_one(1, found_inf, 0);
  if (factor.defined()) scale_all(tensors, factor);
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

void ReferenceBackend::next_loss_scale(const LossScaleRule& rule, const Tensor& found_inf,
                                       Tensor& scale, Tensor& growth_tracker,
                                       Tensor& overflows_left) {
  const LossScaleState now{*scale.data<float>(), *growth_tracker.data<int64_t>(),
                           *overflows_left.data<int32_t>()};
  const LossScaleState then = next(now, rule, *found_inf.data<float>() != 0);
  *scale.data<float>() = then.scale;
  *growth_tracker.data<int64_t>() = then.growth_tracker;
  *overflows_left.data<int32_t>() = then.overflows_left;
  for (const Tensor* x : {&scale, &growth_tracker, &overflows_left}) x->storage()->bump_version();
}

}  // namespace halftone
