// Counters, and the list of declined calls.
#include <halftone/backends/cuda/libraries.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <set>
#include <sstream>

#include <halftone/core/error.h>
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

// Texts about versions. Drivers: NVIDIA's CUDA Toolkit release notes, table of minor version
// compatibility. Every driver from the first one of a major version on supports all of that
// version, if kernels have machine code.

namespace {
/// Returns the first driver (Linux) for a major version of CUDA.
std::string first_driver(int major) {
  switch (major) {
    case 12: return "525.60.13";
    case 13: return "580.65.06";
    default: return "of CUDA " + std::to_string(major);
  }
}
}  // namespace

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

std::string driver_advice(int driver, int runtime) {
  const std::string need = first_driver(runtime / 1000);
  if (driver == 0)
    return "there is no NVIDIA driver (libcuda.so.1). This build has CUDA " +
           version_text(runtime) + ": install the driver " + need + " or newer";
  const std::string has = "the driver serves CUDA up to " + version_text(driver) +
                          ", and this build has " + version_text(runtime);
  if (driver / 1000 < runtime / 1000)
    return has + ": install the driver " + need +
           " or newer (nvidia-smi shows the one you have), or build with a toolkit of CUDA " +
           std::to_string(driver / 1000);
  return has +
         ": it runs kernels that have machine code for the GPU (HALFTONE_CUDA_ARCHITECTURES) and "
         "compiles no others. Install the driver that came with CUDA " +
         version_text(runtime) + " or newer, or build for this GPU";
}

std::string cublaslt_refusal(std::size_t found, std::size_t built) {
  const auto text = [](std::size_t version) {
    return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100);
  };
  if (found / 100 >= built / 100 && found / 10000 == built / 10000) return "";
  return "cuBLASLt " + text(found) + " is left out: this build has the headers of " + text(built);
}

std::string nccl_version_text(int version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

std::string nccl_refusal(int found, int built) {
  if (found / 100 >= built / 100 && found / 10000 == built / 10000) return "";
  return "NCCL " + nccl_version_text(found) + " is left out: this build has the headers of " +
         nccl_version_text(built);
}

std::string cudnn_refusal(int made_for, int runtime) {
  if (made_for / 1000 == runtime / 1000) return "";
  return "cuDNN is left out: it was made for CUDA " + std::to_string(made_for / 1000) +
         ", and this build has " + version_text(runtime) + ". Install the one for CUDA " +
         std::to_string(runtime / 1000) + ", or point HALFTONE_CUDNN_ROOT at it";
}

namespace {
constexpr std::string_view choices_op = "cuda";
constexpr const char* engines_variable = "HALFTONE_CUDA_ENGINES";
constexpr std::string_view separator = " : ";
constexpr std::size_t most_choice_bytes = std::size_t(4) << 20;
}  // namespace

EngineChoices::EngineChoices(std::string machine, const std::filesystem::path& path)
    : machine_(std::move(machine)), path_(path) {
  std::ranges::replace(machine_, '\n', ' ');
  std::ranges::replace(machine_, ' ', '_');
  if (!kept()) return;
  if (path_.has_parent_path()) files::make_directories(choices_op, path_.parent_path());
  files::open_to_append(choices_op, path_);
  read();
}

EngineChoices EngineChoices::usual(const std::string& machine) {
  const std::filesystem::path path = usual_path();
  if (environment_variable(engines_variable)) return {machine, path};
  try {
    return {machine, path};
  } catch (const FormatError&) { return {machine, {}}; }
}

void EngineChoices::read() {
  std::istringstream lines(files::read_text(choices_op, path_, most_choice_bytes));
  choices_.clear();
  for (std::string line; std::getline(lines, line);) {
    const std::size_t colon = line.find(separator);
    if (colon == std::string::npos || !line.starts_with(machine_ + ' ')) continue;
    std::size_t choice = 0;
    const char* const end = line.data() + line.size();
    const auto read = std::from_chars(line.data() + colon + separator.size(), end, choice);
    if (read.ptr == end && read.ec == std::errc())
      choices_.emplace(line.substr(0, colon), choice);  // the first line of a call counts
  }
}

std::filesystem::path EngineChoices::usual_path() {
  if (const char* const path = environment_variable(engines_variable))
    return std::string_view(path) == "first" ? "" : path;
  std::filesystem::path directory;
  if (const char* const caches = environment_variable("XDG_CACHE_HOME")) directory = caches;
  else if (const char* const home = environment_variable("HOME"))
    directory = std::filesystem::path(home) / ".cache";
  return directory.is_absolute() ? directory / "halftone" / "cudnn_engines.txt" : "";
}

std::string EngineChoices::line_of(const std::vector<int64_t>& call) const {
  std::string line = machine_;
  for (const int64_t number : call) line.append(1, ' ').append(std::to_string(number));
  return line;
}

std::optional<std::size_t> EngineChoices::of(const std::vector<int64_t>& call) const {
  const auto found = choices_.find(line_of(call));
  return found == choices_.end() ? std::nullopt : std::optional(found->second);
}

std::size_t EngineChoices::keep(const std::vector<int64_t>& call, std::size_t choice) {
  const std::string line = line_of(call);
  try {
    if (kept()) {
      const std::string text = (std::ostringstream() << line << separator << choice << '\n').str();
      std::string_view left = text;
      files::write_all(files::open_to_append(choices_op, path_), left);
      read();
    }
  } catch (const FormatError&) {  // the file is gone: this program keeps its choice
  }
  return choices_.try_emplace(line, choice).first->second;
}

}  // namespace halftone::cuda
