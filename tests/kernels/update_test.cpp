// Optimizer kernels, lists of tensors and random numbers, compared with the reference.
#include <random>

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
const std::vector<FormCase> usual_forms{
    {WeightForm::plain, f32, f32, f32},           {WeightForm::plain, bf16, bf16, bf16},
    {WeightForm::plain, f64, f64, f64},           {WeightForm::plain, f16, f16, f32},
    {WeightForm::plain, f16, f16, f16},           {WeightForm::master, bf16, bf16, f32},
    {WeightForm::master, f16, f32, f32},          {WeightForm::split, bf16, bf16, f32},
    {WeightForm::split_rounded, bf16, bf16, f32}, {WeightForm::kahan, bf16, bf16, bf16},
    {WeightForm::kahan, f16, f16, f32},           {WeightForm::stochastic, bf16, f32, f32},
};

/// Every combination of floats of at most 32 bits that core/update_rules.h allows.
std::vector<FormCase> all_forms() {
  std::vector<FormCase> all;
  for (const WeightForm form :
       {WeightForm::plain, WeightForm::master, WeightForm::kahan, WeightForm::split,
        WeightForm::split_rounded, WeightForm::stochastic})
    for (const DType parameter : {f32, bf16, f16})
      for (const DType gradient : {f32, bf16, f16})
        for (const DType state : {f32, bf16, f16})
          if (form < WeightForm::split || form == WeightForm::kahan || parameter == bf16)
            all.push_back({form, parameter, gradient, state});
  return all;
}

struct RuleCase {
  UpdateRule rule;
  int64_t steps;
};
const std::vector<RuleCase> usual_rules{
    {rule::Adam{.weight_decay = 0.1, .decoupled = true}, 3},
    {rule::Adam{.weight_decay = 0.1, .amsgrad = true}, 3},
    {rule::Sgd{.momentum = 0.9, .weight_decay = 0.01, .nesterov = true}, 0},
    {rule::Sgd{.weight_decay = 0.01}, 0},
    {rule::Rmsprop{.momentum = 0.5, .centered = true}, 0},
    {rule::Lion{.weight_decay = 0.1}, 0},
    {rule::Adagrad{.lr_decay = 0.1, .weight_decay = 0.1}, 3},
    {rule::NAdam{.weight_decay = 0.1}, 3},
    {rule::RAdam{.weight_decay = 0.1}, 8},
    {rule::Adafactor{.weight_decay = 0.1}, 3},
    {rule::AdamDirection{.weight_decay = 0.1}, 3},
    {rule::MomentumDirection{}, 0},
    {rule::ReadWeight{}, 0}};
const std::vector<RuleCase> other_rules{
    {rule::Adam{.beta2 = 0.99, .weight_decay = 0.1}, 1},
    {rule::Sgd{.momentum = 0.9, .dampening = 0.25, .weight_decay = 0.01}, 1},
    {rule::Sgd{.momentum = 0.9, .dampening = 0.25, .weight_decay = 0.01}, 0},
    {rule::Sgd{.momentum = 0.9, .weight_decay = 0.01, .nesterov = true}, 1},
    {rule::Rmsprop{}, 0},
    {rule::Rmsprop{.momentum = 0.9}, 0},
    {rule::Adagrad{.initial = 0.5}, 0},
    {rule::NAdam{.weight_decay = 0.1, .decoupled = true}, 0},
    {rule::RAdam{.weight_decay = 0.1, .decoupled = true}, 2},
    {rule::Adafactor{.average = true}, 3}};

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
    else if (*companion == i16) tensors.push_back(randint(-32768, 32768, shape, i16));
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
  visit_index(WeightForms{}, int(c.form), [&]<class Form>() {
    for (std::size_t i = 0; i < whole.size(); ++i) whole[i] = Form::decode(first[i], second[i]);
  });
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

/// Compares each rule with the reference, for each form, with and without a factor of gradients.
void check_forms(const std::vector<Shape>& shapes, const std::vector<FormCase>& forms,
                 const std::vector<RuleCase>& rules, bool has_factor = true) {
  for (const FormCase& c : forms) {
    INFO(std::string(name(c.form)), ", parameter ", c.parameter, ", gradient ", c.gradient,
         ", state ", c.state, ", factor ", has_factor);
    manual_seed(5);
    Tensors gradients;
    for (const Shape& shape : shapes) gradients.push_back(randn(shape, c.gradient));
    gradients.push_back(has_factor ? full({}, 0.5, f32) : Tensor{});
    const Tensors weights = weights_of(c, shapes), results = results_of(c, shapes, weights);
    Tensors inputs = gradients;
    if (in_both(c)) inputs.insert(inputs.end(), weights.begin(), weights.end());
    // The two parts of a Kahan weight in bf16 have 16 significant bits.
    const double epsilons = c.form == WeightForm::kahan ? 256 : 64;
    for (const RuleCase& used : rules)
      check_against_reference(
          inputs, results, epsilons, [&](Backend& backend, const Tensors& in, Tensors& out) {
            std::vector<UpdateSlot> slots = slots_of(c, in, out, in[shapes.size()]);
            const auto parts = std::span(in).subspan(shapes.size() + 1);
            for (std::size_t i = 0; i < slots.size() && in_both(c); ++i)
              slots[i].parameter = parts[2 * i], slots[i].companion = parts[2 * i + 1];
            backend.update(slots, {.rule = used.rule, .lr = 0.01, .steps = used.steps});
            for (std::size_t i = 0; i < slots.size() && in_both(c); ++i)
              backend.copy(whole_weight(c, slots[i].parameter, slots[i].companion), out[5 * i]);
          });
  }
}

TEST_CASE("optimizer kernels: every form, few tensors") {
  check_forms({Shape{1}, Shape{3}, Shape{31}, Shape{4096}, Shape{4097}}, usual_forms, usual_rules);
}
TEST_CASE(
    "optimizer kernels: every form, many tensors of many sizes, compared with the reference") {
  std::vector<Shape> shapes;
  for (const int64_t n : {0, 1, 3, 4, 5, 8193, 31}) shapes.push_back({n});  // chunks have 4096
  for (int i = 0; i < 30; ++i) shapes.push_back({2, 7 + i});                // more than one list
  check_forms(shapes, usual_forms, usual_rules);
}
TEST_CASE("optimizer kernels: every combination of dtypes with every setting, and many elements") {
  if (with_gpu()) return;
  for (const bool has_factor : {false, true})
    for (const auto& rules : {usual_rules, other_rules})
      check_forms({Shape{1}, Shape{7}, Shape{16}, Shape{1000}}, all_forms(), rules, has_factor);
  check_forms({Shape{100003}}, usual_forms, {usual_rules[0], other_rules[1], other_rules[3]});
}

/// Every rule, with the three states that it requires.
const UpdateRule every_rule[] = {rule::Adam{.weight_decay = 0.1, .amsgrad = true},
                                 rule::Sgd{.momentum = 0.9, .nesterov = true},
                                 rule::Rmsprop{.momentum = 0.5, .centered = true},
                                 rule::Lion{.weight_decay = 0.1},
                                 rule::Adagrad{.weight_decay = 0.1},
                                 rule::NAdam{.weight_decay = 0.1},
                                 rule::RAdam{.weight_decay = 0.1},
                                 rule::Adafactor{.weight_decay = 0.1},
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

constexpr CodedForm coded_forms[] = {CodedForm::dynamic8, CodedForm::linear8, CodedForm::dynamic4,
                                     CodedForm::e4m3, CodedForm::e4m3_expanded};

TEST_CASE("coded states: codes and numbers are the reference's") {
  manual_seed(13);
  for (const CodedForm form : coded_forms)
    for (const bool has_sign : {true, false})
      for (const int64_t n : sizes<int64_t>({1, 129, 1000}, {256, 100'001})) {
        INFO(std::string(name(form)), ", ", n);
        const Tensor powers = exp(randn({n}) * 3), x = has_sign ? powers * randn({n}) : powers;
        const Tensor blocks = coded_zeros(form, n, Device::cpu());
        const Coding storage{form, has_sign};
        // Powers and logarithms of the expanded form differ in the last bits.
        const bool same_codes = form != CodedForm::e4m3_expanded;
        check_against_reference(
            {x}, {same_codes ? blocks : Tensor{}, zeros({n}, f32)}, same_codes ? same : 0x1p20,
            [&](Backend& b, const Tensors& in, Tensors& out) {
              Tensor own = out[0].defined() ? out[0] : coded_zeros(form, n, in[0].device());
              b.encode_blocks(in[0], {}, storage, own);
              b.decode_blocks(own, storage, out[1]);
            });
      }
}

TEST_CASE("coded states: a fused update is decoding, the update, and encoding") {
  for (const KernelTarget& target : kernel_targets()) {
    INFO(target.name);
    const OnTarget scope(target);
    Backend& backend = backend_for(target.device);
    for (const CodedForm form : coded_forms)
      for (const int64_t n : sizes<int64_t>({1, 700}, {1024, 40'000})) {
        INFO(std::string(name(form)), ", ", n);
        manual_seed(14);
        const Tensor gradient = randn({n}, bf16).to(target.device), weight = randn({n}, bf16);
        const auto after = [&](bool fused, double skip) {
          std::vector<Values> values;
          UpdateSlot slot{.parameter = weight.to(target.device).clone(),
                          .gradient = gradient,
                          .form = WeightForm::stochastic,
                          .key = {.seed = 3, .offset = 5}};
          for (std::size_t s = 0; s < 2; ++s) {
            slot.state[s] = coded_zeros(form, n, target.device);
            slot.stored[s] = {form, s == 0};
          }
          for (int step = 0; step < 3; ++step) {
            const UpdateCall call{.rule = rule::Adam{.weight_decay = 0.1},
                                  .lr = 0.1,
                                  .steps = step,
                                  .skip = full({}, step == 2 ? skip : 0, f32, target.device)};
            if (fused) backend.update({&slot, 1}, call);
            else update_decoded(backend, slot, call);
            values.push_back(slot.parameter.to_vector<double>());
            for (const Tensor& x : {slot.state[0], slot.state[1]})
              values.push_back(x.to_vector<double>());
          }
          return values;
        };
        const auto fused = after(true, 0), skipped = after(true, 1);
        CHECK(fused == after(false, 0));
        CHECK(skipped == after(false, 1));
        for (int i = 0; i < 3; ++i) CHECK(skipped[6 + i] == skipped[3 + i]);
        CHECK(fused[3] != fused[0]);
      }
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

TEST_CASE("lists of gradients: scaling, the check, the sum of squares") {
  for (const auto& [dtype, dense] :
       {std::pair{f64, 120}, {f32, 120}, {f16, 120}, {bf16, 120}, {f32, 4}, {f16, 4}, {bf16, 4}}) {
    INFO(std::string(name(dtype)), ", ", dense);  // lists of both kinds
    Tensors gradients;
    for (int i = 0; i < dense; ++i) gradients.push_back(randn({1 + 37 * (i % 5), 3}, dtype));
    for (const int64_t n : sizes<int64_t>({}, {100003, 40000}))
      gradients.push_back(randn({n}, dtype));
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
  on_every_target([](Device device) {
    manual_seed(6);
    const auto sum_of = [&](const Tensors& tensors) {
      Tensor total = zeros({}, f64, device);
      backend_for(device).sum_of_squares(placed(tensors, device, 0), total);
      return total.item();
    };
    const auto wanted = [](const Tensors& tensors) {
      double sum = 0;
      for (const Tensor& x : tensors)
        for (const double v : x.to_vector<double>()) sum += v * v;
      return sum;
    };
    const Tensor ordinary = randn({20'000}), empty_one = zeros({5000});
    for (const double scale : {1.0, 1e30, 1e-30, 1e-22, 3e18, 1e-42}) {
      CAPTURE(scale);
      const Tensors list{ordinary * scale, empty_one, full({3}, scale, f32)};
      CHECK(sum_of(list) == doctest::Approx(wanted(list)).epsilon(1e-6));
      const Tensors mixed{cat({ordinary, full({1}, scale, f32)})};
      CHECK(sum_of(mixed) == doctest::Approx(wanted(mixed)).epsilon(1e-6));
    }
    CHECK(sum_of({empty_one}) == 0);
    CHECK(sum_of({full({3}, INFINITY, f32), ordinary}) == INFINITY);
    CHECK(std::isnan(sum_of({ordinary, full({3}, NAN, bf16)})));
    CHECK(std::isnan(sum_of({full({2}, INFINITY, f32), full({1}, NAN, f32)})));
  });
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

TEST_CASE("optimizer kernels: equal f32 results are rounded stochastically to the same bits") {
  // A plain step by powers of two is exact in f32, so only the rounding is left.
  check_against_reference({randn({5003}, bf16)}, {rand({5003}, bf16) * 4.0 - 2.0}, same,
                          [](Backend& backend, const Tensors& in, Tensors& out) {
                            UpdateSlot slot{.parameter = out[0],
                                            .gradient = in[0],
                                            .form = WeightForm::stochastic,
                                            .key = {3, 1234567}};
                            backend.update({&slot, 1}, {.rule = rule::Sgd{}, .lr = 0x1p-8});
                          });
}

TEST_CASE("optimizer kernels: stochastic weights use the reference's random numbers") {
  const UpdateRule moving[] = {rule::Adam{.weight_decay = 0.1, .amsgrad = true},
                               rule::Sgd{.momentum = 0.9, .nesterov = true},
                               rule::Rmsprop{.momentum = 0.5, .centered = true},
                               rule::Lion{.weight_decay = 0.1}, rule::NAdam{.weight_decay = 0.1}};
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

// The scalars on the device that an update reads: whether to skip, the learning rate, the number of
// steps. For every optimizer and form of weights.

namespace {

constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();
constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr std::array forms{WeightForm::plain,         WeightForm::master, WeightForm::split,
                           WeightForm::split_rounded, WeightForm::kahan,  WeightForm::stochastic};
enum class Kind { sgd, adam, adamw, rmsprop };
constexpr std::array kinds{Kind::sgd, Kind::adam, Kind::adamw, Kind::rmsprop};

/// Three slots: one of the given form, a plain f64 one, which the CPU backend passes to the
/// reference, and a plain f32 one of two chunks.
std::vector<UpdateSlot> slots_of(WeightForm form, Device device) {
  manual_seed(7);
  std::vector<UpdateSlot> slots;
  for (const DType dtype : {bf16, f64, f32}) {
    const Shape shape{dtype == f32 ? 4100 : 40};
    const auto numbers = [&] { return cast(rand(shape) - 0.25, dtype).to(device); };
    UpdateSlot slot{.parameter = numbers(), .gradient = numbers()};
    for (Tensor& state : slot.state)
      state = cast(rand(shape) + 0.5, dtype == f64 ? f64 : f32).to(device);
    if (dtype == bf16) {
      slot.form = form, slot.key = {3, 5};
      if (form == WeightForm::master) slot.companion = slot.parameter.to(f32);
      if (form == WeightForm::kahan) slot.companion = numbers() * 0x1p-9;
      if (form == WeightForm::split || form == WeightForm::split_rounded)
        slot.companion = cast(randint(-300, 300, shape), i16).to(device);
    }
    slots.push_back(slot);
  }
  return slots;
}

/// The arguments of an update, besides the slots.
struct Scalars {
  int64_t steps = 0;
  double lr = 0.1;
  Tensor skip{}, device_lr{};
};
void update(Kind kind, std::span<UpdateSlot> slots, const Scalars& s) {
  const UpdateRule rule =
      kind == Kind::sgd       ? UpdateRule(rule::Sgd{.momentum = 0.9, .dampening = 0.5})
      : kind == Kind::rmsprop ? UpdateRule(rule::Rmsprop{.momentum = 0.9, .centered = true})
                              : rule::Adam{.weight_decay = 0.1, .decoupled = kind == Kind::adamw};
  const auto here = [&](const Tensor& x) {
    return x.defined() ? x.to(slots[0].parameter.device()) : x;
  };
  backend_for(slots[0].parameter)
      .update(slots, {.rule = rule,
                      .lr = s.lr,
                      .steps = s.steps,
                      .skip = here(s.skip),
                      .device_lr = here(s.device_lr)});
}

std::vector<Tensor> tensors_of(const UpdateSlot& slot) {
  std::vector<Tensor> all{slot.parameter, slot.gradient};
  all.insert(all.end(), slot.state.begin(), slot.state.end());
  for (const Tensor& x : {slot.companion, slot.steps})
    if (x.defined()) all.push_back(x);
  return all;
}
/// Returns every byte of the slots, except those of the step counts.
std::string bytes_of(std::vector<UpdateSlot> slots) {
  std::string bytes;
  for (UpdateSlot& slot : slots) {
    slot.steps = {};
    for (const Tensor& tensor : tensors_of(slot)) {
      const Tensor x = tensor.to(Device::cpu());
      bytes.append(reinterpret_cast<const char*>(x.raw_data()), std::size_t(x.bytes()));
    }
  }
  return bytes;
}
void count_on_device(std::vector<UpdateSlot>& slots, const std::vector<int64_t>& steps) {
  for (std::size_t i = 0; i < slots.size(); ++i)
    slots[i].steps = scalar(double(steps[i]), i64).to(slots[i].parameter.device());
}
std::vector<uint64_t> versions_of(const std::vector<UpdateSlot>& slots) {
  std::vector<uint64_t> versions;
  for (const UpdateSlot& slot : slots)
    for (const Tensor& x : tensors_of(slot)) versions.push_back(x.storage()->version());
  return versions;
}

template <class Test> void everywhere(const Test& test) {
  on_every_target([&](Device device) {
    for (const Kind kind : kinds)
      for (const WeightForm form : forms) {
        INFO("optimizer ", int(kind), ", ", std::string(name(form)));
        test(kind, [=] { return slots_of(form, device); });
      }
  });
}

TEST_CASE("a skipped update changes nothing: no byte, no version, no count") {
  everywhere([](Kind kind, const auto& made) {
    for (const double skip : {1.0, -0.5, not_a_number}) {
      std::vector<UpdateSlot> slots = made();
      count_on_device(slots, {4, 4, 4});
      const std::string before = bytes_of(slots);
      const std::vector<uint64_t> versions = versions_of(slots);
      update(kind, slots, {.skip = scalar(skip)});
      CHECK(bytes_of(slots) == before);
      for (const UpdateSlot& slot : slots) CHECK(slot.steps.item() == 4);
      // The host does not know that a GPU skipped.
      if (slots[0].parameter.device() == Device::cpu()) CHECK(versions_of(slots) == versions);
    }
  });
}

TEST_CASE("an update that is not skipped is the ordinary one, and counts itself") {
  everywhere([](Kind kind, const auto& made) {
    for (const int64_t steps : {0, 1, 9}) {
      std::vector<UpdateSlot> plain = made(), slots = made();
      const std::string before = bytes_of(slots);
      count_on_device(slots, {steps, steps, steps});
      update(kind, plain, {.steps = steps});
      update(kind, slots, {.steps = 77, .skip = zeros({})});
      CHECK(bytes_of(slots) == bytes_of(plain));
      CHECK(bytes_of(slots) != before);
      for (const UpdateSlot& slot : slots) CHECK(slot.steps.item() == double(steps + 1));
    }
  });
}

TEST_CASE("slots that have done different numbers of steps, in one call") {
  everywhere([](Kind kind, const auto& made) {
    std::vector<UpdateSlot> together = made(), apart = made();
    count_on_device(together, {0, 5, 2});
    update(kind, together, {});
    for (std::size_t i = 0; i < apart.size(); ++i)
      update(kind, {&apart[i], 1}, {.steps = std::array{0, 5, 2}[i]});
    CHECK(bytes_of(together) == bytes_of(apart));
    for (std::size_t i = 0; i < together.size(); ++i)
      CHECK(together[i].steps.item() == std::array{1, 6, 3}[i]);
  });
}

TEST_CASE("a rate on the device replaces lr") {
  everywhere([](Kind kind, const auto& made) {
    std::vector<UpdateSlot> plain = made(), slots = made(), other = made();
    update(kind, plain, {.lr = 1.0 / 3});
    update(kind, slots, {.lr = 55, .device_lr = scalar(1.0 / 3, f64)});
    update(kind, other, {.lr = 0.2});
    CHECK(bytes_of(slots) == bytes_of(plain));
    CHECK(bytes_of(slots) != bytes_of(other));
  });
}

TEST_CASE("an update tells the owners of copies which tensors changed, as the reference does") {
  for (const Kind kind : kinds)
    for (const WeightForm form : forms) {
      const auto versions = [&](std::string_view backend) {
        const CpuBackendScope scope(backend);
        std::vector<UpdateSlot> slots = slots_of(form, Device::cpu());
        update(kind, slots, {});
        return versions_of(slots);
      };
      INFO("optimizer ", int(kind), ", ", std::string(name(form)));
      CHECK(versions("cpu") == versions("reference"));
    }
}

void check_loss_scale(Device device) {
  std::mt19937 random(5);
  for (int turn = 0; turn < 30; ++turn) {
    const auto pick = [&](int n) { return int(random() % unsigned(n)); };
    const LossScaleOptions options{
        .init_scale = 1024,
        .growth_factor = 1.5 + pick(3),
        .backoff_factor = 0.25 * (1 + pick(3)),
        .growth_interval = 1 + pick(4),
        .min_scale = pick(2) ? 0.5 : 0,
        .max_scale = pick(2) ? 1e6 : std::numeric_limits<double>::infinity(),
        .hysteresis = 1 + pick(3),
        .rule = HysteresisRule(pick(3)),
        .dynamic = pick(8) != 0};
    LossScale state{.options = options};
    Tensor scale = scalar(1024).to(device), tracker = zeros({}, i64, device);
    Tensor left = scalar(options.hysteresis, i32).to(device);
    const uint64_t before = scale.storage()->version();
    const int steps = device == Device::cpu() ? 200 : 20;
    for (int step = 0; step < steps; ++step) {
      const int kind = pick(6);  // 0: overflow, 1: found as NaN
      state = next(state, kind < 2);
      const double found = kind == 1 ? not_a_number : kind == 0 ? 1 : 0;
      backend_for(scale).next_loss_scale(options, scalar(found).to(device), scale, tracker, left);
      CHECK(scale.item() == double(state.scale));  // products alone: nothing to contract
      CHECK(tracker.item() == double(state.growth_tracker));
      CHECK(left.item() == state.overflows_left);
    }
    CHECK(scale.storage()->version() == before + uint64_t(steps));  // copies are old
  }
}

TEST_CASE("next_loss_scale on tensors is next() on numbers, over random steps") {
  on_every_target(check_loss_scale);
}

}  // namespace

// Lists of gradients of every dtype and layout: the check, scaling, sums of squares.

namespace {

/// Tensors of several sizes and layouts; the large ones are split into several tasks.
Tensors gradients(DType dtype, Device device) {
  manual_seed(40);
  Tensors all;
  const bool on_cpu = device == Device::cpu();
  for (const int64_t n : {1, 7, 1000, on_cpu ? 100003 : 9001, on_cpu ? 40000 : 4096, 3})
    all.push_back(cast(rand({n}) * 8.0 - 4.0, dtype).to(device));
  all.push_back(all[2].view_as({10, 100}, {1, 10}, 0).clone());  // dense, not row-major
  all.push_back(
      cast(rand({20, 30}), dtype).to(device).view_as({10, 30}, {60, 1}, 0));  // with holes
  return all;
}

struct Outcome {
  double found_inf;
  std::vector<Values> values;
  std::vector<uint64_t> versions;
};

Outcome unscaled(Tensors all, const Tensor& factor, double found_before = 0) {
  const Device device = all[0].device();
  Tensor found_inf = scalar(found_before).to(device);
  std::vector<uint64_t> before;
  for (const Tensor& x : all) before.push_back(x.storage()->version());
  backend_for(found_inf).unscale(all, factor.defined() ? factor.to(device) : factor, found_inf);
  Outcome outcome{found_inf.item(), {}, {}};
  for (std::size_t i = 0; i < all.size(); ++i) {
    outcome.values.push_back(all[i].to(Device::cpu()).to_vector<double>());
    outcome.versions.push_back(all[i].storage()->version() - before[i]);
  }
  return outcome;
}

TEST_CASE("unscaling by powers of two is exact; without a factor gradients are only checked") {
  on_every_target([](Device device) {
    for (const DType dtype : floating_dtypes)
      for (const Tensor& factor : {scalar(0x1p-3), Tensor{}}) {
        INFO(std::string(name(dtype)), ", factor ", factor.defined());
        const Outcome got = unscaled(gradients(dtype, device), factor);
        const CpuBackendScope reference("reference");
        // Sizes depend on the device.
        Tensors same_numbers;
        for (const Tensor& x : gradients(dtype, device))
          same_numbers.push_back(x.to(Device::cpu()));
        const Outcome wanted = unscaled(same_numbers, factor);
        CHECK(got.values == wanted.values);
        CHECK(got.versions == wanted.versions);
        CHECK(got.found_inf == 0);
      }
  });
}

TEST_CASE("any infinity or NaN is found_inf, before the factor, and all tensors are scaled") {
  on_every_target([](Device device) {
    for (const DType dtype : floating_dtypes)
      for (const double bad : {infinity, -infinity, not_a_number})
        for (const std::size_t tensor : {0u, 2u, 3u, 6u, 7u})
          for (const bool last : {false, true}) {
            INFO(std::string(name(dtype)), " ", bad, " in tensor ", tensor);
            const Tensors all = gradients(dtype, device);
            const Tensor& x = all[tensor];
            int64_t place = x.offset();
            for (int d = 0; last && d < x.rank(); ++d) place += (x.shape()[d] - 1) * x.strides()[d];
            Tensor element = x.view_as({1}, {1}, place);
            backend_for(device).fill(bad, element);
            const Outcome got = unscaled(all, scalar(0.0));
            CHECK(got.found_inf == 1);
            CHECK(got.values[1] == Values(7, 0.0));
            CHECK(unscaled(all, {}).found_inf == 1);  // infinity * 0 is NaN
          }
    CHECK(unscaled(gradients(f32, device), scalar(0.5), 1).found_inf == 1);
  });
}

TEST_CASE("a factor that overflows is not found_inf: gradients are checked before scaling") {
  on_every_target([](Device device) {
    const Outcome got =
        unscaled({full({3000}, 1e30, f32, device), full({3000}, 60000, f16, device)}, scalar(1e30));
    CHECK(got.found_inf == 0);
    CHECK(got.values[0][2999] == infinity);
    CHECK(got.values[1][2999] == infinity);
  });
}

TEST_CASE("many tensors, more than one list of them") {
  on_every_target([](Device device) {
    Tensors all;
    for (int i = 0; i < 700; ++i)
      all.push_back(full({i % 5 + 1}, 0.5, i % 2 ? bf16 : f32).to(device));
    Backend& backend = backend_for(device);
    Tensor total = zeros({}, f64, device), found_inf = zeros({}, f32, device);
    backend.sum_of_squares(all, total);
    CHECK(total.item() == 700 * 3 * 0.25);
    backend.unscale(all, scalar(2.0).to(device), found_inf);
    CHECK(found_inf.item() == 0);
    for (const Tensor& x : all) CHECK(x.to_vector<double>() == Values(std::size_t(x.numel()), 1.0));
    backend.fill(infinity, all[699]);
    backend.unscale(all, {}, found_inf);
    CHECK(found_inf.item() == 1);
  });
}

}  // namespace
}  // namespace halftone::test
