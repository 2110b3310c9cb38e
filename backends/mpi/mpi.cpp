// The MPI engine: the library's functions, the thread that calls them, and the communicator.
#include <halftone/backends/registry.h>
#include <halftone/core/error.h>

#if HALFTONE_HAVE_MPI

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <omp.h>
#include <sched.h>
#include <unistd.h>

#include <halftone/backends/opened_library.h>
#include <halftone/core/communicator.h>
#include <halftone/core/files.h>

#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

namespace halftone::mpi {

// The MPI functions that halftone uses, looked up when a launcher has started several processes: a
// program that trains alone neither needs nor loads MPI. Handles that Open MPI stores in variables
// of its library are looked up with them; those of MPICH are numbers.

struct Functions {
  decltype(&MPI_Abort) abort;
  decltype(&MPI_Allgather) allgather;
  decltype(&MPI_Comm_dup) comm_dup;
  decltype(&MPI_Comm_free) comm_free;
  decltype(&MPI_Comm_rank) comm_rank;
  decltype(&MPI_Comm_set_errhandler) comm_set_errhandler;
  decltype(&MPI_Comm_size) comm_size;
  decltype(&MPI_Comm_split_type) comm_split_type;
  decltype(&MPI_Error_string) error_string;
  decltype(&MPI_Finalize) finalize;
  decltype(&MPI_Get_library_version) get_library_version;
  decltype(&MPI_Init_thread) init_thread;
  decltype(&MPI_Irecv) irecv;
  decltype(&MPI_Isend) isend;
  decltype(&MPI_Request_get_status) request_get_status;
  decltype(&MPI_Test) test;
  decltype(&MPI_Testall) testall;
  decltype(&MPI_Waitall) waitall;

  MPI_Comm comm_null, comm_self, comm_world;
  MPI_Datatype byte_type, char_type, int_type;
  MPI_Errhandler errors_return;
  MPI_Info info_null;
  MPI_Request request_null;
};

/// Returns null if the library cannot be opened or lacks a function.
const Functions* functions();
/// Returns the reason why functions() is null.
std::string refusal();

// Opens the MPI library that this build was configured with: by the loader's name for it, or by its
// path.

namespace {
using Found = LibraryFunctions<Functions>;

void find_handles([[maybe_unused]] OpenedLibrary& library, Functions& f) {
#ifdef OPEN_MPI
  library.find("ompi_mpi_comm_null", f.comm_null);
  library.find("ompi_mpi_comm_self", f.comm_self);
  library.find("ompi_mpi_comm_world", f.comm_world);
  library.find("ompi_mpi_byte", f.byte_type);
  library.find("ompi_mpi_char", f.char_type);
  library.find("ompi_mpi_int", f.int_type);
  library.find("ompi_mpi_errors_return", f.errors_return);
  library.find("ompi_mpi_info_null", f.info_null);
  library.find("ompi_request_null", f.request_null);
#else
  f.comm_null = MPI_COMM_NULL, f.comm_self = MPI_COMM_SELF, f.comm_world = MPI_COMM_WORLD;
  f.byte_type = MPI_BYTE, f.char_type = MPI_CHAR, f.int_type = MPI_INT;
  f.errors_return = MPI_ERRORS_RETURN, f.info_null = MPI_INFO_NULL;
  f.request_null = MPI_REQUEST_NULL;
#endif
}

Found found_library() {
  Found found;
  Functions& f = found.functions;
  OpenedLibrary library({HALFTONE_MPI_SONAME, HALFTONE_MPI_PATH}, OpenedLibrary::Symbols::global);
  if (!library.is_open())
    return {{}, library.error() + ". Install the package that has " HALFTONE_MPI_SONAME};
  library.find("MPI_Abort", f.abort);
  library.find("MPI_Allgather", f.allgather);
  library.find("MPI_Comm_dup", f.comm_dup);
  library.find("MPI_Comm_free", f.comm_free);
  library.find("MPI_Comm_rank", f.comm_rank);
  library.find("MPI_Comm_set_errhandler", f.comm_set_errhandler);
  library.find("MPI_Comm_size", f.comm_size);
  library.find("MPI_Comm_split_type", f.comm_split_type);
  library.find("MPI_Error_string", f.error_string);
  library.find("MPI_Finalize", f.finalize);
  library.find("MPI_Get_library_version", f.get_library_version);
  library.find("MPI_Init_thread", f.init_thread);
  library.find("MPI_Irecv", f.irecv);
  library.find("MPI_Isend", f.isend);
  library.find("MPI_Request_get_status", f.request_get_status);
  library.find("MPI_Test", f.test);
  library.find("MPI_Testall", f.testall);
  library.find("MPI_Waitall", f.waitall);
  find_handles(library, f);
  if (!library.complete()) found.refusal = HALFTONE_MPI_SONAME " lacks functions of MPI";
  return found;
}
}  // namespace

const Functions* functions() { return Found::once<found_library>().get(); }
std::string refusal() { return Found::once<found_library>().refusal; }

// The thread that makes every MPI call: MPI makes no progress while a program computes, and allows
// only one thread to call it (MPI_THREAD_FUNNELED, the thread that initialized it). It sleeps
// between two checks while the main thread computes, and yields while the main thread waits.

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

// Exchanges are posted and completed in the order of their arrival. Each has its own tag, so that
// messages of a rank that is ahead are not confused. All messages are point to point: the receipt
// of each is known separately, so a timeout can name the missing ranks.

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

// The communicator of mpirun's processes: passes exchanges to the engine thread.

namespace halftone {

namespace {
class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(const mpi::Functions& functions, int launched) : engine_(functions) {
    if (engine_.size != launched)
      fail<UsageError>("distributed", "started ", launched, " times, but MPI sees ", engine_.size,
                       " of these processes: another MPI's mpirun started them, and this program "
                       "opens ",
                       mpi_description(), ". Use its own: mpirun.openmpi or mpirun.mpich.");
    if (!environment_variable("OMP_NUM_THREADS"))
      omp_set_num_threads(std::max(1, omp_get_num_procs() / engine_.local_size));
    note_binding();
  }

  std::string_view name() const override { return "mpi"; }
  int rank() const override { return engine_.rank; }
  int size() const override { return engine_.size; }
  int local_rank() const override { return engine_.local_rank; }
  int machines() const override { return engine_.machines; }

  std::shared_ptr<Exchange> exchange(std::string_view what, TrafficUse use,
                                     std::span<const Message> out,
                                     std::span<const Message> in) override {
    auto work = std::make_shared<mpi::Work>();
    work->what = what;
    work->out.assign(out.begin(), out.end()), work->in.assign(in.begin(), in.end());
    count(use, out);
    engine_.start(work);
    return std::make_shared<Waiting>(*this, std::move(work));
  }
  [[noreturn]] void abort(std::string_view message) noexcept override { engine_.abort(message); }
  int left() override { return engine_.left(); }
  void leave() noexcept { engine_.leave(); }

 private:
  struct Waiting final : Exchange {
    MpiCommunicator& owner;
    std::shared_ptr<mpi::Work> work;
    Waiting(MpiCommunicator& o, std::shared_ptr<mpi::Work> w) : owner(o), work(std::move(w)) {}
    void wait() override {
      const auto begin = mpi::Clock::now();
      owner.engine_.wait_for(*work);
      owner.traffic_.waited += std::chrono::duration<double>(mpi::Clock::now() - begin).count();
      if (!work->error.empty())
        fail<DeviceError>("distributed", "\"", work->what, "\" failed: ", work->error,
                          ". Do all ranks do the same?");
    }
  };

  /// Notes if the launcher bound this process to a single core, where its threads take turns.
  void note_binding() const {
    cpu_set_t own;
    if (engine_.rank != 0 || sched_getaffinity(0, sizeof own, &own) != 0) return;
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    if (CPU_COUNT(&own) < cores / engine_.local_size)
      std::fprintf(
          stderr,
          "[distributed] mpirun bound this process to %d of %ld cores: add --bind-to none\n",
          CPU_COUNT(&own), cores);
  }

  mpi::EngineThread engine_;
};

MpiCommunicator* mpi_world = nullptr;
}  // namespace

bool mpi_present() { return mpi::functions() != nullptr; }

std::string mpi_description() {
  if (!mpi_present()) return mpi::refusal();
  char text[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  mpi::functions()->get_library_version(text, &length);
  std::string line(text, std::size_t(length));
  line.resize(std::min(line.size(), line.find_first_of(",\n")));
  std::ranges::replace(line, '\t', ' ');
  return line;
}

std::unique_ptr<Communicator> start_mpi(int launched) {
  if (!mpi_present())
    fail<UsageError>("distributed", "started as one of ", launched,
                     " processes, but MPI cannot be opened: ", mpi::refusal(),
                     ", or start one process.");
  auto communicator = std::make_unique<MpiCommunicator>(*mpi::functions(), launched);
  mpi_world = communicator.get();
  std::atexit([] { mpi_world->leave(); });
  return communicator;
}

}  // namespace halftone

#else

// A build without MPI.

namespace halftone {

bool mpi_present() { return false; }
std::string mpi_description() { return "install libopenmpi-dev and configure again"; }
std::unique_ptr<Communicator> start_mpi(int launched) {
  fail<UsageError>("distributed", "started as one of ", launched,
                   " processes, but this build has no MPI: each would train alone, in the same "
                   "place. Install libopenmpi-dev and configure again, or start one process.");
}

}  // namespace halftone

#endif
