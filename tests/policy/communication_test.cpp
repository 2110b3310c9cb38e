// The wire of a policy file: errors, reading and writing, and the wire of strategies.
#include <doctest/doctest.h>

#include "policy_cases.h"

namespace halftone::test::communication_test {
namespace {

TEST_CASE("communication: wire formats, of gradients only") {
  CHECK(refusal_of(R"("communication": "bf16")") ==
        "/communication: communication is an object, got a text.");
  CHECK(refusal_of(R"("communication": {"gradient": "bf16"})") ==
        "/communication/gradient: communication has no entry \"gradient\". Did you mean "
        "\"gradients\"?");
  CHECK(refusal_of(R"("communication": {"gradients": "bf61"})") ==
        "/communication/gradients: there is no wire format named \"bf61\". Did you mean \"bf16\"?");
  CHECK(refusal_of(R"("communication": {"gradients": "f8_e4m3+feedbak"})") ==
        "/communication/gradients: there is no wire format named \"f8_e4m3+feedbak\". Did you mean "
        "\"f8_e4m3+feedback\"?");
  CHECK(refusal_of(R"("communication": {"gradients": 16})") ==
        "/communication/gradients: expected a text, got a number.");
  CHECK(refusal_of(R"("communication": {"parameters": "bf16"})") ==
        "/communication/parameters: weights travel as they are, \"own\": rounded on their way they "
        "would be others than their owner's. Say \"own\", or give \"weights\" a short dtype.");
  CHECK(contains(refusal_of(R"("communication": {"parameters": "f17"})"),
                 "/communication/parameters: there is no wire format named \"f17\". "));
  CHECK(
      refusal_of(R"("extends": "fp64", "communication": {"gradients": "bf16"})") ==
      "/communication/gradients: weights are f64, and their gradients travel as they are. Use f32 "
      "weights, or \"own\".");
  CHECK(refusal_of(R"("communication": {"gradients": "own", "parameters": "own"})") == "accepted");
}

TEST_CASE("a wire is written, read, hashed and given to the strategy") {
  const std::string text =
      text_of(R"("extends": "amp-bf16", "communication": {"gradients": "bf16-sr+feedback"})");
  const policy::PolicyFile file = policy::read_text(text, "x"),
                           plain = test::file_of(R"("extends": "amp-bf16")");
  CHECK(contains(policy::write(file),
                 "\"communication\": {\n    \"gradients\": \"bf16-sr+feedback\",\n    "
                 "\"parameters\": \"own\"\n  }"));
  CHECK(policy::write(policy::read_text(policy::write(file), "again")) == policy::write(file));
  CHECK(policy::hash(file) != policy::hash(plain));
  CHECK(!contains(policy::write(plain), "communication"));  // as in versions without wires
  const amp::Strategy strategy = policy::parse(text);
  CHECK(name(strategy.wire) == "bf16-sr+feedback");
  CHECK(!strategy.session);  // other code does not need it
  CHECK(policy::write(policy::file_of(strategy)) == policy::write(file));
  amp::Strategy from_code = amp::Strategy::named("amp-bf16");
  from_code.wire = distributed::WireFormat::named("f16");
  CHECK(contains(policy::write(policy::file_of(from_code)), "\"gradients\": \"f16\""));
  amp::Strategy ruled =
      policy::parse(text_of(R"("extends": "amp-bf16", )"
                            R"("rules": [{"match": {"op": "linear"}, "input": "mxfp8"}])"));
  ruled.wire = from_code.wire;
  CHECK(contains(policy::write(policy::file_of(ruled)), "\"gradients\": \"f16\""));
}

}  // namespace
}  // namespace halftone::test::communication_test
