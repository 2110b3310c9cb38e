// U-Net and the LSTM classifier against the same models in PyTorch
// (tests/fixtures/pytorch/model_layers.py).
#include <halftone/nn/models/models.h>

#include "whole_model.h"

namespace halftone::test::small_models_test {

using namespace halftone::nn::models;

TEST_CASE("pytorch: U-Net, logits and training") {
  const auto cases = load_cases("unet");
  for (const std::string_view backend : {"reference", "cpu"}) {
    const CpuBackendScope scope(backend);
    CAPTURE(backend);
    for (const bool transposed : {true, false}) {
      UNet model({.classes = 3, .width = 8, .depth = 2, .transposed = transposed});
      compare_whole_model(cases, transposed ? "transposed" : "bilinear", model,
                          {.lr = 1e-3, .depth = 13});
    }
  }
}

TEST_CASE("pytorch: the LSTM classifier, logits and training") {
  const auto cases = load_cases("lstm_classifier");
  for (const std::string_view backend : {"reference", "cpu"}) {
    const CpuBackendScope scope(backend);
    CAPTURE(backend);
    LstmClassifier plain(20, {.classes = 4, .width = 16, .hidden = 24});
    compare_whole_model(cases, "plain", plain, {.lr = 1e-2, .depth = 12});  // steps in time
    LstmClassifier deep(
        20, {.classes = 4, .width = 16, .hidden = 24, .layers = 2, .bidirectional = true});
    compare_whole_model(cases, "deep", deep, {.lr = 1e-2, .depth = 24});
  }
}

}  // namespace halftone::test::small_models_test
