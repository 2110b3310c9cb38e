// Small models of other kinds on real data: a residual network, a recurrent one, and a diffusion
// model. Seeds move weights and the order of the data; the data and the validation set are the same
// for every seed.
#pragma once

#include <halftone/lab/workload.h>

namespace halftone::lab {

/// resnet8 (three residual blocks of 16, 32 and 64 channels, He et al. 2015, on 8,192 images of
/// Fashion-MNIST), lstm_text (an LSTM of width 128 on characters), diffusion (predicts the noise in
/// 4,096 images of Fashion-MNIST at random noise levels, Ho et al. 2020, by a U-Net).
std::vector<NamedWorkload> small_real_workloads();

/// The characters of Debian's license texts in `characters` classes, split into training and
/// validation: the text of gpt_tiny and lstm_text.
struct LicenseText {
  Tensor train, validation;
};
LicenseText license_text();
inline constexpr int64_t characters = 85;

}  // namespace halftone::lab
