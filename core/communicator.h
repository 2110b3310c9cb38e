// Processes that train together. An engine moves bytes between them and does nothing else: every
// addition is ours (distributed/), in an order that no engine decides, so that results do not
// depend on the number of processes. What core/backend.h is for kernels, this is for engines.
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

/// What this rank has sent, and how long it has waited; a value.
struct TrafficReport {
  std::array<int64_t, traffic_use_count> sent{}, messages{};  // bytes of payload; how many
  double waited = 0;  // seconds in which the main thread waited for others

  int64_t sent_of(TrafficUse use) const { return sent[std::size_t(use)]; }
};
std::ostream& operator<<(std::ostream& out, const TrafficReport& report);

/// A dense tensor that goes to a peer, or is written by what comes from it: on a device that the
/// communicator carries.
struct Message {
  int peer;
  Tensor tensor;
};

/// Messages under way.
class Exchange {
 public:
  virtual ~Exchange() = default;
  /// Afterwards what was to come is there; on a GPU: for work that is issued from now on, and the
  /// host does not wait. Throws DeviceError for what the engine reports.
  virtual void wait() = 0;
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual std::string_view name() const = 0;  // "single", "mpi", "nccl"
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Among those of this machine: the index of the GPU that is this rank's own, if each has one.
  virtual int local_rank() const = 0;
  virtual int machines() const = 0;
  /// Whether messages may be tensors of this device. All engines but NCCL: of the host.
  virtual bool carries(Device device) const { return device == Device::cpu(); }
  /// Starts these messages, none of them to itself, and keeps their tensors until they are done.
  /// All ranks make the same exchanges in the same order, and the messages between two of them
  /// agree in number, order and bytes. `what` is in messages about ranks that do not come.
  virtual std::shared_ptr<Exchange> exchange(std::string_view what, TrafficUse use,
                                             std::span<const Message> out,
                                             std::span<const Message> in) = 0;
  /// Prints "[rank 2] message" and ends all ranks with exit code 1.
  [[noreturn]] virtual void abort(std::string_view message) noexcept = 0;
  /// The first rank that is known to be at its end; -1: none. Asked again and again, by another
  /// engine's thread, too, while it waits.
  virtual int left() { return -1; }
  virtual TrafficReport traffic() const { return traffic_; }
  /// Adds these messages to traffic(), which another engine carries for these ranks.
  void count(TrafficUse use, std::span<const Message> out);

 protected:
  TrafficReport traffic_{};
};

/// After how many seconds a rank that waits for others ends all: HALFTONE_DISTRIBUTED_TIMEOUT, or
/// 300; 0: never. Throws UsageError if that is no number.
double communication_patience();

/// The processes that a launcher (mpirun) started, or this one alone; defined in
/// backends/communicators.cpp. The first call starts the engine. Throws UsageError where a launcher
/// is there and this build, or its MPI, does not fit it. Use it from one thread.
Communicator& world();
/// What carries tensors of a device between the ranks of `group`: NCCL for those of world(), where
/// each has a GPU of its own, else `group` itself, through the host; rank 0 says why on standard
/// error. Collective when it is first asked for a GPU.
Communicator& communicator_for(Communicator& group, Device device);

/// An engine that this build may contain: present, or why not.
struct EngineStatus {
  std::string_view name;
  bool present;
  std::string description;
};
std::vector<EngineStatus> engine_statuses();

}  // namespace halftone
