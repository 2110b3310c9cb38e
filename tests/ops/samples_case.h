// The vocabulary of the operation table. A case is a set of inputs, a call through the public
// functions, and an oracle: a naive f64 computation that uses only shapes from the library.
// tests/ops/samples.h collects the cases, tests/ops/properties*.cpp checks them.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <halftone/autograd/ops.h>

namespace halftone::test {

using Values = std::vector<double>;
using Tensors = std::vector<Tensor>;

/// A row-major array of doubles, which oracles read and write.
struct Array {
  Shape shape{};
  Values values{};

  Array() = default;
  explicit Array(const Shape& s, double fill = 0)
      : shape(s), values(std::size_t(numel_of(s)), fill) {}
  Array(const Shape& s, Values v) : shape(s), values(std::move(v)) {}

  int64_t size(int dim) const { return shape[dim]; }
  std::size_t place(const Dims& index) const {
    int64_t at = 0;
    for (int d = 0; d < shape.rank(); ++d) at = at * shape[d] + index[d];
    return std::size_t(at);
  }
  double& operator[](const Dims& index) { return values[place(index)]; }
  double operator[](const Dims& index) const { return values[place(index)]; }
  template <class... I> double& operator()(I... index) { return (*this)[Dims{int64_t(index)...}]; }
  template <class... I> double operator()(I... index) const {
    return (*this)[Dims{int64_t(index)...}];
  }
  /// The element that broadcasting assigns to `index` of a larger shape.
  double broadcast(const Dims& index) const {
    Dims own = Dims::filled(shape.rank(), 0);
    for (int d = 0; d < shape.rank(); ++d)
      if (shape[d] != 1) own[d] = index[index.rank() - shape.rank() + d];
    return (*this)[own];
  }
};
using Arrays = std::vector<Array>;

/// Calls body(index) for every index of a shape, in row-major order.
template <class Body> void each_index(const Shape& shape, const Body& body) {
  Dims index = Dims::filled(shape.rank(), 0);
  for (int64_t left = numel_of(shape); left > 0; --left) {
    body(std::as_const(index));
    for (int d = shape.rank() - 1; d >= 0 && ++index[d] == shape[d]; --d) index[d] = 0;
  }
}

/// The array whose element at each index is value(index).
template <class Value> Array array_of(const Shape& shape, const Value& value) {
  Array result(shape);
  each_index(shape, [&](const Dims& index) { result[index] = value(index); });
  return result;
}

/// data: the dtype under test, differentiable. constant: the same without a gradient.
/// wide: a parameter that stays f32 with short data. The others have the dtype of their name.
enum class InputKind { data, constant, wide, integers, condition, absent };

struct Input {
  Shape shape{};
  Domain domain{-2, 2};
  InputKind kind = InputKind::data;
  bool distinct = false;        // a shuffled arithmetic sequence, exact in every dtype: no ties
  std::vector<double> avoid{};  // kinks; values differ from them by 0.05 or more
  Values given{};               // these values instead of random ones

  bool floating() const {
    return kind == InputKind::data || kind == InputKind::constant || kind == InputKind::wide;
  }
  bool differentiable() const { return kind == InputKind::data || kind == InputKind::wide; }
};

inline Input integers(const Shape& shape, Values values) {
  return {.shape = shape, .kind = InputKind::integers, .given = std::move(values)};
}
inline Input condition(const Shape& shape) {
  return {.shape = shape, .domain = {0, 2}, .kind = InputKind::condition};
}
inline Input distinct(const Shape& shape) { return {.shape = shape, .distinct = true}; }
inline Input absent() { return {.kind = InputKind::absent}; }

struct Case {
  std::string name;
  std::vector<Input> inputs;
  std::function<Tensor(const Tensors&)> call;
  std::function<Array(const Arrays&)> oracle;

  int64_t reduced = 1;            // terms in the longest sum of a result
  std::optional<DType> output{};  // the result's dtype, if it is not that of the inputs
  bool gradient = true;           // false: no gradient (comparisons, positions)
  bool smooth = true;             // false: a rounding or a step inside; no finite differences
  bool any_strides = true;        // false: the result depends on the memory order (dropout)
  bool broadcast = false;         // expanded first, in the dtype before any cast
  int roundings = 0;              // intermediate results that are rounded to the dtype
  double condition = 1;           // by how much the function itself magnifies relative errors
};

struct ErrorCase {
  std::string message;  // the whole or a part
  std::function<void()> call;
  std::function<bool(const Error&)> is_kind;
};
template <class Kind> ErrorCase error(std::string message, std::function<void()> call) {
  return {std::move(message), std::move(call),
          [](const Error& e) { return dynamic_cast<const Kind*>(&e) != nullptr; }};
}

/// An error of a Kind, with this message, from an expression.
#define REFUSES(Kind, message, ...) error<Kind>(message, [] { __VA_ARGS__; })

/// The result of an operation for two floating inputs of different dtypes.
enum class Mixed { promotes, refuses, accepts };

struct OpSamples {
  std::vector<Case> cases;
  std::vector<ErrorCase> errors{};
  bool any_dtype = false;  // also accepts integers
  Mixed mixed = Mixed::promotes;
  std::string name{};  // filled in from OpInfo, as is the next
  CastClass cast_class = CastClass::as_is;
};

/// The samples of an operation: static OpSamples make(). Not defined for an operation without
/// samples, so such an operation does not compile.
template <class Op> struct Samples;

/// A sequence of numbers that depends only on the seed (Vigna's splitmix64), so that tests repeat.
class Draw {
 public:
  explicit Draw(uint64_t seed) : state_(seed) {}
  uint64_t word() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  double uniform(double low, double high) {
    return low + (high - low) * double(word() >> 11) * 0x1p-53;
  }

 private:
  uint64_t state_;
};

/// Sixteenths around 0 in a shuffled order: exact in bf16 for at most 256 of them.
inline Values distinct_values(std::size_t count, Draw& draw) {
  Values values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = (double(i) - double(count / 2)) / 16;
  for (std::size_t i = count; i > 1; --i) std::swap(values[i - 1], values[draw.word() % i]);
  return values;
}

/// The values of input `position` of a case: the same in every run and every property.
inline Values values_of(const Case& test, std::size_t position) {
  const Input& input = test.inputs[position];
  if (!input.given.empty()) return input.given;
  const auto count = std::size_t(numel_of(input.shape));
  Draw draw(std::hash<std::string>{}(test.name) + position);
  if (input.distinct) return distinct_values(count, draw);
  Values values(count);
  for (double& value : values) {
    value = draw.uniform(input.domain.low, input.domain.high);
    for (const double kink : input.avoid)
      if (std::abs(value - kink) < 0.05) value = kink + 0.1;
    if (input.kind == InputKind::condition) value = value < 1 ? 0 : 1;
  }
  return values;
}

inline DType dtype_for(const Input& input, DType under_test) {
  if (input.kind == InputKind::integers) return i64;
  if (input.kind == InputKind::condition) return boolean;
  if (input.kind == InputKind::wide) return under_test == f64 ? f64 : f32;
  return under_test;
}

/// The device of the inputs of cases: see Target in properties.h.
inline Device& test_device() {
  static Device device = Device::cpu();
  return device;
}

inline Tensors inputs_of(const Case& test, DType dtype) {
  Tensors tensors;
  for (std::size_t i = 0; i < test.inputs.size(); ++i) {
    const Input& input = test.inputs[i];
    if (input.kind == InputKind::absent) tensors.emplace_back();
    else
      tensors.push_back(
          from_vector(values_of(test, i), input.shape, dtype_for(input, dtype), test_device()));
  }
  return tensors;
}

}  // namespace halftone::test
