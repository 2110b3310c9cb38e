// Exchanges are posted and completed in the order of their arrival. Each has its own tag, so that
// messages of a rank that is ahead are not confused. All messages are point to point: the receipt
// of each is known separately, so a timeout can name the missing ranks.
#include <algorithm>
#include <cstdio>
#include <utility>

#include <sched.h>

#include <halftone/backends/mpi/engine_thread.h>
#include <halftone/core/error.h>

namespace halftone::mpi {

namespace {
constexpr int tags = 32000, goodbye_tag = 32001;
constexpr int64_t largest_message = int64_t(1) << 30;  // counts of MPI are ints

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace

std::string EngineThread::text_of(int error) const {
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  mpi_.error_string(error, text, &length);
  return std::string(text, std::size_t(length));
}

EngineThread::EngineThread(const Functions& mpi)
    : mpi_(mpi), communicator_(mpi.comm_null), patience_(communication_patience()) {
  thread_ = std::thread([this] { run(); });
  std::unique_lock lock(mutex_);
  const auto started = [this] { return started_; };
  if (patience_ == 0) done_.wait(lock, started);
  else if (!done_.wait_for(lock, std::chrono::duration<double>(patience_), started))
    never_started();
  if (start_error_.empty()) return;
  lock.unlock();
  thread_.join();
  fail<DeviceError>("distributed", "MPI does not start: ", start_error_,
                    ". Does its mpirun start other programs?");
}

/// Ends the process: MPI can neither name the ranks that it waits for nor be stopped.
void EngineThread::never_started() const {
  std::fprintf(
      stderr,
      "[distributed] MPI has waited %.3g s for the other processes to start it. One hangs, "
      "or died, before it uses halftone::world(). HALFTONE_DISTRIBUTED_TIMEOUT=SECONDS "
      "waits longer\n",
      patience_);
  std::_Exit(1);
}

EngineThread::~EngineThread() {
  if (thread_.joinable()) leave();
}

void EngineThread::initialize() {
  int provided = 0;
  if (const int error = mpi_.init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided)) {
    start_error_ = text_of(error);
    return;
  }
  mpi_.comm_rank(mpi_.comm_world, &rank), mpi_.comm_size(mpi_.comm_world, &size);
  mpi_.comm_dup(mpi_.comm_world, &communicator_);
  // An error of several requests has no owner; libraries differ in whose handler they call.
  for (const MPI_Comm asked : {communicator_, mpi_.comm_world, mpi_.comm_self})
    mpi_.comm_set_errhandler(asked, mpi_.errors_return);
  MPI_Comm local;
  mpi_.comm_split_type(communicator_, MPI_COMM_TYPE_SHARED, rank, mpi_.info_null, &local);
  mpi_.comm_rank(local, &local_rank), mpi_.comm_size(local, &local_size);
  mpi_.comm_free(&local);
  std::vector<int> local_ranks(std::size_t(size), 0);
  mpi_.allgather(&local_rank, 1, mpi_.int_type, local_ranks.data(), 1, mpi_.int_type,
                 communicator_);
  machines = int(std::ranges::count(local_ranks, 0));
  goodbyes_.resize(std::size_t(size)), left_.resize(std::size_t(size));
  goodbyes_in_.assign(std::size_t(size), mpi_.request_null);
  for (int peer = 0; peer < size; ++peer)
    if (peer != rank)
      mpi_.irecv(&goodbyes_[std::size_t(peer)], 1, mpi_.char_type, peer, goodbye_tag, communicator_,
                 &goodbyes_in_[std::size_t(peer)]);
}

void EngineThread::run() {
  initialize();
  {
    const std::lock_guard lock(mutex_);
    started_ = true;
  }
  done_.notify_all();
  if (!start_error_.empty()) return;
  Clock::time_point leaving{};
  while (true) {
    const bool leaves = take_new();
    if (aborting_) end_all(last_words_);
    if (look_.exchange(false)) others_have_left();
    if (!under_way_.empty() && progress(*under_way_.front())) {
      under_way_.pop_front();
      if (!under_way_.empty()) under_way_.front()->first_in_line = Clock::now();
      continue;
    }
    if (leaves && under_way_.empty()) {
      if (goodbyes_out_.empty()) say_goodbye(), leaving = Clock::now();
      if (others_have_left()) break;
      if (patience_ > 0 && seconds_since(leaving) > patience_)
        end_all("[distributed] rank " + std::to_string(rank) + " is at its end; others are not");
    }
    if (waiting_ > 0) sched_yield();
    else std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  mpi_.waitall(int(goodbyes_out_.size()), goodbyes_out_.data(), MPI_STATUSES_IGNORE);
  mpi_.comm_free(&communicator_);
  mpi_.finalize();
  const std::lock_guard lock(mutex_);
  ended_ = true;
  done_.notify_all();
}

/// Posts new exchanges; sleeps until one arrives if none is under way. Returns true if this process
/// is at its end.
bool EngineThread::take_new() {
  std::unique_lock lock(mutex_);
  if (under_way_.empty())
    wake_.wait(lock, [this] { return leaving_ || aborting_ || look_ || !new_.empty(); });
  while (!new_.empty()) {
    under_way_.push_back(std::move(new_.front()));
    new_.pop_front();
    post(*under_way_.back());
  }
  return leaving_;
}

void EngineThread::post(Work& work) {
  const int tag = sequence_++ % tags;
  int error = MPI_SUCCESS;
  const auto post_all = [&](const std::vector<Message>& messages, const auto& one) {
    for (const Message& message : messages)
      for (int64_t at = 0, bytes = message.tensor.bytes(); at < bytes; at += largest_message) {
        work.requests.push_back(mpi_.request_null);
        const int here = one(message.tensor.raw_data() + at,
                             int(std::min(largest_message, bytes - at)), message.peer);
        if (here != MPI_SUCCESS) error = here;
      }
  };
  post_all(work.in, [&](void* data, int bytes, int peer) {
    work.senders.push_back(peer);
    return mpi_.irecv(data, bytes, mpi_.byte_type, peer, tag, communicator_, &work.requests.back());
  });
  post_all(work.out, [&](const void* data, int bytes, int peer) {
    return mpi_.isend(data, bytes, mpi_.byte_type, peer, tag, communicator_, &work.requests.back());
  });
  work.first_in_line = Clock::now();
  if (error != MPI_SUCCESS) work.error = text_of(error);
}

/// Returns whether this exchange is complete, and tells its waiter.
bool EngineThread::progress(Work& work) {
  int all = 0;
  statuses_.resize(work.requests.size());
  const int error =
      mpi_.testall(int(work.requests.size()), work.requests.data(), &all, statuses_.data());
  if (error == MPI_SUCCESS && !all) {
    look_at_the_clock(work);
    return false;
  }
  if (error != MPI_SUCCESS) {
    int first = error;
    if (error == MPI_ERR_IN_STATUS)
      for (const MPI_Status& status : statuses_)
        if (status.MPI_ERROR != MPI_SUCCESS && status.MPI_ERROR != MPI_ERR_PENDING)
          first = status.MPI_ERROR;
    work.error = text_of(first);
  }
  work.out.clear(), work.in.clear();  // the waiter may read the ledger next
  {
    const std::lock_guard lock(mutex_);
    work.done = true;
  }
  done_.notify_all();
  return true;
}

/// Returns the ranks whose messages this exchange still needs: " 1 2".
std::string EngineThread::missing(const Work& work) {
  std::vector<bool> late(std::size_t(size), false);
  for (std::size_t i = 0; i < work.senders.size(); ++i) {
    int here = 0;
    mpi_.request_get_status(work.requests[i], &here, MPI_STATUS_IGNORE);
    if (!here) late[std::size_t(work.senders[i])] = true;
  }
  std::string ranks;
  for (int peer = 0; peer < size; ++peer)
    if (late[std::size_t(peer)]) ranks += ' ' + std::to_string(peer);
  return ranks.empty() ? " (all have sent, one does not receive)" : ranks;
}

void EngineThread::look_at_the_clock(Work& work) {
  const double waited = seconds_since(work.first_in_line);
  if (waited < 0.1) return;
  const std::string self = "[distributed] rank " + std::to_string(rank);
  others_have_left();
  for (std::size_t i = 0; i < work.senders.size(); ++i) {
    int here = 0;
    mpi_.request_get_status(work.requests[i], &here, MPI_STATUS_IGNORE);
    if (!here && left_[std::size_t(work.senders[i])])
      end_all(self + " waits in \"" + work.what + "\" for rank " + std::to_string(work.senders[i]) +
              ", which has left");
  }
  if (patience_ == 0) return;
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%.3g s", waited);
  if (waited > patience_)
    end_all(self + ": \"" + work.what + "\" has waited " + seconds + " for rank" + missing(work) +
            ". It hangs, died, or does something else. HALFTONE_DISTRIBUTED_TIMEOUT=SECONDS waits "
            "longer");
  if (waited > patience_ / 3 && !std::exchange(work.warned, true))
    std::fprintf(stderr, "%s: \"%s\" has waited %s for rank%s\n", self.c_str(), work.what.c_str(),
                 seconds, missing(work).c_str());
}

// --- the end of the process

void EngineThread::say_goodbye() {
  for (int peer = 0; peer < size; ++peer)
    if (peer != rank) {
      goodbyes_out_.push_back(mpi_.request_null);
      mpi_.isend(&goodbye_, 1, mpi_.char_type, peer, goodbye_tag, communicator_,
                 &goodbyes_out_.back());
    }
}

/// Returns whether all other ranks have left; left_ says which.
bool EngineThread::others_have_left() {
  for (int peer = 0; peer < size; ++peer) {
    if (peer == rank || left_[std::size_t(peer)]) continue;
    int here = 0;
    mpi_.test(&goodbyes_in_[std::size_t(peer)], &here, MPI_STATUS_IGNORE);
    left_[std::size_t(peer)] = here != 0;
    if (here && first_left_ < 0) first_left_ = peer;
  }
  return int(std::ranges::count(left_, true)) == size - 1;
}

/// The pause lets the message arrive: a launcher drops the last output of its processes.
void EngineThread::end_all(const std::string& message) noexcept {
  std::fprintf(stderr, "%s\n", message.c_str());
  std::fflush(stderr);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  mpi_.abort(mpi_.comm_world, 1);
  std::_Exit(1);
}

// --- called by the main thread

void EngineThread::start(std::shared_ptr<Work> work) {
  {
    const std::lock_guard lock(mutex_);
    new_.push_back(std::move(work));
  }
  wake_.notify_one();
}

void EngineThread::wait_for(const Work& work) {
  ++waiting_;
  {
    std::unique_lock lock(mutex_);
    done_.wait(lock, [&work] { return work.done; });
  }
  --waiting_;
}

void EngineThread::abort(std::string_view message) noexcept {
  {
    const std::lock_guard lock(mutex_);
    last_words_ = "[rank " + std::to_string(rank) + "] " + std::string(message);
    aborting_ = true;
  }
  wake_.notify_one();
  while (true) std::this_thread::sleep_for(std::chrono::seconds(1));
}

int EngineThread::left() {
  {
    const std::lock_guard lock(mutex_);
    look_ = true;
  }
  wake_.notify_one();
  return first_left_;
}

void EngineThread::leave() noexcept {
  ++waiting_;
  {
    std::unique_lock lock(mutex_);
    leaving_ = true;
    wake_.notify_one();
    done_.wait(lock, [this] { return ended_; });
  }
  thread_.join();
}

}  // namespace halftone::mpi
