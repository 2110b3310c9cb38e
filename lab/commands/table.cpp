// halftone-lab table.
#include <halftone/lab/table.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iostream>
#include <set>
#include <sstream>

#include <nlohmann/json.hpp>

#include <halftone/core/error.h>
#include <halftone/core/files.h>
#include <halftone/lab/commands/commands.h>
#include <halftone/lab/run_folder.h>

namespace halftone::lab {

namespace {

/// Returns as many digits as the number needs; infinities and NaN as pandas reads them.
std::string value_text(double value) {
  if (std::isnan(value)) return "";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char text[40];
  return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

/// The results of a run. A run that diverged has no row of its losses.
constexpr const char* result_names[] = {"loss",
                                        "late_loss",
                                        "validation_loss",
                                        "validation_accuracy",
                                        "lr",
                                        "milliseconds_per_step",
                                        "skipped_steps"};

class Writer {
 public:
  explicit Writer(const TableOptions& options)
      : json_lines_(options.json_lines), only_(options.only) {}

  void begin_run(const RunFolder& folder) {
    const RunSummary summary = folder.summary().value_or(RunSummary{});
    const auto policy = summary.texts.find("policy");
    const auto seed = summary.numbers.find("seed");
    run_ = folder.name();
    policy_ = policy == summary.texts.end() ? "" : policy->second;
    const auto workload = summary.texts.find("workload");
    workload_ = workload == summary.texts.end() ? "" : workload->second;
    seed_ = seed == summary.numbers.end() ? "" : value_text(seed->second);
  }

  void begin_place(int64_t step, const std::string& site, const std::string& role,
                   std::size_t input = 0) {
    if (json_lines_) {
      const auto quoted = [](const std::string& text) {
        return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
      };
      front_ =
          "{\"run\":" + quoted(run_) + ",\"policy\":" + quoted(policy_) +
          ",\"workload\":" + quoted(workload_) + ",\"seed\":" + (seed_.empty() ? "null" : seed_) +
          ",\"step\":" + std::to_string(step) + ",\"site\":" + quoted(site) +
          ",\"role\":" + quoted(role) + ",\"input\":" + std::to_string(input) + ",\"statistic\":";
      return;
    }
    front_ = csv_cell(run_) + ',' + csv_cell(policy_) + ',' + csv_cell(workload_) + ',' + seed_ +
             ',' + std::to_string(step) + ',' + csv_cell(site) + ',' + csv_cell(role) + ',' +
             std::to_string(input) + ',';
  }

  /// Throws UsageError for a statistic of `only` that the written runs do not have.
  void require_all_known() const {
    const std::vector<std::string_view> names(seen_.begin(), seen_.end());
    for (const std::string& name : only_)
      if (!seen_.contains(name))
        fail<UsageError>("--statistic", "no row of these runs has the statistic ", in_quotes(name),
                         ". ", suggestion(name, names));
  }

  void value(const std::string& statistic, double value) {
    if (!only_.empty()) seen_.insert(statistic);
    if (!only_.empty() && std::ranges::find(only_, statistic) == only_.end()) return;
    const std::string name =
        nlohmann::json(statistic).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    rows_.emplace_back(value, json_lines_
                                  ? front_ + name + ",\"value\":" +
                                        (std::isfinite(value) ? value_text(value) : "null") + "}\n"
                                  : front_ + csv_cell(statistic) + ',' + value_text(value) + '\n');
  }

  /// Writes the rows that were not written yet; with top > 0 only the `top` rows with the largest
  /// values, the largest first.
  void write(std::ostream& out, int64_t top = 0) {
    if (std::exchange(first_, false) && !json_lines_)
      out << "run,policy,workload,seed,step,site,role,input,statistic,value\n";
    if (top > 0) {
      std::erase_if(rows_, [](const auto& row) { return std::isnan(row.first); });
      std::ranges::stable_sort(rows_, std::greater(), [](const auto& row) { return row.first; });
      if (std::ssize(rows_) > top) rows_.resize(std::size_t(top));
    }
    for (const auto& [value, line] : rows_) out << line;
    rows_.clear();
  }

 private:
  bool json_lines_, first_ = true;
  std::vector<std::pair<double, std::string>> rows_{};
  const std::vector<std::string>& only_;
  std::set<std::string> seen_{std::begin(result_names), std::end(result_names)};
  std::string run_{}, policy_{}, workload_{}, seed_{}, front_{};
};

void write_survey(const policy::ProbeRow& row, Writer& writer) {
  const Survey& survey = row.survey;
  const SurveySums& s = survey.sums;
  writer.begin_place(row.step, row.site, std::string(policy::name(row.role)), row.input);
  writer.value("count", s.count), writer.value("zeros", s.zeros);
  writer.value("infinite", s.infinite), writer.value("not_a_number", s.nan);
  writer.value("root_mean_square", survey.root_mean_square());
  writer.value("largest", s.largest), writer.value("smallest", s.smallest);
  writer.value("loss_scale", row.loss_scale);
  for (const auto& [name, format] :
       {std::pair{"f16", formats::f16}, {"e5m2", formats::e5m2}, {"e4m3", formats::e4m3}}) {
    writer.value(std::string("would_underflow_") + name, survey.would_underflow(format));
    writer.value(std::string("would_overflow_") + name, survey.would_overflow(format));
  }
  if (row.scale > 0) writer.value("scale", row.scale), writer.value("ideal", row.ideal);
  if (row.quantizer.empty()) return;
  writer.value("to_zero", s.to_zero), writer.value("subnormal", s.subnormal);
  writer.value("saturated", s.saturated), writer.value("to_infinity", s.to_infinity);
  writer.value("changed", s.changed);
  writer.value("underflow", survey.underflow());
  writer.value("underflow_with_zeros", survey.underflow(true));
  writer.value("saturation", survey.saturation()), writer.value("sqnr", survey.sqnr());
  writer.value("bias", survey.bias()), writer.value("bias_t", survey.bias_t());
  writer.value("mean_relative_error", survey.mean_relative_error());
  const ErrorParts parts = survey.error_parts();
  writer.value("squared_error", s.sum_e2);
  if (!std::isnan(parts.scale)) {  // older files have no parts
    writer.value("squared_error.scale", parts.scale);
    writer.value("squared_error.dead_zone", parts.dead_zone);
    writer.value("squared_error.grid", parts.grid);
    writer.value("squared_error.saturation", parts.saturation);
  }
  if (policy::is_gradient(row.role)) writer.value("norm_to_noise", survey.norm_to_noise());
  if (row.flips.count == 0) return;
  writer.value("flipped_share", row.flips.flipped_share());
  writer.value("oscillation", row.flips.oscillation());
}

void write_updates(const policy::UpdateRow& row, Writer& writer) {
  const auto write = [&](const std::string& role, const policy::UpdateSums& sums) {
    writer.begin_place(row.step, row.parameter, role);
    writer.value("count", sums.count), writer.value("lost", sums.lost);
    writer.value("lost_share", sums.lost_share());
    writer.value("effective_descent", sums.effective_descent());
    writer.value("update_ratio", sums.update_ratio());
  };
  if (!row.state.empty()) return write("update.state." + row.state, row.stored);
  write("update", row.stored), write("update.seen", row.seen);
}

/// The run as a whole: role "run", at its last step.
void write_summary(const RunSummary& summary, Writer& writer) {
  const auto steps = summary.numbers.find("steps");
  writer.begin_place(
      steps == summary.numbers.end() ? 0 : int64_t(std::clamp(steps->second, 0.0, 1e15)), "",
      "run");
  for (const char* name : result_names)
    if (const auto number = summary.numbers.find(name); number != summary.numbers.end())
      writer.value(name, number->second);
  for (const auto& [use, bytes] : summary.bytes_at_peak)
    writer.value("bytes_at_peak." + use, bytes);
}

void write_run(RunFolder& folder, Writer& writer) {
  writer.begin_run(folder);
  if (const auto summary = folder.summary()) write_summary(*summary, writer);
  folder.each_metrics_line([&](const MetricsLine& line) {
    const double step = line.at("step");
    writer.begin_place(std::abs(step) < 1e15 ? int64_t(step) : 0, "", "");
    for (const auto& [name, value] : line)
      if (name != "step" && name != "time") writer.value(name, value);
  });
  folder.each_probe_line([&](const policy::ProbeRow& row) { write_survey(row, writer); },
                         [&](const policy::UpdateRow& row) { write_updates(row, writer); });
  for (const std::string& note : folder.notes()) std::cerr << printable(note) << '\n';
}

}  // namespace

void write_table(const TableOptions& options, std::ostream& out) {
  std::vector<std::string> notes;
  std::vector<RunFolder> folders = run_folders("table", options.paths, notes);
  for (const std::string& note : notes) std::cerr << printable(note) << '\n';
  Writer writer(options);
  for (RunFolder& folder : folders) {
    if (folder.was_trained()) write_run(folder, writer);
    if (options.only.empty() && options.top == 0) writer.write(out);  // no need to keep all rows
  }
  writer.require_all_known();  // before the first row
  writer.write(out, options.top);
}

int run_table(const TableOptions& options) {
  if (options.output.empty()) {
    write_table(options, std::cout);
    return 0;
  }
  files::require_replaceable("table", options.output);
  PlainText text;
  write_table(options, text);
  files::replace("table", options.output, text.str());
  return 0;
}

Work add_table(CLI::App& app, const Context&) {
  auto options = std::make_shared<TableOptions>();
  app.add_option("paths", options->paths, "run folders")->required();
  CLI::Option* const csv = app.add_flag_function(
      "--csv", [](int64_t) {}, "comma-separated values (the default)");
  app.add_flag("--jsonl", options->json_lines, "a JSON object per line")->excludes(csv);
  app.add_option("--statistic", options->only, "NAME,NAME: writes only these rows")->delimiter(',');
  app.add_option("--top", options->top,
                 "writes the N rows with the largest values, the largest first")
      ->check(CLI::PositiveNumber);
  app.add_option("-o,--output", options->output, "a file; default: standard output");
  return [options] { return run_table(*options); };
}

}  // namespace halftone::lab
