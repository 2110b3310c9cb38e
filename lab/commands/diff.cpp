// halftone-lab diff: two runs with traces, compared by place.
#include <iostream>

#include <nlohmann/json.hpp>

#include <halftone/core/error.h>
#include <halftone/core/quoted.h>
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
  if (!std::filesystem::exists(folder / trace_name))
    fail<UsageError>("diff", printable(folder.string()), " has no ", trace_name,
                     ". Give the folder of a run of halftone-lab run --trace N --out DIR.");
  return {read_run(folder).summary, read_trace("diff", folder / trace_name)};
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
    const Traced there = read_traced(options->first), here = read_traced(options->second);
    std::ostream& words = words_next_to(options->json);
    const std::vector<std::string> settings = differences(there.summary, here.summary);
    for (const std::string& line : settings)
      words << "differs: " << policy::printable(line) << '\n';
    const auto difference = first_difference(there.rows, here.rows);
    policy::Json json{{"format", 1},
                      {"equal", !difference},
                      {"tensors", here.rows.size()},
                      {"settings", settings},
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
