// Mixed precision in one file: a small deep-learning framework that needs only the C++20 standard
// library. It trains one network on Fashion-MNIST in f32 and under seven strategies that store or
// compute in 16 bits. A table shows the bytes, the accuracy and the time of each.
//
//   g++ -std=c++20 -O2 examples/one_file.cpp -o one_file
//   zcat /usr/share/datasets/fashion-mnist/*.gz | ./one_file     # Debian: dataset-fashion-mnist
//
// Read this file before the library, from top to bottom. halftone has the same ideas under the same
// names, in the files that the headings name; tests/one_file/ compares the losses of 100 steps.
#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace one_file {

// === 1. Numbers === in the library: core/dtype.h, core/random.h ==================================
//
//   dtype  sign exponent fraction   largest   smallest above 0   spacing above 1
//   f32      1      8       23      3.4e38        1.4e-45            1.2e-7
//   f16      1      5       10      65504         6.0e-8             0.00098
//   bf16     1      8        7      3.4e38        9.2e-41            0.0078
//
// bf16 has the range of f32, but only two to three decimal digits. f16 has one digit more, but
// gradients can be too small for it. Both are for storage, and all arithmetic is in f32: short
// numbers are widened, which is exact, and each result is rounded once, when it is stored.

enum class Dtype { f32, f16, bf16, i16 };  // i16: a companion of section 7
using enum Dtype;

uint32_t bits_of(float x) { return std::bit_cast<uint32_t>(x); }
float float_of(uint32_t bits) { return std::bit_cast<float>(bits); }

/// bf16 is the upper half of an f32. Almost half a unit is added before the cut, so that it rounds
/// to nearest. The last bit that stays decides ties: they go to the even number.
uint16_t to_bf16(float x) {
  const uint32_t bits = bits_of(x);
  if (std::isnan(x)) return uint16_t(bits >> 16 | 0x40);  // the addition could make it infinite
  return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
float from_bf16(uint16_t bits) { return float_of(uint32_t(bits) << 16); }

/// The same for f16. Its exponent is shorter: large numbers become infinite, and numbers below
/// 2^-14 have a fixed spacing of 2^-24.
uint16_t to_f16(float x) {
  const uint32_t sign = bits_of(x) >> 16 & 0x8000, bits = bits_of(x) & 0x7fffffff;
  const float size = float_of(bits);
  if (std::isnan(x)) return uint16_t(sign | 0x7e00);
  if (size >= 65520) return uint16_t(sign | 0x7c00);  // half a spacing above the largest number
  if (size < 0x1p-14f)  // f32 has the spacing 2^-24 above 0.5, so this addition rounds
    return uint16_t(sign | (bits_of(size + 0.5f) - bits_of(0.5f)));
  const uint32_t rebiased = bits - (112 << 23);  // exponents count from -15 instead of -127
  return uint16_t(sign | (rebiased + 0xfff + (rebiased >> 13 & 1)) >> 13);
}
float from_f16(uint16_t half) {
  const uint32_t bits = half & 0x7fff;
  float size = float_of((bits << 13) + (112 << 23));
  if (bits < 0x400) size = float(bits) * 0x1p-24f;
  if (bits >= 0x7c00) size = float_of(0x7f800000 | bits << 13);  // infinite, or NaN
  return half & 0x8000 ? -size : size;
}

uint16_t narrowed(float x, Dtype dtype) {
  return dtype == bf16 ? to_bf16(x) : dtype == f16 ? to_f16(x) : uint16_t(int16_t(x));
}
float widened(uint16_t x, Dtype dtype) {
  return dtype == bf16 ? from_bf16(x) : dtype == f16 ? from_f16(x) : float(int16_t(x));
}

/// Random numbers that depend on a seed and a counter alone: Philox 4x32-10 (Salmon et al. 2011).
std::array<uint32_t, 4> random_words(uint64_t seed, uint64_t counter) {
  uint32_t c0 = uint32_t(counter), c1 = uint32_t(counter >> 32), c2 = 0, c3 = 0;
  uint32_t k0 = uint32_t(seed), k1 = uint32_t(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t(0xD2511F53) * c0, p1 = uint64_t(0xCD9E8D57) * c2;
    c0 = uint32_t(p1 >> 32) ^ c1 ^ k0, c2 = uint32_t(p0 >> 32) ^ c3 ^ k1;
    c1 = uint32_t(p1), c3 = uint32_t(p0);
    k0 += 0x9E3779B9, k1 += 0xBB67AE85;
  }
  return {c0, c1, c2, c3};
}

// === 2. Tensors === in the library: core/tensor.h, backends/reference/ ===========================
using Floats = std::vector<float>;
/// A matrix whose numbers take the bytes of its dtype. The constructor rounds every number once;
/// load() widens them all to f32.
struct Tensor {
  Dtype dtype = f32;
  int rows = 0, columns = 0;
  Floats wide{};                   // the numbers, if they are f32
  std::vector<uint16_t> narrow{};  // their bits, if they have 16
  Tensor() = default;
  Tensor(Dtype type, int row_count, int column_count, const Floats& numbers)
      : dtype(type), rows(row_count), columns(column_count) {
    if (dtype == f32) wide = numbers;
    else
      for (const float x : numbers) narrow.push_back(narrowed(x, dtype));
  }
  Floats load() const {
    Floats numbers = wide;
    for (const uint16_t x : narrow) numbers.push_back(widened(x, dtype));
    return numbers;
  }
  Tensor like(const Floats& numbers) const { return {dtype, rows, columns, numbers}; }
  Tensor zeros(Dtype other) const { return {other, rows, columns, Floats(size())}; }
  std::size_t size() const { return wide.size() + narrow.size(); }
  int64_t bytes() const { return int64_t(4 * wide.size() + 2 * narrow.size()); }
};

Floats transposed(const Floats& x, int rows, int columns) {
  Floats y(x.size());
  for (int i = 0; i < rows; ++i)
    for (int j = 0; j < columns; ++j) y[j * rows + i] = x[i * columns + j];
  return y;
}

/// c[m, n] = a[m, k] b[k, n]. Sums are f32 whatever the operands were: a sum in bf16 stops growing
/// after a few hundred terms. Processors with bf16 instructions do the same.
Floats product(const Floats& a, const Floats& b, int m, int k, int n) {
  constexpr int width = 32;  // a loop of fixed length becomes vector instructions
  Floats c(m * n), panel(k * width);
  for (int first = 0; first < n; first += width) {
    const int columns = std::min(width, n - first);
    for (int p = 0; p < k; ++p) std::copy_n(&b[p * n + first], columns, &panel[p * width]);
    for (int i = 0; i < m; ++i) {
      float sum[width] = {};
      for (int p = 0; p < k; ++p)
        for (int j = 0; j < width; ++j) sum[j] += a[i * k + p] * panel[p * width + j];
      std::copy_n(sum, columns, &c[i * n + first]);
    }
  }
  return c;
}

// === 3. The tape === in the library: autograd/engine.cpp =========================================
// The forward pass writes a function on the tape for each operation. The function computes the
// gradients of the operation's inputs. The backward pass plays the tape from its end.

struct Node {
  Tensor value{}, gradient{};
  bool needs_gradient = true;
  std::shared_ptr<Node> cast_of{};  // the f32 node that this one is a short copy of
};
using Var = std::shared_ptr<Node>;
Var variable(Tensor value, bool needs_gradient = true) {
  return std::make_shared<Node>(Node{std::move(value), {}, needs_gradient, nullptr});
}

/// Adds to the gradient of a node. It has the dtype of the node: bf16 weights, bf16 gradients.
void add_gradient(Node& node, const Floats& numbers) {
  Floats sum = node.value.like(numbers).load();
  const Floats before = node.gradient.load();
  for (std::size_t i = 0; i < before.size(); ++i) sum[i] += before[i];
  node.gradient = node.value.like(sum);
}

struct Tape {
  std::vector<std::function<void()>> steps{};
  std::optional<Dtype> autocast{};    // section 5
  std::map<Node*, Var> cast_cache{};  // likewise
  Var operand(const Var& x);
  /// `seed`: the gradient of the loss. It is 1, or the loss scale of section 6.
  void backward(const Var& loss, float seed) {
    loss->gradient = loss->value.like({seed});
    for (auto step = steps.rbegin(); step != steps.rend(); ++step) (*step)();
  }
};

// === 4. Operations === in the library: autograd/apply.h, autograd/ops/ ===========================
// An operation casts its inputs (if autocast is on), computes, and records. The backward pass
// decides nothing about dtypes: the forward pass did, and each gradient has the dtype of its node.

/// Mixed precision adds this one operation to automatic differentiation. Its gradient is cast back.
Var cast(Tape& tape, const Var& x, Dtype dtype) {
  const Tensor& from = x->value;
  if (from.dtype == dtype) return x;
  const Var y = variable({dtype, from.rows, from.columns, from.load()}, x->needs_gradient);
  if (from.dtype == f32) y->cast_of = x;
  tape.steps.push_back([x, y] {
    if (y->gradient.size() > 0) add_gradient(*x, y->gradient.load());
  });
  return y;
}

/// The node that a matrix product gives its gradient to. The sums of the product are f32: if the
/// operand is a cast of an f32 weight, they go to the weight, and are never rounded to 16 bits.
Node& gradient_target(const Var& x) { return x->cast_of ? *x->cast_of : *x; }

/// y = x weight^T + bias; x: [batch, in], weight: [out, in], bias: [1, out].
Var linear(Tape& tape, const Var& x_in, const Var& weight_in, const Var& bias_in) {
  const Var x = tape.operand(x_in), weight = tape.operand(weight_in), bias = tape.operand(bias_in);
  const int batch = x->value.rows, in = x->value.columns, out = weight->value.rows;
  const Floats xs = x->value.load(), ws = weight->value.load(), bs = bias->value.load();
  Floats sums = product(xs, transposed(ws, out, in), batch, in, out);
  for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += bs[i % out];
  const Var y = variable({x->value.dtype, batch, out, sums});
  tape.steps.push_back([x, weight, bias, y, batch, in, out] {
    const Floats dy = y->gradient.load(), xs = x->value.load(), ws = weight->value.load();
    if (x->needs_gradient) add_gradient(gradient_target(x), product(dy, ws, batch, out, in));
    add_gradient(gradient_target(weight), product(transposed(dy, batch, out), xs, out, batch, in));
    Floats dbias(out);
    for (std::size_t i = 0; i < dy.size(); ++i) dbias[i % out] += dy[i];
    add_gradient(gradient_target(bias), dbias);
  });
  return y;
}

Var relu(Tape& tape, const Var& x) {
  Floats numbers = x->value.load();
  for (float& number : numbers) number = number < 0 ? 0 : number;  // NaN stays NaN
  const Var y = variable(x->value.like(numbers));
  tape.steps.push_back([x, y] {
    Floats dx = y->gradient.load(), ys = y->value.load();
    for (std::size_t i = 0; i < dx.size(); ++i) dx[i] *= ys[i] <= 0 ? 0.0f : 1.0f;
    add_gradient(*x, dx);
  });
  return y;
}

/// The mean of -log(p[label]) over the rows, where p = softmax(logits).
Var cross_entropy(Tape& tape, const Var& logits, const std::vector<int>& labels) {
  const int rows = logits->value.rows, classes = logits->value.columns;
  Floats p = logits->value.load();
  float total = 0;
  for (int row = 0; row < rows; ++row) {
    float* x = &p[row * classes];
    const float largest = *std::max_element(x, x + classes), right = x[labels[row]];
    float sum = 0;
    for (int i = 0; i < classes; ++i) sum += x[i] = std::exp(x[i] - largest);
    for (int i = 0; i < classes; ++i) x[i] /= sum;
    total += largest - right + std::log(sum);
  }
  const Var loss = variable({f32, 1, 1, {total / float(rows)}});
  tape.steps.push_back([logits, labels, loss, p, rows, classes] {
    const float scale = loss->gradient.load()[0] / float(rows);
    Floats dx = p;
    for (int row = 0; row < rows; ++row) dx[row * classes + labels[row]] -= 1;
    for (float& d : dx) d *= scale;
    add_gradient(*logits, dx);
  });
  return loss;
}

// === 5. Autocast === in the library: amp/autocast.cpp ============================================
// The model stays in f32, and its matrix products, which take the time, get 16-bit operands. relu
// computes in the dtype that it gets. The loss gets f32 logits, because exp and log magnify what
// rounding did. The library has a cast class for each operation; this network needs these three.

/// The operand that a product gets for x. The cast cache casts a weight once a pass, however often
/// it is used. It ends with the tape, because the update changes the weight.
Var Tape::operand(const Var& x) {
  if (!autocast) return x;
  if (!x->needs_gradient || x->value.dtype != f32) return cast(*this, x, *autocast);
  Var& entry = cast_cache[x.get()];
  if (!entry) entry = cast(*this, x, *autocast);
  return entry;
}

// === 6. The loss scaler === in the library: amp/grad_scaler.h, core/loss_scale.h =================
// f16 ends at 6e-8, and many gradients are smaller. So the loss is multiplied by a large scale, and
// with it every gradient; the update divides again, in f32. If gradients become infinite, the step
// is skipped and the scale is halved. After many steps without that it is doubled.

struct LossScaler {
  bool enabled = false;
  float scale = 65536;         // a power of two, so that scaling does not round
  int growth_interval = 2000;  // steps without an overflow until the scale is doubled
  int clean_steps = 0, skipped_steps = 0;
  float value() const { return enabled ? scale : 1; }
  void update(bool overflowed) {
    clean_steps = overflowed ? 0 : clean_steps + 1;
    if (overflowed) scale /= 2, ++skipped_steps;
    if (clean_steps == growth_interval) scale *= 2, clean_steps = 0;
  }
};

// === 7. Weight forms === in the library: core/update_rules.h =====================================
//
// A bf16 weight cannot take an update that is smaller than half its spacing, 1/512 to 1/256 of the
// weight: rounding removes it, in every step. Late in a training most updates are smaller. A weight
// form stores the weight so that they are not lost.
//
//   form        parameter             companion                  bytes
//   plain       the weight, rounded   -                          2 (f32: 4)   loses updates
//   master      the weight, rounded   the weight in f32          2 + 4        loses nothing
//   split       its upper 16 bits     its lower 16 bits          2 + 2        loses nothing
//   kahan       the weight, rounded   what rounding cut, bf16    2 + 2        16 bits of 24
//   stochastic  up or down by chance  -                          2            right on average

enum class Form { plain, master, split, kahan, stochastic };

std::optional<Dtype> companion_dtype(Form form) {
  if (form == Form::plain || form == Form::stochastic) return std::nullopt;
  return form == Form::master ? f32 : form == Form::split ? i16 : bf16;
}

struct Stored {
  float parameter, companion;  // of one weight, before their dtypes round them
};

float decode(Form form, Stored s) {
  if (form == Form::master) return s.companion;
  if (form == Form::kahan) return s.parameter + s.companion;
  if (form != Form::split) return s.parameter;
  const int rest = int(s.companion);  // negative if the upper half was rounded up
  return float_of(bits_of(s.parameter) - (rest < 0 ? 0x10000 : 0) + (uint32_t(rest) & 0xffff));
}

/// `random`: 16 random bits, for the form stochastic.
Stored encode(Form form, float weight, Dtype dtype, uint32_t random) {
  const uint32_t bits = bits_of(weight);
  if (form == Form::split)  // rounds to nearest; ties go up, because the rest is then negative
    return {float_of((bits + (bits << 1 & 0x10000)) & 0xffff0000), float(int16_t(bits & 0xffff))};
  if (form == Form::stochastic && std::isfinite(weight))  // carries with probability rest / 2^16
    return {float_of((bits + random) & 0xffff0000), 0};
  const float rounded = dtype == f32 ? weight : widened(narrowed(weight, dtype), dtype);
  return {rounded, form == Form::master ? weight : weight - rounded};
}

// === 8. Optimizers === in the library: core/update_rules.h =======================================
struct Parameter {
  Var node;                         // what the forward pass reads
  Tensor companion, first, second;  // of the weight form; two states of the optimizer
};

/// Adam (Kingma & Ba 2015) or SGD with momentum, by PyTorch's formulas, in f32 arithmetic.
struct Optimizer {
  bool is_adam = true;
  float lr = 1e-3f, momentum = 0.9f;              // momentum: SGD's
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;  // Adam's
  int steps = 0;
  float step_size = 0, inverse_root = 0;  // Adam's correction of states that began as 0
  void begin_step() {
    ++steps;
    step_size = lr * float(1 / (1 - std::pow(beta1, steps)));
    inverse_root = float(1 / std::sqrt(1 - std::pow(beta2, steps)));
  }
  void move(float& weight, float gradient, float& first, float& second) const {
    if (is_adam) {
      first += float(1 - beta1) * (gradient - first);
      second = float(beta2) * second + float(1 - beta2) * gradient * gradient;
      weight -= step_size * first / (std::sqrt(second) * inverse_root + float(eps));
    } else {
      first = (steps == 1 ? 0 : momentum * first) + gradient;
      weight -= lr * first;
    }
  }
};

/// Encodes weights. 8 of them share the words of one random counter.
void store(Parameter& p, Form form, const Floats& weights, uint64_t counter) {
  Floats parameters, companions;
  std::array<uint32_t, 4> words{};
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (form == Form::stochastic && i % 8 == 0) words = random_words(0, counter + i / 8);
    const uint32_t random = words[i / 2 % 4] >> (i % 2 ? 16 : 0) & 0xffff;
    const Stored stored = encode(form, weights[i], p.node->value.dtype, random);
    parameters.push_back(stored.parameter), companions.push_back(stored.companion);
  }
  p.node->value = p.node->value.like(parameters);
  if (companion_dtype(form)) p.companion = p.companion.like(companions);
}

/// The gradient is divided by the loss scale here, in f32. In f16 it would underflow after all.
void update(Parameter& p, const Optimizer& optimizer, Form form, float scale, uint64_t counter) {
  Floats weights = p.node->value.load(), first = p.first.load(), second = p.second.load();
  const Floats companions = p.companion.load(), gradients = p.node->gradient.load();
  second.resize(weights.size());  // SGD has none
  for (std::size_t i = 0; i < weights.size(); ++i) {
    weights[i] = decode(form, {weights[i], companions.empty() ? 0 : companions[i]});
    optimizer.move(weights[i], gradients[i] / scale, first[i], second[i]);
  }
  p.first = p.first.like(first);
  if (optimizer.is_adam) p.second = p.second.like(second);
  store(p, form, weights, counter);
}

// === 9. Strategies === in the library: amp/policy.cpp ==========================================
// A strategy chooses from each section above. Trainings differ in nothing else.

struct Strategy {
  std::string name;
  Dtype weights = f32;
  Form form = Form::plain;
  Dtype state = f32;  // of the optimizer
  std::optional<Dtype> autocast{};
  bool scales_loss = false;
};

const std::vector<Strategy> strategies{
    {.name = "fp32"},
    {.name = "amp-bf16", .autocast = bf16},
    {.name = "amp-fp16", .autocast = f16, .scales_loss = true},
    {.name = "o2-bf16", .weights = bf16, .form = Form::master},
    {.name = "split-bf16", .weights = bf16, .form = Form::split},
    {.name = "full-bf16", .weights = bf16, .state = bf16},
    {.name = "full-bf16-kahan", .weights = bf16, .form = Form::kahan, .state = bf16},
    {.name = "full-bf16-sr", .weights = bf16, .form = Form::stochastic, .state = bf16},
};

// === 10. A training === in the library: amp/training.h ===========================================
/// Trains three linear layers. The second is used twice, so that the cast cache has work.
struct Training {
  Strategy strategy;
  Optimizer optimizer;
  LossScaler scaler;
  std::vector<Parameter> parameters{};  // weight and bias of each layer
  uint64_t random_counter = 0;
  int64_t cast_bytes = 0;  // what the cast cache held in the last step
  /// `initial`: the f32 weight and bias of each layer.
  Training(const Strategy& s, const Optimizer& o, const std::vector<Tensor>& initial)
      : strategy(s), optimizer(o), scaler{.enabled = s.scales_loss} {
    for (const Tensor& x : initial) {
      Parameter p{variable(x.zeros(strategy.weights)), {}, x.zeros(strategy.state), {}};
      if (optimizer.is_adam) p.second = p.first;
      if (const auto dtype = companion_dtype(strategy.form)) p.companion = x.zeros(*dtype);
      // Chance decides about updates. The first weights are rounded to nearest.
      store(p, strategy.form == Form::stochastic ? Form::plain : strategy.form, x.wide, 0);
      parameters.push_back(p);
    }
  }
  /// Returns the logits, which are f32 under every strategy.
  Var forward(Tape& tape, const Tensor& images) const {
    tape.autocast = strategy.autocast;
    const auto layer = [&](int i, const Var& x) {
      return linear(tape, x, parameters[2 * i].node, parameters[2 * i + 1].node);
    };
    Var x = cast(tape, variable(images, false), strategy.weights);
    for (const int i : {0, 1, 1}) x = relu(tape, layer(i, x));
    return cast(tape, layer(2, x), f32);
  }
  /// Returns the loss before the update.
  float step(const Tensor& images, const std::vector<int>& labels) {
    for (Parameter& p : parameters) p.node->gradient = {};
    Tape tape;
    const Var loss = cross_entropy(tape, forward(tape, images), labels);
    tape.backward(loss, scaler.value());
    cast_bytes = 0;
    for (const auto& [weight, copy] : tape.cast_cache) cast_bytes += copy->value.bytes();
    bool overflowed = false;
    for (const Parameter& p : parameters)
      for (const float g : p.node->gradient.load())
        overflowed |= scaler.enabled && !std::isfinite(g);
    if (!overflowed) update_all();
    scaler.update(overflowed);
    return loss->value.load()[0];
  }
  void update_all() {
    optimizer.begin_step();
    for (Parameter& p : parameters) {
      update(p, optimizer, strategy.form, scaler.value(), random_counter);
      random_counter += (p.first.size() + 7) / 8;  // no two updates get the same random bits
    }
  }
};

// === 11. The data === in the library: data/sets.h ================================================
constexpr const char* usage =
    "Run: zcat FASHION_MNIST/*.gz | ./one_file [--short] [--sgd] [NAME...]";
[[noreturn]] void fail(const std::string& message) {
  std::cerr << "[one_file] " << message << ' ' << usage << '\n';
  std::exit(1);
}

struct Images {
  std::vector<uint8_t> pixels, labels;  // 784 pixels and a label for each image
};
using Batch = std::pair<Tensor, std::vector<int>>;  // images, labels

/// Reads an IDX file: a header with the sizes, each in four bytes, and the items.
std::vector<uint8_t> read_idx(const std::string& what, int header_bytes, std::size_t item_bytes) {
  uint8_t header[16] = {};
  std::cin.read(reinterpret_cast<char*>(header), header_bytes);
  const std::size_t count = header[5] << 16 | header[6] << 8 | header[7];
  const bool right = header[2] == 8 && header[3] == header_bytes / 4 - 1 && count <= 60000;
  std::vector<uint8_t> items(right ? count * item_bytes : 0);
  std::cin.read(reinterpret_cast<char*>(items.data()), std::streamsize(items.size()));
  if (items.empty() || !std::cin)
    fail("standard input does not have the " + what + " as an IDX file.");
  return items;
}

Images read_images(const std::string& set) {
  Images images{read_idx(set + " images", 16, 784), read_idx(set + " labels", 8, 1)};
  if (images.pixels.size() != 784 * images.labels.size() || std::ranges::max(images.labels) > 9)
    fail("the " + set + " labels do not fit the images. Pass the files in alphabetical order.");
  return images;
}

/// The images `index(0)`, `index(1)`, ..., with mean 0 and variance 1, and their labels.
Batch batch_of(const Images& from, int size, const std::function<int(int)>& index) {
  Floats numbers;
  std::vector<int> labels;
  for (int i = 0; i < size; ++i) {
    const uint8_t* pixels = &from.pixels[784 * index(i)];
    for (int j = 0; j < 784; ++j) numbers.push_back((float(pixels[j]) / 255 - 0.286f) / 0.353f);
    labels.push_back(from.labels[index(i)]);
  }
  return {Tensor(f32, size, 784, numbers), labels};
}

// === 12. The comparison === in the library: examples/compare_strategies.cpp ======================
/// Weights are uniform on +-1/sqrt(inputs), biases 0.
std::vector<Tensor> initial_weights(const std::vector<int>& sizes) {
  std::vector<Tensor> result;
  uint64_t counter = 0;
  for (std::size_t i = 1; i < sizes.size(); ++i) {
    const int in = sizes[i - 1], out = sizes[i];
    Floats numbers(in * out);
    for (float& x : numbers)
      x = (float(random_words(1, counter++)[0]) * 0x1p-31f - 1) / std::sqrt(float(in));
    result.emplace_back(f32, out, in, numbers), result.emplace_back(f32, 1, out, Floats(out));
  }
  return result;
}

/// The learning rate falls along a line. Returns the mean loss of the last tenth of the steps.
double train(Training& training, const Images& images, int steps) {
  const float lr = training.optimizer.lr;
  double sum = 0;
  for (int step = 0; step < steps; ++step) {
    const auto [x, labels] = batch_of(images, 128, [&](int i) {
      return int(random_words(2, 128 * step + i)[0] % images.labels.size());
    });
    training.optimizer.lr = lr * float(steps - step) / float(steps);
    const float loss = training.step(x, labels);
    if (step >= steps - steps / 10) sum += loss;
  }
  return sum / (steps / 10);
}

double accuracy(const Training& training, const Images& images) {
  const auto [x, labels] = batch_of(images, int(images.labels.size()), [](int i) { return i; });
  Tape tape;
  const Floats logits = training.forward(tape, x)->value.load();
  int right = 0;
  for (int i = 0; i < x.rows; ++i) {
    const auto row = logits.begin() + 10 * i;
    right += std::max_element(row, row + 10) - row == labels[i];
  }
  return double(right) / x.rows;
}

void print_row(Training training, const Images& images, const Images& test_images, int steps) {
  const auto start = std::chrono::steady_clock::now();
  const double loss = train(training, images, steps);
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
  int64_t count = 0, weights = 0, companions = 0, gradients = 0, state = 0;
  for (const Parameter& p : training.parameters) {
    count += int64_t(p.node->value.size()), weights += p.node->value.bytes();
    companions += p.companion.bytes(), gradients += p.node->gradient.bytes();
    state += p.first.bytes() + p.second.bytes();
  }
  std::printf("%-15s %6.2fx", training.strategy.name.c_str(),
              double(weights + companions) / double(4 * count));
  for (const int64_t bytes : {weights, companions, gradients, state, training.cast_bytes})
    std::printf("%8.1f", double(bytes) / 1024);
  std::printf(" |%7.4f%7.2f%5d%7g |%8.1f\n", loss, 100 * accuracy(training, test_images),
              training.scaler.skipped_steps, training.scaler.value(), time.count());
}

int run(const std::vector<std::string>& words) {
  Optimizer optimizer{.lr = 4e-3f};
  std::vector<Strategy> chosen;
  int steps = 1800;
  for (const std::string& word : words) {
    const auto found = std::ranges::find(strategies, word, &Strategy::name);
    if (found != strategies.end()) chosen.push_back(*found);
    else if (word == "--short") steps = 50;
    else if (word == "--sgd") optimizer = {.is_adam = false, .lr = 0.05f};
    else if (word == "--help") return std::puts(usage), 0;
    else fail("cannot use \"" + word + "\". A name is fp32, amp-bf16, ...");
  }
  std::fputs("Reading from standard input: zcat FASHION_MNIST/*.gz | ./one_file\n", stderr);
  const Images test_images = read_images("test"), images = read_images("training");
  std::puts("KiB, except at rest: weights and companions, over the bytes of f32 weights.\n");
  std::printf("%-15s %6s%8s%8s%8s%8s%8s |%7s%7s%5s%7s |%8s\n", "strategy", "at rest", "weights",
              "compan.", "grads", "state", "casts", "loss", "test %", "skip", "scale", "seconds");
  for (const Strategy& s : chosen.empty() ? strategies : chosen)
    print_row({s, optimizer, initial_weights({784, 64, 64, 10})}, images, test_images, steps);
  return 0;
}

}  // namespace one_file

#ifndef ONE_FILE_WITHOUT_MAIN  // the test includes this file
int main(int argc, char** argv) { return one_file::run({argv + 1, argv + argc}); }
#endif
