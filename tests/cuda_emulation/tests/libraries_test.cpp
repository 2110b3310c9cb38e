// If cuBLASLt refuses a call, halftone's own kernel computes and nothing fails. The backend counts
// and reports which of the two computed.
#include <algorithm>

#include <cublasLt.h>

#include <doctest/doctest.h>

#include <halftone/backends/cuda/libraries.h>
#include <halftone/core/backend.h>
#include <halftone/core/factory.h>
#include <halftone/core/tensor.h>

#include "emulator.h"

namespace halftone::cuda {
namespace {

const Device gpu = Device::cuda();

struct Product {
  Tensor a, b, bias;
  std::vector<double> wanted;

  /// [m, 24] x [24, 10] + [10]; another m is another plan. The bias starts `offset` elements into
  /// its storage.
  Product(int64_t m, DType dtype, int64_t offset = 0)
      : a(randint(-4, 5, {m, 24}).to(dtype)),
        b(randint(-4, 5, {24, 10}).to(dtype)),
        bias(randint(-4, 5, {10}).to(dtype)) {
    const CpuBackendScope reference("reference");
    Tensor c = empty({m, 10}, dtype);
    backend_for(Device::cpu()).matmul(a, b, bias, c);
    wanted = c.to_vector<double>();
    a = a.to(gpu), b = b.to(gpu);
    Tensor storage = empty({10 + offset}, dtype, gpu);
    Tensor placed = storage.view_as({10}, {1}, offset);
    backend_for(gpu).copy(bias.to(gpu), placed);
    bias = placed;
  }
  std::vector<double> operator()() const {
    Tensor c = empty({a.shape()[0], 10}, a.dtype(), gpu);
    backend_for(gpu).matmul(a, b, bias, c);
    return c.to_vector<double>();
  }
};

int64_t by(By who) { return calls(Family::matmul, who); }

TEST_CASE("a product that cuBLASLt refuses when it is called is computed by the own kernel") {
  int64_t m = 1001;
  for (const cublasStatus_t status :
       {CUBLAS_STATUS_NOT_SUPPORTED, CUBLAS_STATUS_INVALID_VALUE, CUBLAS_STATUS_ARCH_MISMATCH})
    for (const DType dtype : {f32, bf16, f16, f64}) {
      CAPTURE(int(status));
      const Product product(m++, dtype);
      const int64_t own = by(By::own_kernel);
      emulation::refuse_products(status, 1000);
      CHECK(product() == product.wanted);
      emulation::refuse_products(0, 0);
      CHECK(by(By::own_kernel) == own + 1);
      // It is not asked again: the plan is dropped, with and without a bias.
      const int64_t refused = emulation::products_refused();
      CHECK(product() == product.wanted);
      CHECK(emulation::products_refused() == refused);
      CHECK(by(By::own_kernel) == own + 2);
    }
}

TEST_CASE("if cuBLASLt refuses one algorithm, the next of its proposals is taken, and kept") {
  const Product product(501, bf16);
  emulation::refuse_algorithms(2);
  const int64_t before = by(By::cublaslt), refused = emulation::products_refused();
  CHECK(product() == product.wanted);
  CHECK(product() == product.wanted);
  emulation::refuse_algorithms(0);
  CHECK(by(By::cublaslt) == before + 2);
  CHECK(emulation::products_refused() == refused + 2);
}

TEST_CASE("lack of memory inside cuBLASLt is tried once more, and not remembered") {
  const Product product(601, f32);
  const int64_t before = by(By::cublaslt);
  emulation::refuse_products(CUBLAS_STATUS_ALLOC_FAILED, 1);
  CHECK(product() == product.wanted);
  CHECK(by(By::cublaslt) == before + 1);
  emulation::refuse_products(CUBLAS_STATUS_ALLOC_FAILED, 4);
  CHECK(product() == product.wanted);
  CHECK(by(By::cublaslt) == before + 1);
  CHECK(product() == product.wanted);
  CHECK(by(By::cublaslt) == before + 2);
}

TEST_CASE("any other status of cuBLASLt is an error") {
  const Product product(701, f32);
  emulation::refuse_products(CUBLAS_STATUS_EXECUTION_FAILED, 1);
  CHECK_THROWS_WITH_AS(product(), doctest::Contains("[matmul] cuBLASLt 130000: a product failed"),
                       DeviceError);
  CHECK(product() == product.wanted);
}

TEST_CASE("a bias that is not aligned to 16 bytes is not given to cuBLASLt") {
  for (const DType dtype : {f32, bf16, f16})
    for (const int64_t offset : {1, 2, 3}) {
      const Product product(801, dtype, offset);
      const int64_t refused = emulation::products_refused();
      CHECK(product() == product.wanted);
      CHECK(emulation::products_refused() == refused);
    }
}

TEST_CASE("the description of the backend says which library or kernel computed") {
  const Product product(901, f32);
  product();
  for (const BackendStatus& status : backend_statuses())
    if (status.name == "cuda") {
      CHECK(status.description.find("; calls so far: matmul ") != std::string::npos);
      CHECK(status.description.find(std::to_string(by(By::cublaslt)) + " by cuBLASLt") !=
            std::string::npos);
    }
}

TEST_CASE("a product that cuBLASLt declines is reported once to the observer") {
  const Product product(951, f32);
  const std::size_t before = declined_calls().size();
  set_log_wanted(true);
  emulation::refuse_products(CUBLAS_STATUS_NOT_SUPPORTED, 3);
  for (int i = 0; i < 3; ++i) CHECK(product() == product.wanted);
  set_log_wanted(false);
  emulation::refuse_products(0, 0);
  const std::vector<std::string> said = declined_calls();
  REQUIRE(said.size() == before + 1);
  CHECK(said.back() ==
        "[cuda] cuBLASLt declined matmul of [951, 24] f32 and [24, 10] f32 and a bias [10] f32 "
        "into [951, 10] f32: a status of the substitute");
}

TEST_CASE("a short product is not rounded before its bias is added") {
  const Product product(961, bf16);
  const std::size_t before = declined_calls().size();
  set_log_wanted(true);
  CHECK(product() == product.wanted);
  set_log_wanted(false);
  const std::vector<std::string> said = declined_calls();
  REQUIRE(said.size() == before + 1);
  CHECK(said.back().ends_with(": it would round the result before it adds the bias"));
}

}  // namespace
}  // namespace halftone::cuda
