// Stochastic weights: the optimizer's kernels draw the random numbers of the reference.
#include <halftone/autograd/ops.h>

#include "../../kernels/against_reference.h"

namespace halftone::test {
namespace {

struct Drawn {
  Tensors parameters, gradients, states;
};

/// Parameters of bf16 and gradients of f32, which are transposed if `turned`.
Drawn drawn(std::size_t count, bool turned) {
  Drawn d;
  for (std::size_t i = 0; i < count; ++i) {
    const Shape shape{31, 37 + int64_t(i % 4)};
    d.parameters.push_back(randn(shape, bf16));
    d.gradients.push_back(turned ? views::transpose(randn({shape[1], shape[0]}), 0, 1)
                                 : randn(shape));
    // As in update_test.cpp: the first state is far above the square of the third.
    for (int s = 0; s < 3; ++s) d.states.push_back(rand(shape) + (s == 0 ? 2.0 : 0.0));
  }
  return d;
}

Values updated(const Drawn& d, const UpdateRule& rule, Device device,
               uint64_t seed = 0x123456789abcdef) {
  const Tensors parameters = placed(d.parameters, device, 0),
                gradients = placed(d.gradients, device, 0), states = placed(d.states, device, 0);
  std::vector<UpdateSlot> slots;
  for (std::size_t i = 0; i < parameters.size(); ++i)
    slots.push_back({.parameter = parameters[i],
                     .gradient = gradients[i],
                     .state = {states[3 * i], states[3 * i + 1], states[3 * i + 2]},
                     .form = WeightForm::stochastic,
                     .key = {.seed = seed, .offset = (uint64_t(1) << 33) + 1000 * i}});
  backend_for(device).update(slots, {.rule = rule, .lr = 0.01, .steps = 3});
  Values all;
  for (const Tensor& x : parameters) {
    const Values some = x.to(Device::cpu()).to_vector<double>();
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

TEST_CASE("optimizer kernels: stochastic weights use the reference's random numbers") {
  const CpuBackendScope reference("reference");
  const UpdateRule moving[] = {rule::Adam{.weight_decay = 0.1, .amsgrad = true},
                               rule::Sgd{.momentum = 0.9, .nesterov = true},
                               rule::Rmsprop{.momentum = 0.5, .centered = true},
                               rule::Lion{.weight_decay = 0.1}};
  // A list of the shorter kind, one of the longer kind, and tensors that are updated one by one.
  for (const auto& [count, turned] : {std::pair{3, false}, {26, false}, {1, true}})
    for (const UpdateRule& rule : moving) {
      manual_seed(12);
      const Drawn d = drawn(std::size_t(count), turned);
      const Values wanted = updated(d, rule, Device::cpu());
      const auto differing = [&](const Values& got) {
        std::size_t count_of = 0;
        for (std::size_t i = 0; i < wanted.size(); ++i) count_of += got[i] != wanted[i];
        return count_of;
      };
      // nvcc contracts products and sums, so the f32 weights differ in their last bits. That
      // matters only if a random number is very close to the border.
      INFO(count, " tensors, turned: ", turned);
      CHECK(differing(updated(d, rule, Device::cuda())) * 200 <= wanted.size());
      CHECK(differing(updated(d, rule, Device::cpu(), 3)) * 10 > wanted.size());
    }
}

}  // namespace
}  // namespace halftone::test
