// What experiments are made on: a model, what it is trained to do, on which data, and how. The ones
// that every machine can run are here; a program of a user's own adds another (lab.h).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <halftone/amp/training.h>
#include <halftone/data/data_loader.h>
#include <halftone/optim/lr_schedule.h>
#include <halftone/optim/optimizer.h>
#include <halftone/train/task.h>

namespace halftone::lab {

struct Workload {
  train::Task task;                   // of *model
  std::unique_ptr<nn::Module> model;  // f32
  std::function<data::DataLoader()> train{};
  std::function<data::DataLoader()> validation{};  // may be empty
  /// One batch of the right shapes, for commands that train nothing; empty: the first of `train`.
  std::optional<data::Batch> example{};
  double lr = 1e-3;
  /// Empty: AdamW.
  std::function<std::unique_ptr<optim::Optimizer>(std::vector<Tensor> parameters, double lr)>
      optimizer{};
  /// Of the rate, from the number of steps; empty: constant.
  std::function<optim::LrSchedule(int64_t steps)> schedule{};
  double clip_norm = 0;  // 0: none
};

struct NamedWorkload {
  std::string name, about;
  /// The same workload for the same seed; the default generator was seeded with it.
  std::function<Workload(uint64_t seed)> make;
  /// Which of policy::model_names() it trains, as policies say "for" which they are; "": none.
  std::string model{};
};

/// student_teacher residual_mlp mlp lenet gpt_tiny, and the others of lab/workloads/synthetic.h,
/// which learn noise.
std::vector<NamedWorkload> built_in_workloads();

/// One of them, or of `own`, from a seed. Throws UsageError for other names, with the nearest.
Workload make_workload(const std::string& name, uint64_t seed = 0,
                       const std::vector<NamedWorkload>& own = {});
/// NamedWorkload::model of one of them; "" where there is none of that name.
std::string model_of(const std::string& workload, const std::vector<NamedWorkload>& own = {});
data::Batch example_of(const Workload& workload);
std::unique_ptr<optim::Optimizer> optimizer_of(const Workload& workload);
/// amp::apply(), for loops of our own: where the strategy's gradients have a wire, this process
/// rounds as several would. Throws UsageError for that where there are several.
amp::Training training_of(const amp::Strategy& strategy, const Workload& workload,
                          optim::Optimizer& optimizer);
/// Before each forward pass of such a loop: what a wire draws follows from the step.
void begin_step(amp::Training& training, int64_t step);
/// The loss of a batch, as the training runs it.
Tensor loss_of(const Workload& workload, amp::Training& training, const data::Batch& batch);
/// So many steps, over the training data as often as it takes: zero_grad, the loss, backward,
/// clipping, step; then after(step, loss), from step 0. Rates are left to `after`. Throws
/// UsageError for data without a batch.
void train_steps(const Workload& workload, amp::Training& training, int64_t steps,
                 const std::function<void(int64_t step, const Tensor& loss)>& after = {});

}  // namespace halftone::lab
