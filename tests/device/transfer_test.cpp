// Tensors between host and GPU: same bytes, any layout, any size, and clear errors.
#include "gpu.h"

#include <halftone/autograd/ops.h>
#include <halftone/core/factory.h>
#include <halftone/core/tensor.h>

namespace halftone::test::transfer_test {
namespace {

std::vector<double> counted(int64_t n) {
  std::vector<double> values(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = double(i % 251) - 125;
  return values;
}

TEST_CASE("a tensor comes back from the GPU unchanged, in every dtype") {
  const auto gpu = gpu_or_skip();
  if (!gpu) return;
  for (int d = 0; d < dtype_count; ++d)
    for (const int64_t n : {0, 1, 7, 1000}) {
      const auto dtype = DType(d);
      INFO(std::string(name(dtype)), ", ", n);
      const Tensor x = from_vector(counted(n), {n}, dtype);
      CHECK(x.to(*gpu).to(Device::cpu()).to_vector<double>() == x.to_vector<double>());
    }
}

TEST_CASE("copies larger than a page-locked buffer arrive whole, and the source is free at once") {
  const auto gpu = gpu_or_skip();
  if (!gpu) return;
  const int64_t n = (int64_t(9) << 20) + 13;  // 36 MiB of f32: more than a buffer
  Tensor x = ones({n});
  const Tensor y = x.to(*gpu);
  backend_for(x).fill(2, x);  // must not show in y
  CHECK(sum(cast(y, f64)).item() == double(n));
}

TEST_CASE("views keep their layout in a copy") {
  const auto gpu = gpu_or_skip();
  if (!gpu) return;
  const Tensor x = from_vector(counted(120), {2, 3, 4, 5}, f32);
  const Tensor views[] = {views::permute(x, {3, 1, 0, 2}), views::channels_last(x),
                          views::slice(x, 3, 1, 2, 2),
                          views::expand(views::slice(x, 0, 0, 1), x.shape())};
  for (const Tensor& v : views) {
    const Tensor there = v.to(*gpu);
    CHECK(there.shape() == v.shape());
    CHECK(there.to_vector<float>() == v.to_vector<float>());
    if (v.is_dense()) CHECK(there.strides() == v.strides());
  }
}

TEST_CASE("tensors on two devices are refused by name") {
  const auto gpu = gpu_or_skip();
  if (!gpu) return;
  const Tensor a = ones({2, 3}), b = ones({2, 3}, f32, *gpu);
  CHECK_THROWS_WITH_AS(add(a, b), doctest::Contains("[add]"), DeviceError);
  CHECK_THROWS_WITH_AS(add(a, b), doctest::Contains("cuda:0"), DeviceError);
  const Tensor logits = zeros({2, 3}, f32, *gpu), targets = from({1, 2}, i64, *gpu);
  CHECK_THROWS_WITH_AS(cross_entropy(logits, targets, {.weight = ones({3})}),
                       "[cross_entropy] the input is on cuda:0, the class weight on cpu. Move them "
                       "to one device with to().",
                       DeviceError);
  CHECK_THROWS_WITH_AS(nll_loss(zeros({2, 3}), from({1, 2}, i64), {.weight = ones({3}, f32, *gpu)}),
                       "[nll_loss] the input is on cpu, the class weight on cuda:0. Move them to "
                       "one device with to().",
                       DeviceError);
  CHECK_THROWS_WITH_AS(batch_norm(ones({4, 3}, f32, *gpu), {}, {}, zeros({3}), ones({3})),
                       "[batch_norm] the input is on cuda:0, running_mean on cpu. Move them to one "
                       "device with to().",
                       DeviceError);
}

TEST_CASE("a GPU that does not exist is an error that says how many there are") {
  const auto gpu = gpu_or_skip();
  if (!gpu) return;
  CHECK_THROWS_WITH_AS(ones({2}, f32, Device::cuda(97)), doctest::Contains("there is no device 97"),
                       DeviceError);
}

TEST_CASE("an index that is out of range is reported at the next wait, and nothing is read there") {
  const auto gpu = gpu_or_skip();
  if (!gpu) return;
  const Tensor table = ones({4, 3}, f32, *gpu), bad = from({1, 9}, i64, *gpu);
  const Tensor rows = embedding(bad, table);
  CHECK_THROWS_WITH_AS(rows.to_vector<float>(),
                       doctest::Contains("index 9 is out of range for a table of 4 rows"),
                       UsageError);
  CHECK(ones({2}, f32, *gpu).to_vector<float>() == std::vector<float>{1, 1});  // no error left
  const Tensor logits = zeros({2, 5}, f32, *gpu), targets = from({1, -7}, i64, *gpu);
  CHECK_THROWS_WITH_AS(cross_entropy(logits, targets).item(),
                       doctest::Contains("target -7 is out of range for 5 classes"), UsageError);
}

TEST_CASE("without a GPU, asking for one says why there is none") {
  for (const BackendStatus& status : backend_statuses())
    if (status.name == "cuda" && status.backend) return;
  CHECK_THROWS_WITH_AS(ones({2}, f32, Device::cuda()),
                       doctest::Contains("[device] there is no GPU to use: "), DeviceError);
}

TEST_CASE("devices have names") {
  CHECK(device_named("cpu") == Device::cpu());
  CHECK(device_named("cuda") == Device::cuda(0));
  CHECK(device_named("cuda:3") == Device::cuda(3));
  for (const char* wrong : {"", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1 "})
    CHECK_THROWS_WITH_AS(device_named(wrong), doctest::Contains("Use cpu, cuda"), UsageError);
}

}  // namespace
}  // namespace halftone::test::transfer_test
