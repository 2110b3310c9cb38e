// Comparison with PyTorch: reads the results that tests/fixtures/pytorch/make_fixtures.py stored,
// runs the same case here, in f64 and in f32 and on every CPU backend, and compares the output and
// every gradient. A case is "name/x", "name/y", "name/dx". Tolerances follow from the spacing of
// the dtype and the length of the longest sum of a case.
#pragma once

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <halftone/halftone.h>

#include "../support.h"

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

/// Makes the inputs of the names of a module's parameters these parameters, so that they receive
/// the gradients.
class Taking final : public nn::Fields {
 public:
  Taking(nn::Module& module, const Inputs& in) : in_(in) { walk(module); }

 private:
  void parameter(const std::string& path, nn::Parameter& p) override {
    CHECK_MESSAGE(in_[path].shape() == p.shape(), path);
    static_cast<Tensor&>(p) = in_[path];
  }
  const Inputs& in_;
};
template <class M> M with_inputs(M module, const Inputs& in) {
  const Taking taking(module, in);
  return module;
}

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

// One case of an operation against PyTorch, with the dtypes of its results: tensors a, b, c and
// whole numbers n in; y, y2, ... out; da, db, dc from dy. The fixtures' scripts have `Cases` for
// them.

struct Arguments {
  Tensor a, b, c;
  std::vector<int64_t> n;
  int dim(std::size_t i) const { return int(n[i]); }
};
using Results = std::vector<Tensor>;
using Operation = std::function<Results(const Arguments&)>;

/// Returns "" if equal up to a few roundings; zeros must have equal signs if results are exact.
inline std::string compared(const Tensor& got, const Tensor& wanted, double roundings = 4) {
  if (got.dtype() != wanted.dtype() || got.shape() != wanted.shape()) {
    std::ostringstream text;
    text << described(got) << " where PyTorch has " << described(wanted);
    return text.str();
  }
  const double eps = epsilon(wanted.dtype());
  return difference(got, wanted,
                    eps == 0 ? 0 : roundings * eps * std::max(1.0, largest_magnitude(wanted)));
}

/// `roundings`: how many spacings gradients may differ by.
inline void check_case(const NamedTensors& stored, const Operation& operation,
                       double roundings = 4) {
  Arguments in{find(stored, "a"), find(stored, "b"), find(stored, "c"), {}};
  if (const Tensor n = find(stored, "n"); n.defined()) in.n = n.to_vector<int64_t>();
  for (const auto& [name, leaf] : {std::pair{"da", &in.a}, {"db", &in.b}, {"dc", &in.c}})
    if (stored.contains(name)) leaf->set_requires_grad();
  const Results results = operation(in);
  CHECK(compared(results[0], stored.at("y")) == "");
  for (std::size_t i = 1; stored.contains("y" + std::to_string(i + 1)); ++i) {
    REQUIRE(i < results.size());
    CHECK(compared(results[i], stored.at("y" + std::to_string(i + 1))) == "");
  }
  CHECK(!stored.contains("y" + std::to_string(results.size() + 1)));
  if (!stored.contains("dy")) return;
  results[0].backward(stored.at("dy"));
  for (const auto& [name, leaf] : {std::pair{"da", &in.a}, {"db", &in.b}, {"dc", &in.c}}) {
    CAPTURE(name);
    if (stored.contains(name)) CHECK(compared(leaf->grad(), stored.at(name), roundings) == "");
  }
}

// Compares a model of nn/models/ with the same model in PyTorch, from the results of
// tests/fixtures/pytorch/model_fixtures.py: logits in f32 and in bf16 throughout, and the losses of
// training in f32 and under autocast.

struct WholeModel {
  double lr;  // as in the fixture
  int depth;  // consecutive roundings: layers with weights
};

/// The reference, which is slow, runs only the first steps.
inline constexpr std::size_t steps_of_reference = 4;
inline std::size_t steps_on(std::string_view backend, const Tensor& losses) {
  const auto all = std::size_t(losses.numel());
  return backend == "reference" ? std::min(all, steps_of_reference) : all;
}

/// Two f32 trainings diverge slowly: each step adds to the last one's rounding errors.
inline constexpr double logits_tolerance = 1e-4, losses_tolerance = 1e-3;
/// Under autocast every activation is rounded to bf16, whose epsilon is 8e-3, and errors average.
inline constexpr double bf16_losses_tolerance = 2e-2;

/// Returns batch `index` modulo their number. Images are stored as bytes.
inline Tensor batch_of(const NamedTensors& stored, std::size_t index) {
  const Tensor x = stored.at("x");
  const Tensor batch = select(x, 0, int64_t(index) % x.size(0));
  return x.dtype() == u8 ? cast(batch, f32) / 256 : batch;
}

/// Trains from the stored weights; compares the loss before each step.
template <class Model>
void compare_losses(const NamedTensors& stored, const NamedTensors& state, Model& model, double lr,
                    std::string_view strategy, const Tensor& wanted, double relative) {
  nn::load_state_dict(model, state);
  model.train();
  optim::AdamW optimizer(model.parameters(), {.lr = lr});
  amp::Training training = amp::apply(amp::Policy::named(strategy), model, optimizer);
  const std::vector<double> losses = wanted.to_vector<double>();
  for (std::size_t step = 0; step < steps_on(backend_for(wanted).name(), wanted); ++step) {
    CAPTURE(strategy);
    CAPTURE(step);
    const Tensor t = stored.at("t");
    const Tensor targets = select(t, 0, int64_t(step) % t.size(0));
    training.zero_grad();
    const Tensor loss = cross_entropy(training.forward(model, batch_of(stored, step)), targets);
    training.backward(loss);
    CHECK(training.step());
    CHECK(std::abs(loss.item() / losses[step] - 1) <= relative);
  }
}

template <class Model>
void compare_whole_model(const std::map<std::string, NamedTensors>& cases, const std::string& name,
                         Model& model, const WholeModel& facts) {
  CAPTURE(name);
  const NamedTensors &stored = cases.at(name), &state = cases.at(name + "/state");
  const nn::LoadReport report = nn::load_state_dict(model, state);
  CHECK(report.missing.empty());
  CHECK(report.unexpected.empty());

  const auto compare_logits = [&](const char* key, double relative) {
    CAPTURE(key);
    const Tensor want = stored.at(key);
    const NoGrad no_grad;
    model.eval();
    const Tensor x = batch_of(stored, 0);
    const DType dtype = model.parameters()[0].dtype();
    const Tensor got = model(is_floating(x.dtype()) ? cast(x, dtype) : x);
    CHECK(got.dtype() == want.dtype());
    CHECK(difference(got, want, relative * largest_magnitude(want)) == "");
  };
  compare_logits("eval", logits_tolerance);
  const Tensor losses = stored.at("losses");
  compare_losses(stored, state, model, facts.lr, "fp32", losses, losses_tolerance);
  if (steps_on(backend_for(losses).name(), losses) == std::size_t(losses.numel()))
    compare_logits("after", 10 * losses_tolerance);
  if (stored.contains("losses_bf16"))
    compare_losses(stored, state, model, facts.lr, "amp-bf16", stored.at("losses_bf16"),
                   bf16_losses_tolerance);
  nn::load_state_dict(model, state);
  model.to(bf16);
  compare_logits("eval_bf16", epsilon(bf16) * std::sqrt(double(facts.depth)));
}

}  // namespace halftone::test
