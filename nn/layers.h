// Layers, and the first values of their parameters. Convolutions, norms and recurrent layers have
// files of their own.
#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <halftone/autograd/ops.h>
#include <halftone/core/error.h>
#include <halftone/core/tensor.h>
#include <halftone/nn/module.h>

namespace halftone::nn::init {

// First values of parameters, with the formulas, names and defaults of torch.nn.init. All functions
// write into the given tensor (a handle, so const), unrecorded, and return it. They draw from the
// default generator (manual_seed). Glorot & Bengio 2010 (xavier), He et al. 2015 (kaiming), Saxe et
// al. 2013 (orthogonal).

Tensor constant(const Tensor& x, double value);
Tensor zeros(const Tensor& x);
Tensor ones(const Tensor& x);
Tensor uniform(const Tensor& x, double low = 0, double high = 1);
Tensor normal(const Tensor& x, double mean = 0, double std = 1);
/// Draws normal values, restricted to [low, high] (absolute bounds, not multiples of std).
Tensor trunc_normal(const Tensor& x, double mean = 0, double std = 1, double low = -2,
                    double high = 2);

/// For weights [out, in, kernel...]: `in` is the number of inputs that one output depends on, `out`
/// the number of outputs that one input reaches (fan_in and fan_out).
struct Fans {
  int64_t in, out;
};
Fans fans_of(const Tensor& weight);

enum class Nonlinearity { linear, sigmoid, tanh, relu, leaky_relu, selu };
/// Returns the factor for the deviation of weights that keeps the variance through the
/// nonlinearity, as torch.nn.init.calculate_gain. `slope`: that of leaky_relu below 0.
double gain_of(Nonlinearity nonlinearity, double slope = 0.01);

/// Draws numbers with mean 0 and variance gain^2 * 2 / (fan_in + fan_out).
Tensor xavier_uniform(const Tensor& x, double gain = 1);
Tensor xavier_normal(const Tensor& x, double gain = 1);

enum class Fan { in, out };
struct KaimingOptions {
  double slope = 0;  // slope of the leaky_relu after the layer; PyTorch's `a`
  Fan fan = Fan::in;
  Nonlinearity nonlinearity = Nonlinearity::leaky_relu;
};
/// Draws numbers with mean 0 and variance gain^2 / fan; the options determine both.
Tensor kaiming_uniform(const Tensor& x, KaimingOptions options = {});
Tensor kaiming_normal(const Tensor& x, KaimingOptions options = {});

/// Fills x, seen as [size(0), rest], with orthonormal rows or columns (the fewer), times gain.
Tensor orthogonal(const Tensor& x, double gain = 1);

/// Draws the first values of PyTorch's Linear and Conv: weight and bias, both uniform on
/// +-1/sqrt(fan_in of the weight). `bias` may be undefined.
void layer_default(const Tensor& weight, const Tensor& bias);

}  // namespace halftone::nn::init

// Layers. Convolutions, norms and recurrent layers have files of their own.

namespace halftone::nn::detail {

// Checks of constructor arguments, shared by the layers: a wrong size is reported by the
// constructor, not at the first forward pass.

/// Always false: for constructors that only explain the right call, in a static_assert.
template <class T> inline constexpr bool positional = false;

inline void require_positive(std::string_view layer, std::string_view name, int64_t value) {
  if (value < 1) fail<UsageError>(layer, name, " is ", value, ". Use 1 or more.");
}

inline void require_divisible(std::string_view layer, std::string_view name, int64_t value,
                              int64_t groups) {
  if (value % groups != 0)
    fail<ShapeError>(layer, name, " ", value, " does not divide into ", groups,
                     " groups. Choose a divisor of ", value, ".");
}

inline double probability(std::string_view layer, double p) {
  if (!(p >= 0 && p <= 1))
    fail<UsageError>(layer, "probability ", p, " is not between 0 and 1. Choose one that is.");
  return p;
}

/// Returns the index of a place, counted from the end if negative. Throws UsageError if absent.
inline std::size_t place_among(std::string_view list, int place, std::size_t size) {
  const int at = place < 0 ? place + int(size) : place;
  if (at < 0 || at >= int(size))
    fail<UsageError>(list, "layer ", place, " is asked for, and there are ", size,
                     ". Count from 0, or back from -1.");
  return std::size_t(at);
}

}  // namespace halftone::nn::detail

// Activation functions as layers, for use in Sequential. The formulas are in core/formulas.h.

namespace halftone::nn {

struct Relu final : StatelessLayer {
  Tensor forward(const Tensor& x) const override { return relu(x); }
};
struct LeakyRelu final : StatelessLayer {
  double slope;
  explicit LeakyRelu(double negative_slope = 0.01) : slope(negative_slope) {}
  Tensor forward(const Tensor& x) const override { return leaky_relu(x, slope); }
};
/// As torch.nn.GELU(approximate). "none", the default, computes the exact form (gelu_erf()), "tanh"
/// the approximation of GPT-2 (gelu()). Throws UsageError for other names.
struct Gelu final : StatelessLayer {
  bool uses_tanh;
  explicit Gelu(std::string_view approximate = "none") : uses_tanh(approximate == "tanh") {
    if (!uses_tanh && approximate != "none")
      fail<UsageError>("Gelu", "approximate is \"", approximate,
                       "\". Use \"none\" for the exact form, or \"tanh\".");
  }
  Tensor forward(const Tensor& x) const override { return uses_tanh ? gelu(x) : gelu_erf(x); }
};
struct Silu final : StatelessLayer {
  Tensor forward(const Tensor& x) const override { return silu(x); }
};
struct Elu final : StatelessLayer {
  double alpha;
  explicit Elu(double scale = 1) : alpha(scale) {}
  Tensor forward(const Tensor& x) const override { return elu(x, alpha); }
};
struct Mish final : StatelessLayer {
  Tensor forward(const Tensor& x) const override { return mish(x); }
};
struct Hardswish final : StatelessLayer {
  Tensor forward(const Tensor& x) const override { return hardswish(x); }
};
struct Tanh final : StatelessLayer {
  Tensor forward(const Tensor& x) const override { return halftone::tanh(x); }
};
struct Sigmoid final : StatelessLayer {
  Tensor forward(const Tensor& x) const override { return sigmoid(x); }
};
struct Softplus final : StatelessLayer {
  double beta, threshold;
  explicit Softplus(double sharpness = 1, double linear_above = 20)
      : beta(sharpness), threshold(linear_above) {}
  Tensor forward(const Tensor& x) const override { return softplus(x, beta, threshold); }
};

/// Multiplies numbers below 0 by a learned slope, at first 0.25. There is one slope, or one per
/// channel (dimension 1). As torch.nn.PReLU.
struct Prelu final : Layer {
  Parameter weight;
  explicit Prelu(int64_t num_parameters = 1, double init = 0.25);
  Tensor forward(const Tensor& x) const override { return prelu(x, weight); }
  void describe(Fields& field) override { field("weight", weight); }
};
struct Glu final : StatelessLayer {
  int dim;
  explicit Glu(int split_dim = -1) : dim(split_dim) {}
  Tensor forward(const Tensor& x) const override { return glu(x, dim); }
};
struct Softmax final : StatelessLayer {
  int dim;
  explicit Softmax(int along_dim) : dim(along_dim) {}
  Tensor forward(const Tensor& x) const override { return softmax(x, dim); }
};
/// Returns its input. As torch.nn.Identity.
struct Identity final : StatelessLayer {
  Tensor forward(const Tensor& x) const override { return x; }
};

// While training, zeroes each element with probability p and divides the rest by 1 - p (Srivastava
// et al. 2014); in evaluation the identity. As torch.nn.Dropout.

struct Dropout final : StatelessLayer {
  double p;
  explicit Dropout(double probability = 0.5) : p(detail::probability("Dropout", probability)) {}
  Tensor forward(const Tensor& x) const override { return dropout(x, p, training); }
};
/// Dropout of whole channels of x, [n, channels, ...]. As torch.nn.Dropout2d.
struct Dropout2d final : StatelessLayer {
  double p;
  explicit Dropout2d(double probability = 0.5) : p(detail::probability("Dropout2d", probability)) {}
  Tensor forward(const Tensor& x) const override { return dropout2d(x, p, training); }
};

// A table of vectors, looked up by integer. As torch.nn.Embedding: weight [count, width], from N(0,
// 1).

struct EmbeddingOptions {
  int64_t padding_index = -1;  // this row starts at zero and gets no gradient; -1: no such row
};

struct Embedding final : Layer {
  Parameter weight;
  int64_t padding_index;
  Embedding(int64_t count, int64_t width, EmbeddingOptions options = {});
  /// indices: integers [...]; the result: [..., width].
  Tensor forward(const Tensor& indices) const override { return with_weight(indices, weight); }
  Tensor with_weight(const Tensor& indices, const Tensor& w) const {
    return embedding(indices, w, padding_index);
  }
  void describe(Fields& field) override { field("weight", weight); }
  std::string_view part() const override { return "embedding"; }
};

// Merges dimensions start..end into one; by default all but the first, which counts the samples. As
// torch.nn.Flatten.

struct Flatten final : StatelessLayer {
  int start_dim, end_dim;
  explicit Flatten(int start = 1, int end = -1) : start_dim(start), end_dim(end) {}
  Tensor forward(const Tensor& x) const override { return flatten(x, start_dim, end_dim); }
};

// y = x W^T + b over the last dimension of x. As torch.nn.Linear: weight [out, in], the same first
// values.

struct LinearOptions {
  bool bias = true;
};

struct Linear final : Layer {
  Parameter weight, bias;
  Linear(int64_t in_features, int64_t out_features, LinearOptions options = {});
  /// Takes the option `bias` directly, as PyTorch does: Linear(784, 10, false).
  template <std::same_as<bool> Bias>
  Linear(int64_t in_features, int64_t out_features, Bias with_bias)
      : Linear(in_features, out_features, LinearOptions{.bias = with_bias}) {}
  Tensor forward(const Tensor& x) const override { return with_weight(x, weight); }
  /// Computes the layer with `w` instead of its own weight, for WeightNorm and SpectralNorm.
  Tensor with_weight(const Tensor& x, const Tensor& w) const { return linear(x, w, bias); }
  void describe(Fields& field) override { field("weight", weight), field("bias", bias); }
};

/// A linear layer without bias that scores the experts of a mixture of experts: x [..., features]
/// -> f32 [..., experts]. It computes in f32 (f64 for f64) under every strategy, because a rounding
/// can choose another expert. Patterns of policies name it <router>.
struct Router final : Layer {
  Parameter weight;
  Router(int64_t features, int64_t experts);
  Tensor forward(const Tensor& x) const override;
  void describe(Fields& field) override { field("weight", weight); }
  std::string_view part() const override { return "router"; }
};

// Layers in a row, built from values: Sequential{Linear(784, 512), Relu(), Linear(512, 10)}. With
// braces, layers draw their initial weights in this order. With parentheses, C++ does not fix the
// order of arguments, so g++ and clang give different weights for one seed. Children are named 0,
// 1, 2, ... as PyTorch's are, so parameters are called 0.weight, 0.bias, 2.weight, 2.bias.

struct Recurrent;

class Sequential final : public Layer {
 public:
  Sequential() = default;
  template <class... L>
  requires(sizeof...(L) > 0) explicit Sequential(L... layers) { (add(std::move(layers)), ...); }

  /// Appends a layer and returns it, at its final address.
  template <class L> L& add(L layer) {
    static_assert(
        !std::derived_from<L, Recurrent>,
        "Lstm, Gru and Rnn give more than one tensor, which no Sequential hands on: write a "
        "Module that calls lstm(x).y");
    static_assert(std::derived_from<L, Layer> || std::derived_from<L, Recurrent>,
                  "Sequential holds Layers: derive it from nn::Layer, not nn::Module, and give it "
                  "Tensor forward(const Tensor&) const override");
    auto owned = std::make_unique<L>(std::move(layer));
    L& result = *owned;
    if constexpr (std::derived_from<L, Layer>) layers_.push_back(std::move(owned));
    return result;
  }

  int size() const { return int(layers_.size()); }
  /// Returns the layer at a position, counted from the end if negative. Throws UsageError.
  Layer& operator[](int place) const;

  Tensor forward(const Tensor& x) const override;
  void describe(Fields& field) override;

 private:
  std::vector<std::unique_ptr<Layer>> layers_;
};

// Modules in a list, called one by one by the module that owns the list. Children are named 0, 1,
// 2, ..., as those of torch.nn.ModuleList. M is their class, or a class that they all derive from.

template <std::derived_from<Module> M = Layer> class ModuleList final : public Module {
 public:
  class Iterator {
   public:
    explicit Iterator(const std::unique_ptr<M>* at) : at_(at) {}
    M& operator*() const { return **at_; }
    Iterator& operator++() { return ++at_, *this; }
    bool operator==(const Iterator&) const = default;

   private:
    const std::unique_ptr<M>* at_;
  };

  ModuleList() = default;
  template <class... L>
  requires(sizeof...(L) > 0) explicit ModuleList(L... modules) { (add(std::move(modules)), ...); }

  /// Appends a module and returns it, at its final address.
  template <std::derived_from<M> L> L& add(L module) {
    auto owned = std::make_unique<L>(std::move(module));
    L& result = *owned;
    modules_.push_back(std::move(owned));
    return result;
  }

  int size() const { return int(modules_.size()); }
  /// Returns the module at a position, counted from the end if negative. Throws UsageError.
  M& operator[](int place) const {
    return *modules_[detail::place_among("ModuleList", place, modules_.size())];
  }
  Iterator begin() const { return Iterator(modules_.data()); }
  Iterator end() const { return Iterator(modules_.data() + modules_.size()); }

  void describe(Fields& field) override {
    for (std::size_t i = 0; i < modules_.size(); ++i) field(std::to_string(i), *modules_[i]);
  }

 private:
  std::vector<std::unique_ptr<M>> modules_;
};

// A layer that makes the columns of a table comparable, so that a model's file includes the numbers
// that its inputs and predictions need.

/// Computes (x - mean) / std for each column. Mean and standard deviation (divisor n, not n - 1)
/// are buffers: saved with the model, not trained. They stay f32 in a model that is cast to a short
/// dtype, so that a large mean costs no digits. As scikit-learn's StandardScaler.
struct Standardizer final : Layer {
  Buffer mean, std;  // f32 [columns]

  /// Starts with mean 0 and std 1, which change nothing: for models that load them from a file.
  explicit Standardizer(int64_t columns);
  /// Returns a layer with the means and deviations of x: floating [rows, columns], one row or more.
  /// Pass the training rows only: test rows would make the measured accuracy too good. The layer
  /// turns a column that is constant in x into 0. Throws ShapeError for other shapes.
  static Standardizer of(const Tensor& x);

  /// x: floating [.., columns]. Throws ShapeError for another number of columns.
  Tensor forward(const Tensor& x) const override;
  /// Reverses forward(), for predictions of a standardized target.
  Tensor undo(const Tensor& x) const;

  void describe(Fields& field) override { field("mean", mean), field("std", std); }
};

// Multi-head attention (Vaswani et al. 2017): linear maps before and after
// scaled_dot_product_attention. As torch.nn.MultiheadAttention with batch_first: in_proj_weight [3
// width, width] holds the maps of queries, keys and values; if keys or values have a width of their
// own, q_proj_weight, k_proj_weight and v_proj_weight do. First values are the same.

struct MultiheadAttentionOptions {
  bool bias = true;
  double dropout = 0;          // for the attention weights, in training
  int64_t kdim = 0, vdim = 0;  // the widths of keys and values; 0: as the queries
};

struct MultiheadAttention final : Layer {
  Parameter in_proj_weight, q_proj_weight, k_proj_weight, v_proj_weight, in_proj_bias;
  Linear out_proj;
  int64_t heads;
  double dropout;
  MultiheadAttention(int64_t width, int64_t heads, MultiheadAttentionOptions options = {});

  using Layer::operator();
  /// Self-attention. x: [n, l, width]; the result has the same shape.
  Tensor forward(const Tensor& x) const override { return attended(x, x, x, {}, {}); }
  /// Self-attention with the mask, or the causal order, of `options`; key_padding_mask as below.
  /// The layer's own dropout applies, that of `options` is ignored.
  Tensor operator()(const Tensor& x, const AttentionOptions& options,
                    const Tensor& key_padding_mask = {}) const;
  /// query: [n, l, width]; key: [n, s, kdim]; value: [n, s, vdim]; the result: [n, l, width].
  /// key_padding_mask: [n, s], bool, where true hides a key, or floating, added to the scaled
  /// products. (The mask of `options` is true where a key is seen.) A query that sees no key gets
  /// the bias of out_proj. Throws ShapeError for shapes that do not fit.
  Tensor operator()(const Tensor& query, const Tensor& key, const Tensor& value,
                    const AttentionOptions& options = {},
                    const Tensor& key_padding_mask = {}) const;
  void describe(Fields& field) override;

 private:
  Tensor attended(const Tensor& query, const Tensor& key, const Tensor& value,
                  const AttentionOptions& options, const Tensor& key_padding_mask) const;
};

// Layers whose weight is computed from other parameters, as those of
// torch.nn.utils.parametrizations and with their names: WeightNorm<Linear> norm(Linear(3, 4)). For
// Linear, Embedding and convolutions. The weight of `layer` itself is undefined.

struct ConvTranspose1d;
struct ConvTranspose2d;

namespace detail {
/// Returns the 2-norm of each slice of x along `dim`, with size 1 in the other dimensions; for -1
/// the norm of x, a scalar. As torch.norm_except_dim.
Tensor norm_except_dim(const Tensor& x, int dim);
/// Returns x as a matrix whose rows are the slices along a dimension.
Tensor rows_along(const Tensor& x, int dim);
/// Repeats `times` times, in place: u = matrix v, then v = matrix^T u, each divided by its norm.
void iterate_power(const Tensor& matrix, const Tensor& u, const Tensor& v, int64_t times,
                   double eps);
/// Returns the scalar u^T matrix v. Later writes to u and v do not change its gradients.
Tensor singular_value(const Tensor& matrix, const Tensor& u, const Tensor& v);
}  // namespace detail

/// Computes the weight of `layer` as g v / |v|: original0 is the length g, original1 the direction
/// v. Each slice along `dim` has a length; with -1 the weight has one. Begins with the layer's
/// weight. As torch.nn.utils.parametrizations.weight_norm (Salimans & Kingma 2016).
template <std::derived_from<Layer> L> struct WeightNorm final : Layer {
  L layer;
  Parameter original0, original1;
  int dim;
  explicit WeightNorm(L wrapped, int along = 0)
      : layer(std::move(wrapped)), original1(std::exchange(layer.weight, {})), dim(along) {
    original0 = Parameter(detail::norm_except_dim(original1.detach(), dim));
  }
  Tensor weight() const {
    return original1 * (original0 / detail::norm_except_dim(original1, dim));
  }
  Tensor forward(const Tensor& x) const override { return layer.with_weight(x, weight()); }
  void describe(Fields& field) override {
    layer.describe(field);
    field("parametrizations.weight.original0", original0);
    field("parametrizations.weight.original1", original1);
  }
  std::string_view part() const override { return layer.part(); }
};

struct SpectralNormOptions {
  int64_t n_power_iterations = 1;
  double eps = 1e-12;
  std::optional<int> dim{};  // of the outputs; absent: 1 for transposed convolutions, otherwise 0
};
/// Computes the weight of `layer` as `original` divided by its largest singular value. Each call in
/// training improves the estimate of that value by n_power_iterations. As
/// torch.nn.utils.parametrizations.spectral_norm (Miyato et al. 2018).
template <std::derived_from<Layer> L> struct SpectralNorm final : Layer {
  L layer;
  Parameter original;
  Buffer u, v;  // _u: [size of dim], _v: [the other elements]
  SpectralNormOptions options;
  explicit SpectralNorm(L wrapped, SpectralNormOptions o = {})
      : layer(std::move(wrapped)), original(std::exchange(layer.weight, {})), options(o) {
    detail::require_positive("SpectralNorm", "n_power_iterations", o.n_power_iterations);
    const Tensor rows = matrix().detach();
    const auto start = [&](int64_t n) {
      return Buffer(normalize(randn({n}, rows.dtype(), rows.device()), 2, 0, o.eps));
    };
    u = start(rows.size(0)), v = start(rows.size(1));
    detail::iterate_power(rows, u, v, 15, o.eps);
  }
  Tensor weight() const {
    const Tensor rows = matrix();
    if (training) detail::iterate_power(rows, u, v, options.n_power_iterations, options.eps);
    return original / detail::singular_value(rows, u, v);
  }
  Tensor forward(const Tensor& x) const override { return layer.with_weight(x, weight()); }
  void describe(Fields& field) override {
    layer.describe(field);
    field("parametrizations.weight.original", original);
    field("parametrizations.weight.0._u", u), field("parametrizations.weight.0._v", v);
  }
  std::string_view part() const override { return layer.part(); }

 private:
  Tensor matrix() const {
    constexpr bool transposed =
        std::same_as<L, ConvTranspose1d> || std::same_as<L, ConvTranspose2d>;
    return detail::rows_along(original, options.dim.value_or(transposed ? 1 : 0));
  }
};

}  // namespace halftone::nn
