// Counters, and the list of declined calls.
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <set>

#include <halftone/backends/cuda/library_calls.h>
#include <halftone/core/files.h>

namespace halftone::cuda {

namespace {
constexpr std::array families{"matmul",
                              "conv",
                              "conv_backward_data",
                              "conv_backward_weights",
                              "attention",
                              "attention_backward"};
constexpr std::array sources{"own kernels", "cuBLASLt", "cuDNN"};
using Counts = std::array<std::array<std::atomic<int64_t>, sources.size()>, families.size()>;
Counts& counts() {
  static Counts all{};
  return all;
}

struct Declined {
  std::mutex mutex;
  std::set<std::string> calls;
  std::vector<std::string> lines;
};
/// Never destroyed: programs print their counts at their end.
Declined& declined() {
  static auto* const instance = new Declined;
  return *instance;
}

std::atomic<bool>& log_switch() {
  static std::atomic<bool> on = [] {
    const bool wanted = environment_variable("HALFTONE_CUDA_LOG") != nullptr;
    if (wanted)
      std::atexit([] {
        std::fprintf(stderr, "[cuda] the end%s; kernels %lld\n", calls_summary().c_str(),
                     static_cast<long long>(kernels_started()));
      });
    return wanted;
  }();
  return on;
}
}  // namespace

namespace {
std::atomic<int64_t> started{0};
}
void count_kernel() { started.fetch_add(1, std::memory_order_relaxed); }
int64_t kernels_started() { return started.load(std::memory_order_relaxed); }

void count_call(Family family, By by) {
  log_wanted();
  counts()[std::size_t(family)][std::size_t(by)].fetch_add(1, std::memory_order_relaxed);
}
int64_t calls(Family family, By by) {
  return counts()[std::size_t(family)][std::size_t(by)].load(std::memory_order_relaxed);
}

std::string calls_summary() {
  std::string text;
  for (std::size_t family = 0; family < families.size(); ++family) {
    std::string of_family;
    for (std::size_t by = sources.size(); by-- > 0;)
      if (const int64_t count = counts()[family][by].load(std::memory_order_relaxed))
        of_family += (of_family.empty() ? "" : ", ") + std::to_string(count) + " by " + sources[by];
    if (!of_family.empty())
      text += std::string(text.empty() ? "; calls so far: " : "; ") + families[family] + " " +
              of_family;
  }
  return text;
}

bool log_wanted() { return log_switch().load(std::memory_order_relaxed); }
void set_log_wanted(bool wanted) { log_switch() = wanted; }

void say_declined(By by, Family family, const std::string& call, std::string_view why) {
  std::string text = std::string("[cuda] ") + sources[std::size_t(by)] + " declined " +
                     families[std::size_t(family)] + " of " + call;
  Declined& all = declined();
  const std::lock_guard lock(all.mutex);
  if (!all.calls.insert(text).second) return;
  text.append(": ").append(why);
  std::fprintf(stderr, "%s\n", text.c_str());
  all.lines.push_back(std::move(text));
}

std::vector<std::string> declined_calls() {
  Declined& all = declined();
  const std::lock_guard lock(all.mutex);
  return all.lines;
}

}  // namespace halftone::cuda
