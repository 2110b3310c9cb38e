// The members of a Training. They stay at their address when the Training is moved, because
// gradient routes refer to them.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <halftone/amp/gradient_route.h>
#include <halftone/amp/training.h>
#include <halftone/distributed/shards.h>
#include <halftone/nn/module.h>

namespace halftone::amp {

/// The name of loading in errors.
inline constexpr std::string_view loading_training = "Training.load_state_dict";

/// The parts of the parameters that a rank keeps.
struct Cut {
  distributed::Shards shards;
  int rank;
};

struct TrainingCore {
  /// With a cut, makes the f32 weights of this rank's parts, and leaves their masters to
  /// train_together().
  TrainingCore(const Strategy& strategy, nn::Module& model, optim::Optimizer& optimizer,
               const Cut* cut);

  Strategy strategy;
  nn::Module& model;
  optim::Optimizer& optimizer;  // the user's
  std::unique_ptr<MasterWeights> masters{};
  struct MastersOfParts {
    MasterWeightsOptions options;
    std::vector<Tensor> initial;  // f32
  };
  std::optional<MastersOfParts> masters_to_come{};
  GradScaler scaler;
  Region region;

  // --- the present step
  Tensor made_with{};  // the scale of the present gradients; undefined: none
  struct Clipping {
    Tensor norm;  // of all gradients, unscaled
    double max_norm;
  };
  std::optional<Clipping> clipping{};  // from clip_grad_norm() to step()
  nn::BufferCopies statistics{};       // before the step
  LastPass last_pass{};
  // --- all steps
  bool first_backward = true, watches_inputs = true;
  std::optional<int64_t> casts_before = casts_made();  // until the first step
  int64_t skipped_steps = 0;
  Tensor skipped_on_device{};  // more of them, not yet known to the host: f64 scalar
  Stepped last_step{true};     // not yet read by first_overflow()
  std::string first_overflow{};

  std::unique_ptr<GradientRoute> route;  // the last member: its destructor uses the others

  /// The optimizer that steps: the masters, which wrap the user's optimizer, or that optimizer.
  optim::Optimizer& stepping() const { return masters ? *masters : optimizer; }
  /// Returns a gradient for each parameter; undefined if it has none.
  std::vector<Tensor> gradients() const;
  int64_t all_skipped_steps() const;
  void zero_grad();
  /// Stores running statistics, for a step that will be skipped.
  void hold_statistics();

  // --- states (training_state.cpp)
  /// Returns the state of this rank: if it has parts of parameters, the parts.
  optim::NamedTensors state() const;
  void load(const optim::NamedTensors& state);
  /// Loads everything but the model and the session.
  void load_except_model(const optim::NamedTensors& state);

 private:
  void convert_weights(const Cut* cut);
};

}  // namespace halftone::amp
