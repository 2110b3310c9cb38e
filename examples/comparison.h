// The report of compare_strategies: what was measured of one strategy, as a table and as JSON.
#pragma once

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include <halftone/core/files.h>
#include <halftone/halftone.h>
#include <nlohmann/json.hpp>

struct Measured {
  std::string workload, strategy, device = "cpu";
  int64_t threads = 0, epochs = 0, batch = 0, steps = 0, parameters = 0, skipped_steps = 0;
  double parameter_ratio = 0;  // bytes at rest of parameters and what is beside them, over 4 each
  double ms = 0, min_ms = 0;   // of a step: forward, backward, update, without loading data
  double final_loss = 0, test_accuracy = 0, train_s = 0, final_scale = 1;
  halftone::MemoryReport memory{};
  std::vector<double> losses{};                             // of the steps
  std::vector<halftone::amp::PrecisionLog::Entry> casts{};  // of the first step
};

inline double mebibytes(int64_t bytes) { return double(bytes) / 1048576; }

/// Speed-ups are over the strategy fp32, where it was run.
inline void print_table(const std::vector<Measured>& all) {
  using Use = halftone::MemoryUse;
  const auto fp32 = std::ranges::find(all, "fp32", &Measured::strategy);
  std::printf("\n%-16s %5s |%7s %7s %7s %7s %7s %7s %7s |%8s %6s |%7s %5s %8s\n", "", "at", "para-",
              "beside", "gradi-", "optim.", "casts", "activ-", "total", "ms per", "speed", "test",
              "skip-", "loss");
  std::printf("%-16s %5s |%7s %7s %7s %7s %7s %7s %7s |%8s %6s |%7s %5s %8s\n", "strategy", "rest",
              "meters", "them", "ents", "state", "", "ations", "peak", "step", "up", "%", "ped",
              "scale");
  for (const Measured& m : all) {
    const auto mib = [&](Use use) { return mebibytes(m.memory.peak_of(use)); };
    char speed_up[16] = "-";
    if (fp32 != all.end()) std::snprintf(speed_up, sizeof speed_up, "%.2fx", fp32->ms / m.ms);
    std::printf(
        "%-16s %4.2fx |%7.2f %7.2f %7.2f %7.2f %7.2f %7.2f %7.2f |%8.2f %6s |%7.2f %5ld %8g\n",
        m.strategy.c_str(), m.parameter_ratio, mib(Use::parameter),
        mib(Use::master_weight) + mib(Use::compensation),
        mib(Use::gradient) + mib(Use::master_gradient), mib(Use::optimizer_state),
        mib(Use::cast_cache), mib(Use::activation), mebibytes(m.memory.total_peak), m.ms, speed_up,
        100 * m.test_accuracy, long(m.skipped_steps), m.final_scale);
  }
  std::printf(
      "\nMiB: the peak of each use while training, and of all together; they do not peak at "
      "the same time.\nat rest: parameters and what is kept beside them (masters, remainders, "
      "compensation) over f32 parameters.\n");
}

inline nlohmann::ordered_json as_json(const Measured& m) {
  using Use = halftone::MemoryUse;
  nlohmann::ordered_json bytes;
  for (const Use use : {Use::parameter, Use::master_weight, Use::gradient, Use::master_gradient,
                        Use::optimizer_state, Use::compensation})
    bytes[std::string(halftone::name(use))] = m.memory.peak_of(use);
  for (const Use use : {Use::activation, Use::cast_cache, Use::workspace})
    bytes[std::string(halftone::name(use)) + "_peak"] = m.memory.peak_of(use);
  return {{"workload", m.workload},
          {"strategy", m.strategy},
          {"device", m.device},
          {"threads", m.threads},
          {"ms", m.ms},
          {"min_ms", m.min_ms},
          {"samples_per_s", double(m.batch) / m.ms * 1e3},
          {"n", m.steps},
          {"params", m.parameters},
          {"loss", m.final_loss},
          {"peak_bytes", m.memory.total_peak},
          {"bytes", bytes},
          {"parameter_ratio", m.parameter_ratio},
          {"epochs", m.epochs},
          {"test_accuracy", m.test_accuracy},
          {"final_loss", m.final_loss},
          {"train_s", m.train_s},
          {"skipped_steps", m.skipped_steps},
          {"final_scale", m.final_scale}};
}

inline void write_json(const std::vector<Measured>& all, const std::string& path) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Measured& m : all) list.push_back(as_json(m));
  halftone::files::replace("--json", path, list.dump(2) + '\n');
}
