// halftone-lab sensitivity and search: improve a policy.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <halftone/lab/workloads/workload.h>

namespace halftone::lab {

struct SensitivityOptions {
  std::string policy;  // the base: a file, or a strategy's name
  std::string reference = "fp32", workload{}, space = "ops", to = "low";
  int64_t warm_up = 20;
  int batches = 4;
  uint64_t seed = 0;
  std::string json{};  // empty: none; -: standard output
};

struct SearchCommand {
  SensitivityOptions of{};
  std::string objective = "bytes";
  double budget = 0.02;
  std::filesystem::path out{};    // the policy's file, x.json; x.search.json gets candidates and
                                  // frontier
  std::vector<uint64_t> seeds{};  // seeds to train the base and the found policy from; empty: none
  int64_t steps = 300;
};

int run_sensitivity(const SensitivityOptions& options, const std::vector<NamedWorkload>& own);
int run_search(const SearchCommand& command, const std::vector<NamedWorkload>& own);

}  // namespace halftone::lab
