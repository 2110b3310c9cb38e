// Prints the highest rates of this machine: multiply-adds by dtype, and memory traffic by size.
#include <omp.h>

#include <cstdio>
#include <iostream>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "../examples/output.h"
#include "machine.h"

int main(int argc, char** argv) {
  int threads = omp_get_max_threads();
  bool json = false;
  CLI::App app(
      "Measures the highest rates of this machine: multiply-adds by dtype, memory traffic by "
      "size.");
  app.add_option("--threads", threads, "OpenMP threads")->check(CLI::Range(1, 4096));
  app.add_flag("--json", json, "one line of JSON");
  CLI11_PARSE(app, argc, argv);
  const halftone::bench::Machine machine = halftone::bench::measure_machine(threads);
  nlohmann::ordered_json line{{"threads", machine.threads},
                              {"instructions", machine.instructions},
                              {"f32_gflop_per_s", machine.f32},
                              {"bf16_gflop_per_s", machine.bf16},
                              {"traffic", nlohmann::ordered_json::array()}};
  for (const auto& t : machine.traffic)
    line["traffic"].push_back(
        {{"mebibytes", t.mebibytes}, {"copy_gb_per_s", t.copy}, {"triad_gb_per_s", t.triad}});
  if (json) {
    std::cout << line.dump() << '\n';
    return after_output();
  }
  std::printf("%d threads, %s\n", machine.threads, machine.instructions.c_str());
  std::printf("f32 multiply-add  %9.1f GFLOP/s\nbf16 multiply-add %9.1f GFLOP/s\n", machine.f32,
              machine.bf16);
  std::printf("\n%9s %12s %12s\n", "arrays", "copy", "triad");
  for (const auto& t : machine.traffic)
    std::printf("%5.0f MiB %7.1f GB/s %7.1f GB/s\n", t.mebibytes, t.copy, t.triad);
  return after_output();
}
