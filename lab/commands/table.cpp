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

/// RFC 4180: puts quotes around cells that contain commas, quotes or line ends.
std::string csv_cell(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == text.npos) return text;
  std::string result = "\"";
  for (const char c : text) result += c == '"' ? std::string("\"\"") : std::string(1, c);
  return result + '"';
}

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
  /// only: the statistics to write; empty: all.
  Writer(std::ostream& out, bool json_lines, const std::vector<std::string>& only)
      : out_(out), json_lines_(json_lines), only_(only) {
    if (!json_lines_) out_ << "run,policy,workload,seed,step,site,role,input,statistic,value\n";
  }

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
        fail<UsageError>("--where", "no row of these runs has the statistic ", in_quotes(name),
                         ". ", suggestion(name, names));
  }

  void value(const std::string& statistic, double value) {
    if (!only_.empty()) seen_.insert(statistic);
    if (!only_.empty() && std::ranges::find(only_, statistic) == only_.end()) return;
    if (!json_lines_) {
      out_ << front_ << csv_cell(statistic) << ',' << value_text(value) << '\n';
      return;
    }
    const std::string name =
        nlohmann::json(statistic).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    out_ << front_ << name << ",\"value\":" << (std::isfinite(value) ? value_text(value) : "null")
         << "}\n";
  }

 private:
  std::ostream& out_;
  bool json_lines_;
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
  PlainText chosen;  // written at the end: a wrong name in --where is an error without rows
  Writer writer(options.only.empty() ? out : chosen, options.json_lines, options.only);
  for (RunFolder& folder : folders)
    if (folder.was_trained()) write_run(folder, writer);
  writer.require_all_known();
  out << chosen.str();
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
  app.add_option_function<std::vector<std::string>>(
         "--where",
         [options](const std::vector<std::string>& conditions) {
           for (const std::string& condition : conditions) {
             if (!condition.starts_with("statistic="))
               fail<UsageError>("--where", in_quotes(condition),
                                " is not a condition. Write statistic=NAME,NAME.");
             std::istringstream names(condition.substr(10));
             for (std::string name; std::getline(names, name, ',');) options->only.push_back(name);
           }
         },
         "statistic=NAME,NAME: writes only these rows")
      ->delimiter(';');
  app.add_option("-o,--output", options->output, "a file; default: standard output");
  return [options] { return run_table(*options); };
}

}  // namespace halftone::lab
