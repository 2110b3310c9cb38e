// Caches plans of a library (a convolution's engine, a product's algorithm) by everything that they
// depend on. Making a plan takes up to a third of a second, so a number of plans is kept; also the
// fact that the library does not support a call. Any other refusal, above all for lack of memory,
// may be temporary: unused memory is given back and the call is tried again at once, and in later
// calls. The class does not use a library, so its decisions can be tested without one.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace halftone::cuda {

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

}  // namespace halftone::cuda
