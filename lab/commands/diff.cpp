// halftone-lab diff: two runs with traces, compared by place.
#include <algorithm>
#include <iostream>
#include <iterator>
#include <set>

#include <nlohmann/json.hpp>

#include <halftone/core/error.h>
#include <halftone/lab/commands/flags.h>
#include <halftone/lab/identity.h>
#include <halftone/lab/json_input.h>
#include <halftone/lab/recorded_run.h>
#include <halftone/lab/trace.h>

namespace halftone::lab {

namespace {
constexpr const char* trace_name = "trace.jsonl";

struct Traced {
  policy::Json summary{};
  std::vector<TraceRow> rows{};
};

Traced read_traced(const std::filesystem::path& folder) {
  const bool there = std::filesystem::exists(folder / trace_name);
  Traced run;
  if (there) run = {read_run("diff", folder).summary, read_trace("diff", folder / trace_name)};
  if (run.rows.empty())
    fail<UsageError>("diff", printable(folder.string()), there ? " has an empty " : " has no ",
                     trace_name,
                     ". Give the folder of a run of halftone-lab run --trace N --out DIR.");
  return run;
}

/// Returns "0, 2, 4"; of many steps the first ones.
std::string list_of(const std::set<int64_t>& steps) {
  std::vector<std::string> texts;
  for (const int64_t step : steps) texts.push_back(std::to_string(step));
  return listed(texts, 8);
}

/// Keeps only the rows of steps that both traces have, so that runs with other values of --trace
/// can be compared. Returns whether it removed rows. Throws UsageError if it would keep none.
bool keep_common_steps(Traced& there, Traced& here, std::set<int64_t>& common) {
  const std::set<int64_t> first = steps_of(there.rows), second = steps_of(here.rows);
  common.clear();
  std::ranges::set_intersection(first, second, std::inserter(common, common.end()));
  if (common.empty())
    fail<UsageError>("diff", "the traces have no step in common: ", list_of(first), " and ",
                     list_of(second), ". Trace both runs with the same --trace N.");
  for (Traced* run : {&there, &here})
    std::erase_if(run->rows, [&](const TraceRow& row) { return !common.contains(row.step); });
  return first != second;
}

policy::Json json_of(const TraceRow& row) {
  return {{"step", row.step},
          {"site", row.site},
          {"role", policy::name(row.role)},
          {"input", row.input},
          {"hash", row.hash}};
}
}  // namespace

Work add_diff(CLI::App& app, const Context&) {
  struct Options {
    std::filesystem::path first, second;
    std::string json{};
  };
  auto options = std::make_shared<Options>();
  app.add_option("first", options->first, "the folder of a run with --trace")->required();
  app.add_option("second", options->second, "the folder of another")->required();
  add_json(app, options->json);
  return [options] {
    require_json(options->json);
    Traced there = read_traced(options->first), here = read_traced(options->second);
    std::set<int64_t> steps;
    const bool some = keep_common_steps(there, here, steps);
    std::ostream& words = words_next_to(options->json);
    const std::vector<std::string> settings = differences(there.summary, here.summary);
    for (const std::string& line : settings)
      words << "differs: " << policy::printable(line) << '\n';
    if (some)
      words << "the traces have different steps. Compared: steps " << list_of(steps) << '\n';
    const auto difference = first_difference(there.rows, here.rows);
    policy::Json json{
        {"format", 1},           {"equal", !difference}, {"tensors", here.rows.size()},
        {"steps", steps.size()}, {"all_steps", !some},   {"settings", settings},
        {"first", nullptr}};
    if (!difference) {
      words << "equal: " << here.rows.size() << " tensors\n";
    } else {
      words << "equal: the first " << difference->row
            << " tensors\nfirst difference: " << text_of(*difference) << '\n';
      json["first"] = {{"row", difference->row}};
      if (difference->there) json["first"]["there"] = json_of(*difference->there);
      if (difference->here) json["first"]["here"] = json_of(*difference->here);
    }
    write_json(options->json, json.dump(1) + "\n");
    return difference ? exit_no : exit_yes;
  };
}

}  // namespace halftone::lab
