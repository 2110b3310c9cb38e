// Runs the cases that compare_numerics.py drew, on one backend in one mode, and writes results and
// gradients: run_cases CASES.json INPUTS.safetensors MODE BACKEND RESULTS.safetensors
//   MODE     f64 f32 bf16 f16 autocast-bf16 autocast-f16
//   BACKEND  reference cpu cuda
// A case is {"op": .., "inputs": how many, "constants": how many, "attributes": {..}}. Case 7's
// inputs are tensors 7.x0, 7.x1 ..; its constants (indices, masks: no gradient) 7.c0 ..; the
// gradient of its result 7.dy. The results are 7.y, 7.g0 .., as f64.
#include <fstream>
#include <functional>
#include <iostream>
#include <map>

#include <nlohmann/json.hpp>

#include <halftone/amp/autocast.h>
#include <halftone/autograd/ops.h>
#include <halftone/core/backend.h>
#include <halftone/core/factory.h>
#include <halftone/core/named_tensors.h>
#include <halftone/nn/rnn.h>

namespace {

using namespace halftone;
using Tensors = std::vector<Tensor>;
using nlohmann::json;

/// The inputs of a case: tensors and attributes.
struct Call {
  Tensors x, c;
  const json& attributes;

  const Tensor& operator[](std::size_t i) const { return x[i]; }
  Tensor optional(std::size_t i) const { return i < x.size() ? x[i] : Tensor{}; }
  Tensor constant(std::size_t i) const { return i < c.size() ? c[i] : Tensor{}; }
  double number(const char* name, double otherwise = 0) const {
    return attributes.value(name, otherwise);
  }
  int64_t integer(const char* name, int64_t otherwise = 0) const {
    return attributes.value(name, otherwise);
  }
  bool flag(const char* name) const { return attributes.value(name, false); }
  Dims dims(const char* name) const {
    Dims dims;
    for (const int64_t d : attributes.value(name, std::vector<int64_t>{})) dims.push_back(d);
    return dims;
  }
  Pair pair(const char* name, Pair otherwise) const {
    if (!attributes.contains(name)) return otherwise;
    const auto both = attributes[name].get<std::vector<int64_t>>();
    return {both[0], both[1]};
  }
};
using Function = std::function<Tensor(const Call&)>;

CrossEntropyOptions class_options(const Call& call) {
  return {.weight = call.constant(1),
          .label_smoothing = call.number("smoothing"),
          .ignore_index = call.integer("ignore_index", -100)};
}

PoolOptions pool_options(const Call& call) {
  return {.kernel = call.pair("kernel", 2),
          .stride = call.pair("stride", call.pair("kernel", 2)),
          .padding = call.pair("padding", 0),
          .count_include_pad = !call.flag("without_padding")};
}

Tensor batch_norm_of(const Call& call) {
  const BatchNormOptions options{.training = call.flag("training")};
  return batch_norm(call[0], call[1], call[2], call.c[0].clone(), call.c[1].clone(), options);
}

/// Inputs 1 to 4: weight_ih, weight_hh, bias_ih, bias_hh of one layer.
template <class Layer> Tensor recurrent(const Call& call) {
  const Tensor weights[] = {call[1], call[2], call[3], call[4]};
  const Tensor projected = linear(call[0], weights[0], weights[2]);
  const int64_t hidden = weights[1].shape()[1];
  const Tensor h0 = zeros({call[0].shape()[1], hidden}, projected.dtype(), projected.device());
  if constexpr (std::is_same_v<Layer, Lstm>)
    return lstm(projected, h0, h0, weights[1], weights[3]).y;
  else return gru(projected, h0, weights[1], weights[3]).y;
}

Tensor attention_of(const Call& call) {
  AttentionOptions options{.causal = call.flag("causal")};
  options.mask = call.x.size() > 3 ? call[3] : call.constant(0);
  if (call.attributes.contains("scale")) options.scale = call.number("scale");
  return scaled_dot_product_attention(call[0], call[1], call[2], options);
}

Tensor interpolate_of(const Call& call) {
  const bool bilinear = call.flag("bilinear");
  return interpolate(call[0], {.size = call.pair("size", 1),
                               .mode = bilinear ? Interpolation::bilinear : Interpolation::nearest,
                               .align_corners = call.flag("align_corners")});
}

#define HALFTONE_CASE(...) [](const Call& call) -> Tensor { return __VA_ARGS__; }

const std::map<std::string, Function>& functions() {
  static const std::map<std::string, Function> table{
      {"relu", HALFTONE_CASE(relu(call[0]))},
      {"leaky_relu", HALFTONE_CASE(leaky_relu(call[0], 0.1))},
      {"gelu", HALFTONE_CASE(gelu(call[0]))},
      {"gelu_erf", HALFTONE_CASE(gelu_erf(call[0]))},
      {"silu", HALFTONE_CASE(silu(call[0]))},
      {"tanh", HALFTONE_CASE(tanh(call[0]))},
      {"sigmoid", HALFTONE_CASE(sigmoid(call[0]))},
      {"softplus", HALFTONE_CASE(softplus(call[0]))},
      {"exp", HALFTONE_CASE(exp(call[0]))},
      {"expm1", HALFTONE_CASE(expm1(call[0]))},
      {"log", HALFTONE_CASE(log(call[0]))},
      {"log2", HALFTONE_CASE(log2(call[0]))},
      {"log10", HALFTONE_CASE(log10(call[0]))},
      {"log1p", HALFTONE_CASE(log1p(call[0]))},
      {"sqrt", HALFTONE_CASE(sqrt(call[0]))},
      {"rsqrt", HALFTONE_CASE(rsqrt(call[0]))},
      {"reciprocal", HALFTONE_CASE(reciprocal(call[0]))},
      {"square", HALFTONE_CASE(square(call[0]))},
      {"abs", HALFTONE_CASE(abs(call[0]))},
      {"clamp", HALFTONE_CASE(clamp(call[0], -0.5, 1))},
      {"pow_scalar", HALFTONE_CASE(pow(call[0], call.number("exponent")))},
      {"add", HALFTONE_CASE(call[0] + call[1])},
      {"sub", HALFTONE_CASE(call[0] - call[1])},
      {"mul", HALFTONE_CASE(call[0] * call[1])},
      {"div", HALFTONE_CASE(call[0] / call[1])},
      {"maximum", HALFTONE_CASE(maximum(call[0], call[1]))},
      {"minimum", HALFTONE_CASE(minimum(call[0], call[1]))},
      {"pow", HALFTONE_CASE(pow(call[0], call[1]))},
      {"where", HALFTONE_CASE(where(call.c[0], call[0], call[1]))},
      {"sum", HALFTONE_CASE(sum(call[0], call.dims("dims")))},
      {"mean", HALFTONE_CASE(mean(call[0], call.dims("dims")))},
      {"var", HALFTONE_CASE(var(call[0], call.dims("dims"), call.number("correction", 1)))},
      {"norm", HALFTONE_CASE(norm(call[0], call.dims("dims")))},
      {"prod", HALFTONE_CASE(prod(call[0], call.dims("dims")))},
      {"max", HALFTONE_CASE(max(call[0], call.dims("dims")))},
      {"min", HALFTONE_CASE(min(call[0], call.dims("dims")))},
      {"cumsum", HALFTONE_CASE(cumsum(call[0], int(call.integer("dim"))))},
      {"logsumexp", HALFTONE_CASE(logsumexp(call[0], int(call.integer("dim"))))},
      {"softmax", HALFTONE_CASE(softmax(call[0], int(call.integer("dim"))))},
      {"log_softmax", HALFTONE_CASE(log_softmax(call[0], int(call.integer("dim"))))},
      {"cross_entropy", HALFTONE_CASE(cross_entropy(call[0], call.c[0], class_options(call)))},
      {"nll_loss", HALFTONE_CASE(nll_loss(call[0], call.c[0], class_options(call)))},
      {"mse", HALFTONE_CASE(mse(call[0], call[1]))},
      {"l1", HALFTONE_CASE(l1(call[0], call[1]))},
      {"smooth_l1", HALFTONE_CASE(smooth_l1(call[0], call[1]))},
      {"huber", HALFTONE_CASE(huber(call[0], call[1]))},
      {"kl_div", HALFTONE_CASE(kl_div(call[0], call[1]))},
      {"bce", HALFTONE_CASE(binary_cross_entropy(call[0], call[1]))},
      {"bce_with_logits", HALFTONE_CASE(bce_with_logits(call[0], call[1]))},
      {"cosine_similarity", HALFTONE_CASE(cosine_similarity(call[0], call[1]))},
      {"layer_norm", HALFTONE_CASE(layer_norm(call[0], {call[0].size(-1)}, call[1], call[2]))},
      {"rms_norm", HALFTONE_CASE(rms_norm(call[0], {call[0].size(-1)}, call[1], 1e-6))},
      {"group_norm", HALFTONE_CASE(group_norm(call[0], call.integer("groups"), call[1], call[2]))},
      {"batch_norm", batch_norm_of},
      {"matmul", HALFTONE_CASE(matmul(call[0], call[1]))},
      {"linear", HALFTONE_CASE(linear(call[0], call[1], call.optional(2)))},
      {"conv2d", HALFTONE_CASE(conv2d(call[0], call[1], call.optional(2),
                                      {.stride = call.pair("stride", 1),
                                       .padding = call.pair("padding", 0),
                                       .dilation = call.pair("dilation", 1),
                                       .groups = call.integer("groups", 1)}))},
      {"conv_transpose2d",
       HALFTONE_CASE(conv_transpose2d(call[0], call[1], call.optional(2),
                                      {.stride = call.pair("stride", 1),
                                       .padding = call.pair("padding", 0),
                                       .output_padding = call.pair("output_padding", 0),
                                       .dilation = call.pair("dilation", 1),
                                       .groups = call.integer("groups", 1)}))},
      {"max_pool2d", HALFTONE_CASE(max_pool2d(call[0], pool_options(call)))},
      {"avg_pool2d", HALFTONE_CASE(avg_pool2d(call[0], pool_options(call)))},
      {"adaptive_avg_pool2d", HALFTONE_CASE(adaptive_avg_pool2d(call[0], call.pair("size", 1)))},
      {"attention", attention_of},
      {"embedding", HALFTONE_CASE(embedding(call.c[0], call[0]))},
      {"lstm", recurrent<Lstm>},
      {"gru", recurrent<Gru>},
      {"interpolate", interpolate_of},
  };
  return table;
}

/// The dtype of a mode's tensors, and of its region if it has one.
struct Mode {
  DType dtype;
  std::optional<DType> region{};
};
Mode mode_of(const std::string& name) {
  const std::map<std::string, Mode> modes{{"f64", {f64}},
                                          {"f32", {f32}},
                                          {"bf16", {bf16}},
                                          {"f16", {f16}},
                                          {"autocast-bf16", {f32, bf16}},
                                          {"autocast-f16", {f32, f16}}};
  return modes.at(name);
}

class Runner {
 public:
  Runner(const NamedTensors& tensors, Mode mode, Device device)
      : tensors_(tensors), mode_(mode), device_(device) {}

  void run(const json& test, const std::string& id, NamedTensors& results) const {
    Call call{.x = {}, .c = {}, .attributes = test["attributes"]};
    for (int64_t i = 0; i < test["inputs"]; ++i)
      call.x.push_back(
          cast(tensor(id + ".x" + std::to_string(i)), mode_.dtype).clone().set_requires_grad());
    for (int64_t i = 0; i < test["constants"]; ++i) {
      const Tensor c = tensor(id + ".c" + std::to_string(i));
      call.c.push_back(is_floating(c.dtype()) ? cast(c, mode_.dtype) : c);
    }
    const Function& function = functions().at(test["op"]);
    Tensor y;
    if (mode_.region) y = amp::autocast(*mode_.region, [&] { return function(call); });
    else y = function(call);
    y.backward(cast(tensor(id + ".dy"), y.dtype()));
    keep(id + ".y", y.detach(), results);
    for (std::size_t i = 0; i < call.x.size(); ++i)
      keep(id + ".g" + std::to_string(i), call.x[i].grad(), results);
  }

 private:
  Tensor tensor(const std::string& name) const { return tensors_.at(name).to(device_); }
  static void keep(const std::string& name, const Tensor& x, NamedTensors& results) {
    results[name] = cast(x.to(Device::cpu()), f64);
  }
  const NamedTensors& tensors_;
  Mode mode_;
  Device device_;
};

}  // namespace

int main(int count, char** arguments) {
  if (count != 6) {
    std::cerr
        << "usage: run_cases CASES.json INPUTS.safetensors MODE BACKEND RESULTS.safetensors\n";
    return 2;
  }
  try {
    const std::string backend = arguments[4];
    std::optional<CpuBackendScope> scope;
    if (backend != "cuda") scope.emplace(backend);
    const json cases = json::parse(std::ifstream(arguments[1]));
    const NamedTensors tensors = load_safetensors(arguments[2]).tensors;
    const Runner runner(tensors, mode_of(arguments[3]),
                        backend == "cuda" ? Device::cuda() : Device::cpu());
    NamedTensors results;
    for (const auto& [id, test] : cases.items()) {
      if (!tensors.contains(id + ".dy")) continue;  // PyTorch has no such operation in this mode
      try {
        runner.run(test, id, results);
      } catch (const std::exception& error) {
        std::cerr << id << " " << test << ": " << error.what() << "\n";
      }
    }
    save_safetensors(arguments[5], results);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
