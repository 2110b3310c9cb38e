// Runs a segment twice: first bare, then recorded. The second run sees the caster and the random
// numbers of the first, and its gradients are those of the first run.
#include <halftone/autograd/checkpoint.h>

#include <halftone/autograd/engine.h>
#include <halftone/autograd/slots.h>
#include <halftone/core/random.h>
#include <halftone/core/tensor.h>

namespace halftone {

Tensor Checkpoint::forward(std::span<const Tensor> in) {
  inputs.assign(in.begin(), in.end());
  const CasterScope region(caster);
  Tensor output;
  {
    const CallScope::Holding holding(before);
    output = segment(inputs).detach();
  }
  std::erase_if(before, [](const auto& buffers) { return !buffers->keep_changed(); });
  return output;
}

namespace {
/// The buffers of the first run, until its end.
class BuffersOfFirstRun {
 public:
  explicit BuffersOfFirstRun(const ListOfHeldBuffers& before) {
    for (const auto& buffers : before) now_.push_back(buffers->now());
    for (const auto& buffers : before) buffers->restore();
  }
  ~BuffersOfFirstRun() {
    for (const auto& buffers : now_) buffers->restore();
  }
  BuffersOfFirstRun(const BuffersOfFirstRun&) = delete;
  BuffersOfFirstRun& operator=(const BuffersOfFirstRun&) = delete;

 private:
  ListOfHeldBuffers now_{};
};

/// The random numbers of the first run, until its end.
class RandomOfFirstRun {
 public:
  explicit RandomOfFirstRun(RandomKey first) : now_(default_generator().state()) {
    default_generator().set_state(first);
  }
  ~RandomOfFirstRun() { default_generator().set_state(now_); }
  RandomOfFirstRun(const RandomOfFirstRun&) = delete;
  RandomOfFirstRun& operator=(const RandomOfFirstRun&) = delete;

 private:
  RandomKey now_;
};
}  // namespace

std::vector<Tensor> Checkpoint::backward(const Tensor& dy) const {
  std::vector<Tensor> again;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    again.push_back(inputs[i].defined() ? inputs[i].detach() : inputs[i]);
    if (wanted[i]) again.back().set_requires_grad();
  }
  {
    const BuffersOfFirstRun buffers(before);  // until the end: the second run's graph may save some
    Tensor output;
    {
      const RandomOfFirstRun random(random_state);
      const EnableGrad recording;
      const CasterScope region(caster);
      const CallScope scope(place);
      NoStatistics dropped;
      const StatisticsScope statistics(&dropped);
      output = segment(again);
    }
    if (output.requires_grad()) run_backward(output, dy, false);
  }
  std::vector<Tensor> gradients;
  for (std::size_t i = 0; i < again.size(); ++i) {
    gradients.push_back(wanted[i] ? again[i].grad() : Tensor{});
    if (gradients.back().defined()) gradients.back().storage()->recharge(MemoryUse::activation);
  }
  return gradients;
}

Tensor checkpoint(Segment segment, const std::vector<Tensor>& inputs) {
  Checkpoint op{.segment = std::move(segment),
                .caster = shared_active_caster(),
                .random_state = default_generator().state()};
  if (const CallScope* scope = CallScope::innermost()) op.place = scope->place();
  for (const Tensor& x : inputs) op.wanted.push_back(x.requires_grad());
  // The region's casts belong inside the segment: the inputs themselves pass without a cast.
  const CasterScope no_cast(nullptr);
  return apply(std::move(op), inputs);
}

}  // namespace halftone
