#include <halftone/train/trainer.h>

#include <halftone/core/device.h>
#include <halftone/train/training_loop.h>

namespace halftone::train {

Trainer::Trainer(Task task, optim::Optimizer& optimizer, TrainerOptions options)
    : loop_(std::make_shared<TrainingLoop>(std::move(task), optimizer, std::move(options))),
      owns_(true) {
  if (loop_->options().portable_bits) set_portable_bits(true);  // the options are valid here
}
Trainer::Trainer(std::shared_ptr<TrainingLoop> loop) : loop_(std::move(loop)), owns_(false) {}
Trainer::~Trainer() {
  if (owns_) loop_->lose_trainer();
}

FitResult Trainer::fit(data::DataLoader train, std::optional<data::DataLoader> validation) {
  const auto loop = loop_;
  return loop->fit(std::move(train), std::move(validation));
}
MetricValues Trainer::validate(data::DataLoader loader) {
  const auto loop = loop_;
  return loop->validate(std::move(loader));
}
Tensor Trainer::predict(data::DataLoader loader) {
  const auto loop = loop_;
  return loop->predict(std::move(loader));
}
void Trainer::save(const std::filesystem::path& path) const { loop_->save(path); }

void Trainer::stop(std::string reason) { loop_->stop(std::move(reason)); }
void Trainer::log(std::string_view name, double value) { loop_->log(name, value); }
double Trainer::metric(std::string_view name) const { return loop_->metric(name); }
void Trainer::note(std::string_view text) { loop_->note(text); }

amp::Training& Trainer::training() { return loop_->training(); }
nn::Module& Trainer::model() { return loop_->model(); }
const TrainerOptions& Trainer::options() const { return loop_->options(); }
bool Trainer::validates() const { return loop_->validates(); }
const CheckpointState& Trainer::position() const { return loop_->position(); }
double Trainer::samples() const { return loop_->samples(); }
double Trainer::step_loss() const { return loop_->step_loss(); }
int Trainer::rank() const { return loop_->rank(); }
int Trainer::ranks() const { return loop_->ranks(); }

}  // namespace halftone::train
