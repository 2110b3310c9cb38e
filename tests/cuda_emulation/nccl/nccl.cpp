// A substitute for NCCL between emulated GPUs: Unix sockets, and a thread for each communicator. As
// with the real NCCL, nothing is sent before the stream reaches it, and the stream continues when a
// whole group has been sent and received. The host waits for neither, and answers are
// ncclInProgress at first. It is stricter than NCCL: a process with more than one group at a time,
// or with messages of other sizes than its peer's, gets bytes in the wrong place.
//
//   HALFTONE_EMULATED_NCCL="version=22000"   the result of ncclGetVersion()
//   HALFTONE_EMULATED_NCCL="fail=5"          rank 1 finds an error after 5 groups
#include <nccl.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "../emulator.h"

namespace {

/// The messages of a group to one peer and from it, one after the other.
struct Pair {
  std::string out{}, in{};
  std::size_t sent = 0, received = 0;
  bool done() const { return sent == out.size() && received == in.size(); }
};
struct Message {
  int peer;
  void* data;
  std::size_t bytes;
};
struct Group {
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
  std::vector<Message> out{}, in{};
  std::vector<Pair> pairs{};  // by peer
  std::atomic<bool> arrived = false;
};

int number_of(const char* name, int otherwise) {
  const char* const text = std::getenv("HALFTONE_EMULATED_NCCL");
  const char* const found = text ? std::strstr(text, name) : nullptr;
  return found ? std::atoi(found + std::strlen(name)) : otherwise;
}

sockaddr_un address_of(const ncclUniqueId& id, int rank, socklen_t& length) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;  // a name that begins with 0 is not in a file system
  const int n =
      std::snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "%s.%d", id.internal, rank);
  length = socklen_t(offsetof(sockaddr_un, sun_path) + 1 + std::size_t(n));
  return address;
}

thread_local Group* collecting = nullptr;
}  // namespace

struct ncclComm {
  int rank, size;
  ncclUniqueId id;
  std::atomic<ncclResult_t> state = ncclInProgress;
  std::vector<int> sockets{};
  std::mutex mutex{};
  std::deque<std::shared_ptr<Group>> groups{};  // groups that the stream has reached

  void run();
  void connect_all();
  bool move(Pair& pair, int socket);
  void finish(Group& group);
};

void ncclComm::connect_all() {
  socklen_t length = 0;
  const int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_un own = address_of(id, rank, length);
  bind(listener, reinterpret_cast<const sockaddr*>(&own), length), listen(listener, size);
  sockets.assign(std::size_t(size), -1);
  for (int peer = 0; peer < rank; ++peer) {
    const sockaddr_un theirs = address_of(id, peer, length);
    const int made = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    while (connect(made, reinterpret_cast<const sockaddr*>(&theirs), length) != 0)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (write(made, &rank, sizeof rank) != sizeof rank) state = ncclSystemError;
    sockets[std::size_t(peer)] = made;
  }
  for (int others = rank + 1; others < size; ++others) {
    const int made = accept(listener, nullptr, nullptr);
    int peer = 0;
    if (read(made, &peer, sizeof peer) != sizeof peer) state = ncclSystemError;
    sockets[std::size_t(peer)] = made;
  }
  close(listener);
}

/// Returns whether the other side is still connected.
bool ncclComm::move(Pair& pair, int socket) {
  if (pair.sent < pair.out.size()) {
    const ssize_t n = send(socket, pair.out.data() + pair.sent, pair.out.size() - pair.sent,
                           MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && errno != EAGAIN) return false;
    pair.sent += n > 0 ? std::size_t(n) : 0;
  }
  if (pair.received < pair.in.size()) {
    const ssize_t n =
        recv(socket, pair.in.data() + pair.received, pair.in.size() - pair.received, MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EAGAIN)) return false;
    pair.received += n > 0 ? std::size_t(n) : 0;
  }
  return true;
}

void ncclComm::finish(Group& group) {
  for (bool all = false; !all;) {
    halftone::emulation::work_by_itself();
    all = true;
    for (int peer = 0; peer < size; ++peer) {
      Pair& pair = group.pairs[std::size_t(peer)];
      if (!pair.done() && !move(pair, sockets[std::size_t(peer)])) {
        state = ncclRemoteError;
        return;
      }
      all = all && pair.done();
    }
    if (!all) std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  group.arrived = true;
}

void ncclComm::run() {
  connect_all();
  const int fails_after = rank == 1 ? number_of("fail=", -1) : -1;
  for (int finished = 0;;) {
    ncclResult_t in_progress = ncclInProgress;
    state.compare_exchange_strong(in_progress, ncclSuccess);
    halftone::emulation::work_by_itself();
    std::shared_ptr<Group> next;
    {
      const std::lock_guard lock(mutex);
      if (!groups.empty()) next = groups.front(), groups.pop_front();
    }
    if (!next) {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
      continue;
    }
    if (finished++ == fails_after) state = ncclSystemError;
    if (state == ncclSuccess || state == ncclInProgress) finish(*next);
  }
}

// --- the interface

ncclResult_t ncclGetVersion(int* version) {
  *version = number_of("version=", NCCL_VERSION_CODE);
  return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclRemoteError ? "remote process exited" : "unhandled system error";
}
const char* ncclGetLastError(ncclComm_t) { return "(emulated)"; }
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::snprintf(
      id->internal, sizeof id->internal, "halftone-nccl-%d-%lld", int(getpid()),
      static_cast<long long>(std::chrono::steady_clock::now().time_since_epoch().count()));
  return ncclSuccess;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  if (config->blocking != 0) return ncclInvalidUsage;
  *comm = new ncclComm{.rank = rank, .size = size, .id = id};
  std::thread([made = *comm] { made->run(); }).detach();
  return ncclInProgress;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  return *state = comm->state, ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  if (collecting) return ncclInvalidUsage;
  collecting = new Group;
  return ncclSuccess;
}
namespace {
ncclResult_t collect(std::vector<Message> Group::*list, Message message, ncclComm_t comm,
                     cudaStream_t stream) {
  if (!collecting || comm->state == ncclInProgress) return ncclInvalidUsage;
  collecting->comm = comm, collecting->stream = stream;
  (collecting->*list).push_back(message);
  return ncclSuccess;
}
}  // namespace
ncclResult_t ncclSend(const void* data, std::size_t count, ncclDataType_t, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  return collect(&Group::out, {peer, const_cast<void*>(data), count}, comm, stream);
}
ncclResult_t ncclRecv(void* data, std::size_t count, ncclDataType_t, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return collect(&Group::in, {peer, data, count}, comm, stream);
}

ncclResult_t ncclGroupEnd() {
  using Owner = std::shared_ptr<Group>;
  const Owner group(std::exchange(collecting, nullptr));
  if (!group || !group->comm) return group ? ncclSuccess : ncclInvalidUsage;
  ncclResult_t idle = ncclSuccess;
  group->comm->state.compare_exchange_strong(idle, ncclInProgress);
  const auto leave = [](void* owner) {
    Group& g = **static_cast<Owner*>(owner);
    g.pairs.resize(std::size_t(g.comm->size));
    for (const Message& m : g.out)
      g.pairs[std::size_t(m.peer)].out.append(static_cast<const char*>(m.data), m.bytes);
    for (const Message& m : g.in) {
      std::string& in = g.pairs[std::size_t(m.peer)].in;
      in.resize(in.size() + m.bytes);
    }
    const std::lock_guard lock(g.comm->mutex);
    g.comm->groups.push_back(*static_cast<Owner*>(owner));
  };
  const auto arrived = [](void* owner) { return (*static_cast<Owner*>(owner))->arrived.load(); };
  const auto arrive = [](void* owner) {
    Group& g = **static_cast<Owner*>(owner);
    std::vector<std::size_t> at(g.pairs.size(), 0);
    for (const Message& m : g.in) {
      const std::size_t from = std::size_t(m.peer);
      std::memcpy(m.data, g.pairs[from].in.data() + at[from], m.bytes);
      at[from] += m.bytes;
    }
  };
  const auto drop = [](void* owner) { delete static_cast<Owner*>(owner); };
  halftone::emulation::enqueue(group->stream, leave, new Owner(group), drop);
  halftone::emulation::enqueue_wait(group->stream, arrived, new Owner(group), drop);
  halftone::emulation::enqueue(group->stream, arrive, new Owner(group), drop);
  return ncclInProgress;
}
