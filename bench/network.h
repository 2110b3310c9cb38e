// The cost of exchanges between ranks, measured and as a model, and the resulting time of a step of
// data-parallel training (docs/distributed.md has the formula).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <halftone/core/communicator.h>
#include <halftone/distributed/wire.h>

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

}  // namespace halftone::bench
