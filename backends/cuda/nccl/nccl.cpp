// The NCCL engine: the library's functions and the communicator.
#include <halftone/backends/registry.h>

#if HALFTONE_HAVE_NCCL

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include <nccl.h>
#include <unistd.h>

#include <halftone/backends/cuda/cuda_backend.h>
#include <halftone/backends/cuda/libraries.h>
#include <halftone/backends/opened_library.h>
#include <halftone/core/error.h>
#include <halftone/core/factory.h>

namespace halftone::cuda::nccl {

// The NCCL functions that halftone uses, looked up when several processes train on GPUs: a fifth of
// a gigabyte that other programs do not open.

struct Functions {
  decltype(&ncclGetVersion) version;
  decltype(&ncclGetErrorString) error_text;
  decltype(&ncclGetLastError) last_error;
  decltype(&ncclGetUniqueId) unique_id;
  decltype(&ncclCommInitRankConfig) init;
  decltype(&ncclCommGetAsyncError) async_error;
  decltype(&ncclGroupStart) group_start;
  decltype(&ncclGroupEnd) group_end;
  decltype(&ncclSend) send;
  decltype(&ncclRecv) receive;
};

/// Returns null if the library is missing, is older than this build's headers, or is switched off
/// (HALFTONE_CUDA_LIBRARIES=off).
const Functions* functions();
/// Returns why; empty if functions() is not null.
std::string refusal();

}  // namespace halftone::cuda::nccl

// NCCL, opened at run time: from the loader's path, or from the toolkit that this build used.

namespace halftone {

namespace cuda::nccl {

namespace {
using Found = LibraryFunctions<Functions>;

bool find_all(OpenedLibrary& library, Functions& f) {
  library.find("ncclGetVersion", f.version);
  library.find("ncclGetErrorString", f.error_text);
  library.find("ncclGetLastError", f.last_error);
  library.find("ncclGetUniqueId", f.unique_id);
  library.find("ncclCommInitRankConfig", f.init);
  library.find("ncclCommGetAsyncError", f.async_error);
  library.find("ncclGroupStart", f.group_start);
  library.find("ncclGroupEnd", f.group_end);
  library.find("ncclSend", f.send);
  library.find("ncclRecv", f.receive);
  return library.complete();
}

Found found_library() {
  Found found;
  if (!libraries_wanted()) return {{}, "HALFTONE_CUDA_LIBRARIES=off"};
  const std::string name = "libnccl.so.2";
  OpenedLibrary library({name, HALFTONE_CUDA_LIBRARY_DIRECTORY "/" + name});
  if (!library.is_open()) return {{}, library.error() + ". Install NCCL (libnccl2)"};
  if (!find_all(library, found.functions)) return {{}, "NCCL lacks functions"};
  int version = 0;
  found.functions.version(&version);
  found.refusal = nccl_refusal(version, NCCL_VERSION_CODE);
  return found;
}
}  // namespace

const Functions* functions() { return Found::once<found_library>().get(); }
std::string refusal() { return Found::once<found_library>().refusal; }

}  // namespace cuda::nccl

bool nccl_present() { return cuda::nccl::functions() != nullptr; }

std::string nccl_description() {
  if (!nccl_present()) return cuda::nccl::refusal();
  int version = 0;
  cuda::nccl::functions()->version(&version);
  return cuda::nccl_version_text(version);
}

// Exchanges as groups of ncclSend and ncclRecv in a separate stream, between events of the stream
// of the computation. The host only waits until NCCL accepts a group (communicators do not block,
// so a timeout also applies then). A thread watches for an error of NCCL, and for an exchange that
// the GPU does not finish; then all ranks end, and their GPUs are free. NCCL's objects are not
// destroyed in that case: if one rank is gone, that could hang.

namespace cuda::nccl {

namespace {
using Clock = std::chrono::steady_clock;

/// An exchange that the GPU may still be working on.
struct UnderWay {
  std::string what;
  cudaEvent_t done;
  Clock::time_point begin;
};

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(Communicator& host, Device device, const ncclUniqueId& id)
      : host_(host), context_(static_cast<CudaBackend&>(*cuda_backend(device.index)).context()) {
    context_.activate();
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "making a stream");
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    take("starting NCCL", f_.init(&nccl_, host.size(), id, host.rank(), &config));
    std::thread([this] { watch(); }).detach();
  }
  /// Sends everything that other ranks' GPUs wait for before this process ends.
  void finish() {
    context_.activate();
    cudaStreamSynchronize(stream_);
  }

  std::string_view name() const override { return "nccl"; }
  int rank() const override { return host_.rank(); }
  int size() const override { return host_.size(); }
  int local_rank() const override { return host_.local_rank(); }
  int machines() const override { return host_.machines(); }
  bool carries(Device device) const override { return device == context_.device(); }
  [[noreturn]] void abort(std::string_view message) noexcept override {
    host_.abort(message);
    std::terminate();  // compilers do not see that the virtual function never returns
  }
  TrafficReport traffic() const override { return host_.traffic(); }

  std::shared_ptr<Exchange> exchange(std::string_view what, TrafficUse use,
                                     std::span<const Message> out,
                                     std::span<const Message> in) override {
    context_.activate();
    context_.require_not_capturing();
    host_.count(use, out);
    auto waiting = std::make_shared<Waiting>(*this, event());
    waiting->tensors.assign(out.begin(), out.end());
    waiting->tensors.insert(waiting->tensors.end(), in.begin(), in.end());
    check(cudaEventRecord(waiting->event, context_.stream()), "recording an event");
    check(cudaStreamWaitEvent(stream_, waiting->event, 0), "waiting for an event");
    const std::string text(what);
    const std::lock_guard calling(calls_);
    accept(text, f_.group_start());
    for (const Message& m : in)
      accept(text, f_.receive(m.tensor.raw_data(), std::size_t(m.tensor.bytes()), ncclInt8, m.peer,
                              nccl_, stream_));
    for (const Message& m : out)
      accept(text, f_.send(m.tensor.raw_data(), std::size_t(m.tensor.bytes()), ncclInt8, m.peer,
                           nccl_, stream_));
    take(text, f_.group_end());
    check(cudaEventRecord(waiting->event, stream_), "recording an event");
    const cudaEvent_t watched = event();
    check(cudaEventRecord(watched, stream_), "recording an event");
    {
      const std::lock_guard lock(mutex_);
      under_way_.push_back({text, watched, Clock::now()});
    }
    wake_.notify_one();
    return waiting;
  }

 private:
  /// Keeps the tensors until later work comes after the exchange: memory is reused in the order of
  /// the computation.
  struct Waiting final : Exchange {
    NcclCommunicator& owner;
    cudaEvent_t event;
    std::vector<Message> tensors{};
    Waiting(NcclCommunicator& o, cudaEvent_t e) : owner(o), event(e) {}
    ~Waiting() override {
      if (!tensors.empty()) cudaStreamWaitEvent(owner.context_.stream(), event, 0);
      cudaEventDestroy(event);
    }
    void wait() override {
      owner.context_.activate();
      check(cudaStreamWaitEvent(owner.context_.stream(), event, 0), "waiting for an event");
      tensors.clear();
    }
  };

  cudaEvent_t event() const {
    cudaEvent_t made = nullptr;
    check(cudaEventCreateWithFlags(&made, cudaEventDisableTiming), "making an event");
    return made;
  }

  [[noreturn]] void end_all(const std::string& what, ncclResult_t error) {
    abort("[distributed] NCCL failed in \"" + what + "\": " + f_.error_text(error) + ". " +
          f_.last_error(nccl_) + " NCCL_DEBUG=WARN says more");
  }
  static double seconds_since(Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
  }
  /// Ends all ranks if this exchange has waited too long, or waits for a rank that is gone. A rank
  /// that ended normally has sent everything, and others may still be working on it.
  void look_at_the_clock(const std::string& what, Clock::time_point begin) {
    constexpr double grace = 10;
    const double waited = seconds_since(begin);
    const int gone = waited > 0.1 ? host_.left() : -1;
    if (gone >= 0 && !left_at_) left_at_ = Clock::now();
    PlainText text;
    text << "[distributed] \"" << what << "\" has waited " << waited << " s on the GPU for ";
    if (gone >= 0 && seconds_since(*left_at_) > grace)
      text << "others, and rank " << gone << " has left";
    else if (patience_ > 0 && waited > patience_)
      text << "another rank, which hangs, died, or does something else. "
              "HALFTONE_DISTRIBUTED_TIMEOUT=SECONDS waits longer";
    else return;
    abort(text.str());
  }

  /// Nothing is done between the start and the end of a group.
  void accept(const std::string& what, ncclResult_t result) {
    if (result != ncclSuccess && result != ncclInProgress) end_all(what, result);
  }
  ncclResult_t state() const {
    ncclResult_t state = ncclSuccess;
    const ncclResult_t asked = f_.async_error(nccl_, &state);
    return asked == ncclSuccess ? state : asked;
  }
  /// Handles NCCL's answer to a call, which may still be in progress.
  void take(const std::string& what, ncclResult_t result) {
    for (const auto begin = Clock::now(); result == ncclInProgress; result = state()) {
      look_at_the_clock(what, begin);
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    accept(what, result);
  }

  void watch() {
    context_.activate();
    while (true) {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return !under_way_.empty(); });
      const UnderWay oldest = under_way_.front();
      lock.unlock();
      // A thread that is in a call checks the state and the clock itself.
      const std::unique_lock calling(calls_, std::try_to_lock);
      if (calling) accept(oldest.what, state());
      if (cudaEventQuery(oldest.done) == cudaSuccess) {
        cudaEventDestroy(oldest.done);
        lock.lock();
        under_way_.pop_front();
        if (!under_way_.empty())  // it was second in line
          under_way_.front().begin = std::max(under_way_.front().begin, Clock::now());
        continue;
      }
      cudaGetLastError();
      if (calling) look_at_the_clock(oldest.what, oldest.begin);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  Communicator& host_;
  Context& context_;
  const Functions& f_ = *functions();
  const double patience_ = communication_patience();
  ncclComm_t nccl_ = nullptr;
  cudaStream_t stream_ = nullptr;
  std::mutex calls_{};                          // for NCCL calls, which both threads make
  std::optional<Clock::time_point> left_at_{};  // guarded by it: when a rank was found to be gone
  std::mutex mutex_{};
  std::condition_variable wake_{};
  std::deque<UnderWay> under_way_{};
};

/// The message of each rank to the others before NCCL starts.
struct Hello {
  char refusal[256] = {};
  char gpu[128] = {};  // host and bus
  int version = 0;
  ncclUniqueId id{};  // of rank 0
};

void put(std::span<char> to, const std::string& text) {
  std::memcpy(to.data(), text.data(), std::min(text.size(), to.size() - 1));
}

Hello own_hello(bool first, Device device) {
  Hello hello;
  put(hello.refusal, refusal());
  if (!functions()) return hello;
  char host[64] = {}, bus[32] = {};
  gethostname(host, sizeof host - 1);
  check(cudaDeviceGetPCIBusId(bus, sizeof bus, device.index), "reading where a device is");
  put(hello.gpu, std::string(host) + ' ' + bus);
  functions()->version(&hello.version);
  if (first && functions()->unique_id(&hello.id) != ncclSuccess)
    put(hello.refusal, "NCCL finds no way between processes");
  return hello;
}

std::vector<Hello> all_hellos(Communicator& host, const Hello& own) {
  std::vector<Tensor> texts;
  std::vector<Message> out, in;
  for (int rank = 0; rank < host.size(); ++rank)
    texts.push_back(empty({int64_t(sizeof(Hello))}, u8));
  const Tensor& mine = texts[std::size_t(host.rank())];
  std::memcpy(mine.raw_data(), &own, sizeof own);
  for (int peer = 0; peer < host.size(); ++peer)
    if (peer != host.rank())
      out.push_back({peer, mine}), in.push_back({peer, texts[std::size_t(peer)]});
  host.exchange("agreement on NCCL", TrafficUse::control, out, in)->wait();
  std::vector<Hello> all(texts.size());
  for (std::size_t i = 0; i < all.size(); ++i)
    std::memcpy(&all[i], texts[i].raw_data(), sizeof(Hello));
  return all;
}

/// Returns why these ranks do not use NCCL; empty if they do.
std::string why_not(const std::vector<Hello>& all) {
  PlainText text;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i].refusal[0]) text << "rank " << i << ": " << all[i].refusal;
    else if (all[i].version != all[0].version)
      text << "rank " << i << " has NCCL " << nccl_version_text(all[i].version) << ", rank 0 "
           << nccl_version_text(all[0].version);
    for (std::size_t j = 0; j < i && text.str().empty(); ++j)
      if (std::string_view(all[i].gpu) == all[j].gpu)
        text << "ranks " << j << " and " << i << " have one GPU, " << all[i].gpu
             << ", and NCCL wants one for each: Device::cuda(world().local_rank())";
    if (!text.str().empty()) break;
  }
  return text.str();
}
}  // namespace

}  // namespace cuda::nccl

std::unique_ptr<Communicator> start_nccl(Communicator& host, Device device) {
  const auto all = cuda::nccl::all_hellos(host, cuda::nccl::own_hello(host.rank() == 0, device));
  const std::string why = cuda::nccl::why_not(all);
  if (why.empty()) {
    static cuda::nccl::NcclCommunicator* started = nullptr;
    auto made = std::make_unique<cuda::nccl::NcclCommunicator>(host, device, all.front().id);
    started = made.get();
    std::atexit([] { started->finish(); });
    return made;
  }
  if (host.rank() == 0)
    std::fprintf(stderr, "[distributed] what GPUs send goes through the host: %s\n", why.c_str());
  return nullptr;
}

}  // namespace halftone

#else

// A build without NCCL: the host transfers the messages of GPUs.

namespace halftone {

bool nccl_present() { return false; }
std::string nccl_description() {
  return "this build has none; install the CUDA toolkit and nccl.h (libnccl-dev), and configure "
         "again";
}
std::unique_ptr<Communicator> start_nccl(Communicator&, Device) { return nullptr; }

}  // namespace halftone

#endif
