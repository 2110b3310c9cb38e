// Operations of today's decoders: rotary positions, gated units, and products of groups of rows.
#pragma once

#include <optional>
#include <vector>

#include <halftone/autograd/ops/elementwise.h>
#include <halftone/autograd/ops/matmul.h>
#include <halftone/core/rope.h>

namespace halftone {

// rope: turns pairs of elements by angles that grow with the position, so that the products of
// queries and keys depend on their distance (Su et al. 2021). PyTorch has no such operation.

/// x: [n, heads, l, e]. The gradient turns back by the same angles. y has the dimension order of x
/// in memory.
struct Rope {
  static constexpr OpInfo info{"rope", CastClass::as_is,
                               "a rotation keeps lengths: computed in f32 inside and rounded once"};
  RopeOptions options;
  bool inverse = false;

  Tensor turned(const Tensor& x, bool back) const;
  Tensor forward(const Tensor& x) { return turned(x, inverse); }
  std::array<Tensor, 1> backward(const Tensor& dy) const { return {turned(dy, !inverse)}; }
  std::vector<Tensor> recorded_backward(const Tensor& dy, const History& history) const;
};

/// Returns x, floating [..., l, e] of rank 2 to 4 with e even, with the rows turned by their
/// positions: options.position and the ones after it. Angles are right at any position: they are
/// computed in f64, and only their cosines and sines are rounded to f32.
Tensor rope(const Tensor& x, const RopeOptions& options = {});

// swiglu of one product with two outputs: silu of the first half times the second.

/// x: [.., 2 n]; y: [.., n].
struct PackedSwiglu {
  static constexpr OpInfo info = formula::Swiglu::info;
  Tensor x{};

  static Tensor half(const Tensor& x, int which) {
    const int64_t n = x.size(-1) / 2;
    return views::slice(x, x.rank() - 1, which * n, n);
  }
  Tensor forward(const Tensor& in) {
    x = in;
    Shape shape = x.shape();
    shape[x.rank() - 1] /= 2;
    Tensor y = empty(shape, x.dtype(), x.device());
    backend_for(x).binary(call_of<BinaryFormulas>(formula::Swiglu{}), half(x, 0), half(x, 1), y);
    return y;
  }
  std::array<Tensor, 1> backward(const Tensor& dy) const {
    Tensor dx = empty(x.shape(), x.dtype(), x.device());
    for (const int input : {0, 1}) {
      Tensor part = half(dx, input);
      backend_for(x).binary_backward(call_of<BinaryFormulas>(formula::Swiglu{}), input, half(x, 0),
                                     half(x, 1), dy, part);
    }
    return {dx};
  }
  std::vector<Tensor> recorded_backward(const Tensor& dy, const History& history) const;
};

/// Returns silu of the first half of the last dimension, times the second half, in one pass. Throws
/// ShapeError for an odd size.
Tensor swiglu(const Tensor& x);

// Products of groups of rows, each with weights of its own: the experts of a mixture.

/// y[i] = x[i] weight[g]^T for the rows i of group g: from ends[g - 1], or 0, to ends[g] - 1. x:
/// [rows, in]; weight: [groups, out, in]. Computes one product per group.
struct GroupedLinear {
  static constexpr Contraction sums{.forward = {Sums::over_last, Sums::over_last},
                                    .backward = {Sums::over_tokens, Sums::over_rows},
                                    .gradient = {Sums::over_last, Sums::over_tokens}};
  static double flops(std::span<const Tensor> inputs);
  static constexpr OpInfo info{"grouped_linear",
                               CastClass::low_precision,
                               cast_reason::products,
                               {.accumulator = true, .tf32 = true, .sums = sums, .flops = flops}};
  static constexpr std::array wide_gradients{true, true};
  std::vector<int64_t> ends;
  Tensor x{}, weight{};
  Needs<2> needs{};
  std::optional<Accumulator> accumulate{};

  Tensor forward(const Tensor& in, const Tensor& w);
  void save(const Tensor& in, const Tensor& w) {
    x = views::contiguous(in), weight = detail::matrix_layout(w);
  }
  std::array<Tensor, 2> backward(const Tensor& dy_in) const;
  std::vector<Tensor> recorded_backward(const Tensor& dy, const History& history) const;
  /// Calls product(group, begin, end) for the groups that have rows.
  template <class Product> void each_group(const Product& product) const {
    for (std::size_t g = 0; g < ends.size(); ++g) {
      const int64_t begin = g == 0 ? 0 : ends[g - 1];
      if (begin < ends[g]) product(int64_t(g), begin, ends[g]);
    }
  }
};

/// Returns [rows, out]. ends: integers [groups], the row after each group's last one, in ascending
/// order; the last is the number of rows. The host waits for ends on a GPU. As
/// torch.nn.functional's grouped_mm(x, weight.transpose(1, 2), offs=ends), which autocast does not
/// cast.
Tensor grouped_linear(const Tensor& x, const Tensor& weight, const Tensor& ends);

// The scores by which a mixture sends tokens to experts: a linear map with a class of its own.

struct RouterScores {
  static constexpr OpInfo info{
      "router_scores",
      CastClass::full_precision,
      "a rounded score can choose another expert",
      {.accumulator = true, .tf32 = true, .sums = Linear::sums, .flops = Linear::flops}};
  static constexpr std::array wide_gradients = Linear::wide_gradients;
  Linear map{};
  Needs<3> needs{};
  std::optional<Accumulator> accumulate{};

  Tensor forward(const Tensor& x, const Tensor& weight, const Tensor& bias) {
    check::same_dtype(info.name, x, weight);
    map.needs = needs, map.accumulate = accumulate;
    return map.forward(x, weight, bias);
  }
  std::array<Tensor, 3> backward(const Tensor& dy) const { return map.backward(dy); }
  std::vector<Tensor> recorded_backward(const Tensor& dy, const History& history) const {
    return map.recorded_backward(dy, history);
  }
};

/// Returns x weight^T, [.., experts], for x [.., features] and weight [experts, features]. Autocast
/// computes it in f32, unlike linear.
Tensor router_scores(const Tensor& x, const Tensor& weight);

}  // namespace halftone
