// Updates of parameters and running values in place: optimizer steps by PyTorch's formulas
// and weight forms (core/update_rules.h). They compute in float (in double for
// f64 parameters) for every storage, and round each value once when it is written. Every kernel
// here bumps the version of the storages it writes, which invalidates casts of a parameter.
#include <halftone/backends/reference/reference.h>

#include <algorithm>
#include <atomic>
#include <cmath>

#include <halftone/backends/reference/loops.h>

namespace halftone {

using namespace reference;

namespace {

enum SlotTensor : std::size_t { parameter, gradient, state, companion = state + 3, slot_tensors };
using SlotOffsets = Offsets<int(slot_tensors)>;

/// A run of one slot's elements between memory and T.
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

  /// Reads the weights in full precision, for any weight form.
  template <class Form> void read_weights(T* weights) const {
    T companions[block_length]{};
    read(slot.parameter, parameter, weights);
    read(slot.companion, companion, companions);
    for (int64_t i = 0; i < count; ++i) weights[i] = Form::decode(weights[i], companions[i]);
  }

  template <class Form> void write_weights(const T* weights) const {
    T parameters[block_length], companions[block_length];
    write(weights, slot.parameter, parameter);
    read(slot.parameter, parameter, parameters);
    for (int64_t i = 0; i < count; ++i) {
      const auto place = uint64_t(offset[parameter] + i * step[parameter]);
      const uint16_t random = Form::uses_random ? random_half(slot.key, place) : uint16_t(0);
      const KeptWeight<T> kept = Form::encode(weights[i], parameters[i], random);
      parameters[i] = kept.parameter, companions[i] = kept.companion;
    }
    write(parameters, slot.parameter, parameter);
    write(companions, slot.companion, companion);
  }
};

template <class T, class Form, class Rule>
void update_slot(UpdateSlot& slot, StateMask mask,
                 const typename Rule::template Numbers<T>& numbers) {
  const LoopNest<int(slot_tensors)> nest(slot.parameter, slot.gradient, slot.state[0],
                                         slot.state[1], slot.state[2], slot.companion);
  const T factor = slot.gradient_factor.defined() ? T(load_one(slot.gradient_factor, 0)) : T(1);
  nest.parallel_runs([&](const SlotOffsets& offsets, const SlotOffsets& steps, int64_t count) {
    const SlotRun<T> run{slot, offsets, steps, count};
    T weights[block_length], gradients[block_length], states[3][block_length];
    run.template read_weights<Form>(weights);
    run.read(slot.gradient, gradient, gradients);
    for (std::size_t s = 0; s < 3; ++s) run.read(slot.state[s], state + s, states[s]);
    for (int64_t i = 0; i < count; ++i) {
      T element_states[3] = {states[0][i], states[1][i], states[2][i]};
      Rule::apply(numbers, DynamicStates{mask}, gradients[i] * factor, weights[i], element_states);
      for (std::size_t s = 0; s < 3; ++s) states[s][i] = element_states[s];
    }
    if (rule::moves_weight<Rule>) run.template write_weights<Form>(weights);
    for (std::size_t s = 0; s < 3; ++s) run.write(states[s], slot.state[s], state + s);
  });
}

}  // namespace

void ReferenceBackend::update(std::span<UpdateSlot> slots, const UpdateCall& call) {
  if (skips(call)) return;
  call.rule.visit([&]<class Rule>(const Rule& rule) {
    for (UpdateSlot& slot : slots) {
      if (slot.has_coded_state()) {
        update_decoded(*this, slot, call);
        continue;
      }
      const int64_t before = steps_before(slot, call);
      visit_index(WeightForms{}, int(slot.form), [&]<class Form>() {
        if (slot.parameter.dtype() == f64)
          update_slot<double, Form, Rule>(slot, rule.states(),
                                          rule.template numbers<double>(rate_of(call), before));
        else
          update_slot<float, Form, Rule>(slot, rule.states(),
                                         rule.template numbers<float>(rate_of(call), before));
      });
      slot.bump_versions();
      count_update(slot);
    }
  });
}

namespace {
/// Calls use(block, n, its first number) for the blocks of a coded state, in parallel.
template <class Use>
void each_block(const Tensor& blocks, CodedForm form, int64_t numel, const Use& use) {
  uint8_t* const bytes = blocks.data<uint8_t>();
  const CodedFormFacts f = facts(form);
  parallel_pieces(f.blocks(numel), 64, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      use(bytes + i * f.block_bytes(), std::min(f.block, numel - i * f.block), i * f.block);
  });
}
}  // namespace

void ReferenceBackend::decode_blocks(const Tensor& blocks, Coding storage, Tensor& x) {
  const Codec& codec = codec_of(storage);
  each_block(blocks, storage.form, x.numel(), [&](const uint8_t* block, int64_t n, int64_t at) {
    float numbers[most_coded_together];
    decode_block(codec, block, n, numbers);
    store(numbers, n, x, at, 1);
  });
  x.storage()->bump_version();
}

void ReferenceBackend::encode_blocks(const Tensor& x, const Tensor& skip, Coding storage,
                                     Tensor& blocks) {
  if (skip.defined() && *skip.data<float>() != 0) return;
  const Codec& codec = codec_of(storage);
  each_block(blocks, storage.form, x.numel(), [&](uint8_t* block, int64_t n, int64_t at) {
    float numbers[most_coded_together];
    load(x, at, 1, n, numbers);
    encode_block(codec, numbers, n, block);
  });
  blocks.storage()->bump_version();
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

void ReferenceBackend::next_loss_scale(const LossScaleOptions& options, const Tensor& found_inf,
                                       Tensor& scale, Tensor& growth_tracker,
                                       Tensor& overflows_left) {
  const LossScale now{options, *scale.data<float>(), *growth_tracker.data<int64_t>(),
                      *overflows_left.data<int32_t>()};
  const LossScale then = next(now, *found_inf.data<float>() != 0);
  *scale.data<float>() = then.scale;
  *growth_tracker.data<int64_t>() = then.growth_tracker;
  *overflows_left.data<int32_t>() = then.overflows_left;
  for (const Tensor* x : {&scale, &growth_tracker, &overflows_left}) x->storage()->bump_version();
}

}  // namespace halftone
