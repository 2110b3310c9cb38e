// The helper of lessons 12 and 13: an attention block, its results in f64, and a laboratory that
// measures the errors of loss and gradients under casting policies. One batch is not enough,
// because a loss can be near the right one by chance. So every number is the median over twenty
// seeds, with the number of seeds in which it is worse than under PyTorch's list.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include <halftone/halftone.h>

#include "output.h"

namespace laboratory {

namespace ht = halftone;

constexpr int seeds = 20;
constexpr int64_t batch = 2, tokens = 384, width = 32;

/// Tokens get their position, attend to each other, are normalized and classified.
struct Block final : ht::nn::Module {
  ht::nn::Linear query{width, width}, key{width, width}, value{width, width}, head{width, 10};
  ht::nn::LayerNorm norm{width};
  void describe(ht::nn::Fields& field) override {
    field("query", query), field("key", key), field("value", value);
    field("norm", norm), field("head", head);
  }
  /// x: [batch, tokens, width]; there: 1 for a token, 0 for padding, [batch, tokens].
  ht::Tensor loss(const ht::Tensor& x, const ht::Tensor& there, const ht::Tensor& labels) const {
    const ht::Tensor position = ht::unsqueeze(ht::cumsum(there, 1), 2);  // 1, 2, 3, ...
    const ht::Tensor frequency =
        ht::exp(ht::arange(0, width / 2) * (-std::log(100.0) / double(width / 2)));
    const ht::Tensor angle = position * frequency;
    const ht::Tensor placed = x + ht::cat({ht::sin(angle), ht::cos(angle)}, 2);
    const ht::Tensor scores =
        ht::matmul(query(placed), ht::transpose(key(placed), 1, 2)) / std::sqrt(double(width));
    const ht::Tensor mixed = ht::matmul(ht::softmax(scores, -1), value(placed));
    const ht::Tensor pooled = ht::sum(norm(placed + mixed), {1}) / double(tokens);
    return ht::cross_entropy(head(pooled), labels);
  }
};

/// A block and a batch from one seed, with their results in f64.
struct Setup {
  Block block;
  ht::Tensor x, there, labels;
  double loss = 0;
  std::vector<ht::Tensor> gradients;

  explicit Setup(uint64_t seed) {
    ht::manual_seed(seed);
    for (const ht::nn::Linear* layer : {&block.query, &block.key, &block.value, &block.head})
      ht::nn::init::xavier_uniform(layer->weight);
    x = ht::randn({batch, tokens, width}), there = ht::ones({batch, tokens});
    labels = ht::randint(0, 10, {batch});
    block.to(ht::f64);
    const ht::Tensor exact = block.loss(ht::cast(x, ht::f64), ht::cast(there, ht::f64), labels);
    exact.backward();
    loss = exact.item();
    for (const ht::Tensor& p : block.parameters()) gradients.push_back(p.grad());
    block.to(ht::f32);
  }

  /// |got - exact| / |exact| over all gradients as one vector.
  double gradient_error() const {
    double error = 0, size = 0;
    const std::vector<ht::Tensor> parameters = block.parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const ht::Tensor difference = ht::cast(parameters[i].grad(), ht::f64) - gradients[i];
      error += ht::sum(ht::square(difference)).item();
      size += ht::sum(ht::square(gradients[i])).item();
    }
    return std::sqrt(error / size);
  }
};

/// The errors of every seed.
struct Errors {
  std::vector<double> loss, gradient;
};

inline double median(std::vector<double> values) {
  std::ranges::sort(values);
  return (values[values.size() / 2] + values[(values.size() - 1) / 2]) / 2;
}

class Laboratory {
 public:
  Laboratory() {
    omp_set_num_threads(1);  // the tensors are small
    for (uint64_t seed = 0; seed < seeds; ++seed) setups_.emplace_back(seed);
    standard_ = measured(ht::amp::CastPolicy().with(ht::bf16));
  }

  static void title(const std::string& text) {
    std::printf("\n--- %s\n\n%-28s %10s %8s %10s %8s %7s %9s\n", text.c_str(), "", "loss", "worse",
                "gradient", "worse", "casts", "KiB cast");
  }
  void run(const std::string& what, const ht::amp::Region& region) {
    try {
      const Errors errors = measured(region);
      std::printf("%-28s %10.1e %5d/%d %10.1e %5d/%d %7ld %9.0f\n", what.c_str(),
                  median(errors.loss), worse(errors.loss, standard_.loss), seeds,
                  median(errors.gradient), worse(errors.gradient, standard_.gradient), seeds,
                  long(log_.casts), double(log_.bytes) / 1024);
    } catch (const ht::Error& error) { std::printf("%-28s %s\n", what.c_str(), error.what()); }
  }

 private:
  Errors measured(const ht::amp::Region& region) {
    Errors errors;
    for (Setup& setup : setups_) {
      setup.block.zero_grad();
      std::optional<ht::amp::PrecisionLog> log;  // of one seed: all cast alike
      if (&setup == &setups_.front()) log.emplace();
      const ht::Tensor loss = ht::amp::autocast(
          region, [&] { return setup.block.loss(setup.x, setup.there, setup.labels); });
      if (log) log_ = log->total();
      loss.backward();
      errors.loss.push_back(std::abs(loss.item() - setup.loss) / setup.loss);
      errors.gradient.push_back(setup.gradient_error());
    }
    return errors;
  }
  static int worse(const std::vector<double>& now, const std::vector<double>& before) {
    int count = 0;
    for (std::size_t i = 0; i < now.size(); ++i) count += now[i] > before[i] ? 1 : 0;
    return count;
  }

  std::vector<Setup> setups_;
  Errors standard_;
  ht::amp::PrecisionLog::Entry log_;  // of one batch
};

}  // namespace laboratory
