// Records a step, and runs it again with other inputs and the next random numbers.
#include <halftone/core/captured_step.h>

#include <halftone/core/backend.h>
#include <halftone/core/factory.h>

namespace halftone {

void Backend::begin_capture() {
  fail<UnsupportedError>("captured_step", "the ", name(),
                         " backend cannot record work. Use a CUDA device, or run the step itself.");
}
std::unique_ptr<CapturedWork> Backend::end_capture() {
  fail<UnsupportedError>("captured_step", "nothing is being recorded. Call begin_capture() first.");
}

namespace {
thread_local std::vector<std::function<void()>>* recorded_host_work = nullptr;
}
bool recording_step() { return recorded_host_work != nullptr; }
void repeat_on_replay(std::function<void()> work) {
  if (recorded_host_work) recorded_host_work->push_back(std::move(work));
}

CapturedStep::CapturedStep(Step step, CapturedStepOptions options)
    : step_(std::move(step)), options_(options) {
  if (options.warm_up < 1)
    fail<UsageError>("captured_step", "warm_up is ", options.warm_up, ". Use 1 or more.");
}
CapturedStep::~CapturedStep() = default;
CapturedStep::CapturedStep(CapturedStep&&) noexcept = default;
CapturedStep& CapturedStep::operator=(CapturedStep&&) noexcept = default;

Tensor CapturedStep::operator()(const std::vector<Tensor>& inputs) {
  if (inputs.empty() || !inputs[0].defined())
    fail<UsageError>("captured_step", "got no input, which would set the device. Pass one.");
  Backend& backend = backend_for(inputs_.empty() ? inputs[0] : inputs_[0]);
  if (!backend.can_capture() || calls_ < options_.warm_up) {
    ++calls_;
    return step_(inputs);
  }
  Generator& generator = default_generator();
  const bool reseeded = generator.state().seed != key_.seed;
  if (!work_ || reseeded) {
    capture(inputs, backend);
    work_->replay(0, 0);
    return result_;
  }
  copy_inputs(inputs, backend);
  for (const auto& work : host_work_) work();
  work_->replay(generator.state().offset - key_.offset, ++replays_);
  generator.set_state({key_.seed, generator.state().offset + numbers_});
  return result_;
}

void CapturedStep::capture(const std::vector<Tensor>& inputs, Backend& backend) {
  work_.reset(), result_ = {}, host_work_.clear(), replays_ = 0;
  const MemoryScope scope(MemoryUse::input);
  inputs_.clear();
  for (const Tensor& x : inputs)
    inputs_.push_back(x.device().kind == DeviceKind::cpu ? x.to(inputs[0].device()) : x.clone());
  key_ = default_generator().state();
  backend.begin_capture();
  recorded_host_work = &host_work_;
  try {
    const MemoryScope activations(MemoryUse::activation);
    result_ = step_(inputs_).detach();
  } catch (...) {
    recorded_host_work = nullptr;
    backend.abandon_capture();
    throw;
  }
  recorded_host_work = nullptr;
  work_ = backend.end_capture();
  numbers_ = default_generator().state().offset - key_.offset;
}

void CapturedStep::copy_inputs(const std::vector<Tensor>& inputs, Backend& backend) {
  if (inputs.size() != inputs_.size())
    fail<UsageError>("captured_step", "got ", inputs.size(), " inputs, captured with ",
                     inputs_.size(), ". Pass as many.");
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Tensor &x = inputs[i], &own = inputs_[i];
    if (x.shape() != own.shape() || x.dtype() != own.dtype())
      fail<ShapeError>("captured_step", "input ", i, " is ", described(x), ", captured with ",
                       described(own),
                       ". Pass batches of one size (drop_last), or make another CapturedStep.");
    Tensor target = own;
    if (x.device() == own.device()) backend.copy(x, target);
    else backend.copy(x.to(own.device()), target);
  }
}

}  // namespace halftone
