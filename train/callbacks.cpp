// The averaged weights: updates them, saves them in checkpoints, swaps them in for validation.
#include <halftone/core/backend.h>
#include <halftone/core/memory.h>
#include <halftone/train/callbacks/weight_average.h>
#include <halftone/train/numbers.h>
#include <halftone/train/trainer.h>

namespace halftone::train {

namespace {
/// Replaces the bits of the model's parameters while it exists.
class Lent {
 public:
  Lent(std::vector<Tensor> parameters, const std::vector<Tensor>& averages)
      : parameters_(std::move(parameters)) {
    const MemoryScope scope(MemoryUse::workspace);
    for (const Tensor& x : parameters_) kept_.push_back(x.detach().clone());
    for (std::size_t i = 0; i < parameters_.size(); ++i) copy_into(parameters_[i], averages[i]);
  }
  ~Lent() {
    for (std::size_t i = 0; i < parameters_.size(); ++i) copy_into(parameters_[i], kept_[i]);
  }
  Lent(const Lent&) = delete;
  Lent& operator=(const Lent&) = delete;

 private:
  std::vector<Tensor> parameters_, kept_{};
};
}  // namespace

WeightAverage::WeightAverage(WeightAverageOptions options) : options_(options) {
  if (options_.decay && !(*options_.decay >= 0 && *options_.decay < 1))
    fail<UsageError>("WeightAverage", "decay is ", *options_.decay, ". Use 0 or more, below 1.");
  if (options_.every_steps < 1)
    fail<UsageError>("WeightAverage", "every_steps is ", options_.every_steps, ". Use 1 or more.");
}

std::vector<Tensor> WeightAverage::parameters_of(Trainer& trainer) const {
  std::vector<Tensor> parameters = trainer.training().parameters();
  if (averages_.empty()) return parameters;
  if (averages_.size() != parameters.size())
    fail<UsageError>("WeightAverage", "there are averages of ", averages_.size(),
                     " weights, the optimizer has ", parameters.size(),
                     ". Use a callback for one training only.");
  for (std::size_t i = 0; i < parameters.size(); ++i)
    if (averages_[i].shape() != parameters[i].shape())
      fail<UsageError>("WeightAverage", "average ", i, " is ", described(averages_[i]),
                       ", the weight is ", described(parameters[i]),
                       ". Use a callback for one training only.");
  return parameters;
}

void WeightAverage::on_fit_start(Trainer& trainer) {
  const std::vector<Tensor> parameters = parameters_of(trainer);
  for (std::size_t i = 0; i < averages_.size(); ++i)
    averages_[i] = averages_[i].to(parameters[i].device());
}

void WeightAverage::on_step_end(Trainer& trainer) {
  const int64_t step = trainer.position().step;
  if (step < options_.start_step || step % options_.every_steps != 0) return;
  amp::Training& training = trainer.training();
  const std::size_t count = training.parameters().size();
  const bool first = averages_.empty();
  const double share = options_.decay ? 1 - *options_.decay : 1 / double(updates_ + 1);
  for (std::size_t i = 0; i < count; ++i) {
    const Tensor weight = [&] {
      const MemoryScope scope(MemoryUse::workspace);
      return training.weight(i);
    }();
    if (first) {
      const MemoryScope scope(MemoryUse::optimizer_state);
      averages_.push_back(weight.clone());
    } else {
      backend_for(weight).lerp(weight, share, averages_[i]);
    }
  }
  ++updates_;
}

std::shared_ptr<void> WeightAverage::in_place(Trainer& trainer) const {
  if (averages_.empty()) return nullptr;
  return std::make_shared<Lent>(parameters_of(trainer), averages_);
}

std::shared_ptr<void> WeightAverage::during_validation(Trainer& trainer) {
  return options_.validates ? in_place(trainer) : nullptr;
}

std::map<std::string, Tensor> WeightAverage::tensors() const {
  std::map<std::string, Tensor> result;
  for (std::size_t i = 0; i < averages_.size(); ++i) result[std::to_string(i)] = averages_[i];
  return result;
}

void WeightAverage::load_tensors(const std::map<std::string, Tensor>& tensors) {
  averages_.clear();
  const MemoryScope scope(MemoryUse::optimizer_state);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto found = tensors.find(std::to_string(i));
    if (found == tensors.end())
      fail<UsageError>("WeightAverage", "the checkpoint has ", tensors.size(),
                       " averages, but none of number ", i, ". It was not written by this class.");
    averages_.push_back(found->second.clone());
  }
}

std::map<std::string, double> WeightAverage::state() const {
  return {{"updates", double(updates_)}};
}

void WeightAverage::load_state(const std::map<std::string, double>& state) {
  updates_ = count_in(state, "updates");
}

}  // namespace halftone::train
