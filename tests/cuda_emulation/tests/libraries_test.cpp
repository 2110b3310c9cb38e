// Drivers and libraries of other versions than this build's: refusals and messages.
#include <algorithm>
#include <set>

#include <cublasLt.h>

#include <doctest/doctest.h>

#include <halftone/backends/cuda/cuda_backend.h>
#include <halftone/backends/cuda/for_cudnn.h>
#include <halftone/backends/cuda/launch.h>
#include <halftone/backends/cuda/libraries.h>
#include <halftone/core/backend.h>
#include <halftone/core/device.h>
#include <halftone/core/error.h>
#include <halftone/core/factory.h>
#include <halftone/core/formats/number_format.h>
#include <halftone/core/tensor.h>
#include <halftone/halftone.h>
#include <halftone/amp/resolved.h>

#include "../../policy/policy_cases.h"
#include "../../support.h"
#include "emulator.h"

namespace halftone::cuda {
namespace {

TEST_CASE("the list of what results depend on does not change with computations") {
  const std::string before = kernels_of(Device::cuda());
  const Tensor x = ones({4, 4}, f32, Device::cuda());
  Tensor y = empty({4, 4}, f32, Device::cuda());
  backend_for(x).matmul(x, x, {}, y);
  CHECK(kernels_of(Device::cuda()) == before);
  CHECK(before.starts_with("cuda: emulated GPU (sm_90), CUDA 13.0, cuBLASLt "));
}

TEST_CASE("a driver older than the toolkit: the message names the required one") {
  CHECK(driver_advice(0, 13000) ==
        "there is no NVIDIA driver (libcuda.so.1). This build has CUDA 13.0: install the driver "
        "580.65.06 or newer");
  CHECK(driver_advice(12040, 13000) ==
        "the driver serves CUDA up to 12.4, and this build has 13.0: install the driver 580.65.06 "
        "or newer (nvidia-smi shows the one you have), or build with a toolkit of CUDA 12");
  CHECK(driver_advice(11080, 12010).find("525.60.13") != std::string::npos);
  CHECK(driver_advice(12020, 12060) ==
        "the driver serves CUDA up to 12.2, and this build has 12.6: it runs kernels that have "
        "machine code for the GPU (HALFTONE_CUDA_ARCHITECTURES) and compiles no others. Install "
        "the driver that came with CUDA 12.6 or newer, or build for this GPU");
}

TEST_CASE("with a driver that is too old the backend says so") {
  emulation::set_driver_version(12040);
  std::string said;
  for (const BackendStatus& status : backend_statuses())
    if (status.name == "cuda") said = status.description;
  emulation::set_driver_version(13000);
  cudaGetLastError();
  CHECK(said == driver_advice(12040, 13000));
}

__global__ void nothing() {}

TEST_CASE("an error of the runtime under an older driver says which driver is needed") {
  const Context context(0);
  emulation::set_driver_version(12040);
  std::string said;
  try {
    launch(context, nothing, {dim3(1), dim3(2048)});
  } catch (const DeviceError& error) { said = error.what(); }
  emulation::set_driver_version(13000);
  CHECK(said.find("(driver 12040, runtime 13000): the driver serves CUDA up to 12.4") !=
        std::string::npos);
}

TEST_CASE("cuBLASLt older than the headers, or of another major version, is not used") {
  CHECK(cublaslt_refusal(130100, 130100).empty());
  CHECK(cublaslt_refusal(130205, 130100).empty());
  CHECK(cublaslt_refusal(130101, 130104).empty());  // a patch changes no interface
  CHECK(cublaslt_refusal(130000, 130100) ==
        "cuBLASLt 13.0 is left out: this build has the headers of 13.1");
  CHECK_FALSE(cublaslt_refusal(140000, 130100).empty());
  CHECK_FALSE(cublaslt_refusal(120900, 130100).empty());
}

TEST_CASE("cuDNN for another major version of CUDA is not used") {
  CHECK(cudnn_refusal(13000, 13020).empty());
  CHECK(cudnn_refusal(12090, 13000) ==
        "cuDNN is left out: it was made for CUDA 12, and this build has 13.0. Install the one for "
        "CUDA 13, or point HALFTONE_CUDNN_ROOT at it");
}

TEST_CASE("NCCL older than the headers, or of another major version, is not used") {
  CHECK(nccl_version_text(22809) == "2.28.9");
  CHECK(nccl_refusal(22809, 22809).empty());
  CHECK(nccl_refusal(22901, 22809).empty());
  CHECK(nccl_refusal(22802, 22809).empty());  // a patch changes no interface
  CHECK(nccl_refusal(22704, 22809) ==
        "NCCL 2.27.4 is left out: this build has the headers of 2.28.9");
  CHECK_FALSE(nccl_refusal(30000, 22809).empty());
}

}  // namespace

// If cuBLASLt refuses a call, halftone's own kernel computes and nothing fails. The backend counts
// and reports which of the two computed.

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

// Weights of convolutions in cuDNN's order: permuted once for a version. A recorded step, which
// changes them with every replay, does the same.

namespace {

CudaBackend& backend() { return static_cast<CudaBackend&>(backend_for(Device::cuda())); }

Tensor weight(MemoryUse use) {
  const MemoryScope scope(use);
  return randn({6, 4, 3, 3}).to(Device::cuda());
}

TEST_CASE("a weight is permuted once for a version of it") {
  const Context& context = backend().context();
  const int64_t held = memory_report(Device::cuda()).now_of(MemoryUse::workspace);
  {
    Tensor w = weight(MemoryUse::parameter);
    const int64_t before = emulation::kernel_launches();
    const Tensor first = channels_last_weight(context, w);
    CHECK(first.is_channels_last());
    CHECK(channels_last_weight(context, w).raw_data() == first.raw_data());
    CHECK(emulation::kernel_launches() == before + 1);
    CHECK(first.to_vector<float>() == w.to_vector<float>());
    backend().fill(2, w);
    w.storage()->bump_version();
    CHECK(channels_last_weight(context, w).to_vector<float>() ==
          std::vector<float>(std::size_t(w.numel()), 2));
    // Another view of the same bytes is another weight.
    const Tensor other = w.view_as({4, 6, 3, 3}, {54, 9, 3, 1}, 0);
    CHECK(channels_last_weight(context, other).shape() == other.shape());
  }
  // The copy was freed with the weight.
  CHECK(memory_report(Device::cuda()).now_of(MemoryUse::workspace) == held);
}

TEST_CASE(
    "1x1 kernels are in this order already, and no copy is kept of other tensors than weights") {
  const Context& context = backend().context();
  const Tensor narrow = randn({6, 4, 1, 1}).to(Device::cuda());
  CHECK(channels_last_weight(context, narrow).raw_data() == narrow.raw_data());
  const Tensor x = weight(MemoryUse::activation);
  const Tensor once = channels_last_weight(context, x);
  CHECK(channels_last_weight(context, x).raw_data() != once.raw_data());
}

TEST_CASE("a recorded step permutes the weight that each replay finds") {
  Context& context = backend().context();
  Tensor w = weight(MemoryUse::parameter);
  backend().fill(1, w);
  Tensor seen = zeros(w.shape(), f32, Device::cuda());
  channels_last_weight(context, w);  // a copy of this version exists, outside of the recording
  backend().begin_capture();
  backend().copy(channels_last_weight(context, w), seen);
  const auto again = channels_last_weight(context, w);
  const int64_t recorded = emulation::kernel_launches();
  backend().copy(again, seen);  // the same copy: no permutation
  const auto work = backend().end_capture();
  CHECK(emulation::kernel_launches() - recorded <= 1);
  for (const float value : {3.0f, 5.0f}) {
    backend().fill(value, w);
    w.storage()->bump_version();
    work->replay(0, 0);
    CHECK(seen.to_vector<float>() == std::vector<float>(std::size_t(w.numel()), value));
  }
  // Other work does not see the copy of the recording: perhaps no replay has filled it yet.
  CHECK(channels_last_weight(context, w).to_vector<float>() ==
        std::vector<float>(std::size_t(w.numel()), 5));
}

}  // namespace

// Choices between engines, and the file that keeps them.

namespace {

TEST_CASE("choices between engines are kept for the next program, by machine and call") {
  const test::TemporaryDirectory directory;
  const std::filesystem::path path = directory.path() / "caches" / "engines.txt";
  const std::vector<int64_t> call{10, -1, 256}, other{10, -1};
  {
    EngineChoices choices("Some GPU 91900", path);
    CHECK(choices.kept());
    CHECK_FALSE(choices.of(call).has_value());
    CHECK(choices.keep(call, 3) == 3);
    CHECK(choices.keep(other, 0) == 0);
    CHECK(choices.of(call) == 3);
  }
  CHECK(files::read_text("test", path, 1000) ==
        "Some_GPU_91900 10 -1 256 : 3\nSome_GPU_91900 10 -1 : 0\n");
  CHECK(EngineChoices("Some GPU 91900", path).of(call) == 3);
  CHECK(EngineChoices("Some GPU 91900", path).of(other) == 0);
  CHECK_FALSE(EngineChoices("Some GPU 91901", path).of(call).has_value());
  // Broken lines are ignored. If a call has two lines, the first counts.
  files::replace("test", path,
                 "Some_GPU_91900 10 -1 256 :\n\nSome_GPU_91900 10 -1\nSome_GPU_91900 10 -1 : x\n"
                 "\x01 : 7\nSome_GPU_91900 10 -1 : 5\nSome_GPU_91900 10 -1 : 6\n"
                 "Some_GPU_91900 10 -1 256 : 99999999999999999999999\n");
  CHECK(EngineChoices("Some GPU 91900", path).of(other) == 5);
  CHECK_FALSE(EngineChoices("Some GPU 91900", path).of(call).has_value());
  // Two processes measure at once: the one that writes later takes the choice of the first.
  EngineChoices first("Some GPU 91900", path), later("Some GPU 91900", path);
  CHECK(first.keep({7}, 2) == 2);
  CHECK(later.keep({7}, 4) == 2);
  CHECK(later.of({7}) == 2);
  // A file that vanishes takes nothing from this program.
  std::filesystem::remove_all(path.parent_path());
  CHECK(later.keep({8}, 1) == 1);
  CHECK(later.of({7}) == 2);
  CHECK_FALSE(EngineChoices("Some GPU 91900", "").kept());
  CHECK(test::message_of<FormatError>([&] {
          EngineChoices("Some GPU 91900", directory.path());
        }).starts_with("[cuda] "));
}

}  // namespace

// Lengths of attention for which cuDNN makes a plan, and attention at a length that is rounded up.

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
    backend.attention(
        {.q = q, .k = k, .v = v, .mask = {}, .settings = settings, .y = y, .log_sum_exp = sums});
    Tensor longer_y = full({2, 3, l, 16}, 9, bf16, gpu),
           longer_sums = full({1, 2, 3, l}, 9, f32, gpu);
    int64_t seen = 0;
    const bool done = attention_lengthened(
        backend.context(), q, k, v, longer_y, longer_sums,
        [&](const Tensor& a, const Tensor& b, const Tensor& c, Tensor& d, Tensor& e) {
          seen = a.shape()[2];
          backend.attention(
              {.q = a, .k = b, .v = c, .mask = {}, .settings = settings, .y = d, .log_sum_exp = e});
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

TEST_CASE("operands of f8 numbers are multiplied by cuBLASLt, others by the emulated accumulator") {
  Backend& backend = backend_for(Device::cuda());
  const Accumulator sums = *backend.f8_sums();
  const Quantizer quantizer{.grid = formats::e4m3, .scaling = Scaling::per_tensor()};
  const Tensor x = randn({144, 208}).to(Device::cuda()), w = randn({176, 208}).to(Device::cuda()),
               bias = randn({176}).to(bf16).to(Device::cuda());
  const auto product = [&](bool hardware) {
    const auto operand = [&](const Tensor& t) {
      const F8Operand f8 = quantized_f8(t, {.quantizer = quantizer});
      return hardware ? waiting_operand(f8, bf16) : quantized(t, {.quantizer = quantizer}).to(bf16);
    };
    Tensor y = empty({144, 176}, bf16, Device::cuda());
    const int64_t before = emulation::products_done();
    backend.matmul_accumulating(operand(x), views::transpose(operand(w), 0, 1), bias, sums, y);
    CHECK(emulation::products_done() - before == (hardware ? 1 : 0));
    return y;
  };
  // One result differs from the other by roundings of the operands to bf16: the scales are floats.
  const Tensor y = product(true), near = product(false);
  CHECK(max(abs(y.to(f32) - near.to(f32))).item() < 0.6);
  emulation::refuse_algorithms(3);
  CHECK_THROWS_WITH_AS(
      product(true),
      "[matmul] cuBLASLt declines a product of [144, 208] f8_e4m3 and [208, 176] f8_e4m3 "
      "into bf16. HALFTONE_CUDA_LOG=1 says why; \"compute\": \"f32\" emulates it.",
      UnsupportedError);
  emulation::refuse_algorithms(0);
}

TEST_CASE("a step in hardware multiplies f8 numbers in forward and in backward") {
  manual_seed(1);
  nn::Sequential model(nn::Linear(32, 48), nn::Relu(), nn::Linear(48, 16));
  model.to(Device::cuda());
  optim::Sgd optimizer(model.parameters(), {.lr = 0.1});
  amp::Training training(
      policy::read_text(R"({"halftone_policy": 1, "name": "p", "extends": "amp-bf16", "rules": [
        {"match": {"op": "linear"}, "compute": "hardware", "accumulate": "h100-wgmma-f8",
         "input": "fp8_tensor", "weight": "fp8_tensor", "grad_output": "fp8_tensor"}]})"),
      model, optimizer);
  const Tensor x = randn({16, 32}).to(Device::cuda());
  const auto done = [](const auto& work) {
    const int64_t before = emulation::products_done();
    work();
    return emulation::products_done() - before;
  };
  Tensor loss;
  CHECK(done([&] { loss = sum(training.forward(model, x)); }) == 2);
  CHECK(done([&] { training.backward(loss); }) == 3);  // x needs no gradient
}

TEST_CASE("GPUs add products of f8 numbers as their architecture does, or have none") {
  const auto name_of = [](int major, int minor) -> std::string {
    emulation::set_compute_capability(major, minor);
    const CudaBackend backend(0);
    const Accumulator* const sums = backend.f8_sums();
    emulation::set_compute_capability(9, 0);
    for (const NamedAccumulator& machine : named_accumulators())
      if (sums && machine.accumulator == *sums) return std::string(machine.name);
    return "none";
  };
  CHECK(name_of(8, 6) == "none");
  CHECK(name_of(8, 9) == "l40-mma-f8");
  CHECK(name_of(9, 0) == "h100-wgmma-f8");
  CHECK(name_of(10, 0) == "b200-tcgen05-f8");
  CHECK(name_of(12, 0) == "none");
}

}  // namespace
}  // namespace halftone::cuda

// f32 products with and without TF32, to which the substitute for cuBLASLt rounds.

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
  const auto session = [](const Pass& pass) -> policy::Session& {
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
