// Processes that train together. An engine only moves bytes between them. distributed/ does every
// addition, in an order independent of the engine, so that results do not depend on the number of
// processes. This is to engines what core/backend.h is to kernels.
#pragma once

#include <array>
#include <cstdint>
#include <iosfwd>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <halftone/core/tensor.h>

namespace halftone {

enum class TrafficUse : uint8_t { gradient, parameter, state, control };
inline constexpr int traffic_use_count = 4;
std::string_view name(TrafficUse use);

/// The bytes that this rank has sent until now, and the time that it has waited.
struct TrafficReport {
  std::array<int64_t, traffic_use_count> sent{}, messages{};  // bytes; count of messages
  double waited = 0;  // seconds that the main thread waited for other ranks

  int64_t sent_of(TrafficUse use) const { return sent[std::size_t(use)]; }
};
std::ostream& operator<<(std::ostream& out, const TrafficReport& report);

/// A dense tensor: one to send to `peer`, or one that a message from `peer` overwrites. Its device
/// must be one that the communicator carries (Communicator::carries).
struct Message {
  int peer;
  Tensor tensor;
};

/// Messages that have been started and not yet completed.
class Exchange {
 public:
  virtual ~Exchange() = default;
  /// Waits until the messages have arrived. On a GPU only the work that is issued afterwards waits,
  /// not the host. Throws DeviceError for errors that the engine reports.
  virtual void wait() = 0;
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual std::string_view name() const = 0;  // "single", "mpi", "nccl"
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// The rank within this machine: the index of this rank's own GPU, if each rank has one.
  virtual int local_rank() const = 0;
  virtual int machines() const = 0;
  /// Returns whether messages may be tensors of this device. All engines but NCCL: only the host.
  virtual bool carries(Device device) const { return device == Device::cpu(); }
  /// Starts these messages, none of them to this rank, and holds their tensors until they are done.
  /// All ranks make the same exchanges in the same order, and messages between two ranks agree in
  /// number, order and bytes. `what` names the exchange in errors about absent ranks.
  virtual std::shared_ptr<Exchange> exchange(std::string_view what, TrafficUse use,
                                             std::span<const Message> out,
                                             std::span<const Message> in) = 0;
  /// Prints "[rank 2] message" and ends all ranks with exit code 1.
  [[noreturn]] virtual void abort(std::string_view message) noexcept = 0;
  /// Returns the first rank that is known to have ended, or -1. It is polled repeatedly, also by
  /// another engine's thread while that engine waits.
  virtual int left() { return -1; }
  virtual TrafficReport traffic() const { return traffic_; }
  /// Adds these messages, which another engine carries for these ranks, to traffic().
  void count(TrafficUse use, std::span<const Message> out);

 protected:
  TrafficReport traffic_{};
};

/// Returns the seconds after which a waiting rank ends all ranks: the environment variable
/// HALFTONE_DISTRIBUTED_TIMEOUT, or 300; 0: never. Throws UsageError if it is not a number.
double communication_patience();

/// Returns the processes that a launcher (mpirun) started, or this one alone; defined in
/// backends/registry.cpp. The first call starts the engine. Throws UsageError if a launcher started
/// this process that this build, or its MPI, cannot work with. Use it from one thread.
Communicator& world();
/// Returns the engine that carries tensors of a device between the ranks of `group`: NCCL if it is
/// world() and each rank has a GPU of its own; else `group` itself, through the host, and rank 0
/// prints the reason on standard error. All ranks make the first call for a GPU together.
Communicator& communicator_for(Communicator& group, Device device);

/// An engine that this build may contain: present, or the reason why not.
struct EngineStatus {
  std::string_view name;
  bool present;
  std::string description;
};
std::vector<EngineStatus> engine_statuses();

}  // namespace halftone
