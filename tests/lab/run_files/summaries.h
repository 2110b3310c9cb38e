// The content of a complete summary.json, for tests that write run folders.
#pragma once

#include <nlohmann/json.hpp>

namespace halftone::test {

/// Returns a summary.json with `entries` added, or in place of its own.
inline nlohmann::json summary_with(const nlohmann::json& entries = nlohmann::json::object()) {
  nlohmann::json summary{{"format", 1},
                         {"policy", "p"},
                         {"policy_hash", "0123456789abcdef"},
                         {"workload", "w"},
                         {"seed", 0},
                         {"steps", 20},
                         {"lr", 0.1},
                         {"loss", 1},
                         {"late_loss", 1},
                         {"milliseconds_per_step", 1},
                         {"skipped_steps", 0},
                         {"weights_hash", "fedcba9876543210"}};
  summary.update(entries);
  return summary;
}

}  // namespace halftone::test
