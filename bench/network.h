// What exchanges between the ranks cost, measured and as a model, and what a step of data-parallel
// training then costs (docs/distributed.md has the formula).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <halftone/core/communicator.h>
#include <halftone/distributed/options.h>

namespace halftone::bench {

/// An exchange of all ranks with all others, seen from one of them.
struct Ping {
  int64_t messages, bytes;  // that it sends
  double seconds;           // the fastest of several, since noise only adds; of the slowest rank
};
/// Of 8 bytes to `most` bytes, and of many messages. Collective; several ranks.
std::vector<Ping> ping(Communicator& group, int64_t most, int rounds);

/// seconds = alpha + gamma messages + beta bytes
struct Network {
  double alpha = 0, gamma = 0, beta = 0;
  double seconds(double exchanges, double messages, double bytes) const {
    return exchanges * alpha + messages * gamma + bytes * beta;
  }
};
/// By least squares of relative errors; none of the three is negative.
Network fitted(std::span<const Ping> pings);
/// The largest relative error of the fit.
double worst_error(const Network& network, std::span<const Ping> pings);

/// What a step has to do, on any number of ranks that compute a batch each.
struct StepTraffic {
  int64_t elements = 0;       // of all parameters
  int64_t bytes_on_wire = 0;  // of a batch's gradients
  int64_t bytes_back = 0;     // of what comes back to all
  int64_t tensors = 0;        // that go on the wire, scales too
  int64_t parameters = 0, buckets = 0;
};
/// parameters: as the strategy keeps them.
StepTraffic traffic_of(std::span<const Tensor> parameters, const distributed::Options& options);

/// Seconds of a step on N ranks: `compute` alone, what of the gradients' way does not fit beside
/// the backward pass (0.6 of computing), adding them up at `bandwidth` bytes a second, and the way
/// back.
double predicted_step(double compute, int ranks, const StepTraffic& step, const Network& network,
                      double bandwidth);

}  // namespace halftone::bench
