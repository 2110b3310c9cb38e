// cuDNN finds engines for the graphs of backends/cuda/cudnn on GPUs that this machine does not
// have. tests/fixtures/gpus has their descriptions, in the format that cuDNN itself reads and
// writes. So cuDNN has compiled every graph before it first runs on a GPU.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <utility>
#include <fstream>
#include <sstream>

#include <halftone/backends/cuda/cudnn/graph.h>

#include "support.h"

namespace halftone::cuda::cudnn {
namespace {

constexpr auto forward = CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR;
constexpr auto backward_data = CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR;
constexpr auto backward_filter = CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR;

Target gpu(const std::string& name) {
  std::ifstream file(test::fixtures_directory() + "/gpus/" + name + ".json");
  REQUIRE(file.good());
  std::stringstream text;
  text << file.rdbuf();
  return Target(text.str());
}
constexpr std::array gpus{"a100", "a10", "rtx4090", "h200"};  // sm 80, 86, 89, 90

Form images(const Shape& shape, DType dtype) {
  return {shape, channels_last_strides(shape), dtype};
}
Form rows(const Shape& shape, DType dtype) { return {shape, contiguous_strides(shape), dtype}; }

/// The convolutions of LeNet and ResNet, by their x, w and geometry.
struct ConvCase {
  const char* name;
  Shape x, w, y;
  ConvGeometry g;
};
const std::array conv_cases{
    ConvCase{
        "lenet, first", {128, 1, 28, 28}, {32, 1, 3, 3}, {128, 32, 28, 28}, {.padding = {1, 1}}},
    ConvCase{"resnet, first",
             {32, 3, 224, 224},
             {64, 3, 7, 7},
             {32, 64, 112, 112},
             {.stride = {2, 2}, .padding = {3, 3}}},
    ConvCase{
        "resnet, 3x3", {32, 64, 56, 56}, {64, 64, 3, 3}, {32, 64, 56, 56}, {.padding = {1, 1}}},
    ConvCase{"resnet, shorter",
             {32, 64, 56, 56},
             {128, 64, 1, 1},
             {32, 128, 28, 28},
             {.stride = {2, 2}}},
    ConvCase{"narrow groups",
             {8, 64, 56, 56},
             {64, 1, 3, 3},
             {8, 64, 56, 56},
             {.padding = {1, 1}, .groups = 64}},
};

TEST_CASE("cuDNN has engines for the convolutions of the models, forward and backward") {
  for (const char* name : gpus) {
    const Target target = gpu(name);
    for (const ConvCase& c : conv_cases)
      for (const DType dtype : {f32, bf16, f16}) {
        INFO(name, ", ", c.name, ", ", std::string(halftone::name(dtype)));
        const Form x = images(c.x, dtype), w = images(c.w, dtype), y = images(c.y, dtype);
        CHECK(conv_graph(target, forward, x, w, y, {}, c.g).has_value());
        CHECK(conv_graph(target, backward_data, x, w, y, {}, c.g).has_value());
        CHECK(conv_graph(target, backward_filter, x, w, y, {}, c.g).has_value());
      }
  }
}

/// Returns whether an engine multiplies in tensor cores.
bool uses_tensor_cores(const Plan& plan) {
  Descriptor engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  cudnnBackendDescriptor_t handle = engine.get();
  int64_t count = 0;
  cudnn().get_attribute(plan.configuration.get(), CUDNN_ATTR_ENGINECFG_ENGINE,
                        CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &handle);
  std::array<cudnnBackendNumericalNote_t, CUDNN_NUMERICAL_NOTE_TYPE_COUNT> notes{};
  cudnn().get_attribute(engine.get(), CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                        int64_t(notes.size()), &count, notes.data());
  return std::find(notes.begin(), notes.begin() + count, CUDNN_NUMERICAL_NOTE_TENSOR_CORE) !=
         notes.begin() + count;
}

TEST_CASE("f32 convolutions use tensor cores where TF32 is allowed, and only there") {
  for (const char* name : gpus) {
    const Target target = gpu(name);
    const ConvCase& c = conv_cases[2];
    const Form x = images(c.x, f32), w = images(c.w, f32), y = images(c.y, f32);
    for (const auto direction : {forward, backward_data, backward_filter})
      for (const bool tf32 : {false, true}) {
        INFO(name, ", direction ", int(direction), tf32 ? ", TF32" : "");
        const auto graph = conv_graph(target, direction, x, w, y, {}, c.g, tf32);
        REQUIRE(graph.has_value());
        CHECK(uses_tensor_cores(graph->plan) == tf32);
      }
  }
}

TEST_CASE(
    "an f32 convolution has several deterministic engines to choose from, and at most the wanted") {
  const Target target = gpu("h200");
  const ConvCase& c = conv_cases[2];
  const Form x = images(c.x, f32), w = images(c.w, f32), y = images(c.y, f32);
  for (const auto direction : {forward, backward_data, backward_filter}) {
    const auto graph = conv_graph(target, direction, x, w, y, {}, c.g, false, 3);
    REQUIRE(graph.has_value());
    CHECK(graph->others.size() >= 1);
    CHECK(graph->others.size() <= 2);
    for (const Plan& plan : graph->others) CHECK_FALSE(uses_tensor_cores(plan));
  }
}

TEST_CASE("cuDNN adds the bias of a convolution in the same kernel") {
  const Target target = gpu("h200");
  const ConvCase& c = conv_cases[2];
  for (const DType dtype : {bf16, f16})
    CHECK(conv_graph(target, forward, images(c.x, dtype), images(c.w, dtype), images(c.y, dtype),
                     rows({1, 64, 1, 1}, dtype), c.g)
              .has_value());
}

TEST_CASE("cuDNN knows attention, forward and backward, packed and not, in deterministic engines") {
  for (const char* name : gpus) {
    const Target target = gpu(name);
    for (const int64_t e : {64, 128})
      for (const bool causal : {false, true}) {
        INFO(name, ", head size ", e, causal ? ", causal" : "");
        const Form q = rows({4, 12, 256, e}, bf16), statistics = rows({4, 12, 256, 1}, f32);
        // q, k, v side by side in rows of one tensor; y as the next layer reads it.
        const int64_t width = 12 * e;
        const Form packed({4, 12, 256, e}, {256 * 3 * width, e, 3 * width, 1}, bf16),
            y({4, 12, 256, e}, {256 * width, e, width, 1}, bf16);
        CHECK(attention_graph(target, q, q, q, q, statistics, causal).has_value());
        CHECK(attention_graph(target, packed, packed, packed, y, statistics, causal).has_value());
        CHECK(attention_backward_graph(target, packed, packed, packed, y, statistics, y, packed,
                                       packed, packed, causal)
                  .has_value());
      }
  }
}

TEST_CASE(
    "cuDNN knows attention on every GPU, in both short dtypes, at the lengths that it is given") {
  // Multiples of 64, and other lengths if there are many scores: for_cudnn.h.
  for (const char* name : gpus) {
    const Target target = gpu(name);
    for (const DType dtype : {bf16, f16})
      for (const auto& [queries, keys] :
           {std::pair{64, 1024}, {197, 197}, {1, 4096}, {77, 2049}, {333, 1}}) {
        INFO(name, ", ", std::string(halftone::name(dtype)), ", ", queries, " x ", keys);
        const Form q = rows({32, 12, queries, 64}, dtype), k = rows({32, 12, keys, 64}, dtype),
                   statistics = rows({32, 12, queries, 1}, f32);
        CHECK(attention_graph(target, q, k, k, q, statistics, false).has_value());
        CHECK(attention_backward_graph(target, q, k, k, q, statistics, q, q, k, k, false)
                  .has_value());
      }
  }
}

TEST_CASE("cuDNN knows attention whose heads share keys and values") {
  for (const char* name : gpus) {
    const Target target = gpu(name);
    for (const DType dtype : {bf16, f16})
      for (const int64_t key_heads : {4, 1}) {
        INFO(name, ", ", std::string(halftone::name(dtype)), ", ", key_heads, " heads of keys");
        const Form q = rows({16, 12, 1024, 64}, dtype), k = rows({16, key_heads, 1024, 64}, dtype),
                   statistics = rows({16, 12, 1024, 1}, f32);
        CHECK(attention_graph(target, q, k, k, q, statistics, true).has_value());
        CHECK(
            attention_backward_graph(target, q, k, k, q, statistics, q, q, k, k, true).has_value());
      }
  }
}

TEST_CASE("a description of a GPU that cuDNN cannot read is an error") {
  CHECK_THROWS_AS(Target("{}"), DeviceError);
}

}  // namespace
}  // namespace halftone::cuda::cudnn
