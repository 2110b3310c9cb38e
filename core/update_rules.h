// How a trained weight survives a short storage format, and the rules of elementwise optimizers,
// each stated once for every backend.
#pragma once

#include <bit>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>
#include <type_traits>
#include <utility>

#include <halftone/core/dtype.h>
#include <halftone/core/language.h>
#include <halftone/core/math.h>
#include <halftone/core/random.h>
#include <halftone/core/words.h>

namespace halftone {

// How a trained weight survives a short storage format. A bf16 parameter cannot hold an update
// below half a spacing (2^-9 of the weight), so a second tensor or chance must help:
//
//   form           companion           the weight is                 source
//   plain          -                   the parameter, nearest even
//   master         f32                 the companion                 Micikevicius et al. 2018
//   split          i16, lower half     both halves of the f32        Kalamkar et al. 2020 (IPEX)
//   split_rounded  i16, signed rest    the same, upper half rounded  TransformerEngine
//   kahan          the parameter's     parameter + companion         Zamirai et al. 2020
//   stochastic     -                   the parameter, right on       Gupta et al. 2015
//                                      average
//
// Each is one struct here: the facts, and the arithmetic of one element, which every backend's
// updates use. To add one: a struct, its places in WeightForm and WeightForms, and a strategy.

enum class WeightForm : uint8_t { plain, master, split, split_rounded, kahan, stochastic };

/// The stored parts of a weight, as numbers of the dtypes that store them (i16: whole numbers).
template <class T> struct KeptWeight { T parameter, companion; };

/// Rounds away from zero with a probability equal to the dropped part of a spacing, else towards
/// zero: the expected value is `value`. random: 16 uniform bits. Infinities and NaN stay.
HT_HD constexpr BFloat16 round_stochastically(float value, uint16_t random) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const bool finite = (bits & 0x7f800000u) != 0x7f800000u;
  return BFloat16::from_bits(finite ? uint16_t((bits + random) >> 16) : BFloat16::round(value));
}

/// Returns the 16 random bits of element i under a key: half i % 2 of word i / 2.
HT_HD uint16_t random_half(RandomKey key, uint64_t i) {
  const uint32_t word = Philox::words(key.seed, key.offset + i / 8)[i / 2 % 4];
  return uint16_t(i % 2 ? word >> 16 : word);
}

/// Which tensor holds the whole weight: the parameter, its companion, or both together (decode()
/// joins them).
enum class WeightLies : uint8_t { in_parameter, in_companion, in_both };

// A form has
//   name, companion   the entry of a state dictionary; "" if it has none
//   lies              which tensor holds the weight
//   companion_dtype   for a parameter of a dtype; undefined without one
//   only_bf16         parameters of other dtypes cannot be kept
//   uses_random, uses_rounded   other arguments that encode() reads
//   decode(parameter, companion)         the weight
//   encode(weight, rounded, random)      its stored parts; rounded: the weight rounded to the
//                                        parameter's dtype, random: 16 uniform bits
// T is float, or double for f64 parameters.
namespace form {

struct Plain {
  static constexpr std::string_view name = "plain", companion = "";
  static constexpr WeightLies lies = WeightLies::in_parameter;
  static constexpr bool only_bf16 = false, uses_random = false, uses_rounded = false;
  static constexpr DType companion_dtype(DType) { return f32; }
  template <class T> HT_HD static T decode(T parameter, T /*companion*/) { return parameter; }
  template <class T> HT_HD static KeptWeight<T> encode(T, T rounded, uint16_t) {
    return {rounded, 0};
  }
};

struct Master {
  static constexpr std::string_view name = "master", companion = "master";
  static constexpr WeightLies lies = WeightLies::in_companion;
  static constexpr bool only_bf16 = false, uses_random = false, uses_rounded = false;
  static constexpr DType companion_dtype(DType) { return f32; }
  template <class T> HT_HD static T decode(T /*parameter*/, T companion) { return companion; }
  template <class T> HT_HD static KeptWeight<T> encode(T weight, T rounded, uint16_t) {
    return {rounded, weight};
  }
};

/// The parameter is the upper half of the f32's bits: forward sees the weight rounded towards zero.
struct Split {
  static constexpr std::string_view name = "split", companion = "remainder";
  static constexpr WeightLies lies = WeightLies::in_both;
  static constexpr bool only_bf16 = true, uses_random = false, uses_rounded = false;
  static constexpr DType companion_dtype(DType) { return i16; }
  template <class T> HT_HD static T decode(T parameter, T companion) {
    const auto lower = uint32_t(int32_t(companion)) & 0xffffu;
    return T(std::bit_cast<float>(std::bit_cast<uint32_t>(float(parameter)) | lower));
  }
  template <class T> HT_HD static KeptWeight<T> encode(T weight, T, uint16_t) {
    const uint32_t bits = std::bit_cast<uint32_t>(float(weight));
    return {T(std::bit_cast<float>(bits & 0xffff0000u)), T(int16_t(bits & 0xffffu))};
  }
};

/// The parameter is the weight rounded to nearest, ties away from zero; a negative rest means that
/// it was rounded up. NaN stays NaN only if its upper half is NaN: training has failed long before.
struct SplitRounded {
  static constexpr std::string_view name = "split_rounded", companion = "remainder_rounded";
  static constexpr WeightLies lies = WeightLies::in_both;
  static constexpr bool only_bf16 = true, uses_random = false, uses_rounded = false;
  static constexpr DType companion_dtype(DType) { return i16; }
  template <class T> HT_HD static T decode(T parameter, T companion) {
    const int32_t rest = int32_t(companion);
    const uint32_t upper = std::bit_cast<uint32_t>(float(parameter)) - (rest < 0 ? 0x10000u : 0u);
    return T(std::bit_cast<float>(upper | (uint32_t(rest) & 0xffffu)));
  }
  template <class T> HT_HD static KeptWeight<T> encode(T weight, T, uint16_t) {
    const uint32_t bits = std::bit_cast<uint32_t>(float(weight));
    const uint32_t upper = (bits + ((bits & 0x8000u) << 1)) & 0xffff0000u;
    return {T(std::bit_cast<float>(upper)), T(int16_t(bits & 0xffffu))};
  }
};

/// The companion is the part that the parameter lacks, in the parameter's own dtype.
struct Kahan {
  static constexpr std::string_view name = "kahan", companion = "compensation";
  static constexpr WeightLies lies = WeightLies::in_both;
  static constexpr bool only_bf16 = false, uses_random = false, uses_rounded = true;
  static constexpr DType companion_dtype(DType parameter) { return parameter; }
  template <class T> HT_HD static T decode(T parameter, T companion) {
    return parameter + companion;
  }
  template <class T> HT_HD static KeptWeight<T> encode(T weight, T rounded, uint16_t) {
    return {rounded, weight - rounded};
  }
};

struct Stochastic {
  static constexpr std::string_view name = "stochastic", companion = "";
  static constexpr WeightLies lies = WeightLies::in_parameter;
  static constexpr bool only_bf16 = true, uses_random = true, uses_rounded = false;
  static constexpr DType companion_dtype(DType) { return f32; }
  template <class T> HT_HD static T decode(T parameter, T /*companion*/) { return parameter; }
  template <class T> HT_HD static KeptWeight<T> encode(T weight, T, uint16_t random) {
    return {T(float(round_stochastically(float(weight), random))), 0};
  }
};

}  // namespace form

/// All forms, in the order of WeightForm.
using WeightForms = TypeList<form::Plain, form::Master, form::Split, form::SplitRounded,
                             form::Kahan, form::Stochastic>;
static_assert(WeightForms::size == std::size_t(WeightForm::stochastic) + 1);

/// The facts of a form, for code that runs once for each parameter.
struct WeightFormFacts {
  std::string_view name, companion;
  WeightLies lies = WeightLies::in_parameter;
  bool only_bf16 = false, uses_random = false, uses_rounded = false;
  DType (*companion_dtype)(DType parameter) = nullptr;
  bool has_companion() const { return !companion.empty(); }
};

namespace detail {
template <class... F> constexpr auto facts_of(TypeList<F...>) {
  return std::array<WeightFormFacts, sizeof...(F)>{
      WeightFormFacts{F::name, F::companion, F::lies, F::only_bf16, F::uses_random, F::uses_rounded,
                      F::companion_dtype}...};
}
inline constexpr auto form_facts = facts_of(WeightForms{});
}  // namespace detail

inline const WeightFormFacts& facts(WeightForm form) {
  return detail::form_facts[std::size_t(form)];
}

template <>
inline constexpr auto words_of<WeightForm> = [] {
  std::array<std::string_view, WeightForms::size> words{};
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = detail::form_facts[i].name;
  return words;
}();

// The rules of elementwise optimizers, each stated once for every backend: the loops of the
// reference, vectorized ones, CUDA kernels (HT_HD). Arithmetic is in C: float, or double for f64
// weights. To add one: a struct here, an entry in UpdateRules, and options in optim/
// (docs/adding_an_optimizer.md).
//
// A rule is an aggregate of its options with
//   Kinds, states()   which of three state tensors it reads and writes: bit i for state[i], and all
//                     the masks there can be, for which fast loops are compiled
//   Numbers<C>        values that all elements of a parameter share in a step;
//                     numbers(lr, before) computes them, with `before` the number of steps that
//                     came before
//   apply             one element: changes weight and state. `states.has(i)` reads the mask

using StateMask = unsigned;
template <StateMask... masks> using StateMasks = std::integer_sequence<StateMask, masks...>;
/// A mask that the compiler knows. DynamicStates has one that is known at run time only.
template <StateMask mask> struct StaticStates {
  HT_HD static constexpr bool has(int i) { return (mask >> i & 1u) != 0; }
};
struct DynamicStates {
  StateMask mask;
  HT_HD constexpr bool has(int i) const { return (mask >> i & 1u) != 0; }
};

namespace rule {

/// torch.optim.SGD; state[0] = momentum buffer, which the first step fills
struct Sgd {
  double momentum = 0, dampening = 0, weight_decay = 0;
  bool nesterov = false;

  using Kinds = StateMasks<0, 1>;
  StateMask states() const { return momentum != 0 ? 1 : 0; }
  template <class C> struct Numbers {
    C lr, weight_decay, keep, take, own, ahead;
    bool first;
  };
  template <class C> HT_HD Numbers<C> numbers(double lr, int64_t before) const {
    const bool first = before == 0;
    return {C(lr),
            C(weight_decay),
            C(momentum),
            first ? C(1) : C(1) - C(dampening),
            nesterov ? C(1) : C(0),
            nesterov ? C(momentum) : C(1),
            first};
  }
  template <class C, class States>
  HT_HD static void apply(const Numbers<C>& n, States states, C gradient, C& weight, C* state) {
    const C g = gradient + n.weight_decay * weight;
    if (states.has(0)) {
      state[0] = (n.first ? C(0) : n.keep * state[0]) + n.take * g;
      weight -= n.lr * (n.own * g + n.ahead * state[0]);
    } else {
      weight -= n.lr * g;
    }
  }
};

/// torch.optim.Adam (Kingma & Ba 2015) and, decoupled, AdamW (Loshchilov & Hutter 2019);
/// state[0], state[1] = first and second moment, state[2] = AMSGrad's largest second moment
struct Adam {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  bool decoupled = false, amsgrad = false;

  using Kinds = StateMasks<3, 7>;
  StateMask states() const { return amsgrad ? 7 : 3; }
  template <class C> struct Numbers { C step, decay, l2, rest1, beta2, rest2, inverse_root, eps; };
  template <class C> HT_HD Numbers<C> numbers(double lr, int64_t before) const {
    const auto t = double(before + 1);
    // 1 - beta is subtracted in double: in float it would be off by 1e-5
    return {C(lr) * C(1 / (1 - math::pow(beta1, t))),
            decoupled ? C(1 - double(C(lr)) * double(C(weight_decay))) : C(1),
            decoupled ? C(0) : C(weight_decay),
            C(1 - beta1),
            C(beta2),
            C(1 - beta2),
            C(1 / math::sqrt(1 - math::pow(beta2, t))),
            C(eps)};
  }
  template <class C, class States>
  HT_HD static void apply(const Numbers<C>& n, States states, C gradient, C& weight, C* state) {
    const C g = gradient + n.l2 * weight;
    state[0] += n.rest1 * (g - state[0]);
    state[1] = n.beta2 * state[1] + n.rest2 * g * g;
    C moment = state[1];
    if (states.has(2)) moment = state[2] = state[2] > moment ? state[2] : moment;
    const C denominator = math::sqrt(moment) * n.inverse_root + n.eps;
    weight = weight * n.decay - n.step * state[0] / denominator;
  }
};

/// torch.optim.RMSprop (Hinton 2012; centered: Graves 2013); state[0] = average of squares,
/// state[1] = momentum buffer, state[2] = average of gradients
struct Rmsprop {
  double alpha = 0.99, eps = 1e-8, weight_decay = 0, momentum = 0;
  bool centered = false;

  using Kinds = StateMasks<1, 3, 5, 7>;
  StateMask states() const { return 1u | (momentum != 0 ? 2u : 0u) | (centered ? 4u : 0u); }
  template <class C> struct Numbers { C lr, alpha, rest, eps, weight_decay, momentum; };
  template <class C> HT_HD Numbers<C> numbers(double lr, int64_t /*before*/) const {
    return {C(lr), C(alpha), C(1 - alpha), C(eps), C(weight_decay), C(momentum)};
  }
  template <class C, class States>
  HT_HD static void apply(const Numbers<C>& n, States states, C gradient, C& weight, C* state) {
    const C g = gradient + n.weight_decay * weight;
    state[0] = n.alpha * state[0] + n.rest * g * g;
    C variance = state[0];
    if (states.has(2)) {
      state[2] += n.rest * (g - state[2]);
      variance -= state[2] * state[2];
    }
    C step = g / (math::sqrt(variance) + n.eps);
    if (states.has(1)) step = state[1] = n.momentum * state[1] + step;
    weight -= n.lr * step;
  }
};

/// Lion (Chen et al. 2023, algorithm 2): the sign of an interpolated momentum, decay decoupled;
/// state[0] = momentum
struct Lion {
  double beta1 = 0.9, beta2 = 0.99, weight_decay = 0;

  using Kinds = StateMasks<1>;
  StateMask states() const { return 1; }
  template <class C> struct Numbers { C lr, decay, beta1, rest1, beta2, rest2; };
  template <class C> HT_HD Numbers<C> numbers(double lr, int64_t /*before*/) const {
    return {C(lr), C(1 - lr * weight_decay), C(beta1), C(1 - beta1), C(beta2), C(1 - beta2)};
  }
  template <class C, class States>
  HT_HD static void apply(const Numbers<C>& n, States, C gradient, C& weight, C* state) {
    const C u = n.beta1 * state[0] + n.rest1 * gradient;
    weight = weight * n.decay - n.lr * (u > C(0) ? C(1) : u < C(0) ? C(-1) : u);
    state[0] = n.beta2 * state[0] + n.rest2 * gradient;
  }
};

/// torch.optim.Adagrad (Duchi et al. 2011); state[0] = sum of squares, from `initial` on
struct Adagrad {
  double lr_decay = 0, weight_decay = 0, initial = 0, eps = 1e-10;

  using Kinds = StateMasks<1>;
  StateMask states() const { return 1; }
  template <class C> struct Numbers {
    C lr, weight_decay, initial, eps;
    bool first;
  };
  template <class C> HT_HD Numbers<C> numbers(double lr, int64_t before) const {
    return {C(lr / (1 + double(before) * lr_decay)), C(weight_decay), C(initial), C(eps),
            before == 0};
  }
  template <class C, class States>
  HT_HD static void apply(const Numbers<C>& n, States, C gradient, C& weight, C* state) {
    const C g = gradient + n.weight_decay * weight;
    state[0] = (n.first ? n.initial : state[0]) + g * g;
    weight -= n.lr * g / (math::sqrt(state[0]) + n.eps);
  }
};

/// torch.optim.NAdam (Dozat 2016): Adam with Nesterov's momentum, whose factor mu grows with the
/// steps; state[0], state[1] = moments
struct NAdam {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0, momentum_decay = 4e-3;
  bool decoupled = false;

  /// Returns mu of step t, counted from 1.
  HT_HD double mu(double t) const {
    return beta1 * (1 - 0.5 * math::pow(0.96, t * momentum_decay));
  }
  /// Returns mu(1) mu(2) ... mu(t). The loop is short: it ends when 1 - product no longer changes,
  /// or when mu no longer differs from beta1.
  HT_HD double mu_product(int64_t t) const {
    double product = 1;
    for (int64_t i = 1; i <= t && product > 1e-20; ++i) {
      const double next = mu(double(i));
      if (next == beta1) return product * math::pow(beta1, double(t - i + 1));
      product *= next;
    }
    return product;
  }

  using Kinds = StateMasks<3>;
  StateMask states() const { return 3; }
  template <class C> struct Numbers {
    C own, ahead, decay, l2, rest1, beta2, rest2, inverse_root, eps;
  };
  template <class C> HT_HD Numbers<C> numbers(double lr, int64_t before) const {
    const auto t = double(before + 1);
    const double product = mu_product(before + 1), now = mu(t), next = mu(t + 1);
    return {C(lr * (1 - now) / (1 - product)),
            C(lr * next / (1 - product * next)),
            decoupled ? C(1 - lr * weight_decay) : C(1),
            decoupled ? C(0) : C(weight_decay),
            C(1 - beta1),
            C(beta2),
            C(1 - beta2),
            C(1 / math::sqrt(1 - math::pow(beta2, t))),
            C(eps)};
  }
  template <class C, class States>
  HT_HD static void apply(const Numbers<C>& n, States, C gradient, C& weight, C* state) {
    const C g = gradient + n.l2 * weight;
    state[0] += n.rest1 * (g - state[0]);
    state[1] = n.beta2 * state[1] + n.rest2 * g * g;
    const C denominator = math::sqrt(state[1]) * n.inverse_root + n.eps;
    weight = weight * n.decay - (n.own * g + n.ahead * state[0]) / denominator;
  }
};

/// torch.optim.RAdam (Liu et al. 2020): Adam that leaves out the second moment in the first steps,
/// while its variance is unknown, and then corrects for it; state[0], state[1] = moments
struct RAdam {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  bool decoupled = false;

  using Kinds = StateMasks<3>;
  StateMask states() const { return 3; }
  template <class C> struct Numbers {
    C step, decay, l2, rest1, beta2, rest2, eps;
    bool adaptive;
  };
  template <class C> HT_HD Numbers<C> numbers(double lr, int64_t before) const {
    const auto t = double(before + 1);
    const double power = math::pow(beta2, t), rest = 1 - power, most = 2 / (1 - beta2) - 1;
    const double rho = most - 2 * t * power / rest;
    const bool adaptive = rho > 5;
    const double step = lr / (1 - math::pow(beta1, t));
    const double rectified =
        adaptive ? math::sqrt(rest * (rho - 4) * (rho - 2) * most / ((most - 4) * (most - 2) * rho))
                 : 1;
    return {C(step * rectified),
            decoupled ? C(1 - lr * weight_decay) : C(1),
            decoupled ? C(0) : C(weight_decay),
            C(1 - beta1),
            C(beta2),
            C(1 - beta2),
            C(eps),
            adaptive};
  }
  template <class C, class States>
  HT_HD static void apply(const Numbers<C>& n, States, C gradient, C& weight, C* state) {
    const C g = gradient + n.l2 * weight;
    state[0] += n.rest1 * (g - state[0]);
    state[1] = n.beta2 * state[1] + n.rest2 * g * g;
    weight =
        weight * n.decay - n.step * state[0] / (n.adaptive ? math::sqrt(state[1]) + n.eps : C(1));
  }
};

// --- parts of optimizers that are not elementwise: most do not change the weight

/// The parts of torch.optim.Adafactor (Shazeer & Stern 2018) that depend on the number of steps.
/// The slot's tensors have two uses. With `average`, its weight is the average of squares, and its
/// gradient the new squares. Otherwise its weight is a parameter, which decays, and its gradient
/// the direction along which it moves.
struct Adafactor {
  double beta2_decay = -0.8, weight_decay = 0;
  bool average = false;

  using Kinds = StateMasks<0>;
  StateMask states() const { return 0; }
  template <class C> struct Numbers { C keep, take; };
  template <class C> HT_HD Numbers<C> numbers(double lr, int64_t before) const {
    const auto t = double(before + 1);
    if (average) {
      const double take = math::pow(t, beta2_decay);
      return {C(1 - take), C(take)};
    }
    const double most = 1 / math::sqrt(t);
    return {C(1 - lr * weight_decay), C(lr < most ? -lr : -most)};
  }
  template <class C, class States>
  HT_HD static void apply(const Numbers<C>& n, States, C gradient, C& weight, C* /*state*/) {
    weight = n.keep * weight + n.take * gradient;
  }
};

/// Adam's step before its length is known, for LAMB (You et al. 2020, algorithm 2); state[0],
/// state[1] = moments, state[2] receives the direction, decay included
struct AdamDirection {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-6, weight_decay = 0;

  static constexpr bool moves_weight = false;
  using Kinds = StateMasks<7>;
  StateMask states() const { return 7; }
  template <class C> struct Numbers {
    C inverse1, rest1, beta2, rest2, inverse_root, eps, weight_decay;
  };
  template <class C> HT_HD Numbers<C> numbers(double /*lr*/, int64_t before) const {
    const auto t = double(before + 1);
    return {C(1 / (1 - math::pow(beta1, t))),           C(1 - beta1), C(beta2),       C(1 - beta2),
            C(1 / math::sqrt(1 - math::pow(beta2, t))), C(eps),       C(weight_decay)};
  }
  template <class C, class States>
  HT_HD static void apply(const Numbers<C>& n, States, C gradient, C& weight, C* state) {
    state[0] += n.rest1 * (gradient - state[0]);
    state[1] = n.beta2 * state[1] + n.rest2 * gradient * gradient;
    const C denominator = math::sqrt(state[1]) * n.inverse_root + n.eps;
    state[2] = n.inverse1 * state[0] / denominator + n.weight_decay * weight;
  }
};

/// An average of gradients, for Muon (Jordan et al. 2024); state[0] = average, state[1] receives
/// the direction: the average, or a step ahead of it
struct MomentumDirection {
  double momentum = 0.95;
  bool nesterov = true;

  static constexpr bool moves_weight = false;
  using Kinds = StateMasks<3>;
  StateMask states() const { return 3; }
  template <class C> struct Numbers { C rest, ahead; };
  template <class C> HT_HD Numbers<C> numbers(double /*lr*/, int64_t /*before*/) const {
    return {C(1 - momentum), nesterov ? C(momentum) : C(1)};
  }
  template <class C, class States>
  HT_HD static void apply(const Numbers<C>& n, States, C gradient, C& /*weight*/, C* state) {
    state[0] += n.rest * (gradient - state[0]);
    state[1] = gradient + n.ahead * (state[0] - gradient);
  }
};

/// Writes the full weight, joined from the parts of its form, to state[0].
struct ReadWeight {
  static constexpr bool moves_weight = false;
  using Kinds = StateMasks<1>;
  StateMask states() const { return 1; }
  template <class C> struct Numbers {};
  template <class C> HT_HD Numbers<C> numbers(double /*lr*/, int64_t /*before*/) const {
    return {};
  }
  template <class C, class States>
  HT_HD static void apply(const Numbers<C>&, States, C /*gradient*/, C& weight, C* state) {
    state[0] = weight;
  }
};

/// Whether a rule changes weights: true unless the rule sets it to false.
template <class R> inline constexpr bool moves_weight = true;
template <class R>
requires(!R::moves_weight) inline constexpr bool moves_weight<R> = false;

}  // namespace rule

using UpdateRules = TypeList<rule::Sgd, rule::Adam, rule::Rmsprop, rule::Lion, rule::AdamDirection,
                             rule::MomentumDirection, rule::ReadWeight, rule::Adagrad, rule::NAdam,
                             rule::RAdam, rule::Adafactor>;

/// A rule as backends receive it: its index in the list and its options.
class UpdateRule {
 public:
  template <class R>
  requires is_in_list<R, UpdateRules> UpdateRule(const R& rule)
      : index_(index_of<R, UpdateRules>) {  // NOLINT: any rule is one
    static_assert(std::is_trivially_copyable_v<R> && sizeof(R) <= sizeof options_);
    std::memcpy(options_, &rule, sizeof rule);
  }
  int index() const { return index_; }

  /// Calls visitor(rule) with the rule in its own type.
  template <class Visitor> void visit(Visitor&& visitor) const {
    visit_index(UpdateRules{}, index_, [&]<class R>() {
      R rule{};
      std::memcpy(static_cast<void*>(&rule), options_, sizeof rule);
      visitor(rule);
    });
  }
  StateMask states() const {
    StateMask mask = 0;
    visit([&](const auto& rule) { mask = rule.states(); });
    return mask;
  }

 private:
  int index_;
  alignas(double) std::byte options_[48];
};

}  // namespace halftone
