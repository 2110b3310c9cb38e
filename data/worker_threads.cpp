// A thread that waits for work does not end by itself: it must be asked to stop before the join.
#include <halftone/data/worker_threads.h>

#include <system_error>
#include <utility>

#include <halftone/core/error.h>

namespace halftone::data {

std::jthread make_thread(std::function<void()> run) { return std::jthread(std::move(run)); }

std::vector<std::jthread> make_workers(int64_t count, const std::function<void()>& work,
                                       std::stop_source& stop, const ThreadMaker& make) {
  std::vector<std::jthread> workers;
  try {
    while (int64_t(workers.size()) < count) workers.push_back(make(work));
    return workers;
  } catch (const std::system_error& error) {
    stop.request_stop();
    const std::size_t made = workers.size();
    workers.clear();
    fail<UsageError>("DataLoader", "the system made ", made, " of ", count,
                     " worker threads: ", error.code().message(),
                     ". Use fewer workers (0 for none), or raise the limit of processes "
                     "(ulimit -u).");
  } catch (...) {  // no memory
    stop.request_stop();
    throw;  // unwinding joins the threads
  }
}

}  // namespace halftone::data
