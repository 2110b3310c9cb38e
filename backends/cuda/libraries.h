// How calls reach NVIDIA's libraries: whether they may, in which versions, which of them computed,
// and kept plans.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <halftone/core/files.h>

namespace halftone::cuda {

// Whether NVIDIA's libraries may be used if the build has them; without them the own kernels run,
// which are slower and tested. HALFTONE_CUDA_LIBRARIES=off switches them off for a whole run.

inline bool libraries_wanted() {
  static const bool wanted = [] {
    const char* const text = environment_variable("HALFTONE_CUDA_LIBRARIES");
    return !text || std::string_view(text) != "off";
  }();
  return wanted;
}

// Counts which implementation computed what, for the question "why is it slow here?". Products,
// convolutions and attention are counted by implementation, an own kernel or one of NVIDIA's
// libraries; backend_statuses() and halftone-info show the counts. With HALFTONE_CUDA_LOG set, each
// call that a library declined is printed once to standard error, with the reason. At the end of
// the program the counts are printed, with the number of own kernels that were started.

enum class Family {
  matmul,
  conv,
  conv_backward_data,
  conv_backward_weights,
  attention,
  attention_backward
};
enum class By { own_kernel, cublaslt, cudnn };

void count_call(Family family, By by);
/// Returns the calls since the program began. Recorded work counts once; its replays do not count.
int64_t calls(Family family, By by);
void count_kernel();
/// Returns the own kernels that were started since the program began; recorded ones count once.
int64_t kernels_started();
/// Returns "; calls so far: matmul 12 by cuBLASLt, 3 by own kernels; conv ..."; empty before the
/// first.
std::string calls_summary();

/// Returns whether HALFTONE_CUDA_LOG is set, so that descriptions of declined calls are needed.
bool log_wanted();
/// For tests: replaces the environment variable.
void set_log_wanted(bool wanted);
/// Prints "[cuda] cuDNN declined conv of ...: why". Does not print the same call again.
void say_declined(By by, Family family, const std::string& call, std::string_view why);
/// Returns the printed calls.
std::vector<std::string> declined_calls();

// Which versions of the driver and of NVIDIA's libraries work with this build, and the message if
// one does not. The functions map numbers to text, so tests need no driver and no library.

/// Returns "13.0" for 13000, the numbering of the runtime and the driver.
std::string version_text(int version);

/// Returns a text for a driver older than the runtime: what it supports, and which one is needed.
/// driver 0: there is none.
std::string driver_advice(int driver, int runtime);

/// Returns "" if a cuBLASLt of version `found` works with a build with headers of `built` (both
/// numbered like cublasLtGetVersion(), 130100 for 13.1), otherwise the reason.
std::string cublaslt_refusal(std::size_t found, std::size_t built);

/// Returns "2.28.9" for 22809, the numbering of ncclGetVersion().
std::string nccl_version_text(int version);
/// Returns "" if an NCCL of version `found` works with a build with headers of `built`, otherwise
/// the reason.
std::string nccl_refusal(int found, int built);

/// Returns "" if a cuDNN made for the CUDA runtime `made_for` works with a build with `runtime`
/// (both in the runtime's numbering), otherwise the reason.
std::string cudnn_refusal(int made_for, int runtime);

// Caches plans of a library (a convolution's engine, a product's algorithm) by everything that they
// depend on. Making a plan takes up to a third of a second, so a number of plans is kept; also the
// fact that the library does not support a call. Any other refusal, above all for lack of memory,
// may be temporary: unused memory is given back and the call is tried again at once, and in later
// calls. The class does not use a library, so its decisions can be tested without one.

enum class Answer {
  done,
  unsupported,  // permanent: remembered
  not_now,      // no memory, or an error inside the library
};

/// The outcome of making or running a plan, and the library's message if it declined.
struct Outcome {
  Answer answer = Answer::done;
  std::string why{};
};

/// Interprets a status of cuDNN 9, whose thousands are a category: 2 and 3 are parameters and
/// combinations that it does not support; all others may be temporary.
constexpr Answer answer_of_cudnn(int status) {
  if (status == 0) return Answer::done;
  return status / 1000 == 2 || status / 1000 == 3 ? Answer::unsupported : Answer::not_now;
}

template <class Key, class Plan> class PlanCache {
 public:
  /// Waits until the device has finished with the plans; called before some are dropped.
  using Wait = std::function<void()>;
  explicit PlanCache(std::size_t most, Wait wait = {}) : most_(most), wait_(std::move(wait)) {}

  struct Calls {
    /// make(plan): sets plan if the answer is done.
    std::function<Outcome(std::unique_ptr<Plan>&)> make;
    std::function<Outcome(Plan&)> run;
    /// Gives unused memory back.
    std::function<void()> trim;
    /// The work is recorded: its replays need the plan, which is kept forever.
    bool recorded = false;
  };

  /// Runs the plan of a key, and makes it at the first request. Returns whether the call was done;
  /// if not, nothing was done.
  Outcome run(const Key& key, const Calls& calls) {
    Entry& entry = entries_[key];
    entry.used = ++clock_;
    if (entry.declined) return {Answer::unsupported, "declined before"};
    if (!entry.plan) {
      // After temporary refusals, every call would pay for another attempt. So only the second,
      // third, fifth, ninth ... call tries again.
      if (!std::has_single_bit(entry.calls_without++) && entry.calls_without > 1)
        return {Answer::not_now, "declined before"};
      if (!calls.recorded) make_room();
      Outcome made = twice([&] { return calls.make(entry.plan); }, calls.trim);
      if (!entry.plan || made.answer != Answer::done) return settled(entry, std::move(made));
    }
    entry.recorded |= calls.recorded;
    return settled(entry, twice([&] { return calls.run(*entry.plan); }, calls.trim));
  }

  std::size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    std::unique_ptr<Plan> plan{};
    bool declined = false, recorded = false;
    uint32_t calls_without = 0;  // calls without a plan
    uint64_t used = 0;
  };

  /// Tries once more after a temporary refusal.
  template <class Try> static Outcome twice(const Try& attempt, const std::function<void()>& trim) {
    Outcome first = attempt();
    if (first.answer != Answer::not_now) return first;
    trim();
    return attempt();
  }
  static Outcome settled(Entry& entry, Outcome outcome) {
    entry.declined = outcome.answer == Answer::unsupported;
    return outcome;
  }
  /// If there are too many plans, drops the quarter that was unused longest.
  void make_room() {
    if (entries_.size() <= most_) return;
    std::vector<uint64_t> times;
    for (const auto& [key, entry] : entries_)
      if (!entry.recorded) times.push_back(entry.used);
    if (times.size() < 4) return;
    const auto newest = times.begin() + std::ptrdiff_t(times.size() / 4);
    std::nth_element(times.begin(), newest, times.end());
    if (wait_) wait_();
    std::erase_if(entries_, [&](const auto& item) {
      return !item.second.recorded && item.second.used < *newest;
    });
  }

  std::size_t most_;
  Wait wait_;
  std::map<Key, Entry> entries_;  // references to entries stay valid
  uint64_t clock_ = 0;
};

// Which of several engines is fastest for a call, as measured once and kept in a file for later
// programs: another choice has other bits, so a choice must not change from run to run.

class EngineChoices {
 public:
  /// Reads the file, which is made if it does not exist. `machine` is what choices depend on
  /// besides the call: the GPU's name and the library's version. Without a path nothing is to be
  /// measured. Throws FormatError for a file that cannot be read or written.
  EngineChoices(std::string machine, const std::filesystem::path& path);
  /// Returns the choices of usual_path(). If the path is not the user's own word and the file
  /// cannot be used, nothing is to be measured.
  static EngineChoices usual(const std::string& machine);
  /// Returns $HALFTONE_CUDA_ENGINES, or halftone/cudnn_engines.txt in the user's directory of
  /// caches. Empty if the variable is `first`, or if neither XDG_CACHE_HOME nor HOME is set.
  static std::filesystem::path usual_path();

  /// Returns whether choices are measured and kept.
  bool kept() const { return !path_.empty(); }
  /// Returns the choice for a call; nullopt if there is none.
  std::optional<std::size_t> of(const std::vector<int64_t>& call) const;
  /// Appends a choice to the file, and returns the one that counts. It is another one if another
  /// process was first: all processes use the same engine.
  std::size_t keep(const std::vector<int64_t>& call, std::size_t choice);

 private:
  void read();
  std::string line_of(const std::vector<int64_t>& call) const;

  std::string machine_;
  std::filesystem::path path_;
  std::map<std::string, std::size_t> choices_;  // by the beginning of their lines
};

}  // namespace halftone::cuda
