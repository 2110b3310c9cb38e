// halftone-lab sensitivity and search: improve a policy.
#pragma once

#include <cstdint>
#include <filesystem>
#include <iosfwd>
#include <string>
#include <vector>

#include <halftone/lab/run.h>
#include <halftone/lab/trial.h>
#include <halftone/lab/workload.h>

namespace halftone::lab {

struct SensitivityOptions {
  std::string policy;  // the base: a file, or a strategy's name
  std::string reference = "fp32", workload{}, space = "ops", to = "low";
  int64_t warm_up = 20;
  int batches = 4;
  uint64_t seed = 0;
  std::string json{};  // empty: none; -: standard output
  // --- formats for each module, instead of `space` and `to`
  std::vector<std::string> menu{};
  bool one_pass = false;  // scores by one pass, not by a trial for each rule
  bool check = false;     // with one_pass: also a trial for each rule, and the correlation
};

struct SearchCommand {
  SensitivityOptions of{};
  std::string objective = "bytes";
  double budget = 0.02;
  std::filesystem::path out{};    // the policy's file, x.json; x.search.json gets candidates and
                                  // frontier
  std::vector<uint64_t> seeds{};  // seeds to train the base and the found policy from; empty: none
  int64_t steps = 300;
  std::vector<double> bits{};  // with a menu: the budgets, mean bits of an operand's element
  std::string gate{};          // a bound such as "0.5%"; empty: no gate
};

int run_sensitivity(const SensitivityOptions& options, const std::vector<NamedWorkload>& own);
int run_search(const SearchCommand& command, const std::vector<NamedWorkload>& own);
/// The same with a menu (lab/menu.h).
int run_menu_sensitivity(const SensitivityOptions& options, const std::vector<NamedWorkload>& own);
int run_menu_search(const SearchCommand& command, const std::vector<NamedWorkload>& own);

/// The measure of sensitivity and search: the workload's batches under the reference.
Trial trial_of(const SensitivityOptions& options, const std::vector<NamedWorkload>& own);
/// Trains the base and found policies, and prints the table. Returns 3 if a signal stopped it.
int train_found(const RunOptions& options, const std::vector<NamedWorkload>& own,
                std::ostream& words);
constexpr std::string_view made_by_search = "halftone-lab search ";
/// Throws UsageError before minutes of work unless the policy can be written to `out`, and replaces
/// only the policy of an earlier search.
void check_place_for(const std::filesystem::path& out);
/// Returns the record's path: x.search.json for x.json.
std::filesystem::path record_of(std::filesystem::path out);

}  // namespace halftone::lab
