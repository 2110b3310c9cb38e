// A probe (policy/probe.h) as a callback: telemetry of a Trainer's training.
#pragma once

#include <optional>

#include <halftone/policy/probe.h>
#include <halftone/train/callbacks.h>

namespace halftone::train {

/// Writes probe.jsonl into the training's directory, if it has one. Logs numbers of the last
/// sampled step: "precision/worst_underflow" (the largest share of a tensor that became 0),
/// "precision/least_sqnr" (dB) and "precision/lost_updates"; a note names the site of the first. A
/// resumed training appends the numbers that it would have had: rows of steps that it repeats occur
/// twice, with the same numbers.
class PrecisionMonitor final : public Callback {
 public:
  explicit PrecisionMonitor(policy::ProbeOptions options = {}) : options_(std::move(options)) {}
  void on_fit_start(Trainer& trainer) override;
  void on_step_end(Trainer& trainer) override;
  void on_log(Trainer& trainer) override;
  void on_fit_end(Trainer& trainer) override;
  std::map<std::string, double> state() const override;
  void load_state(const std::map<std::string, double>& state) override;
  std::map<std::string, Tensor> tensors() const override;
  void load_tensors(const std::map<std::string, Tensor>& tensors) override { history_ = tensors; }

 private:
  void write(Trainer& trainer);

  policy::ProbeOptions options_;
  std::optional<policy::Probe> probe_{};
  struct Worst {
    double underflow = 0, sqnr = 0, lost = 0;
    std::string site{};
  };
  std::optional<Worst> worst_{};
  std::map<std::string, Tensor> history_{};  // of the probe, while there is none
};

}  // namespace halftone::train
