// Writes rows to the file after each sampled step, and releases their memory.
#include <halftone/train/callbacks/precision_monitor.h>

#include <cmath>

#include <halftone/core/files.h>
#include <halftone/policy/probe.h>
#include <halftone/train/numbers.h>
#include <halftone/train/trainer.h>

namespace halftone::train {

void PrecisionMonitor::on_fit_start(Trainer& trainer) {
  // An exception ended the last fit(), perhaps in the middle of a step: its sample does not count.
  if (probe_) history_ = probe_->history(), write(trainer);
  probe_.emplace(trainer.training(), options_, trainer.position().step);
  probe_->load_history(history_);
}

void PrecisionMonitor::write(Trainer& trainer) {
  std::vector<policy::ProbeRow> rows = probe_->rows();
  std::vector<policy::UpdateRow> updates = probe_->updates();
  const auto unfinished = [&](const auto& row) { return row.step >= trainer.position().step; };
  std::erase_if(rows, unfinished), std::erase_if(updates, unfinished);
  if (rows.empty() && updates.empty()) return;
  policy::WorstRows found;
  found.add(rows, updates);
  const Worst worst{.underflow = found.underflow,
                    .sqnr = std::isfinite(found.sqnr) ? found.sqnr : 0,
                    .lost = found.stored.count > 0 ? found.stored.lost_share() : 0,
                    .site = found.underflow_at};
  worst_ = worst;
  if (!worst.site.empty()) {
    char share[32];
    std::snprintf(share, sizeof share, "%.3g %%", 100 * worst.underflow);
    trainer.note("precision: most underflow " + std::string(share) + " in " + worst.site);
  }
  if (const std::filesystem::path& directory = trainer.options().directory;
      !directory.empty() && trainer.rank() == 0) {
    files::Descriptor file = files::open_to_append("PrecisionMonitor", directory / "probe.jsonl");
    const std::string text = policy::json_lines(rows, updates);
    std::string_view rest = text;
    if (!files::write_all(file, rest) || !file.close())
      fail<FormatError>("PrecisionMonitor", "cannot write to ",
                        (directory / "probe.jsonl").string(), ". Is the disk full?");
  }
  probe_->clear();
}

void PrecisionMonitor::on_log(Trainer& trainer) {
  write(trainer);
  if (!worst_) return;
  trainer.log("precision/worst_underflow", worst_->underflow);
  trainer.log("precision/least_sqnr", worst_->sqnr);
  trainer.log("precision/lost_updates", worst_->lost);
}
void PrecisionMonitor::on_step_end(Trainer& trainer) { write(trainer); }
void PrecisionMonitor::on_fit_end(Trainer& trainer) {
  write(trainer);
  history_ = probe_->history();
  probe_.reset();
}

std::map<std::string, double> PrecisionMonitor::state() const {
  if (!worst_) return {};
  return {{"worst_underflow", worst_->underflow},
          {"least_sqnr", worst_->sqnr},
          {"lost_updates", worst_->lost}};
}

void PrecisionMonitor::load_state(const std::map<std::string, double>& state) {
  worst_ = Worst{.underflow = number_in(state, "worst_underflow"),
                 .sqnr = number_in(state, "least_sqnr"),
                 .lost = number_in(state, "lost_updates")};
}

std::map<std::string, Tensor> PrecisionMonitor::tensors() const {
  return probe_ ? probe_->history() : history_;
}

}  // namespace halftone::train
