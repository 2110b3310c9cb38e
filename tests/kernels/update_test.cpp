// Optimizer kernels, lists of tensors and random numbers, compared with the reference.
#include <halftone/autograd/ops.h>
#include <halftone/core/error.h>
#include <halftone/core/loss_scale.h>
#include <halftone/core/update_rules.h>

#include "against_reference.h"

namespace halftone::test {
namespace {

struct FormCase {
  WeightForm form;
  DType parameter, gradient, state;
};
constexpr FormCase form_cases[] = {
    {WeightForm::plain, f32, f32, f32},           {WeightForm::plain, bf16, bf16, bf16},
    {WeightForm::plain, f64, f64, f64},           {WeightForm::plain, f16, f16, f32},
    {WeightForm::plain, f16, f16, f16},           {WeightForm::master, bf16, bf16, f32},
    {WeightForm::master, f16, f32, f32},          {WeightForm::split, bf16, bf16, f32},
    {WeightForm::split_rounded, bf16, bf16, f32}, {WeightForm::kahan, bf16, bf16, bf16},
    {WeightForm::kahan, f16, f16, f32},           {WeightForm::stochastic, bf16, f32, f32},
};

std::optional<DType> companion_of(const FormCase& c) {
  switch (c.form) {
    case WeightForm::master: return f32;
    case WeightForm::split:
    case WeightForm::split_rounded: return i16;
    case WeightForm::kahan: return c.parameter;
    default: return std::nullopt;
  }
}

/// Whether the weight is stored in two parts, parameter and companion.
bool in_both(const FormCase& c) {
  return c.form == WeightForm::split || c.form == WeightForm::split_rounded ||
         c.form == WeightForm::kahan;
}

/// Returns parameter and companion of each size.
Tensors weights_of(const FormCase& c, const std::vector<Shape>& shapes) {
  Tensors tensors;
  for (const Shape& shape : shapes) {
    tensors.push_back(randn(shape, c.parameter));
    const std::optional<DType> companion = companion_of(c);
    if (!companion) tensors.emplace_back();
    else if (*companion == i16) tensors.push_back(randint(0, 1000, shape, i16));
    else
      tensors.push_back(c.form == WeightForm::master ? randn(shape, f32)
                                                     : randn(shape, c.parameter) * 0.001);
  }
  return tensors;
}

/// The compared tensors: parameter, companion and three states of each size. nvcc contracts
/// products and sums, g++ does not. A weight of two parts may then be split differently, so
/// `parameter` is the whole weight, in f32. The first state is far above the square of the third;
/// otherwise the variance of a centered RMSprop would be only the rounding error of their
/// difference.
Tensors results_of(const FormCase& c, const std::vector<Shape>& shapes, const Tensors& weights) {
  Tensors tensors;
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    tensors.push_back(in_both(c) ? zeros(shapes[i], f32) : weights[2 * i]);
    tensors.push_back(in_both(c) ? Tensor{} : weights[2 * i + 1]);
    for (int s = 0; s < 3; ++s) tensors.push_back(rand(shapes[i], c.state) + (s == 0 ? 2.0 : 0.0));
  }
  return tensors;
}

/// The f32 weight that a parameter and its companion store in two parts.
Tensor whole_weight(const FormCase& c, const Tensor& parameter, const Tensor& companion) {
  const auto first = parameter.to_vector<float>(), second = companion.to_vector<float>();
  std::vector<float> whole(first.size());
  for (std::size_t i = 0; i < whole.size(); ++i)
    whole[i] = c.form == WeightForm::split ? form::Split::decode(first[i], second[i])
               : c.form == WeightForm::split_rounded
                   ? form::SplitRounded::decode(first[i], second[i])
                   : form::Kahan::decode(first[i], second[i]);
  return from_vector(whole, parameter.shape(), f32, parameter.device());
}

std::vector<UpdateSlot> slots_of(const FormCase& c, const Tensors& in, const Tensors& out,
                                 const Tensor& factor) {
  std::vector<UpdateSlot> slots;
  for (std::size_t i = 0; i * 5 < out.size(); ++i)
    slots.push_back({.parameter = out[5 * i],
                     .gradient = in[i],
                     .state = {out[5 * i + 2], out[5 * i + 3], out[5 * i + 4]},
                     .gradient_factor = factor,
                     .form = c.form,
                     .companion = out[5 * i + 1],
                     .key = {.seed = 11, .offset = 100 * i}});
  return slots;
}

/// Compares every rule with the reference, for every form.
void check_forms(const std::vector<Shape>& shapes) {
  for (const FormCase& c : form_cases) {
    INFO(std::string(name(c.form)), ", ", std::string(name(c.parameter)));
    manual_seed(5);
    Tensors gradients;
    for (const Shape& shape : shapes) gradients.push_back(randn(shape, c.gradient));
    gradients.push_back(full({}, 0.5, f32));
    const Tensors weights = weights_of(c, shapes), results = results_of(c, shapes, weights);
    Tensors inputs = gradients;
    if (in_both(c)) inputs.insert(inputs.end(), weights.begin(), weights.end());
    // The two parts of a Kahan weight in bf16 have 16 significant bits.
    const double epsilons = c.form == WeightForm::kahan ? 256 : 64;
    const auto with_slots = [&](const auto& step) {
      check_against_reference(
          inputs, results, epsilons, [&](Backend& backend, const Tensors& in, Tensors& out) {
            std::vector<UpdateSlot> slots = slots_of(c, in, out, in[shapes.size()]);
            const auto parts = std::span(in).subspan(shapes.size() + 1);
            for (std::size_t i = 0; i < slots.size() && in_both(c); ++i)
              slots[i].parameter = parts[2 * i], slots[i].companion = parts[2 * i + 1];
            step(backend, slots);
            for (std::size_t i = 0; i < slots.size() && in_both(c); ++i)
              backend.copy(whole_weight(c, slots[i].parameter, slots[i].companion), out[5 * i]);
          });
    };
    const auto with_rule = [&](const UpdateRule& rule, int64_t steps) {
      with_slots([&](Backend& b, std::vector<UpdateSlot>& slots) {
        b.update(slots, {.rule = rule, .lr = 0.01, .steps = steps});
      });
    };
    with_rule(rule::Adam{.weight_decay = 0.1, .decoupled = true}, 3);
    with_rule(rule::Adam{.weight_decay = 0.1, .amsgrad = true}, 3);
    with_rule(rule::Sgd{.momentum = 0.9, .weight_decay = 0.01, .nesterov = true}, 0);
    with_rule(rule::Sgd{.weight_decay = 0.01}, 0);
    with_rule(rule::Rmsprop{.momentum = 0.5, .centered = true}, 0);
    with_rule(rule::Lion{.weight_decay = 0.1}, 0);
    with_rule(rule::AdamDirection{.weight_decay = 0.1}, 3);
    with_rule(rule::MomentumDirection{}, 0);
    with_rule(rule::ReadWeight{}, 0);
  }
}

TEST_CASE("optimizer kernels: every form, few tensors") {
  check_forms({Shape{1}, Shape{3}, Shape{31}, Shape{4096}, Shape{4097}});
}
TEST_CASE(
    "optimizer kernels: every form, many tensors of many sizes, compared with the reference") {
  std::vector<Shape> shapes;
  for (const int64_t n : {0, 1, 3, 4, 5, 8193, 31}) shapes.push_back({n});  // chunks have 4096
  for (int i = 0; i < 30; ++i) shapes.push_back({2, 7 + i});                // more than one list
  check_forms(shapes);
}

/// Every rule, with the three states that it requires.
const UpdateRule every_rule[] = {rule::Adam{.weight_decay = 0.1, .amsgrad = true},
                                 rule::Sgd{.momentum = 0.9, .nesterov = true},
                                 rule::Rmsprop{.momentum = 0.5, .centered = true},
                                 rule::Lion{.weight_decay = 0.1},
                                 rule::AdamDirection{.weight_decay = 0.1},
                                 rule::MomentumDirection{},
                                 rule::ReadWeight{}};

TEST_CASE(
    "optimizer kernels: few tensors, also of another order of dimensions than their gradients") {
  for (const FormCase& c : {FormCase{WeightForm::plain, f32, f32, f32},
                            {WeightForm::stochastic, bf16, f32, f32},
                            {WeightForm::plain, f64, f64, f64}}) {
    INFO(std::string(name(c.form)));
    manual_seed(7);
    Tensors gradients, results;
    for (const Shape& shape : {Shape{5, 7}, Shape{70, 3}, Shape{4, 5, 3}}) {
      const int last = shape.rank() - 1;
      Shape turned = shape;
      std::swap(turned[0], turned[last]);
      gradients.push_back(shape[0] == 70 ? randn(shape, c.gradient)
                                         : views::transpose(randn(turned, c.gradient), 0, last));
      results.push_back(randn(shape, c.parameter)), results.emplace_back();
      for (int s = 0; s < 3; ++s) results.push_back(rand(shape, c.state) + (s == 0 ? 2.0 : 0.0));
    }
    gradients.push_back(full({}, 0.5, f32));
    for (const UpdateRule& rule : every_rule)
      check_against_reference(gradients, results, 64,
                              [&](Backend& b, const Tensors& in, Tensors& out) {
                                std::vector<UpdateSlot> slots = slots_of(c, in, out, in.back());
                                b.update(slots, {.rule = rule, .lr = 0.01, .steps = 3});
                              });
  }
}

TEST_CASE("many tensors take few launches, with the bits that each gets alone") {
  if (!with_gpu()) return;
  const Device gpu = Device::cuda();
  Backend& backend = backend_for(gpu);
  constexpr std::size_t count = 300;  // the longer lists hold fewer slots and more gradients
  manual_seed(8);
  Tensors gradients, weights, first, second;
  for (std::size_t i = 0; i < count; ++i) {
    const Shape shape{1 + int64_t(i * 53 % 97)};
    gradients.push_back(randn(shape, f32).to(gpu)), weights.push_back(randn(shape, bf16).to(gpu));
    first.push_back(zeros(shape, f32, gpu)), second.push_back(zeros(shape, f32, gpu));
  }
  const auto after = [&](std::size_t together) {
    Tensors updated;
    std::vector<UpdateSlot> slots;
    for (std::size_t i = 0; i < count; ++i) {
      updated.push_back(weights[i].clone());
      slots.push_back({.parameter = updated[i],
                       .gradient = gradients[i],
                       .state = {first[i].clone(), second[i].clone(), {}},
                       .form = WeightForm::stochastic,
                       .key = {.seed = 3, .offset = 1000 * i}});
    }
    for (std::size_t i = 0; i < count; i += together)
      backend.update(std::span(slots).subspan(i, std::min(together, count - i)),
                     {.rule = rule::Adam{.weight_decay = 0.1}, .lr = 0.1});
    std::vector<std::vector<float>> values;
    for (const Tensor& x : updated) values.push_back(x.to_vector<float>());
    return values;
  };
  const auto one_by_one = after(1);
  CHECK(after(count) == one_by_one);
  CHECK(after(17) == one_by_one);

  Tensor total = zeros({}, f64, gpu), found = zeros({}, f32, gpu);
  const int64_t before = emulation::kernel_launches();
  backend.unscale(gradients, {}, found);
  CHECK(emulation::kernel_launches() - before == 1);
  backend.sum_of_squares(gradients, total);
  CHECK(emulation::kernel_launches() - before == 4);  // cleared, summed, joined
  std::vector<UpdateSlot> slots;
  for (std::size_t i = 0; i < 148; ++i)  // as many as GPT-2 has
    slots.push_back({.parameter = weights[i], .gradient = gradients[i], .state = {first[i]}});
  const int64_t all = emulation::kernel_launches();
  backend.update(slots, {.rule = rule::Sgd{.momentum = 0.9}, .lr = 0.1});
  CHECK(emulation::kernel_launches() - all == 2);  // the numbers of the step, and the step
}

TEST_CASE("a skipped update changes nothing, another one counts itself") {
  if (!with_gpu()) return;
  const Device gpu = Device::cuda();
  for (const double skip : {0.0, 1.0, std::nan("")}) {
    CAPTURE(skip);
    Tensor weight = ones({5000}, f32, gpu), first = zeros({5000}, f32, gpu),
           second = zeros({5000}, f32, gpu), steps = full({}, 7, i64, gpu);
    std::vector<UpdateSlot> slots{{.parameter = weight,
                                   .gradient = ones({5000}, f32, gpu),
                                   .state = {first, second, {}},
                                   .steps = steps}};
    backend_for(gpu).update(slots, {.rule = rule::Adam{},
                                    .lr = 0.1,
                                    .skip = full({}, skip, f32, gpu),
                                    .device_lr = full({}, 0.5, f64, gpu)});
    const bool stepped = skip == 0;
    CHECK(steps.item() == (stepped ? 8 : 7));
    CHECK((weight.to_vector<float>() == std::vector<float>(5000, 1)) == !stepped);
    CHECK((first.to_vector<float>() == std::vector<float>(5000, 0)) == !stepped);
    // Step 8 with the rate from the device: m = 0.1, v = 0.001, corrected by 1 - beta^8.
    const double m = 0.1 / (1 - std::pow(0.9, 8)), v = 0.001 / (1 - std::pow(0.999, 8));
    if (stepped)
      CHECK(weight.to_vector<double>()[4999] == doctest::Approx(1 - 0.5 * m / std::sqrt(v)));
  }
}

TEST_CASE("lists of gradients: scaling, the check, the sum of squares") {
  for (const auto& [dtype, dense] :
       {std::pair{f64, 120}, {f32, 120}, {f16, 120}, {bf16, 120}, {f32, 4}, {f16, 4}, {bf16, 4}}) {
    INFO(std::string(name(dtype)), ", ", dense);  // lists of both kinds
    Tensors gradients;
    for (int i = 0; i < dense; ++i) gradients.push_back(randn({1 + 37 * (i % 5), 3}, dtype));
    gradients.push_back(views::slice(randn({40, 6}, dtype), 1, 0, 3, 2));  // not dense
    Tensors results = gradients;
    results.back() = randn({40, 3}, dtype);
    // The squares of all dtypes but f64 are summed in f32 pieces.
    results.push_back(zeros({}, f32)), results.push_back(zeros({}, dtype == f64 ? f64 : f32));
    const Tensor factor = full({}, 0.25, f32);
    check_against_reference({factor}, results, 64, [](Backend& b, const Tensors& in, Tensors& out) {
      const std::size_t count = out.size() - 2;
      b.unscale(std::span(out).first(count), in[0], out[count]);
      b.sum_of_squares(std::span<const Tensor>(out).first(count), out[count + 1]);
      b.scale_all(std::span(out).first(count), in[0]);
    });
  }
}

TEST_CASE("lists of gradients that are not dense") {
  for (const DType dtype : {f64, f32}) {
    const Tensor factor = full({}, 0.25, f32);
    check_against_reference({factor}, {randn({40, 6}, dtype), zeros({}, f32), zeros({}, f64)}, 64,
                            [](Backend& b, const Tensors& in, Tensors& out) {
                              Tensors part{views::slice(out[0], 1, 0, 3, 2)};
                              b.unscale(part, in[0], out[1]);
                              b.sum_of_squares(part, out[2]);
                              b.scale_all(part, in[0]);
                            });
  }
}

TEST_CASE("sums of squares are right to 1e-6 at every size that f32 holds") {
  if (!with_gpu()) return;
  const Device gpu = Device::cuda();
  manual_seed(6);
  const auto sum_of = [&](const std::vector<Tensor>& tensors) {
    Tensors on_gpu;
    for (const Tensor& x : tensors) on_gpu.push_back(x.to(gpu));
    Tensor total = zeros({}, f64, gpu);
    backend_for(gpu).sum_of_squares(on_gpu, total);
    return total.item();
  };
  const auto wanted = [](const std::vector<Tensor>& tensors) {
    double sum = 0;
    for (const Tensor& x : tensors)
      for (const double v : x.to_vector<double>()) sum += v * v;
    return sum;
  };
  const Tensor ordinary = randn({20'000}), empty_one = zeros({5000});
  for (const double scale : {1.0, 1e30, 1e-30, 1e-22, 3e18, 1e-42}) {
    CAPTURE(scale);
    const std::vector<Tensor> list{ordinary * scale, empty_one, full({3}, scale, f32)};
    CHECK(sum_of(list) == doctest::Approx(wanted(list)).epsilon(1e-6));
    const std::vector<Tensor> mixed{cat({ordinary, full({1}, scale, f32)})};
    CHECK(sum_of(mixed) == doctest::Approx(wanted(mixed)).epsilon(1e-6));
  }
  CHECK(sum_of({empty_one}) == 0);
  CHECK(sum_of({full({3}, INFINITY, f32), ordinary}) == INFINITY);
  CHECK(std::isnan(sum_of({ordinary, full({3}, NAN, bf16)})));
  CHECK(std::isnan(sum_of({full({2}, INFINITY, f32), full({1}, NAN, f32)})));
}

TEST_CASE("one infinity anywhere is found") {
  if (!with_gpu()) return;
  const Device gpu = Device::cuda();
  for (const double bad : {double(NAN), double(INFINITY), double(-INFINITY)})
    for (const int64_t place : {0, 4095, 4096, 9998}) {
      Tensor x = zeros({9999}, bf16, gpu), found = zeros({}, f32, gpu);
      Tensor one = x.view_as({}, {}, place);
      backend_for(gpu).unscale({&x, 1}, {}, found);
      CHECK(found.item() == 0);
      backend_for(gpu).fill(bad, one);
      backend_for(gpu).unscale({&x, 1}, {}, found);
      CHECK(found.item() == 1);
    }
}

TEST_CASE("random numbers are the CPU's, number for number") {
  for (const DType dtype : floating_dtypes)
    for (const int64_t n : {0, 1, 4, 1021}) {
      INFO(std::string(name(dtype)), ", ", n);
      const RandomKey key{.seed = 9, .offset = 1234567890123};
      check_against_reference({rand({n}, dtype)},
                              {zeros({n}, dtype), zeros({n}, dtype), zeros({n}, dtype)}, 8,
                              [&](Backend& b, const Tensors& in, Tensors& out) {
                                b.uniform(-1, 2, key, out[0]);
                                b.normal(1, 2, key, out[1]);
                                b.dropout(in[0], 0.3, key, out[2]);
                              });
    }
  check_against_reference({}, {zeros({999}, i64)}, 0, [](Backend& b, const Tensors&, Tensors& out) {
    b.random_integers(-5, 1000, {.seed = 2, .offset = 7}, out[0]);
  });
}

TEST_CASE("random integers of a range that does not fit a word are refused") {
  if (!with_gpu()) return;
  Tensor x = zeros({3}, i64, Device::cuda());
  Backend& backend = backend_for(x);
  constexpr int64_t words = int64_t(1) << 32;
  backend.random_integers(-1, words - 1, {}, x);
  CHECK_THROWS_WITH_AS(backend.random_integers(-1, words, {}, x),
                       "[randint] cannot draw from [-1, 4294967296): the range must hold 1 to 2^32 "
                       "integers. Choose other bounds.",
                       UsageError);
  for (const int64_t low : {0, 5})
    CHECK_THROWS_WITH_AS(backend.random_integers(low, 0, {}, x),
                         doctest::Contains("the range must hold 1 to 2^32 integers"), UsageError);
}

TEST_CASE("the loss scale on the device is that of the pure function") {
  if (!with_gpu()) return;
  const Device gpu = Device::cuda();
  for (const HysteresisRule rule :
       {HysteresisRule::apex, HysteresisRule::megatron, HysteresisRule::deepspeed}) {
    const LossScaleOptions options{
        .init_scale = 1024, .growth_interval = 3, .hysteresis = 2, .rule = rule};
    LossScale state{.options = options};
    Tensor scale = full({}, 1024, f32, gpu), tracker = zeros({}, i64, gpu),
           left = full({}, 2, i32, gpu);
    Generator draws(1);
    for (int i = 0; i < 60; ++i) {
      const bool overflowed = draws.below(3) == 0;
      state = next(state, overflowed);
      backend_for(gpu).next_loss_scale(options, full({}, overflowed ? 1 : 0, f32, gpu), scale,
                                       tracker, left);
      CHECK(scale.item() == double(state.scale));  // products alone: nothing to contract
      CHECK(tracker.item() == double(state.growth_tracker));
      CHECK(left.item() == double(state.overflows_left));
    }
    CHECK(scale.storage()->version() == 60);  // owners of a copy must know that it is old
  }
}

}  // namespace

// Stochastic weights: the optimizer's kernels draw the random numbers of the reference.

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

constexpr uint64_t some_seed = 0x123456789abcdef;

Values updated(const Drawn& d, const UpdateRule& rule, Device device, uint64_t seed) {
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
  const UpdateRule moving[] = {rule::Adam{.weight_decay = 0.1, .amsgrad = true},
                               rule::Sgd{.momentum = 0.9, .nesterov = true},
                               rule::Rmsprop{.momentum = 0.5, .centered = true},
                               rule::Lion{.weight_decay = 0.1}};
  // A list of the shorter kind, one of the longer kind, and tensors that are updated one by one.
  for (const auto& [count, turned] : {std::pair{3, false}, {26, false}, {1, true}})
    for (const UpdateRule& rule : moving) {
      manual_seed(12);
      const Drawn d = drawn(std::size_t(count), turned);
      const auto of_the_reference = [&](uint64_t seed) {
        const CpuBackendScope reference("reference");
        return updated(d, rule, Device::cpu(), seed);
      };
      const Values wanted = of_the_reference(some_seed);
      const auto differing = [&](const Values& got) {
        std::size_t count_of = 0;
        for (std::size_t i = 0; i < wanted.size(); ++i) count_of += got[i] != wanted[i];
        return count_of;
      };
      // nvcc contracts products and sums, so the f32 weights differ in their last bits. That
      // matters only if a random number is very close to the border.
      INFO(count, " tensors, turned: ", turned);
      for (const KernelTarget& target : kernel_targets()) {
        const OnTarget scope(target);
        CHECK(differing(updated(d, rule, target.device, some_seed)) * 200 <= wanted.size());
      }
      CHECK(differing(of_the_reference(3)) * 10 > wanted.size());
    }
}

}  // namespace
}  // namespace halftone::test
