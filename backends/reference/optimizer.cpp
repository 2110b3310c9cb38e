// Updates of parameters and running values in place: optimizer steps by PyTorch's formulas
// (core/update_rules.h), in float (in double for f64 parameters) whatever the storage, each value
// rounded once when it is written. Every kernel here bumps the version of the storages it writes,
// which is what invalidates casts of a parameter.
#include <halftone/backends/reference/reference.h>

#include <algorithm>
#include <atomic>
#include <cmath>

#include <halftone/backends/reference/map.h>
#include <halftone/backends/reference/update_scalars.h>
#include <halftone/core/update_rules.h>

namespace halftone {

using namespace reference;

namespace {

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

template <class T, class Rule>
void update_slot(UpdateSlot& slot, const Rule& rule, const typename Rule::Numbers& numbers) {
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
      T element_states[3] = {states[0][i], states[1][i], states[2][i]};
      rule.apply(numbers, gradients[i] * factor, weights[i], element_states);
      for (std::size_t s = 0; s < 3; ++s) states[s][i] = element_states[s];
    }
    run.write_weights(weights);
    for (std::size_t s = 0; s < 3; ++s) run.write(states[s], slot.state[s], state + s);
  });
  for (const Tensor* x :
       {&slot.parameter, &slot.companion, &slot.state[0], &slot.state[1], &slot.state[2]})
    if (x->defined()) x->storage()->bump_version();
}

/// steps: the updates before this one, for slots that do not count themselves.
template <class Rule, class Update>
void update_slots(std::span<UpdateSlot> slots, const Update& update, int64_t steps) {
  if (skips(update)) return;
  const Rule rule(update);
  for (UpdateSlot& slot : slots) {
    const auto numbers = rule.numbers(rate_of(update), steps_before(slot, steps));
    if (slot.parameter.dtype() == f64) update_slot<double>(slot, rule, numbers);
    else update_slot<float>(slot, rule, numbers);
    count_update(slot);
  }
}

}  // namespace

void ReferenceBackend::sgd_step(std::span<UpdateSlot> slots, const SgdUpdate& u) {
  update_slots<SgdRule>(slots, u, u.steps);
}
void ReferenceBackend::adam_step(std::span<UpdateSlot> slots, const AdamUpdate& u) {
  update_slots<AdamRule>(slots, u, u.steps);
}
void ReferenceBackend::rmsprop_step(std::span<UpdateSlot> slots, const RmspropUpdate& u) {
  update_slots<RmspropRule>(slots, u, 0);
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
