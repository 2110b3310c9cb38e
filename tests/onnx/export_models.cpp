// export_models DIRECTORY [ROWS]: writes models and small functions as ONNX files, and next to each
// NAME.onnx a NAME.safetensors with ROWS random inputs (default 14) and halftone's outputs for
// them. check_models.py compares a runtime with these outputs.
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <limits>

#include <halftone/halftone.h>
namespace ht = halftone;

namespace {
std::filesystem::path directory;
int64_t rows = 14;

/// Moves the running statistics of batch norm away from their first values.
void warm_up(ht::nn::Layer& model, const ht::Shape& one) {
  ht::Shape shape = one;
  shape.insert(0, 8);
  for (int i = 0; i < 3; ++i) static_cast<void>(model(ht::randn(shape) * 2 + 0.5));
}

void write(const std::string& name, ht::nn::Module& model, const ht::OnnxForward& forward,
           const std::vector<ht::Tensor>& inputs, const ht::OnnxOptions& options = {}) {
  const auto example = [](const ht::Tensor& x) { return slice(x, 0, 0, 2); };
  std::vector<ht::Tensor> examples;
  for (const ht::Tensor& x : inputs) examples.push_back(example(x));
  const ht::OnnxFile file =
      ht::save_onnx(model, forward, examples, directory / (name + ".onnx"), options);
  model.eval();
  const ht::NoGrad no_grad;
  std::vector<ht::Tensor> outputs;
  if (options.region) outputs = ht::amp::autocast(*options.region, [&] { return forward(inputs); });
  else outputs = forward(inputs);
  ht::NamedTensors tensors;
  for (std::size_t i = 0; i < inputs.size(); ++i)
    tensors["input" + std::to_string(i)] = contiguous(inputs[i]);
  for (std::size_t i = 0; i < outputs.size(); ++i)
    tensors["output" + std::to_string(i)] = contiguous(outputs[i]);
  ht::save_safetensors(directory / (name + ".safetensors"), tensors);
  std::cout << name << ": opset " << file.opset << ", " << file.nodes << " nodes, "
            << file.weight_bytes << " bytes of weights\n";
}
void write(const std::string& name, ht::nn::Layer& model, const ht::Tensor& input,
           const ht::OnnxOptions& options = {}) {
  write(
      name, model, [&](const auto& in) { return std::vector<ht::Tensor>{model(in[0])}; }, {input},
      options);
}

/// With an f32 result, because NumPy has no bf16.
void write_bf16(const std::string& name, ht::nn::Layer& model, const ht::Tensor& input) {
  write(name, model,
        [&](const auto& in) { return std::vector<ht::Tensor>{cast(model(in[0]), ht::f32)}; },
        {input}, {.region = ht::amp::Region{.dtype = ht::bf16}});
}

ht::Tensor images(int64_t channels, int64_t size) {
  return ht::randn({rows, channels, size, size});
}
ht::Tensor tokens(int64_t vocabulary, int64_t length) {
  return ht::randint(0, vocabulary, {rows, length});
}

void write_models() {
  auto mlp = ht::nn::models::mlp({784, 128, 10});
  write("mlp", mlp, ht::randn({rows, 784}));
  ht::nn::models::LeNet lenet;
  write("lenet", lenet, images(1, 28));
  auto resnet = ht::nn::models::resnet18({.classes = 10, .cifar_stem = true});
  warm_up(resnet, {3, 32, 32});
  write("resnet18_cifar", resnet, images(3, 32));
  ht::nn::models::LstmClassifier lstm(100, {.width = 32, .hidden = 32});
  write("lstm", lstm, tokens(100, 20));
  ht::nn::models::LstmClassifier deep(
      100, {.width = 16, .hidden = 24, .layers = 2, .bidirectional = true});
  write("lstm_bidirectional", deep, tokens(100, 20));
  ht::nn::models::UNet unet({.width = 8, .depth = 2});
  warm_up(unet, {3, 32, 32});
  write("unet", unet, images(3, 32));
  ht::nn::models::UNet bilinear({.width = 8, .depth = 2, .transposed = false});
  warm_up(bilinear, {3, 32, 32});
  write("unet_bilinear", bilinear, images(3, 32));
  ht::nn::models::Gpt gpt({.vocabulary = 65, .context = 32, .layers = 3, .heads = 4, .width = 64});
  write("gpt", gpt, tokens(65, 32));
  ht::nn::models::LlamaOptions decoder{.vocabulary = 65,
                                       .context = 32,
                                       .layers = 2,
                                       .width = 64,
                                       .heads = 4,
                                       .key_heads = 2,
                                       .hidden = 96};
  ht::nn::models::Llama llama(decoder);
  write("llama", llama, tokens(65, 32));
  decoder.rope = {.theta = 5e5, .interleaved = true, .scaling = {.factor = 8}};
  decoder.qkv_bias = decoder.qk_norm = decoder.tied = true, decoder.window = 5;
  ht::nn::models::Llama qwen(decoder);
  write("llama_with_options", qwen, tokens(65, 20));
  ht::nn::models::LeNet half;
  write_bf16("lenet_bf16_casts", half, images(1, 28));
  auto bf16_mlp = ht::nn::models::mlp({64, 48, 10});
  write_bf16("mlp_bf16_casts", bf16_mlp, ht::randn({rows, 64}));
  ht::nn::models::Gpt small(
      {.vocabulary = 65, .context = 16, .layers = 1, .heads = 2, .width = 32});
  write("gpt_f16_casts", small, tokens(65, 16), {.region = ht::amp::Region{.dtype = ht::f16}});
}

/// A model under a policy file's rules; its casts and roundings are in the graph.
void write_ruled(const std::string& name, const std::string& rules) {
  auto model = ht::nn::models::mlp({64, 48, 10});
  ht::optim::Sgd sgd(model.parameters(), {.lr = 0.1});
  const ht::amp::Training training = ht::amp::apply(
      ht::policy::read_text(
          R"({"halftone_policy": 1, "name": "exported", "extends": "fp32", "rules": [)" + rules +
              "]}",
          name),
      model, sgd);
  write(name, model, ht::randn({rows, 64}), {.region = training.region()});
}

/// A function as a model without parameters.
struct Nothing final : ht::nn::Module {
  void describe(ht::nn::Fields&) override {}
};
using One = ht::Tensor (*)(const ht::Tensor&);
void write_function(const std::string& name, const ht::Tensor& x, One f) {
  Nothing none;
  write("op_" + name, none, [f](const auto& in) { return std::vector<ht::Tensor>{f(in[0])}; }, {x});
}

void write_functions() {
  using T = const ht::Tensor&;
  const ht::Tensor x = ht::randn({rows, 4, 6}), positive = ht::rand({rows, 4, 6}) + 0.1;
  const std::pair<const char*, One> elementwise[]{
      {"leaky_relu", [](T a) { return leaky_relu(a, 0.1); }},
      {"gelu", [](T a) { return gelu(a); }},
      {"gelu_erf", [](T a) { return gelu_erf(a); }},
      {"silu", [](T a) { return silu(a); }},
      {"tanh", [](T a) { return tanh(a); }},
      {"sigmoid", [](T a) { return sigmoid(a); }},
      {"logsigmoid", [](T a) { return logsigmoid(a); }},
      {"softplus", [](T a) { return softplus(a, 2, 3); }},
      {"exp", [](T a) { return exp(a); }},
      {"expm1", [](T a) { return expm1(a * 0.01); }},
      {"sin_cos", [](T a) { return sin(a) * cos(a); }},
      {"angles", [](T a) { return atan(a) + tan(tanh(a)) + asin(tanh(a)) * acos(tanh(a)); }},
      {"hyperbolic", [](T a) { return sinh(a) - cosh(a * 0.5) + exp2(a); }},
      {"logit", [](T a) { return logit(sigmoid(a), 1e-3); }},
      {"trunc_frac", [](T a) { return trunc(a * 3) * 0.5 - frac(a * 7); }},
      {"rounded", [](T a) { return floor(a) + ceil(a * 3) + round(a * 2.5); }},
      {"sign_abs", [](T a) { return sign(a) * abs(-a); }},
      {"elu", [](T a) { return elu(a, 0.7) + selu(a); }},
      {"mish", [](T a) { return mish(a); }},
      {"hardswish", [](T a) { return hardswish(a); }},
      {"clamp", [](T a) { return clamp(a, -0.5, 0.75) + clamp(a, 0.1); }},
      {"affine", [](T a) { return a * 3 + 2; }},
      {"pow", [](T a) { return pow(abs(a), 1.5) + square(a); }},
      {"remainder", [](T a) { return a % 0.7 + floor_divide(a, 0.3); }},
      {"compare", [](T a) { return where(logical_and(a > 0, a <= 1), a, a * 2); }},
      {"not_equal", [](T a) { return cast(logical_or(a != 0, a < -1), ht::f32) + a; }},
      {"maximum", [](T a) { return maximum(a, a * 2) - minimum(a, 0 - a); }},
      {"glu", [](T a) { return glu(a, -1); }},
      {"swiglu", [](T a) { return swiglu(a, a * 2 - 1); }}};
  for (const auto& [name, f] : elementwise) write_function(name, x, f);
  write_function("logs", positive, [](T a) {
    return log(a) + log2(a) + log10(a) + log1p(a) + sqrt(a) + rsqrt(a) + reciprocal(a);
  });
  const std::pair<const char*, One> others[]{
      {"sums", [](T a) { return sum(a, {1}) + mean(a, {1}) + max(a, {1}) - min(a, {1}); }},
      {"norms", [](T a) { return vector_norm(a, 2, {2}) + vector_norm(a, 1, {2}) + prod(a, {2}); }},
      {"variance",
       [](T a) {
         return ht::var(a, {1, 2}) + ht::std(a, {1, 2});
       }},
      {"argmax", [](T a) { return argmax(a, 1) + argmin(a, 1); }},
      {"any_all", [](T a) { return logical_and(any(a > 1, {2}), logical_not(all(a > 0, {2}))); }},
      {"sort", [](T a) { return topk(a, 3, 2).values; }},
      {"cumsum", [](T a) { return cumsum(a, 1); }},
      {"softmax", [](T a) { return softmax(a, 1) + log_softmax(a, 2); }},
      {"logsumexp", [](T a) { return logsumexp(a, 2); }},
      {"layer_norm",
       [](T a) {
         return layer_norm(a, {4, 6}) + rms_norm(a, {6});
       }},
      {"group_norm", [](T a) { return group_norm(a, 2) + instance_norm(a); }},
      {"flatten", [](T a) { return flatten(a, 1); }},
      {"rows_joined",
       [](T a) {
         return reshape(a, {-1, 12});
       }},
      {"slices",
       [](T a) {
         return ht::cat(
             {slice(a, 2, 1, 6, 2), select(a, 1, 0).unsqueeze(1).expand(a.size(0), 4, 6)}, 2);
       }},
      {"last_row", [](T a) { return a - slice(a, 0, -1, a.size(0)); }},
      {"padding",
       [](T a) {
         return pad(a, {1, 2, 0, 1}, 0.5);
       }},
      {"flip",
       [](T a) {
         return flip(a, {1, 2}) + a;
       }},
      {"gather", [](T a) { return gather(a, 2, argsort(a, 2)); }},
      {"zeros_like",
       [](T a) {
         return ht::cat({a, ht::zeros(a.shape())}, 1);
       }},
      {"attention",
       [](T a) { return scaled_dot_product_attention(a, a * 2, a, {.causal = true}); }},
      {"lerp", [](T a) { return lerp(a, a * 3, 0.3) + masked_fill(a, a > 0.5, 2); }},
      {"nan_to_num",
       [](T a) { return nan_to_num(log(a), 1, 2, 3) + prelu(a, ht::full({4}, 0.3)); }},
      {"tril_roll", [](T a) { return tril(a) + roll(a, {2}, {1}); }},
      {"reflect",
       [](T a) {
         return pad(a, {2, 1}, ht::PadMode::reflect);
       }},
      {"tile_stack",
       [](T a) {
         return ht::stack({tile(a, {1, 2, 1}), tile(a, {1, 2, 1})}, 2);
       }},
      {"einsum",
       [](T a) {
         return ht::einsum("nij,nkj->nik", {a, a * 2});
       }},
      {"normalized", [](T a) { return normalize(a, 2, 2) + sort(a, 1).values; }},
      {"index_select",
       [](T a) {
         return index_select(a, 2, ht::from({4, 0, 3}));
       }},
      {"cumprod", [](T a) { return cumprod(a, 2); }},
      {"attention_masked",
       [](T a) {
         const ht::Tensor mask = ht::arange(16).reshape(4, 4) % 3;
         return scaled_dot_product_attention(a, a, a, {.mask = mask < 2}) +
                scaled_dot_product_attention(a, a, a, {.mask = cast(mask, ht::f32)});
       }},
      {"attention_grouped",
       [](T a) {
         const ht::Tensor q = reshape(a, {a.size(0), 4, 2, 3}), kv = slice(q, 1, 0, 2);
         return scaled_dot_product_attention(q, kv, kv * 2, {.scale = 0.5, .enable_gqa = true});
       }},
      {"scatter", [](T a) { return scatter_add(a, 2, argsort(a, 2), a * 2); }},
      {"volumes",
       [](T a) {
         const ht::Tensor v = reshape(a, {a.size(0), 1, 4, 2, 3});
         const ht::Tensor y = conv3d(v, ht::full({2, 1, 3, 2, 2}, 0.5), {}, {.padding = 1});
         return max_pool3d(y, {.kernel = 2, .stride = ht::Triple(1)});
       }},
      {"mean_of_batch", [](T a) { return a - mean(a, {0}, true); }}};
  for (const auto& [name, f] : others) write_function(name, x, f);
  const ht::Tensor image = images(4, 9);
  const std::pair<const char*, One> pictures[]{
      {"max_pool",
       [](T a) { return max_pool2d(a, {.kernel = 3, .stride = ht::Pair(2), .padding = 1}); }},
      {"max_pool_ceil",
       [](T a) { return max_pool2d(a, {.kernel = 3, .stride = ht::Pair(2), .ceil_mode = true}); }},
      {"max_pool_ceil_padding",
       [](T a) {
         return max_pool2d(a,
                           {.kernel = 2, .stride = ht::Pair(3), .padding = 1, .ceil_mode = true});
       }},
      {"avg_pool",
       [](T a) { return avg_pool2d(a, {.kernel = 3, .stride = ht::Pair(2), .padding = 1}); }},
      {"avg_pool_inside",
       [](T a) { return avg_pool2d(a, {.kernel = 2, .padding = 1, .count_include_pad = false}); }},
      {"adaptive", [](T a) { return adaptive_avg_pool2d(a, 3); }},
      {"nearest", [](T a) { return interpolate(a, {.size = ht::Pair(13, 7)}); }},
      {"bilinear",
       [](T a) {
         return interpolate(a, {.size = ht::Pair(13, 7), .mode = ht::Interpolation::bilinear});
       }},
      {"corners",
       [](T a) {
         return interpolate(
             a,
             {.size = ht::Pair(13, 7), .mode = ht::Interpolation::bilinear, .align_corners = true});
       }},
      {"group_norm_2d", [](T a) { return group_norm(a, 2); }}};
  for (const auto& [name, f] : pictures) write_function(name, image, f);
}

/// Numbers at which formulas break: check_models.py compares these outputs one by one.
void write_corners() {
  using T = const ht::Tensor&;
  constexpr double inf = std::numeric_limits<double>::infinity(), nan = std::nan("");
  const ht::Tensor x =
      ht::from({0.0, -0.0, 1.0, -1.0, inf, -inf, nan, 1e30, -1e30, 1e-30, 3.5, -2.5, 0.5, -88.0})
          .reshape(14, 1);
  const std::pair<const char*, One> functions[]{
      {"relu", [](T a) { return relu(a); }},
      {"clamp", [](T a) { return clamp(a, -1, 2); }},
      {"sign", [](T a) { return sign(a); }},
      {"exp2", [](T a) { return exp2(a); }},
      {"trunc", [](T a) { return trunc(a); }},
      {"atan", [](T a) { return atan(a); }},
      {"exp", [](T a) { return exp(a); }},
      {"log", [](T a) { return log(a); }},
      {"log1p", [](T a) { return log1p(a); }},
      {"log2", [](T a) { return log2(a); }},
      {"expm1", [](T a) { return expm1(a); }},
      {"rsqrt", [](T a) { return rsqrt(a); }},
      {"reciprocal", [](T a) { return reciprocal(a); }},
      {"gelu", [](T a) { return gelu(a); }},
      {"gelu_erf", [](T a) { return gelu_erf(a); }},
      {"silu", [](T a) { return silu(a); }},
      {"mish", [](T a) { return mish(a); }},
      {"softplus", [](T a) { return softplus(a); }},
      {"logsigmoid", [](T a) { return logsigmoid(a); }},
      {"elu", [](T a) { return elu(a); }},
      {"leaky_relu", [](T a) { return leaky_relu(a, 0.1); }},
      {"cube", [](T a) { return pow(a, 3); }},
      {"nan_to_num", [](T a) { return nan_to_num(a, 1, 2, 3); }},
      {"to_i64", [](T a) { return cast(a, ht::i64); }},
      {"to_i32", [](T a) { return cast(a * 1e9, ht::i32); }},
      {"to_u8", [](T a) { return cast(a * 100, ht::u8); }},
      {"to_bool", [](T a) { return cast(a, ht::boolean); }},
      {"logsumexp", [](T a) { return logsumexp(a, 1); }},
      {"softmax",
       [](T a) {
         return softmax(ht::cat({a, a}, 1), 1);
       }},
      {"average", [](T a) {
         return avg_pool2d(
             reshape(a, {a.size(0), 1, 1, 1}).expand(a.size(0), 1, 3, 3),
             {.kernel = 2, .stride = ht::Pair(2), .padding = 1, .count_include_pad = false});
       }}};
  for (const auto& [name, f] : functions) write_function(std::string("corner_") + name, x, f);
  using Two = ht::Tensor (*)(const ht::Tensor&, const ht::Tensor&);
  const std::pair<const char*, Two> of_two[]{
      {"divide", [](T a, T b) { return a / b; }},
      {"remainder", [](T a, T b) { return a % b; }},
      {"floor_divide", [](T a, T b) { return floor_divide(a, b); }},
      {"fmod", [](T a, T b) { return fmod(a, b); }},
      {"maximum", [](T a, T b) { return maximum(a, b); }},
      {"minimum", [](T a, T b) { return minimum(a, b); }},
      {"pow", [](T a, T b) { return pow(a, b); }},
      {"less", [](T a, T b) { return a < b; }}};
  const ht::Tensor divisors = ht::from({0.0, -0.0, 1.0, -3.0, inf, -inf, nan, 0.1, 1e-30});
  const ht::Tensor whole = ht::from({0, 1, -1, 2, -2, 7, -7, 8, -8, 100, -100, 5, -5, 3});
  const ht::Tensor whole_divisors = ht::from({1, -1, 2, -3, 7});
  Nothing none;
  for (const auto& [name, f] : of_two) {
    const auto with = [f = f](T b) {
      return [f, b](const auto& in) { return std::vector<ht::Tensor>{f(in[0], b)}; };
    };
    write(std::string("op_corner_") + name, none, with(divisors), {x});
    if (std::string_view(name) != "pow")
      write(std::string("op_corner_whole_") + name, none, with(whole_divisors),
            {reshape(whole, {14, 1})});
  }
  write_function("corner_attention", ht::randn({rows, 4, 6}), [](T a) {
    const ht::Tensor seen = ht::from({{1, 0, 0, 1}, {0, 0, 0, 0}, {1, 1, 1, 1}, {0, 0, 0, 0}});
    const ht::Tensor added = masked_fill(ht::zeros({4, 4}), seen == 0, -inf);
    return scaled_dot_product_attention(a, a, a, {.mask = seen > 0}) +
           scaled_dot_product_attention(a, a, a, {.mask = added});
  });
}

/// Layers with weights whose operations no model above has.
struct Recurrent final : ht::nn::Module {
  ht::nn::Gru gru{6, 5, {.batch_first = true, .bidirectional = true}};
  void describe(ht::nn::Fields& field) override { field("gru", gru); }
};
void write_layers() {
  Recurrent recurrent;
  write("layer_gru", recurrent,
        [&](const auto& in) {
          const ht::nn::GruOutput out = recurrent.gru(in[0]);
          return std::vector<ht::Tensor>{out.y, out.h};
        },
        {ht::randn({rows, 7, 6})}, {.output_names = {"states", "last"}});
  ht::nn::ConvTranspose2d grow(4, 6, 3,
                               {.stride = 2, .padding = 1, .output_padding = 1, .groups = 2});
  write("layer_conv_transpose", grow, images(4, 5));
  for (const char* format : {"e4m3", "e5m2", "int8"}) {
    Nothing none;
    write(std::string("quantized_") + format, none,
          [format](const auto& in) { return std::vector<ht::Tensor>{quantize(in[0], format)}; },
          {ht::randn({rows, 40}) * 3});
  }
}
}  // namespace

int main(int count, char** arguments) {
  if (count < 2) {
    std::cerr << "usage: export_models DIRECTORY [ROWS]\n";
    return 2;
  }
  directory = arguments[1];
  if (count > 2) rows = std::atoll(arguments[2]);
  std::filesystem::create_directories(directory);
  ht::manual_seed(1);
  try {
    write_models();
    // A sum in another order may cross a midpoint of a grid, so these are compared as casts are.
    write_ruled("mlp_e4m3_rules",
                R"({"match": {"op": "linear"}, "input": "e4m3", "weight": "e4m3"})");
    write_ruled(
        "mlp_scaled_rules",
        R"({"match": {"op": "linear"}, "input": {"format": "e4m3", "scale": {"per": "tensor", "from": "current"}},
                    "weight": {"format": "e4m3", "scale": {"per": "tensor", "from": "current"}}})");
    if (rows <= 100) write_functions(), write_corners(), write_layers();
  } catch (const ht::Error& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
