// Workloads of experiments: a model, its task, its data, and how to train it. This file has those
// that every machine can run; a user's program can add another (lab.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <halftone/amp/training.h>
#include <halftone/data/data_loader.h>
#include <halftone/optim/optimizer.h>
#include <halftone/optim/optimizers.h>
#include <halftone/train/task.h>

namespace halftone::lab {

struct Workload {
  train::Task task;                   // trains *model
  std::unique_ptr<nn::Module> model;  // f32
  std::function<data::DataLoader()> train{};
  std::function<data::DataLoader()> validation{};  // may be empty
  /// A batch of the right shapes, for commands that do not train; empty: the first of `train`.
  std::optional<data::Batch> example{};
  double lr = 1e-3;
  /// Makes the optimizer; empty: AdamW.
  std::function<std::unique_ptr<optim::Optimizer>(std::vector<Tensor> parameters, double lr)>
      optimizer{};
  /// The learning rate's schedule, for a number of steps; empty: constant.
  std::function<optim::LrSchedule(int64_t steps)> schedule{};
  double clip_norm = 0;  // 0: none
};

struct NamedWorkload {
  std::string name, about;
  /// Returns the workload for a seed, always the same one. The caller has seeded the default
  /// generator with `seed`.
  std::function<Workload(uint64_t seed)> make;
  /// The model's name in policy::model_names(), which "for" in a policy file refers to; "": none.
  std::string model{};
  bool noise = false;  // trains on one batch of noise: for speed and shapes, not for losses
};

/// Returns student_teacher, residual_mlp, mlp, lenet, gpt_tiny, gpt_small, waves_100k to waves_3m,
/// and those of workload_data.h, which learn noise.
std::vector<NamedWorkload> built_in_workloads();

/// Makes a built-in workload, or one of `own`, from a seed. Throws UsageError for unknown names and
/// suggests the nearest.
Workload make_workload(const std::string& name, uint64_t seed = 0,
                       const std::vector<NamedWorkload>& own = {});
/// Returns a built-in workload, or one of `own`; nullopt for an unknown name.
std::optional<NamedWorkload> workload_named(const std::string& name,
                                            const std::vector<NamedWorkload>& own = {});
/// Returns NamedWorkload::model of a workload; "" for an unknown name.
std::string model_of(const std::string& workload, const std::vector<NamedWorkload>& own = {});
/// Returns whether the workload trains on noise; false for an unknown name.
bool trains_on_noise(const std::string& workload, const std::vector<NamedWorkload>& own = {});
/// Returns workload.example, or the first batch of workload.train.
data::Batch example_of(const Workload& workload);
std::unique_ptr<optim::Optimizer> optimizer_of(const Workload& workload);
/// Calls amp::apply(), for loops without a Trainer. If the strategy's gradients have a wire format,
/// this process rounds as several processes would; if there are several, throws UsageError.
amp::Training training_of(const amp::Policy& strategy, const Workload& workload,
                          optim::Optimizer& optimizer);
/// Call it before each forward pass of a loop that uses training_of(): a wire format's random
/// numbers depend on the step.
void begin_step(amp::Training& training, int64_t step);
/// Returns the loss of a batch as the training computes it.
Tensor loss_of(const Workload& workload, amp::Training& training, const data::Batch& batch);
/// Trains for `steps` steps of zero_grad, loss, backward, clipping and step; repeats the data as
/// often as necessary. Calls after(step, loss) after each step, from step 0; `after` may set the
/// learning rates. Throws UsageError for data without a batch.
void train_steps(const Workload& workload, amp::Training& training, int64_t steps,
                 const std::function<void(int64_t step, const Tensor& loss)>& after = {});

// Options that change a workload's training from the command line: another rate, optimizer or
// schedule, and the state of an earlier training to start from.

/// Changes from the command line. An empty field (0 for `lr`) keeps the workload's own setting.
struct Choices {
  double lr = 0;
  std::string optimizer{};       // with the library's default options; sgd has a momentum of 0.9
  std::string schedule{};        // over all steps of the run
  std::filesystem::path from{};  // see trained_state()
};

/// Returns the names adamw, adam, sgd, rmsprop, lion, adagrad, nadam, radam, adafactor, lamb, muon.
std::span<const std::string_view> optimizer_names();
/// Returns the names constant, linear, cosine, warm_up_cosine, one_cycle.
std::span<const std::string_view> schedule_names();
/// Applies the choices to a workload. Throws UsageError for a rate that is not a positive number,
/// and for an unknown name; suggests the nearest.
void choose(Workload& workload, const Choices& choices);

/// Returns the tensors of a trained state: from a run folder (its latest checkpoint), a checkpoint,
/// or a file of Training::save(). Throws UsageError for a folder without a valid checkpoint, and
/// for a path that does not exist; suggests a similar name. Throws FormatError for a damaged state.
optim::NamedTensors trained_state(const std::filesystem::path& from);
/// Loads the state into the training. Rounds numbers that its strategy cannot represent. Learning
/// rates and the default generator stay as they are.
void start_from(const optim::NamedTensors& state, amp::Training& training);

}  // namespace halftone::lab
