// Makes optimizers by name, each with options that suit LeNet on Fashion-MNIST.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <halftone/halftone.h>

inline std::vector<std::string> optimizer_names() {
  return {"adamw", "adam", "sgd", "rmsprop", "lion", "lamb", "muon"};
}

/// `lr`: the highest learning rate; 0: a rate that suits the optimizer.
inline std::unique_ptr<halftone::optim::Optimizer> make_optimizer(
    const std::string& name, const std::vector<halftone::Tensor>& parameters, double lr = 0) {
  namespace optim = halftone::optim;
  const auto or_usual = [lr](double usual) { return lr > 0 ? lr : usual; };
  if (name == "sgd")
    return std::make_unique<optim::Sgd>(
        parameters, optim::SgdOptions{.lr = or_usual(0.05), .momentum = 0.9, .nesterov = true});
  if (name == "rmsprop")
    return std::make_unique<optim::Rmsprop>(parameters,
                                            optim::RmspropOptions{.lr = or_usual(1e-3)});
  if (name == "adam")
    return std::make_unique<optim::Adam>(parameters, optim::AdamOptions{.lr = or_usual(2e-3)});
  if (name == "lion")
    return std::make_unique<optim::Lion>(
        parameters, optim::LionOptions{.lr = or_usual(3e-4), .weight_decay = 0.05});
  if (name == "lamb")
    return std::make_unique<optim::Lamb>(
        parameters, optim::LambOptions{.lr = or_usual(1e-2), .weight_decay = 0.05});
  if (name == "muon")
    return std::make_unique<optim::Muon>(
        parameters, optim::MuonOptions{.lr = or_usual(1e-2), .vector_lr_factor = 0.2});
  return std::make_unique<optim::AdamW>(
      parameters, optim::AdamWOptions{.lr = or_usual(2e-3), .weight_decay = 0.05});
}
