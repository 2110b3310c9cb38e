// Layers in a row, built from values: Sequential{Linear(784, 512), Relu(), Linear(512, 10)}. With
// braces, layers draw their initial weights in this order. With parentheses, C++ does not fix the
// order of arguments, so g++ and clang give different weights for one seed. Children are named 0,
// 1, 2, ... as PyTorch's are, so parameters are called 0.weight, 0.bias, 2.weight, 2.bias.
#pragma once

#include <concepts>
#include <memory>
#include <vector>

#include <halftone/nn/module.h>

namespace halftone::nn {

struct Recurrent;

class Sequential final : public Layer {
 public:
  Sequential() = default;
  template <class... L>
  requires(sizeof...(L) > 0) explicit Sequential(L... layers) { (add(std::move(layers)), ...); }

  /// Appends a layer and returns it, at its final address.
  template <class L> L& add(L layer) {
    static_assert(!std::derived_from<L, Recurrent>,
                  "Lstm and Gru give more than one tensor, which no Sequential hands on: write a "
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
  /// Returns the layer at a position, counted from the end if negative; throws UsageError.
  Layer& operator[](int place) const;

  Tensor forward(const Tensor& x) const override;
  void describe(Fields& field) override;

 private:
  std::vector<std::unique_ptr<Layer>> layers_;
};

}  // namespace halftone::nn
