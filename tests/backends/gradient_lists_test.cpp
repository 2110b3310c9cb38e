// Operations on lists of gradients (check, unscale, scale, norm) on the CPU backend, compared with
// the reference for every dtype, layout and number of threads.
#include <doctest/doctest.h>

#include <omp.h>

#include <cmath>
#include <limits>
#include <string>

#include <halftone/autograd/ops.h>
#include <halftone/core/backend.h>
#include <halftone/core/factory.h>

namespace halftone::test::gradient_lists_test {
namespace {

using Values = std::vector<double>;
constexpr double infinity = std::numeric_limits<double>::infinity();

/// Tensors of several sizes and layouts; the large ones are split into several tasks.
std::vector<Tensor> gradients(DType dtype) {
  manual_seed(40);
  std::vector<Tensor> all;
  for (const int64_t n : {1, 7, 1000, 100003, 40000, 3})
    all.push_back(cast(rand({n}) * 8.0 - 4.0, dtype));
  all.push_back(all[2].view_as({10, 100}, {1, 10}, 0).clone());              // dense, not row-major
  all.push_back(cast(rand({20, 30}), dtype).view_as({10, 30}, {60, 1}, 0));  // with holes
  return all;
}

struct Outcome {
  double found_inf;
  std::vector<Values> values;
  std::vector<uint64_t> versions;
};

Outcome unscaled(std::string_view backend, std::vector<Tensor> all, const Tensor& factor,
                 double found_before = 0) {
  const CpuBackendScope scope(backend);
  Tensor found_inf = scalar(found_before);
  backend_for(Device::cpu()).unscale(all, factor, found_inf);
  Outcome outcome{found_inf.item(), {}, {}};
  for (const Tensor& x : all) {
    outcome.values.push_back(x.to_vector<double>());
    outcome.versions.push_back(x.storage()->version());
  }
  return outcome;
}

TEST_CASE("unscaling by powers of two is exact") {
  for (const DType dtype : {f64, f32, bf16, f16}) {
    INFO(std::string(name(dtype)));
    const Outcome got = unscaled("cpu", gradients(dtype), scalar(0x1p-3)),
                  wanted = unscaled("reference", gradients(dtype), scalar(0x1p-3));
    CHECK(got.values == wanted.values);
    CHECK(got.versions == wanted.versions);
    CHECK(got.found_inf == 0);
    CHECK(unscaled("cpu", gradients(dtype), scalar(0.5), 1).found_inf == 1);
  }
}

TEST_CASE("any infinity or NaN is found_inf, before the factor, and all tensors are scaled") {
  for (const DType dtype : {f64, f32, bf16, f16})
    for (const double bad : {infinity, -infinity, std::nan("")})
      for (const std::size_t tensor : {0u, 2u, 3u, 6u, 7u})
        for (const bool last : {false, true}) {
          INFO(std::string(name(dtype)), " ", bad, " in tensor ", tensor);
          std::vector<Tensor> all = gradients(dtype);
          const Tensor& x = all[tensor];
          int64_t place = x.offset();
          for (int d = 0; last && d < x.rank(); ++d) place += (x.shape()[d] - 1) * x.strides()[d];
          Tensor element = x.view_as({1}, {1}, place);
          backend_for(Device::cpu()).fill(bad, element);
          const Outcome got = unscaled("cpu", all, scalar(0.0));
          CHECK(got.found_inf == 1);
          CHECK(got.values[1] == Values(7, 0.0));
          CHECK(unscaled("cpu", all, {}).found_inf == 1);  // infinity * 0 is NaN
        }
}

TEST_CASE("without a factor gradients are only checked") {
  for (const DType dtype : {f64, f32, bf16, f16}) {
    const Outcome got = unscaled("cpu", gradients(dtype), {}),
                  before = unscaled("reference", gradients(dtype), {});
    CHECK(got.values == before.values);
    CHECK(got.versions == before.versions);
    CHECK(got.found_inf == 0);
  }
}

TEST_CASE("a factor that overflows is not found_inf: gradients are checked before scaling") {
  std::vector<Tensor> all{full({3000}, 1e30, f32), full({3000}, 60000, f16)};
  const Outcome got = unscaled("cpu", all, scalar(1e30));
  CHECK(got.found_inf == 0);
  CHECK(got.values[0][2999] == infinity);
  CHECK(got.values[1][2999] == infinity);
}

TEST_CASE("scaling and norms of short floats as the reference's") {
  for (const DType dtype : {f32, bf16, f16})
    for (const DType total_dtype : {f32, f64}) {
      INFO(std::string(name(dtype)), " to ", std::string(name(total_dtype)));
      const auto run = [&](std::string_view backend) {
        const CpuBackendScope scope(backend);
        std::vector<Tensor> all = gradients(dtype);
        if (backend == "cpu") all.pop_back();  // the one with holes would use the reference
        else all.back() = zeros({1}, dtype);
        backend_for(Device::cpu()).scale_all(all, scalar(0.3));
        Tensor total = zeros({}, total_dtype);
        backend_for(Device::cpu()).sum_of_squares(all, total);
        return std::pair(total.item(), all[3].to_vector<double>());
      };
      const auto got = run("cpu"), wanted = run("reference");
      CHECK(got.first == doctest::Approx(wanted.first).epsilon(1e-5));
      const double spacing = dtype == f32 ? 0 : epsilon(dtype);
      for (std::size_t i = 0; i < got.second.size(); ++i)
        if (std::abs(got.second[i] - wanted.second[i]) > spacing * std::abs(wanted.second[i]))
          FAIL_CHECK("element ", i, ": ", got.second[i], " instead of ", wanted.second[i]);
    }
}

TEST_CASE("norms do not depend on threads") {
  for (const DType dtype : {f32, bf16, f16}) {
    const auto run = [&](int threads) {
      const int before = omp_get_max_threads();
      omp_set_num_threads(threads);
      Tensor total = zeros({}, f64);
      backend_for(Device::cpu()).sum_of_squares(gradients(dtype), total);
      omp_set_num_threads(before);
      return total.item();
    };
    CHECK(run(2) == run(1));
    CHECK(run(5) == run(1));
  }
}

TEST_CASE("many tensors, more than one list of them") {
  std::vector<Tensor> all;
  all.reserve(700);
  for (int i = 0; i < 700; ++i) all.push_back(full({i % 5 + 1}, 0.5, i % 2 ? bf16 : f32));
  Backend& backend = backend_for(Device::cpu());
  Tensor total = zeros({}, f64), found_inf = zeros({});
  backend.sum_of_squares(all, total);
  CHECK(total.item() == 700 * 3 * 0.25);
  backend.unscale(all, scalar(2.0), found_inf);
  CHECK(found_inf.item() == 0);
  for (const Tensor& x : all) CHECK(x.to_vector<double>() == Values(std::size_t(x.numel()), 1.0));
  backend.fill(infinity, all[699]);
  backend.unscale(all, {}, found_inf);
  CHECK(found_inf.item() == 1);
}

}  // namespace

}  // namespace halftone::test::gradient_lists_test
