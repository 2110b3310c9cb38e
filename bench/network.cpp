// Pings, a fit of three numbers, and the cost model.
#include "network.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>

#include <halftone/core/factory.h>
#include <halftone/core/tensor.h>
#include <halftone/distributed/collectives.h>

namespace halftone::bench {

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
