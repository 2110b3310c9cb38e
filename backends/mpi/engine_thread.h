// The thread that makes every MPI call: MPI makes no progress while a program computes, and allows
// only one thread to call it (MPI_THREAD_FUNNELED, the thread that initialized it). It sleeps
// between two checks while the main thread computes, and yields while the main thread waits.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <halftone/backends/mpi/functions.h>
#include <halftone/core/communicator.h>

namespace halftone::mpi {

using Clock = std::chrono::steady_clock;

/// An exchange under way. Once it is queued, the engine thread owns it, except `done` and `error`.
struct Work {
  std::string what{};
  std::vector<Message> out{}, in{};
  std::vector<MPI_Request> requests{};  // first the receives, then the sends
  std::vector<int> senders{};           // the ranks that send the first requests
  Clock::time_point first_in_line{};
  bool warned = false;
  bool done = false;    // guarded by the engine's mutex
  std::string error{};  // MPI's error, complete once `done` is true
};

class EngineThread {
 public:
  /// Starts MPI and returns when the numbers below are known. Throws DeviceError if MPI refuses.
  explicit EngineThread(const Functions& mpi);
  /// Calls leave(), which may have been called before.
  ~EngineThread();
  EngineThread(const EngineThread&) = delete;
  EngineThread& operator=(const EngineThread&) = delete;

  int rank = 0, size = 1, local_rank = 0, local_size = 1, machines = 1;

  void start(std::shared_ptr<Work> work);
  void wait_for(const Work& work);
  /// Prints the message and ends all ranks.
  [[noreturn]] void abort(std::string_view message) noexcept;
  /// Returns the first rank that has left, as of the last call; -1: none.
  int left();
  /// Ends this process's part: announces it to the others, waits for theirs, and ends MPI. If
  /// others still need something from this rank, they find that it has left, and all end with exit
  /// code 1.
  void leave() noexcept;

 private:
  void run();
  std::string text_of(int error) const;
  [[noreturn]] void never_started() const;
  void initialize();
  bool take_new();
  void post(Work& work);
  bool progress(Work& work);
  void look_at_the_clock(Work& work);
  void say_goodbye();
  bool others_have_left();
  std::string missing(const Work& work);
  [[noreturn]] void end_all(const std::string& message) noexcept;

  // --- used only by the engine thread
  const Functions& mpi_;
  MPI_Comm communicator_;
  std::deque<std::shared_ptr<Work>> under_way_{};
  std::vector<MPI_Status> statuses_{};
  int sequence_ = 0;
  double patience_ = 300;  // seconds; 0: no limit
  char goodbye_ = 1;
  std::vector<char> goodbyes_{};
  std::vector<MPI_Request> goodbyes_in_{}, goodbyes_out_{};
  std::vector<bool> left_{};  // by rank

  // --- shared by both threads
  std::mutex mutex_{};
  std::condition_variable wake_{}, done_{};
  std::deque<std::shared_ptr<Work>> new_{};
  std::string start_error_{}, last_words_{};
  bool started_ = false, leaving_ = false, ended_ = false;
  std::atomic<int> waiting_ = 0, first_left_ = -1;
  std::atomic<bool> look_ = false;  // whether to check for ranks that leave
  std::atomic<bool> aborting_ = false;
  std::thread thread_{};  // last: it uses the members above
};

}  // namespace halftone::mpi
