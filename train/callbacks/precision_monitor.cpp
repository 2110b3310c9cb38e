// Writes rows to the file after each sampled step, and releases their memory.
#include <halftone/train/callbacks/precision_monitor.h>

#include <cmath>

#include <halftone/core/files.h>
#include <halftone/policy/telemetry/worst_rows.h>
#include <halftone/train/trainer.h>

namespace halftone::train {

void PrecisionMonitor::on_fit_start(Trainer& trainer) {
  probe_.emplace(trainer.training(), options_);
}

void PrecisionMonitor::write(Trainer& trainer) {
  const std::vector<policy::ProbeRow>& rows = probe_->rows();
  const std::vector<policy::UpdateRow>& updates = probe_->updates();
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
  probe_.reset();
}

}  // namespace halftone::train
