// Shared code of the property files: walking the table, running a case forward and backward, and
// tolerances, which are computed from the dtype and the length of the sums.
#pragma once

#include <doctest/doctest.h>

#include <array>
#include <limits>
#include <string_view>

#include <halftone/core/backend.h>

#include "ops/samples_case.h"

namespace halftone::test {

/// The table of tests/ops/samples.h, built once (properties.cpp).
const std::vector<OpSamples>& all_samples();

/// A backend that the table runs on, and the device of its tensors.
struct Target {
  std::string_view backend;
  Device device;
};
/// The backends of this machine (properties.cpp); HALFTONE_TEST_BACKENDS=cuda,cpu selects some of
/// them.
const std::vector<Target>& targets();
/// The backends on which the same numbers give the same bits for any dtype before they were
/// widened.
inline std::vector<Target> cpu_targets() {
  std::vector<Target> found = targets();
  std::erase_if(found, [](const Target& t) { return t.device.kind != DeviceKind::cpu; });
  return found;
}

/// For its scope, inputs of cases are made for this target.
class TargetScope {
 public:
  explicit TargetScope(const Target& target) : before_(test_device()) {
    if (target.device.kind == DeviceKind::cpu) cpu_.emplace(target.backend);
    test_device() = target.device;
  }
  ~TargetScope() { test_device() = before_; }
  TargetScope(const TargetScope&) = delete;
  TargetScope& operator=(const TargetScope&) = delete;

 private:
  Device before_;
  std::optional<CpuBackendScope> cpu_;
};

inline constexpr std::array<DType, 4> tested_dtypes{f64, f32, bf16, f16};

/// Calls body(samples) for every operation, as a subcase of the calling test case.
template <class Body> void each_op(const Body& body) {
  for (std::size_t i = 0; i < all_samples().size(); ++i) {
    const OpSamples& samples = all_samples()[i];
    // Two operations are named pow: the position tells their subcases apart.
    const std::string label = std::to_string(i) + " " + samples.name;
    SUBCASE(label.c_str()) { body(samples); }
  }
}

/// Calls body(samples, test, dtype) for every case of every operation on every backend.
template <class Body> void each_case(std::span<const DType> dtypes, const Body& body) {
  each_op([&](const OpSamples& samples) {
    for (const Case& test : samples.cases)
      for (const Target& target : targets())
        for (const DType dtype : dtypes) {
          INFO(samples.name, ", ", test.name, ", ", std::string(target.backend), ", ",
               std::string(name(dtype)));
          const TargetScope scope(target);
          body(samples, test, dtype);
        }
  });
}

inline Array array_from(const Tensor& x) {
  if (!x.defined()) return {};
  return Array(x.shape(), x.to_vector<double>());
}
inline Arrays arrays_from(const Tensors& tensors) {
  Arrays arrays;
  for (const Tensor& x : tensors) arrays.push_back(array_from(x));
  return arrays;
}

inline double largest_magnitude(const Values& values) {
  double largest = 0;
  for (const double v : values)
    if (std::isfinite(v)) largest = std::max(largest, std::abs(v));
  return largest;
}

/// |got - wanted| <= relative |wanted| + scaled max |wanted| + absolute.
struct Tolerance {
  double relative = 0, scaled = 0, absolute = 0;
};

/// Arithmetic is f32 for short floats: the rounding errors inside a kernel are those of f32.
inline double compute_epsilon(DType dtype) { return dtype == f64 ? epsilon(f64) : epsilon(f32); }

/// Rounding errors are independent enough to grow with the square root of their number: n terms
/// stay within lambda sqrt(n) unit roundoffs (half an epsilon) with probability 1 - 2 exp(-lambda^2
/// / 2), Higham and Mary 2019. Lambda is 4.
inline double error_growth(int64_t terms) { return 1 + 2 * std::sqrt(double(terms)); }

inline DType coarser(DType a, DType b) {
  if (!is_floating(a) || !is_floating(b)) return is_floating(a) ? a : b;
  return epsilon(a) > epsilon(b) ? a : b;
}
inline DType result_dtype(const Case& test, DType dtype) {
  return test.output ? coarser(*test.output, dtype) : dtype;
}

/// One rounding of the result to the dtype, one of each intermediate that is stored in it, and the
/// kernel's own errors.
inline Tolerance forward_tolerance(const Case& test, DType dtype) {
  const DType kept = result_dtype(test, dtype);
  const double inside = error_growth(test.reduced) * compute_epsilon(dtype);
  return {.relative = epsilon(kept),
          .scaled = test.condition * inside + test.roundings * test.condition * epsilon(kept),
          .absolute = facts(kept).smallest_subnormal};
}

/// Backward rounds its result, what it saved (one tensor at least), and the steps between.
inline Tolerance gradient_tolerance(const Case& test, DType dtype, int64_t terms) {
  const DType kept = result_dtype(test, dtype);
  const double inside = error_growth(std::max(terms, test.reduced)) * compute_epsilon(dtype);
  return {.relative = epsilon(kept),
          .scaled = test.condition * (inside + (3 + test.roundings) * epsilon(kept)),
          .absolute = 2 * facts(kept).smallest_subnormal};
}

inline Tolerance twice(Tolerance t) { return {2 * t.relative, 2 * t.scaled, 2 * t.absolute}; }

/// Returns an empty text if `got` is close to `wanted`, otherwise the worst element.
inline std::string mismatch(const Values& got, const Values& wanted, const Tolerance& t) {
  if (got.size() != wanted.size())
    return std::to_string(got.size()) + " values instead of " + std::to_string(wanted.size());
  const double scale = largest_magnitude(wanted);
  double worst = 1;
  std::ostringstream text;
  text.precision(9);
  for (std::size_t i = 0; i < got.size(); ++i) {
    const bool same = got[i] == wanted[i] || (std::isnan(got[i]) && std::isnan(wanted[i]));
    const double bound = t.relative * std::abs(wanted[i]) + t.scaled * scale + t.absolute;
    const double excess = same ? 0 : std::abs(got[i] - wanted[i]) / bound;
    if (excess <= worst) continue;
    worst = std::isnan(excess) ? std::numeric_limits<double>::infinity() : excess;
    text.str("");
    text << "element " << i << ": " << got[i] << " instead of " << wanted[i] << ", " << excess
         << " times the tolerance " << bound;
  }
  for (std::size_t i = 0; i < got.size(); ++i)
    if (std::isnan(got[i]) != std::isnan(wanted[i])) return "NaN at element " + std::to_string(i);
  return text.str();
}

inline std::string mismatch(const Tensor& got, const Values& wanted, const Tolerance& t) {
  return mismatch(got.to_vector<double>(), wanted, t);
}

/// The gradient that backward starts from: different values, all of one order of magnitude.
inline Tensor seed_for(const Tensor& y) {
  Values values(std::size_t(y.numel()));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = 0.75 + 0.5 * std::sin(1 + 2.3 * double(i));
  return from_vector(values, y.shape(), y.dtype(), y.device());
}

struct Outcome {
  Tensor y;
  Tensors gradients;  // one per input; undefined if not required
};

/// Returns the inputs as leaves; those that can be differentiated require gradients.
inline Tensors leaves_of(const Case& test, const Tensors& inputs) {
  Tensors leaves;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    leaves.push_back(inputs[i].defined() ? inputs[i].detach() : Tensor{});
    if (test.gradient && test.inputs[i].differentiable()) leaves.back().set_requires_grad();
  }
  return leaves;
}

/// Forward, and backward from `seed` (or seed_for) if the case has a gradient.
inline Outcome run_case(const Case& test, const Tensors& inputs, const Tensor& seed = {}) {
  const Tensors leaves = leaves_of(test, inputs);
  Outcome outcome{test.call(leaves), {}};
  if (test.gradient) outcome.y.backward(seed.defined() ? seed : seed_for(outcome.y));
  for (const Tensor& leaf : leaves)
    outcome.gradients.push_back(leaf.defined() ? leaf.grad() : Tensor{});
  outcome.y = outcome.y.detach();
  return outcome;
}

/// Whether a region casts a tensor.
inline bool eligible(const Tensor& x) {
  return x.defined() && is_floating(x.dtype()) && x.dtype() != f64;
}

/// The inputs of an operation of a cast class in a region of the short dtype `low`. Those of a
/// banned one stay as they are.
inline Tensors cast_by_hand(CastClass asked, const Tensors& inputs, DType low) {
  std::optional<DType> target;
  if (asked == CastClass::low_precision) target = low;
  if (asked == CastClass::full_precision) target = f32;
  if (asked == CastClass::widest_input)
    for (const Tensor& x : inputs)
      if (eligible(x)) target = target ? promote(*target, x.dtype()) : x.dtype();
  Tensors result;
  for (const Tensor& x : inputs) result.push_back(target && eligible(x) ? cast(x, *target) : x);
  return result;
}

/// Tensors of the same values in f64 (integers and bools as they are).
inline Tensors widened(const Tensors& inputs) {
  Tensors wide;
  for (const Tensor& x : inputs)
    wide.push_back(x.defined() && is_floating(x.dtype()) ? cast(x, f64) : x);
  return wide;
}

/// The dimensions in memory in the opposite order.
inline Tensor reversed(const Tensor& x) {
  Strides strides = Dims::filled(x.rank(), 1);
  for (int d = 1; d < x.rank(); ++d)
    strides[d] = strides[d - 1] * std::max<int64_t>(1, x.shape()[d - 1]);
  return views::with_strides(x, strides);
}

/// Every second element of a larger tensor; the elements between them must not be read.
inline Tensor stepped(const Tensor& x) {
  Shape larger = x.shape();
  if (x.rank() == 0) larger = {3};
  else larger[x.rank() - 1] = 2 * larger[x.rank() - 1] + 1;
  const double hole = is_floating(x.dtype()) ? std::numeric_limits<double>::quiet_NaN() : 99;
  const Tensor room = full(larger, hole, x.dtype(), x.device());
  Tensor view = x.rank() == 0 ? room.view_as({}, {}, 1)
                              : views::slice(room, x.rank() - 1, 1, x.shape()[x.rank() - 1], 2);
  backend_for(x).copy(x, view);
  return view;
}

}  // namespace halftone::test
