// Lengths of attention for which cuDNN makes a plan, and attention at a length that is rounded up.
#include <doctest/doctest.h>

#include <set>

#include <halftone/backends/cuda/cuda_backend.h>
#include <halftone/backends/cuda/for_cudnn.h>
#include <halftone/core/factory.h>

namespace halftone::cuda {
namespace {

TEST_CASE("text that grows by one token a call needs few plans, and training uses cuDNN") {
  std::set<int64_t> lengths;
  for (int64_t l = 1; l <= 2048; ++l) switch (attention_route(12, l, l, true)) {
      case AttentionRoute::own_kernels: CHECK(l < 600); break;
      case AttentionRoute::library: lengths.insert(l); break;
      case AttentionRoute::lengthened: CHECK(l > 500); lengths.insert((l + 63) / 64 * 64);
    }
  CHECK(lengths.size() == 2048 / 64);
  for (int64_t s = 1; s <= 256; ++s)  // one query at a time, with cached keys
    CHECK(attention_route(12, 1, s, false) == AttentionRoute::own_kernels);
  CHECK(attention_route(8 * 12, 1024, 1024, true) == AttentionRoute::library);
  CHECK(attention_route(64 * 12, 197, 197, false) == AttentionRoute::library);
  CHECK(attention_route(1, 128, 64, true) == AttentionRoute::library);
  CHECK(attention_route(1000, 500, 499, true) == AttentionRoute::library);  // other lengths
}

TEST_CASE("causal attention at the next multiple of 64 gives the bits of the length itself") {
  const Device gpu = Device::cuda();
  auto& backend = static_cast<CudaBackend&>(backend_for(gpu));
  const AttentionSettings settings{.scale = 0.25, .causal = true};
  manual_seed(5);
  for (const int64_t l : {1, 63, 65, 100}) {
    CAPTURE(l);
    const auto random = [&] { return randn({2, 3, l, 16}).to(bf16).to(gpu); };
    const Tensor q = random(), k = random(), v = random();
    Tensor y = empty({2, 3, l, 16}, bf16, gpu), sums = empty({1, 2, 3, l}, f32, gpu);
    backend.attention(q, k, v, {}, settings, y, sums);
    Tensor longer_y = full({2, 3, l, 16}, 9, bf16, gpu),
           longer_sums = full({1, 2, 3, l}, 9, f32, gpu);
    int64_t seen = 0;
    const bool done = attention_lengthened(
        backend.context(), q, k, v, longer_y, longer_sums,
        [&](const Tensor& a, const Tensor& b, const Tensor& c, Tensor& d, Tensor& e) {
          seen = a.shape()[2];
          backend.attention(a, b, c, {}, settings, d, e);
          return true;
        });
    CHECK(done);
    CHECK(seen == (l + 63) / 64 * 64);
    CHECK(longer_y.to_vector<float>() == y.to_vector<float>());
    CHECK(longer_sums.to_vector<float>() == sums.to_vector<float>());
    Tensor untouched = full({2, 3, l, 16}, 9, bf16, gpu);
    CHECK_FALSE(attention_lengthened(
        backend.context(), q, k, v, untouched, longer_sums,
        [](const Tensor&, const Tensor&, const Tensor&, Tensor&, Tensor&) { return false; }));
    CHECK(untouched.to_vector<float>() == std::vector<float>(std::size_t(6 * l * 16), 9));
  }
}

}  // namespace
}  // namespace halftone::cuda
