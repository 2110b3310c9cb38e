// For every operation in AllOps, on every backend: the result is that of the oracle in each
// dtype, other backends agree with the reference, errors have the expected text, and all bytes
// are freed.
#include "ops/properties.h"

#include <halftone/core/files.h>
#include <halftone/core/memory.h>

#include "ops/samples.h"

namespace halftone::test {

const std::vector<OpSamples>& all_samples() {
  static const std::vector<OpSamples> samples = make_all_samples();
  return samples;
}

const std::vector<Target>& targets() {
  static const std::vector<Target> present = [] {
    const char* const wanted = environment_variable("HALFTONE_TEST_BACKENDS");
    std::vector<Target> found;
    for (const BackendStatus& status : backend_statuses())
      if (status.backend &&
          (!wanted || std::string_view(wanted).find(status.name) != std::string_view::npos))
        found.push_back({status.name, status.name == "cuda" ? Device::cuda() : Device::cpu()});
    // Without targets every comparison would pass.
    if (found.empty())
      throw Error("[ops] no backend of HALFTONE_TEST_BACKENDS is present: \"" +
                  std::string(wanted ? wanted : "") + "\". Name one of reference, cpu, cuda.");
    return found;
  }();
  return present;
}

namespace properties {
namespace {

DType expected_dtype(const Case& test, DType dtype) { return test.output.value_or(dtype); }

TEST_CASE("forward is the oracle's result, in every dtype") {
  each_case(tested_dtypes, [](const OpSamples&, const Case& test, DType dtype) {
    const Tensors inputs = inputs_of(test, dtype);
    const Array expected = test.oracle(arrays_from(inputs));
    const Tensor y = test.call(inputs);
    CHECK(y.shape() == expected.shape);
    CHECK(y.dtype() == expected_dtype(test, dtype));
    CHECK(mismatch(y, expected.values, forward_tolerance(test, dtype)) == "");
  });
}

/// Forward and backward of a case on one target.
Outcome run_on(const Target& target, const Case& test, DType dtype) {
  const TargetScope scope(target);
  return run_case(test, inputs_of(test, dtype));
}

TEST_CASE("every backend equals the reference, forward and backward") {
  each_op([](const OpSamples& samples) {
    for (const Case& test : samples.cases)
      for (const DType dtype : tested_dtypes) {
        const Outcome plain = run_on({"reference", Device::cpu()}, test, dtype);
        for (const Target& target : targets()) {
          if (target.backend == "reference") continue;
          INFO(samples.name, ", ", test.name, ", ", std::string(target.backend), ", ",
               std::string(name(dtype)));
          const Outcome other = run_on(target, test, dtype);
          CHECK(mismatch(other.y, plain.y.to_vector<double>(), forward_tolerance(test, dtype)) ==
                "");
          for (std::size_t i = 0; i < plain.gradients.size(); ++i) {
            INFO("gradient of input ", i);
            REQUIRE(other.gradients[i].defined() == plain.gradients[i].defined());
            if (!plain.gradients[i].defined()) continue;
            CHECK(mismatch(other.gradients[i], plain.gradients[i].to_vector<double>(),
                           gradient_tolerance(test, dtype, plain.y.numel())) == "");
          }
        }
      }
  });
}

TEST_CASE("the ledger returns to its starting bytes") {
  constexpr std::array dtypes{f64, f32, bf16};
  each_case(dtypes, [](const OpSamples&, const Case& test, DType dtype) {
    const int64_t before = memory_report(test_device()).total_now;
    run_case(test, inputs_of(test, dtype));
    CHECK(memory_report(test_device()).total_now == before);
  });
}

// --- errors

/// The message of the error that `call` throws, checked for its kind; empty if it throws none.
std::string message_of(const std::function<void()>& call,
                       const std::function<bool(const Error&)>& is_kind) {
  try {
    call();
  } catch (const Error& e) {
    CHECK_MESSAGE(is_kind(e), "another kind of error: ", e.what());
    return e.what();
  }
  return {};
}
template <class Kind> std::string message_of(const std::function<void()>& call) {
  return message_of(call, [](const Error& e) { return dynamic_cast<const Kind*>(&e) != nullptr; });
}
bool contains_text(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}
/// A checkpoint's errors are its segment's.
std::string prefix_of(const OpSamples& samples) {
  return samples.name == "checkpoint" ? "[" : "[" + samples.name + "] ";
}

TEST_CASE("wrong inputs give the stated error") {
  each_op([](const OpSamples& samples) {
    CHECK(samples.errors.size() > 0);
    for (const std::string_view backend : {"reference", "cpu"})  // checks come before any backend
      for (const ErrorCase& wrong : samples.errors) {
        INFO(samples.name, ", ", std::string(backend), ": ", wrong.message);
        const CpuBackendScope scope(backend);
        const std::string message = message_of(wrong.call, wrong.is_kind);
        CHECK_MESSAGE(contains_text(message, wrong.message), "got: ", message);
        CHECK(message.starts_with("["));
      }
  });
}

/// Returns the inputs that some case leaves out.
bool is_optional(const OpSamples& samples, std::size_t position) {
  for (const Case& test : samples.cases)
    if (position < test.inputs.size() && test.inputs[position].kind == InputKind::absent)
      return true;
  return false;
}

TEST_CASE("undefined inputs are refused by name") {
  each_op([](const OpSamples& samples) {
    const Case& test = samples.cases[0];
    for (std::size_t i = 0; i < test.inputs.size(); ++i) {
      if (is_optional(samples, i)) continue;
      INFO(samples.name, ", input ", i);
      Tensors inputs = inputs_of(test, f32);
      inputs[i] = Tensor{};
      const std::string message = message_of<UsageError>([&] { test.call(inputs); });
      CHECK_MESSAGE(message.starts_with(prefix_of(samples)), "got: ", message);
      CHECK(contains_text(message, "is undefined. Pass a tensor."));
    }
  });
}

TEST_CASE("integers are refused where floats are needed") {
  each_op([](const OpSamples& samples) {
    if (samples.any_dtype) return;
    const Case& test = samples.cases[0];
    INFO(samples.name);
    Tensors inputs = inputs_of(test, f32);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const bool replaced = i == 0 || samples.mixed == Mixed::promotes;
      if (replaced && test.inputs[i].floating()) inputs[i] = ones(test.inputs[i].shape, i64);
    }
    const std::string message = message_of<DTypeError>([&] { test.call(inputs); });
    CHECK_MESSAGE(message.starts_with(prefix_of(samples)), "got: ", message);
    CHECK_MESSAGE(contains_text(message, " i64"), "got: ", message);
  });
}

TEST_CASE("mixed dtypes promote, or are refused by name") {
  each_op([](const OpSamples& samples) {
    const Case& test = samples.cases[0];
    const bool two = test.inputs.size() >= 2 && test.inputs[test.inputs.size() - 2].floating() &&
                     test.inputs[1].floating();
    if (!two) return;
    INFO(samples.name);
    Tensors inputs = inputs_of(test, f32);
    inputs[1] = cast(inputs[1], bf16);
    if (samples.mixed == Mixed::refuses) {
      const std::string message = message_of<DTypeError>([&] { test.call(inputs); });
      CHECK_MESSAGE(message.starts_with("[" + samples.name + "] dtypes differ"), "got: ", message);
    } else {
      CHECK(test.call(inputs).dtype() == expected_dtype(test, f32));
    }
  });
}

}  // namespace
}  // namespace properties
}  // namespace halftone::test
