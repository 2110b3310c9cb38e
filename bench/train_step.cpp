// The highest rates of a GPU, measured through its backend: products of large matrices and passes
// over large arrays. Unlike the CPU's figures these include the losses of the library and the
// kernels.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <iostream>
#include <numeric>
#include <optional>

#include <omp.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <halftone/core/device.h>
#include <halftone/halftone.h>
#include <halftone/lab/workload_data.h>

#include "../examples/output.h"
#include "machine.h"

namespace halftone::bench {

namespace {
using Clock = std::chrono::steady_clock;
constexpr int rounds = 8, at_a_time = 10;
constexpr double long_enough = 2e-3;  // seconds of one call; its start costs little in comparison

/// Returns the seconds of one call, the best of eight rounds of ten calls.
double least_seconds(Backend& backend, const std::function<void()>& call) {
  call();
  double least = 1e30;
  for (int round = 0; round < rounds; ++round) {
    backend.synchronize();
    const Clock::time_point start = Clock::now();
    for (int i = 0; i < at_a_time; ++i) call();
    backend.synchronize();
    least =
        std::min(least, std::chrono::duration<double>(Clock::now() - start).count() / at_a_time);
  }
  return least;
}

/// Returns GFLOP/s of square products, whose size grows until one takes long enough.
double products_of(Device device, DType dtype) {
  Backend& backend = backend_for(device);
  for (int64_t n = 128;; n *= 2) {
    const Tensor a = full({n, n}, 0.5, dtype, device), b = full({n, n}, 0.25, dtype, device);
    Tensor c = empty({n, n}, dtype, device);
    const double seconds = least_seconds(backend, [&] { backend.matmul(a, b, {}, c); });
    if (seconds > long_enough || n == 16384)
      return 2e-9 * double(n) * double(n) * double(n) / seconds;
  }
}

Machine::Traffic traffic_of(Device device, double mebibytes) {
  Backend& backend = backend_for(device);
  const auto array = [&](int arrays) {
    return full({int64_t(mebibytes * 1048576 / (4.0 * arrays))}, 0.5, f32, device);
  };
  const Tensor x = array(2), u = array(3), v = array(3);
  Tensor y = empty_like(x), w = empty_like(u);
  const double copied = least_seconds(backend, [&] { backend.copy(x, y); });
  const double added = least_seconds(
      backend, [&] { backend.binary(call_of<BinaryFormulas>(formula::Add{}), u, v, w); });
  const double bytes = mebibytes * 1048576;
  return {.mebibytes = mebibytes, .copy = 1e-9 * bytes / copied, .triad = 1e-9 * bytes / added};
}
}  // namespace

Machine measure_machine(Device device) {
  Machine machine{.instructions = std::string(backend_for(device).name()), .traffic = {}};
  machine.f32 = products_of(device, f32), machine.bf16 = products_of(device, bf16);
  machine.f16 = products_of(device, f16);
  // Sizes grow until a pass takes long enough, so that the last one measures memory and not a
  // cache.
  for (double mebibytes = 1; mebibytes <= 4096; mebibytes *= 4) {
    machine.traffic.push_back(traffic_of(device, mebibytes));
    if (mebibytes * 1048576 / (machine.traffic.back().copy * 1e9) > long_enough) break;
  }
  return machine;
}

}  // namespace halftone::bench

// Times whole training steps: forward, loss, backward, AdamW (lr 1e-4, weight decay 0.01) and
// zeroing of gradients, on a fixed batch already in memory. Runs four steps of warm-up, then prints
// the median. On a GPU a sample is the mean of steps issued without waiting, and --capture replays
// the step as a CUDA graph. One line of JSON per workload.

namespace ht = halftone;

namespace {
struct Options {
  std::vector<std::string> workloads = ht::lab::synthetic_names();
  std::vector<std::string> strategies{"fp32"};
  std::string device = "cpu";
  int threads = 2, steps = 30, busy = 0, batches = 1;
  int64_t probe = 0;  // telemetry every n steps
  double seconds = 12;
  bool json = false, capture = false, limit = true;
};

struct Timing {
  std::vector<double> milliseconds;  // sorted
  double loss = 0;
  ht::MemoryReport memory{};
  ht::bench::StepNeeds needs{};  // empty unless a limit is wanted
  double median() const { return milliseconds[milliseconds.size() / 2]; }
  double mean() const {
    return std::accumulate(milliseconds.begin(), milliseconds.end(), 0.0) /
           double(milliseconds.size());
  }
};

/// Returns false for steps that a GPU replays, because a replay cannot be observed.
bool wants_limit(const Options& options, ht::Device device) {
  return options.limit && options.batches == 1 &&
         (!options.capture || device.kind == ht::DeviceKind::cpu);
}

Timing time_steps(ht::lab::SyntheticWorkload& w, const std::string& strategy,
                  const Options& options) {
  using Clock = std::chrono::steady_clock;
  ht::optim::AdamW adamw(w.model->parameters(), {.lr = 1e-4, .weight_decay = 0.01});
  auto training = ht::amp::apply(ht::policy::named_or_read(strategy), *w.model, adamw);
  Timing timing;
  std::optional<ht::policy::Probe> probe;
  if (options.probe > 0) probe.emplace(training, ht::policy::ProbeOptions{.every = options.probe});
  const auto step = [&] {
    ht::Tensor loss;
    for (int i = 0; i < options.batches; ++i) {
      loss = ht::lab::logits_loss(training.forward(*w.model, w.inputs), w.targets);
      training.backward(options.batches > 1 ? loss / options.batches : loss);
    }
    if (options.batches == 0) {
      const ht::NoGrad no_grad;
      return ht::lab::logits_loss(training.forward(*w.model, w.inputs), w.targets);
    }
    training.step();
    training.zero_grad();
    if (probe && !probe->rows().empty()) probe->clear();
    return loss;
  };
  const ht::Device device = w.inputs.device();
  ht::Backend& backend = ht::backend_for(device);
  if (options.capture) training.optimizer().publish_rates();
  ht::CapturedStep captured([&](const std::vector<ht::Tensor>&) { return step(); });
  const auto one = [&] { return options.capture ? captured({w.inputs}) : step(); };
  const int at_a_time = device.kind == ht::DeviceKind::cpu ? 1 : 10;
  for (int i = 0; i < 4; ++i) one();
  if (options.busy > 0) {  // teams of threads adapt their size
    const auto begin = Clock::now();
    while (Clock::now() - begin < std::chrono::milliseconds(500)) one();
  }
  backend.synchronize();
  const auto start = Clock::now();
  for (int i = 0; i < options.steps; ++i) {
    const auto before = Clock::now();
    ht::Tensor loss;
    for (int k = 0; k < at_a_time; ++k) loss = one();
    backend.synchronize();
    timing.milliseconds.push_back(
        std::chrono::duration<double, std::milli>(Clock::now() - before).count() / at_a_time);
    timing.loss = loss.item();
    if (std::chrono::duration<double>(Clock::now() - start).count() > options.seconds) break;
  }
  std::ranges::sort(timing.milliseconds);
  timing.memory = ht::memory_report(device);
  probe.reset();
  if (wants_limit(options, device)) timing.needs = ht::bench::needs_of_step(w, training);
  return timing;
}

/// `machine`: null unless a limit is wanted.
nlohmann::ordered_json measure(const std::string& name, const std::string& strategy,
                               const Options& options, const ht::bench::Machine* machine) {
  const ht::Device device = ht::device_named(options.device);
  ht::lab::SyntheticWorkload w = ht::lab::make_synthetic(name, device);
  ht::reset_peak_memory(device);
  const ht::bench::BusyProcesses others(options.busy);
  const Timing timing = time_steps(w, strategy, options);
  const ht::MemoryReport& memory = timing.memory;
  const int batches = std::max(options.batches, 1);
  const double samples = double(batches * w.inputs.size(0)) / timing.median() * 1e3;
  nlohmann::ordered_json bytes;
  using Use = ht::MemoryUse;
  for (Use use : {Use::parameter, Use::master_weight, Use::gradient, Use::master_gradient,
                  Use::optimizer_state, Use::compensation})
    bytes[std::string(ht::name(use))] = memory.peak_of(use);
  for (Use use : {Use::activation, Use::cast_cache, Use::workspace})
    bytes[std::string(ht::name(use)) + "_peak"] = memory.peak_of(use);
  nlohmann::ordered_json cell{{"workload", name},
                              {"strategy", strategy},
                              {"device", options.device},
                              {"captured", options.capture},
                              {"threads", options.threads},
                              {"busy", options.busy},
                              {"batches", options.batches},
                              {"ms", timing.median()},
                              {"min_ms", timing.milliseconds.front()},
                              {"mean_ms", timing.mean()},
                              {"samples_per_s", samples},
                              {"n", timing.milliseconds.size()},
                              {"params", w.model->parameter_count()},
                              {"loss", timing.loss},
                              {"gflop", w.gflop},
                              {"gflop_per_s", batches * w.gflop / timing.median() * 1e3},
                              {"peak_bytes", memory.total_peak},
                              {"bytes", bytes}};
  if (options.batches == 0) cell.erase("gflop"), cell.erase("gflop_per_s");  // those of a step
  if (machine && !timing.needs.gflop.empty()) {
    const ht::bench::Limit limit = ht::bench::limit_on(*machine, timing.needs);
    cell["limit_ms"] = limit.ms();
    for (const auto& [dtype, gflop] : timing.needs.gflop)
      cell["limit_gflop"][std::string(ht::name(dtype))] = gflop;
    cell["limit_bytes"] = timing.needs.bytes;
    cell["limit_arithmetic_ms"] = limit.arithmetic_ms;
    cell["limit_memory_ms"] = limit.memory_ms;
    cell["share_of_limit"] = limit.ms() / timing.milliseconds.front();
  }
  return cell;
}

/// Replaces "untuned" by all names of lab/workload_data.h.
std::vector<std::string> expanded(const std::vector<std::string>& names) {
  std::vector<std::string> all;
  for (const std::string& name : names)
    if (name == "untuned") std::ranges::copy(ht::lab::untuned_names(), std::back_inserter(all));
    else all.push_back(name);
  return all;
}

void print(const nlohmann::ordered_json& cell, bool json) {
  if (json) {
    std::cout << cell.dump() << std::endl;
    return;
  }
  std::printf("%-14s %-15s %9.3f ms (min %.3f, mean %.3f) %12.1f samples/s",
              cell["workload"].get<std::string>().c_str(),
              cell["strategy"].get<std::string>().c_str(), cell["ms"].get<double>(),
              cell["min_ms"].get<double>(), cell["mean_ms"].get<double>(),
              cell["samples_per_s"].get<double>());
  if (cell.contains("gflop_per_s"))
    std::printf(" %8.1f GFLOP/s", cell["gflop_per_s"].get<double>());
  std::printf(" %8.1f MiB peak", cell["peak_bytes"].get<double>() / 1048576);
  if (cell.contains("limit_ms"))
    std::printf("  limit %.3f ms: %.0f %%", cell["limit_ms"].get<double>(),
                100 * cell["share_of_limit"].get<double>());
  std::printf("\n");
  std::fflush(stdout);
}
}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Times whole training steps on synthetic data.");
  app.add_option(
         "--workload", options.workloads,
         ht::lab::synthetic_list() +
             "; several by commas; untuned: shapes that are not round (lab/workload_data.h)")
      ->delimiter(',');
  app.add_option("--strategy", options.strategies, "as in amp/policy.h; several by commas")
      ->delimiter(',');
  app.add_option("--device", options.device, "cpu, cuda or cuda:N; batches are larger on a GPU");
  app.add_flag("--capture", options.capture, "replay the step as a CUDA graph");
  app.add_option("--threads", options.threads, "OpenMP threads")->check(CLI::PositiveNumber);
  app.add_flag_callback(
      "--portable-bits", [] { ht::set_portable_bits(true); },
      "the same bits on every CPU and number of threads");
  app.add_option("--busy", options.busy, "other processes that compute without end")
      ->check(CLI::Range(0, 1024));
  app.add_option("--batches", options.batches,
                 "batches of a step, whose gradients add up; 0: evaluation, without a step")
      ->check(CLI::Range(0, 1024));
  app.add_option("--steps", options.steps, "most steps measured")->check(CLI::PositiveNumber);
  app.add_option("--seconds", options.seconds, "most seconds per cell")->check(CLI::PositiveNumber);
  app.add_option("--probe", options.probe, "telemetry every n steps (amp/probe.h); 0: none")
      ->check(CLI::NonNegativeNumber);
  app.add_flag("--limit,!--no-limit", options.limit,
               "first measures the machine (a second), then prints the share of its limit that a "
               "step reaches");
  app.add_flag("--json", options.json, "print JSON lines");
  CLI11_PARSE(app, argc, argv);
  omp_set_num_threads(options.threads);
  try {
    std::optional<ht::bench::Machine> machine;
    const ht::Device device = ht::device_named(options.device);
    if (wants_limit(options, device))
      machine = device.kind == ht::DeviceKind::cpu ? ht::bench::measure_machine(options.threads)
                                                   : ht::bench::measure_machine(device);
    for (const std::string& name : expanded(options.workloads))
      for (const std::string& strategy : options.strategies)
        print(measure(name, strategy, options, machine ? &*machine : nullptr), options.json);
  } catch (const ht::Error& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
  return after_output();
}
