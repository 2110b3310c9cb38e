// Comparison with PyTorch: reads the results that tests/fixtures/pytorch/make_fixtures.py stored,
// runs the same case here, in f64 and in f32 and on every CPU backend, and compares the output and
// every gradient. A case is "name/x", "name/y", "name/dx". Tolerances follow from the spacing of
// the dtype and the length of the longest sum of a case.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <halftone/autograd/ops.h>
#include <halftone/core/backend.h>
#include <halftone/core/factory.h>
#include <halftone/core/named_tensors.h>

#include "../fixtures_directory.h"

namespace halftone::test {

using halftone::NamedTensors;

/// The cases of one file: tensors by name, by case.
inline std::map<std::string, NamedTensors> load_cases(const std::string& family) {
  const auto path = std::filesystem::path(fixtures_directory()) / (family + ".safetensors");
  std::map<std::string, NamedTensors> cases;
  for (const auto& [name, tensor] : load_safetensors(path).tensors) {
    const std::size_t slash = name.rfind('/');
    cases[name.substr(0, slash)][name.substr(slash + 1)] = tensor;
  }
  return cases;
}

inline Tensor find(const NamedTensors& tensors, const std::string& name) {
  const auto found = tensors.find(name);
  return found == tensors.end() ? Tensor{} : found->second;
}

/// The bound for the rounding errors of a sum of `terms` numbers up to `scale`. They grow with the
/// root of the number of terms (Higham & Mary 2019); 8 of them cover the few roundings before and
/// after the sum.
inline double tolerance(DType dtype, int64_t terms, double scale) {
  return 8 * epsilon(dtype) * std::sqrt(double(std::max<int64_t>(terms, 1))) * std::max(scale, 1.0);
}

inline double largest_magnitude(const Tensor& x) {
  double largest = 0;
  for (const double value : x.to_vector<double>())
    if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
  return largest;
}

/// Returns the place where two tensors differ by more than `tolerance`; empty if none does. NaN
/// equals NaN.
inline std::string difference(const Tensor& got, const Tensor& want, double tolerance) {
  std::ostringstream text;
  if (!got.defined()) return "nothing was computed";
  if (got.shape() != want.shape()) {
    text << "shape " << got.shape() << " instead of " << want.shape();
    return text.str();
  }
  const std::vector<double> a = got.to_vector<double>(), b = want.to_vector<double>();
  for (std::size_t i = 0; i < a.size(); ++i) {
    const bool same = a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]));
    if (same || std::abs(a[i] - b[i]) <= tolerance) continue;
    text.precision(17);
    text << "element " << i << " is " << a[i] << ", PyTorch has " << b[i] << ", they differ by "
         << std::abs(a[i] - b[i]) << ", allowed are " << tolerance;
    return text.str();
  }
  return {};
}

/// The inputs of a case by name; an undefined tensor for a name that it does not have.
class Inputs {
 public:
  explicit Inputs(NamedTensors tensors) : tensors_(std::move(tensors)) {}
  Tensor operator[](const std::string& name) const { return find(tensors_, name); }

 private:
  NamedTensors tensors_;
};

using Call = std::function<Tensor(const Inputs&)>;
using Calls = std::map<std::string, Call>;

inline void compare_case(const NamedTensors& stored, const Call& compute, DType dtype) {
  NamedTensors inputs;
  double scale = 1;
  int64_t terms = 1;
  for (const auto& [name, tensor] : stored) {
    scale = std::max(scale, largest_magnitude(tensor));
    terms = std::max(terms, tensor.numel());
    if (name == "y" || name[0] == 'd') continue;
    inputs[name] = is_floating(tensor.dtype()) ? cast(tensor, dtype) : tensor;
    if (stored.contains("d" + name)) inputs[name].set_requires_grad();
  }
  const double allowed = tolerance(dtype, terms, scale);
  const Tensor y = compute(Inputs(inputs));
  CHECK(y.dtype() == dtype);
  CHECK(difference(y, stored.at("y"), allowed) == "");
  y.backward(cast(stored.at("dy"), dtype));
  for (const auto& [name, input] : inputs) {
    CAPTURE(name);
    if (input.requires_grad())
      CHECK(difference(input.grad(), stored.at("d" + name), allowed) == "");
  }
}

/// Runs a table of computations against the cases of the same names, all of them, in f64 and f32.
inline void compare_all(const std::map<std::string, NamedTensors>& cases, const Calls& table) {
  for (const std::string_view backend : {"reference", "cpu"}) {
    const CpuBackendScope scope(backend);
    for (const auto& [name, compute] : table) {
      REQUIRE_MESSAGE(cases.contains(name), "there is no case ", name);
      for (const DType dtype : {f64, f32}) {
        CAPTURE(backend);
        CAPTURE(name);
        CAPTURE(facts(dtype).name);
        compare_case(cases.at(name), compute, dtype);
      }
    }
  }
}

/// Prints the cases that a table does not compute, in one line: unused fixtures test nothing.
inline std::string forgotten(const std::map<std::string, NamedTensors>& cases, const Calls& table) {
  std::string names;
  for (const auto& [name, tensors] : cases)
    if (!table.contains(name)) names += name + ' ';
  return names;
}

}  // namespace halftone::test
