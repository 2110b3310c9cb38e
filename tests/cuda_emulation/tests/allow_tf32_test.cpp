// f32 products with and without TF32, to which the substitute for cuBLASLt rounds.
#include <doctest/doctest.h>

#include <halftone/core/backend.h>
#include <halftone/core/device.h>
#include <halftone/core/factory.h>
#include <halftone/core/formats/number_format.h>
#include <halftone/halftone.h>
#include <halftone/policy/resolved.h>

#include "../../policy/session_cases.h"

namespace halftone::test {
namespace {

Tensor rounded(const Tensor& x) {
  Tensor y = x.clone();
  for (int64_t i = 0; i < y.numel(); ++i)
    y.data<float>()[i] = round_to(formats::tf32, y.data<float>()[i]);
  return y;
}

std::vector<float> product(const Tensor& a, const Tensor& b) {
  Tensor c = empty({a.shape()[0], b.shape()[1]}, a.dtype(), Device::cuda());
  backend_for(c).matmul(a.to(Device::cuda()), b.to(Device::cuda()), {}, c);
  return c.to_vector<float>();
}

TEST_CASE(
    "factors of f32 products are rounded to TF32 where it is allowed, which it is not at first") {
  manual_seed(2);
  const Tensor a = randn({30, 40}), b = randn({40, 20});
  CHECK(!allow_tf32());
  const auto exact = product(a, b), of_rounded = product(rounded(a), rounded(b));
  CHECK(exact != of_rounded);
  set_allow_tf32(true);
  CHECK(product(a, b) == of_rounded);  // not the plan of the same shapes before
  set_allow_tf32(false);
  CHECK(product(a, b) == exact);
  // Short floats and f64 do not change.
  for (const DType dtype : {bf16, f64}) {
    const Tensor x = a.to(dtype), y = b.to(dtype);
    const auto before = product(x, y);
    set_allow_tf32(true);
    CHECK(product(x, y) == before);
    set_allow_tf32(false);
  }
}

struct Products {
  std::vector<float> y, dx, dweight;
  bool operator==(const Products&) const = default;
};
/// The results of a linear layer on the GPU under a rule.
Products products_under(const std::string& rule) {
  Pass pass(policy_with(rule));
  pass.model.to(Device::cuda());
  pass.x = pass.x.detach().to(Device::cuda()).set_requires_grad();
  pass.y = pass.training.forward([&](const Tensor& in) { return pass.model(in); }, pass.x);
  pass.y.backward(pass.seed().to(Device::cuda()));
  return {floats(pass.y), floats(pass.x.grad()), floats(pass.layer().weight.grad())};
}

TEST_CASE("a policy's \"tf32\" holds for its operations, forward and backward, and for no others") {
  const std::string linear = R"({"match": {"op": "linear"}, "compute": )";
  const Products exact = products_under(linear + R"("f32"})"),
                 allowed = products_under(linear + R"("tf32"})");
  CHECK(allowed.y != exact.y);
  CHECK(allowed.dx != exact.dx);
  CHECK(allowed.dweight != exact.dweight);
  CHECK(!allow_tf32());
  // The same factors, rounded by hand.
  CHECK(allowed == products_under(R"({"match": {"op": "linear"}, "input": "tf32", "weight": "tf32",
                           "grad_output": "tf32"})"));
  CHECK(products_under(R"({"match": {"path": "nowhere"}, "compute": "tf32", "optional": true})") ==
        exact);
  set_allow_tf32(true);  // for all other products as well
  CHECK(products_under(R"({"match": {"op": "linear"}, "weight": "none"})") == allowed);
  set_allow_tf32(false);
}

TEST_CASE("the setting \"tf32\" is in the table, in JSON and in the hash") {
  const auto resolved = [](const std::string& compute) {
    auto pass = std::make_unique<Pass>(
        policy_with(R"({"match": {"op": "linear"}, "compute": ")" + compute + "\"}"));
    pass->model.to(Device::cuda());
    pass->x = pass->x.detach().to(Device::cuda()).set_requires_grad();
    pass->training.forward([&](const Tensor& in) { return pass->model(in); }, pass->x);
    return pass;
  };
  const auto session = [](const Pass& pass) -> policy::PolicySession& {
    return policy::session_of(pass.training);
  };
  const auto with = resolved("tf32"), without = resolved("f32");
  CHECK(policy::resolved_table(session(*with)).find("low_precision | tf32 |") != std::string::npos);
  CHECK(policy::resolved_json(session(*with)).find(R"("computes_in": "tf32")") !=
        std::string::npos);
  CHECK(policy::resolved_hash(session(*with)) != policy::resolved_hash(session(*without)));
}

}  // namespace
}  // namespace halftone::test
