// The workloads that bench/train_step measures: a model, a fixed batch of synthetic data, and the
// floating-point operations of one training step. Shapes are those of the PyTorch peer, so that the
// figures can be compared. The data are noise; workloads with data to learn are in workload.h.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <halftone/core/device.h>
#include <halftone/lab/workload.h>
#include <halftone/nn/module.h>

namespace halftone::lab {

struct SyntheticWorkload {
  std::string name{};
  std::unique_ptr<nn::Layer> model;
  Tensor inputs, targets;
  double gflop = 0;  // twice the multiply-adds of matrix products and convolutions, all passes
};

std::vector<std::string> synthetic_names();
/// Returns the names in one line, for messages.
std::string synthetic_list();
/// Returns the GFLOP of a training step over `samples` samples. `multiply_adds`: for each layer,
/// those of its forward pass for one sample. In backward, the products for gradients of inputs and
/// of weights have the same size; the first layer's input needs no gradient.
double gflop_of_step(double samples, const std::vector<double>& multiply_adds);
/// Returns the mean cross-entropy of logits [n, classes] or [n, length, classes].
Tensor logits_loss(const Tensor& logits, const Tensor& targets);
/// Returns a workload on a device, with weights and data from a seed; also those of
/// untuned_names(). Throws UsageError for unknown names.
SyntheticWorkload make_synthetic(const std::string& name, Device device = {}, uint64_t seed = 0);

// Small models of other kinds on real data: a residual network, a recurrent one, and a diffusion
// model. Seeds move weights and the order of the data; the data and the validation set are the same
// for every seed.

/// Returns three workloads: resnet8 (three residual blocks of 16, 32 and 64 channels, He et al.
/// 2015, on 8,192 images of Fashion-MNIST), lstm_text (an LSTM of width 128 on characters),
/// diffusion (a U-Net predicts the noise in 4,096 images of Fashion-MNIST, Ho et al. 2020).
std::vector<NamedWorkload> small_real_workloads();

/// Debian's license texts as numbers of characters, from 0 to `characters` - 1, split into training
/// and validation: the data of gpt_tiny and lstm_text.
struct LicenseText {
  Tensor train, validation;
};
LicenseText license_text();
inline constexpr int64_t characters = 85;

// Workloads whose shapes were not chosen for speed: batches of 1, 3 and 10, widths of 333 and 1000,
// channels of 48 and 96, heads of 48, images of 45 x 37, depthwise windows of 7 x 7. Code that is
// fast only for powers of two is slow here. bench/train_step measures them as --workload untuned;
// its PyTorch peer has the same models.

std::vector<std::string> untuned_names();
/// Returns a workload on the CPU; nullopt for other names.
std::optional<SyntheticWorkload> make_untuned(const std::string& name);

}  // namespace halftone::lab
