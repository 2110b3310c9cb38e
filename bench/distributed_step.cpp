// The cost of exchanges between ranks, measured and as a model, and the resulting time of a step of
// data-parallel training (docs/distributed.md has the formula).
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <optional>
#include <span>
#include <vector>

#include <omp.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <halftone/core/communicator.h>
#include <halftone/core/factory.h>
#include <halftone/core/tensor.h>
#include <halftone/distributed/collectives.h>
#include <halftone/distributed/wire.h>
#include <halftone/halftone.h>
#include <halftone/lab/workload_data.h>

#include "../examples/output.h"
#include "machine.h"

namespace halftone::bench {

/// An exchange of all ranks with all others, as seen by one of them.
struct Ping {
  int64_t messages, bytes;  // sent by this rank
  double seconds;           // of the slowest rank; the fastest of several rounds, because noise
                            // only adds time
};
/// Measures messages of 8 bytes to `most` bytes, and many messages. Collective; needs several
/// ranks.
std::vector<Ping> ping(Communicator& group, int64_t most, int rounds);

/// seconds = alpha + gamma messages + beta bytes
struct Network {
  double alpha = 0, gamma = 0, beta = 0;
  double seconds(double exchanges, double messages, double bytes) const {
    return exchanges * alpha + messages * gamma + bytes * beta;
  }
};
/// Fits by least squares of relative errors; none of the three numbers is negative.
Network fitted(std::span<const Ping> pings);
/// Returns the largest relative error of the fit.
double worst_error(const Network& network, std::span<const Ping> pings);

/// The work of a step, on any number of ranks with one batch each.
struct StepTraffic {
  int64_t elements = 0;       // of all parameters
  int64_t bytes_on_wire = 0;  // of the gradients of one batch
  int64_t bytes_back = 0;     // of the results that all ranks get
  int64_t tensors = 0;        // sent tensors, including scales
  int64_t parameters = 0, buckets = 0;
};
/// Returns a step's traffic; `parameters` as the strategy stores them.
StepTraffic traffic_of(std::span<const Tensor> parameters, const distributed::Options& options);

/// Returns the seconds of a step on N ranks: `compute` alone; the part of the gradients' transfer
/// that does not fit next to the backward pass (0.6 of computing); adding gradients up at
/// `bandwidth` bytes per second; and the transfer of the results.
double predicted_step(double compute, int ranks, const StepTraffic& step, const Network& network,
                      double bandwidth);

// Pings, a fit of three numbers, and the cost model.

namespace {
using Clock = std::chrono::steady_clock;
using Row = std::array<double, 3>;

/// Sends `per_peer` messages of this size from each rank to each other rank. Returns the seconds.
double seconds_of(Communicator& group, int64_t per_peer, int64_t bytes) {
  std::vector<Message> out, in;
  const Tensor own = zeros({per_peer, bytes}, u8);
  std::vector<Tensor> others;
  for (int step = 1; step < group.size(); ++step) {
    const int to = (group.rank() + step) % group.size();
    const int from = (group.rank() + group.size() - step) % group.size();
    others.push_back(empty({per_peer, bytes}, u8));
    for (int64_t k = 0; k < per_peer; ++k) {
      out.push_back({to, views::slice(own, 0, k, 1)});
      in.push_back({from, views::slice(others.back(), 0, k, 1)});
    }
  }
  const auto begin = Clock::now();
  group.exchange("ping", TrafficUse::control, out, in)->wait();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

Ping ping_of(Communicator& group, int64_t per_peer, int64_t bytes, int rounds) {
  double fastest = 0;
  for (int round = 0; round < rounds; ++round) {
    distributed::largest(group, "the start of a ping", round);
    const double seconds = seconds_of(group, per_peer, bytes);
    fastest = round == 0 ? seconds : std::min(fastest, seconds);
  }
  const int64_t slowest = distributed::largest(group, "a ping", int64_t(fastest * 1e9));
  const int64_t messages = per_peer * (group.size() - 1);
  return {messages, messages * bytes, double(slowest) * 1e-9};
}

/// Solves the normal equations for the columns with `counts`, by elimination; the others are 0.
Row solved(std::span<const Ping> pings, const std::array<bool, 3>& counts) {
  std::array<std::array<double, 4>, 3> a{};
  for (const Ping& ping : pings) {
    const Row row{1 / ping.seconds, double(ping.messages) / ping.seconds,
                  double(ping.bytes) / ping.seconds};
    for (std::size_t i = 0; i < 3; ++i) {
      for (std::size_t j = 0; j < 3; ++j)
        if (counts[i] && counts[j]) a[i][j] += row[i] * row[j];
      if (counts[i]) a[i][3] += row[i];
    }
  }
  Row result{};
  for (std::size_t i = 0; i < 3; ++i)
    if (!counts[i]) a[i][i] = 1;
  for (std::size_t i = 0; i < 3; ++i)
    for (std::size_t below = i + 1; below < 3; ++below) {
      const double factor = a[below][i] / a[i][i];
      for (std::size_t j = i; j < 4; ++j) a[below][j] -= factor * a[i][j];
    }
  for (std::size_t i = 3; i-- > 0;) {
    result[i] = a[i][3];
    for (std::size_t j = i + 1; j < 3; ++j) result[i] -= a[i][j] * result[j];
    result[i] /= a[i][i];
  }
  return result;
}
}  // namespace

std::vector<Ping> ping(Communicator& group, int64_t most, int rounds) {
  std::vector<Ping> pings;
  for (int64_t bytes = 8; bytes <= most; bytes *= 8)
    pings.push_back(ping_of(group, 1, bytes, bytes < (1 << 20) ? rounds : std::max(3, rounds / 8)));
  for (const int64_t messages : {4, 16, 64})
    for (const int64_t bytes : {8, 4096}) pings.push_back(ping_of(group, messages, bytes, rounds));
  return pings;
}

Network fitted(std::span<const Ping> pings) {
  std::array<bool, 3> counts{true, true, true};
  Row found = solved(pings, counts);
  for (bool again = true; again; found = solved(pings, counts)) {
    again = false;
    for (std::size_t i = 0; i < 3; ++i)
      if (counts[i] && found[i] < 0) counts[i] = false, again = true;
  }
  return {found[0], found[1], found[2]};
}

double worst_error(const Network& network, std::span<const Ping> pings) {
  double worst = 0;
  for (const Ping& ping : pings)
    worst = std::max(
        worst,
        std::abs(network.seconds(1, double(ping.messages), double(ping.bytes)) / ping.seconds - 1));
  return worst;
}

StepTraffic traffic_of(std::span<const Tensor> parameters, const distributed::Options& options) {
  const distributed::WireFormat wire = options.wire.value_or(distributed::WireFormat{});
  StepTraffic step{.parameters = int64_t(parameters.size())};
  int64_t bytes = 0;
  for (std::size_t i = parameters.size(); i-- > 0;) {
    const Tensor& x = parameters[i];
    step.elements += x.numel();
    for (const Tensor& sent : distributed::Payload::empty(wire, x.dtype(), 0, x.numel()).tensors())
      ++step.tensors, step.bytes_on_wire += sent.bytes();
    // Updated parameters, or sums.
    step.bytes_back += options.shard_optimizer ? x.bytes() : x.numel() * (x.dtype() == f64 ? 8 : 4);
    if (step.buckets == 0 || bytes + x.bytes() > options.bucket_bytes) ++step.buckets, bytes = 0;
    bytes += x.bytes();
  }
  return step;
}

double predicted_step(double compute, int ranks, const StepTraffic& step, const Network& network,
                      double bandwidth) {
  if (ranks == 1) return compute;
  const double n = ranks, others = n - 1, share = others / n;
  const double there = network.seconds(double(step.buckets), others * double(step.tensors),
                                       share * double(step.bytes_on_wire));
  const double back =
      network.seconds(1, others * double(step.parameters), share * double(step.bytes_back));
  // In its range a rank reads what N ranks sent, and writes a sum of 4 bytes per element.
  const double fold = (double(step.bytes_on_wire) + 4 * double(step.elements) / n) / bandwidth;
  return compute + std::max(0.0, there - 0.6 * compute) + fold + back;
}

}  // namespace halftone::bench

// Steps of data-parallel training on the processes that mpirun starts, one batch for each:
//
//   mpirun -n 2 --bind-to none distributed_step                 the time of steps
//   mpirun -n 2 --bind-to none distributed_step --ping          the cost of exchanges
//   mpirun -n 2 --bind-to none distributed_step --predict 2     both, and the cost model
//   distributed_step --alpha 50e-6 --beta 0.8e-9 --predict 2,4,8,64
//                                          the model alone, for another network
//
// Batches are fixed and in memory. Rank 0 prints medians.

namespace ht = halftone;

namespace {
struct Options {
  std::vector<std::string> workloads{"mlp", "lenet", "resnet18_cifar", "gpt_char"},
      strategies{"fp32", "o2-bf16", "split-bf16"};
  std::string wire = "own";
  int threads = 1, steps = 20, rounds = 30;
  int64_t bucket_bytes = ht::distributed::Options{}.bucket_bytes, ping_bytes = int64_t(64) << 20;
  bool ping = false, json = false;
  std::vector<int> predict{};
  ht::bench::Network given{};
};

struct Timing {
  double seconds;  // of a step
  double waited;   // of these seconds, waiting for other ranks
  double sent;     // bytes
  double loss;
};

/// A rank's steps. `together` null: without exchanges, while the other ranks do the same.
class Steps {
 public:
  Steps(const std::string& workload, const std::string& strategy,
        const ht::distributed::Options* together)
      : w_(ht::lab::make_synthetic(workload)),
        adamw_(w_.model->parameters(), {.lr = 1e-4, .weight_decay = 0.01}),
        training_(of(strategy, together), *w_.model, adamw_) {
    if (together) training_.train_together(ht::world(), *together);
  }

  Timing timed(int steps) {
    using Clock = std::chrono::steady_clock;
    for (int i = 0; i < 3; ++i) step();
    const ht::TrafficReport before = ht::world().traffic();
    std::vector<double> seconds;
    double loss = 0;
    for (int i = 0; i < steps; ++i) {
      const auto begin = Clock::now();
      loss = step();
      seconds.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
    }
    const ht::TrafficReport after = ht::world().traffic();
    std::ranges::sort(seconds);
    double sent = 0;
    for (const ht::TrafficUse use : {ht::TrafficUse::gradient, ht::TrafficUse::parameter})
      sent += double(after.sent_of(use) - before.sent_of(use));
    return {seconds[seconds.size() / 2], (after.waited - before.waited) / steps, sent / steps,
            loss};
  }
  std::vector<ht::Tensor> parameters() const { return w_.model->parameters(); }
  int64_t samples() const { return w_.inputs.size(0); }

 private:
  static ht::amp::Policy of(const std::string& name, bool together) {
    ht::amp::Policy strategy = ht::policy::named_or_read(name);
    if (!together) strategy.wire = {};  // gradients are not sent
    return strategy;
  }
  double step() {
    training_.zero_grad();
    training_.begin_batch(batch_++ * ht::world().size() + ht::world().rank());
    const ht::Tensor loss =
        ht::lab::logits_loss(training_.forward(*w_.model, w_.inputs), w_.targets);
    training_.backward(loss * (1.0 / ht::world().size()));
    training_.step();
    return loss.item();
  }
  ht::lab::SyntheticWorkload w_;
  ht::optim::AdamW adamw_;
  ht::amp::Training training_;
  int64_t batch_ = 0;
};

bool speaks() { return ht::world().rank() == 0; }

ht::bench::Network network_here(const Options& o, bool print) {
  const std::vector<ht::bench::Ping> pings = ht::bench::ping(ht::world(), o.ping_bytes, o.rounds);
  const ht::bench::Network network = ht::bench::fitted(pings);
  if (!print || !speaks()) return network;
  std::printf("%d ranks on %d machine(s)\nmessages        bytes   measured      model\n",
              ht::world().size(), ht::world().machines());
  for (const ht::bench::Ping& p : pings)
    std::printf("%8lld %12lld %8.1f us %8.1f us\n", static_cast<long long>(p.messages),
                static_cast<long long>(p.bytes), 1e6 * p.seconds,
                1e6 * network.seconds(1, double(p.messages), double(p.bytes)));
  std::printf(
      "alpha %.3g us an exchange, gamma %.3g us a message, beta %.3g ns a byte (%.3g GB/s); the "
      "model is off by at most %.0f %%\n",
      1e6 * network.alpha, 1e6 * network.gamma, 1e9 * network.beta, 1e-9 / network.beta,
      100 * ht::bench::worst_error(network, pings));
  std::fflush(stdout);
  return network;
}

void print(const nlohmann::ordered_json& cell, bool json) {
  if (json) {
    std::cout << cell.dump() << std::endl;
    return;
  }
  std::printf("%-14s %-12s %-8s", cell["workload"].get<std::string>().c_str(),
              cell["strategy"].get<std::string>().c_str(), cell["wire"].get<std::string>().c_str());
  if (cell.contains("ms"))
    std::printf(" %d x %d  %9.3f ms, waited %.3f  %10.1f samples/s  %.3f MB sent",
                cell["ranks"].get<int>(), cell["threads"].get<int>(), cell["ms"].get<double>(),
                cell["waited_ms"].get<double>(), cell["samples_per_s"].get<double>(),
                cell["sent_bytes"].get<double>() / 1e6);
  if (cell.contains("compute_ms"))
    std::printf("  computing %.3f ms", cell["compute_ms"].get<double>());
  const auto predicted = cell.value("predicted", nlohmann::ordered_json::object());
  for (const auto& [ranks, each] : predicted.items())
    std::printf("  N = %s: %.3f ms, %.0f %%", ranks.c_str(), each["ms"].get<double>(),
                100 * each["efficiency"].get<double>());
  std::printf("\n");
  std::fflush(stdout);
}

void measure(const std::string& workload, const std::string& strategy, const Options& o,
             const std::optional<ht::bench::Network>& network, double bandwidth) {
  const ht::distributed::WireFormat said = ht::distributed::WireFormat::named(o.wire);
  const bool as_policy = said == ht::distributed::WireFormat{};
  const ht::distributed::Options options{
      .wire = as_policy ? ht::policy::named_or_read(strategy).wire : said,
      .bucket_bytes = o.bucket_bytes};
  const int size = ht::world().size();
  nlohmann::ordered_json cell{{"workload", workload},
                              {"strategy", strategy},
                              {"wire", name(*options.wire)},
                              {"ranks", size},
                              {"threads", o.threads}};
  if (size > 1 || !network) {
    const bool travels = size > 1 || *options.wire != ht::distributed::WireFormat{};
    Steps steps(workload, strategy, travels ? &options : nullptr);
    const Timing t = steps.timed(o.steps);
    cell.update({{"ms", 1e3 * t.seconds},
                 {"waited_ms", 1e3 * t.waited},
                 {"samples_per_s", double(steps.samples() * size) / t.seconds},
                 {"sent_bytes", t.sent},
                 {"loss", t.loss}});
  }
  if (network) {
    Steps alone(workload, strategy, nullptr);
    const double compute = alone.timed(o.steps).seconds;
    const ht::bench::StepTraffic traffic = ht::bench::traffic_of(alone.parameters(), options);
    cell["compute_ms"] = 1e3 * compute;
    for (const int ranks : o.predict) {
      const double seconds =
          ht::bench::predicted_step(compute, ranks, traffic, *network, bandwidth);
      cell["predicted"][std::to_string(ranks)] = {{"ms", 1e3 * seconds},
                                                  {"efficiency", compute / seconds}};
    }
  }
  if (speaks()) print(cell, o.json);
}

void run(const Options& o) {
  const bool together = ht::world().size() > 1, told = o.given.beta > 0;
  if (o.ping && !together)
    ht::fail<ht::UsageError>("distributed_step",
                             "--ping needs several processes. Start it with mpirun.");
  if (!o.predict.empty() && !together && !told)
    ht::fail<ht::UsageError>("distributed_step",
                             "--predict needs a network: several processes, or --beta.");
  std::optional<ht::bench::Network> network;
  if (told) network = o.given;
  else if (o.ping || !o.predict.empty()) network = network_here(o, o.ping);
  if (o.ping && o.predict.empty()) return;
  if (o.predict.empty()) network.reset();
  const double bandwidth =
      network ? 1e9 * ht::bench::measure_machine(o.threads).bandwidth(double(64 << 20)) : 0;
  for (const std::string& workload : o.workloads)
    for (const std::string& strategy : o.strategies)
      measure(workload, strategy, o, network, bandwidth);
}
}  // namespace

int main(int argc, char** argv) {
  Options o;
  CLI::App app("Steps of data-parallel training, measured and predicted.");
  app.add_option("--workload", o.workloads, ht::lab::synthetic_list() + "; several by commas")
      ->delimiter(',');
  app.add_option("--strategy", o.strategies, "as in amp/policy.h; several by commas")
      ->delimiter(',');
  app.add_option("--wire", o.wire, "as in distributed/wire.h");
  app.add_option("--bucket-bytes", o.bucket_bytes, "bytes of gradients that are sent together")
      ->check(CLI::PositiveNumber);
  app.add_option("--threads", o.threads, "OpenMP threads of each process")
      ->check(CLI::PositiveNumber);
  app.add_option("--steps", o.steps, "steps to measure")->check(CLI::PositiveNumber);
  app.add_flag("--ping", o.ping, "measure exchanges, and fit alpha, gamma and beta");
  app.add_option("--ping-bytes", o.ping_bytes, "bytes of the largest message")
      ->check(CLI::PositiveNumber);
  app.add_option("--rounds", o.rounds, "rounds of each exchange")->check(CLI::PositiveNumber);
  app.add_option("--predict", o.predict, "numbers of ranks, by commas: predicts their steps")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--alpha", o.given.alpha, "seconds per exchange, for another network");
  app.add_option("--gamma", o.given.gamma, "seconds per message");
  app.add_option("--beta", o.given.beta, "seconds per byte");
  app.add_flag("--json", o.json, "print JSON lines");
  CLI11_PARSE(app, argc, argv);
  try {
    ht::world();
    omp_set_num_threads(o.threads);
    run(o);
  } catch (const ht::Error& error) {
    if (ht::world().size() > 1) ht::world().abort(error.what());
    std::cerr << error.what() << '\n';
    return 1;
  }
  return after_output();
}
