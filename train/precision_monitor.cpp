// Rows go to the file after each sampled step, and their memory is given back.
#include <halftone/train/precision_monitor.h>

#include <algorithm>

#include <halftone/core/files.h>
#include <halftone/train/trainer.h>

namespace halftone::train {

void PrecisionMonitor::on_fit_start(Trainer& trainer) {
  probe_.emplace(trainer.training(), options_);
}

void PrecisionMonitor::write(Trainer& trainer) {
  const std::vector<policy::ProbeRow>& rows = probe_->rows();
  const std::vector<policy::UpdateRow>& updates = probe_->updates();
  if (rows.empty() && updates.empty()) return;
  Worst worst{.sqnr = 1e9};
  for (const policy::ProbeRow& row : rows) {
    if (row.quantizer.empty()) continue;
    if (const double underflow = row.survey.underflow(); underflow > worst.underflow)
      worst.underflow = underflow, worst.site = row.site + ' ' + std::string(name(row.role));
    if (const double sqnr = row.survey.sqnr(); sqnr < worst.sqnr) worst.sqnr = sqnr;
  }
  policy::UpdateSums all;
  for (const policy::UpdateRow& row : updates) all.add(row.stored);
  if (all.count > 0) worst.lost = all.lost_share();
  if (worst.sqnr == 1e9) worst.sqnr = 0;
  worst_ = worst;
  if (!worst.site.empty()) {
    char share[32];
    std::snprintf(share, sizeof share, "%.3g %%", 100 * worst.underflow);
    trainer.note("precision: most underflow " + std::string(share) + " in " + worst.site);
  }
  if (const std::filesystem::path& directory = trainer.options().directory; !directory.empty()) {
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
