// The threads that collate for a loader: creates all of them, or throws and leaves none.
#pragma once

#include <cstdint>
#include <functional>
#include <stop_token>
#include <thread>
#include <vector>

namespace halftone::data {

/// Starts a thread that runs a function; throws std::system_error if the system refuses.
using ThreadMaker = std::function<std::jthread(std::function<void()>)>;
/// The default maker: std::jthread.
std::jthread make_thread(std::function<void()> run);

/// Makes `count` threads that run `work`, which returns soon after `stop` is requested. If the
/// system refuses one, the existing threads are stopped and joined, and a UsageError in the name of
/// DataLoader says how many could be made. `make`: another maker, for tests.
std::vector<std::jthread> make_workers(int64_t count, const std::function<void()>& work,
                                       std::stop_source& stop,
                                       const ThreadMaker& make = make_thread);

}  // namespace halftone::data
