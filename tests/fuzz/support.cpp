// The frame around the check of a target, and the backend below it. Tensors use the reference
// backend with a separate, exact allocation each. The address sanitizer then finds errors that a
// cache of rounded blocks would hide, and libFuzzer's limit counts tensors as well.
#include "fuzz.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>

#include <unistd.h>

#include <halftone/backends/reference/reference.h>
#include <halftone/core/communicator.h>
#include <halftone/core/device.h>
#include <halftone/core/memory.h>

namespace halftone {

namespace {
class ExactBackend final : public ReferenceBackend {
 public:
  void* allocate(std::size_t bytes) override {
    void* data = nullptr;
    if (posix_memalign(&data, 64, bytes) != 0) throw std::bad_alloc();
    return data;
  }
  void release(void* data, std::size_t) noexcept override { std::free(data); }
};
}  // namespace

/// Replaces backends/registry.cpp.
Backend& backend_for(Device device) {
  static ExactBackend backend;
  if (device.kind != DeviceKind::cpu)
    fail<DeviceError>("device", "there is no GPU here: ", device, ". Use Device::cpu().");
  return backend;
}
std::vector<BackendStatus> backend_statuses() { return {}; }
std::string kernels_of(Device) { return "reference"; }
int cpu_threads() { return 1; }
bool crowded() { return false; }
double seconds_alone() { return 0; }
int core_to_leave() { return -1; }
void leave_core(int) {}
Communicator& world() { fail<UsageError>("fuzz", "there is one process here."); }
Communicator& communicator_for(Communicator& group, Device) { return group; }
namespace train {
std::string environment_of(Device) { return "a fuzzer"; }
}  // namespace train

namespace fuzz {

namespace {
namespace fs = std::filesystem;

/// Removed when the process exits normally; it remains after a finding.
class Scratch {
 public:
  Scratch() {
    const fs::path memory = "/dev/shm";
    const bool usable = access(memory.c_str(), W_OK) == 0;
    std::string pattern =
        ((usable ? memory : fs::temp_directory_path()) / "halftone-fuzz-XXXXXX").string();
    require(mkdtemp(pattern.data()) != nullptr, "there is a place for temporary files");
    path_ = pattern;
  }
  ~Scratch() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};
}  // namespace

void require(bool holds, std::string_view claim) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %.*s\n", int(claim.size()), claim.data());
  std::abort();
}

int64_t peak_tensor_bytes() { return memory_report().total_peak; }

const fs::path& scratch_directory() {
  static const Scratch scratch;
  return scratch.path();
}

void write_file(const fs::path& path, std::string_view bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), std::streamsize(bytes.size()));
  file.close();
  require(bool(file), "the scratch directory takes a file");
}

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<std::string> parts_of(std::string_view bytes, std::size_t count) {
  std::vector<std::string> parts;
  while (parts.size() + 1 < count) {
    const std::size_t end = std::min(bytes.find('\xff'), bytes.size());
    parts.emplace_back(bytes.substr(0, end));
    bytes.remove_prefix(std::min(end + 1, bytes.size()));
  }
  parts.emplace_back(bytes);
  return parts;
}

bool same(const Tensor& a, const Tensor& b) {
  return a.dtype() == b.dtype() && a.shape() == b.shape() && a.is_contiguous() &&
         b.is_contiguous() && std::memcmp(a.raw_data(), b.raw_data(), std::size_t(a.bytes())) == 0;
}

void require_message_form(std::string_view op, std::string_view message) {
  bool printable = true;
  for (const char c : message) printable &= static_cast<unsigned char>(c) >= 0x20 && c != 0x7f;
  const bool ends = message.ends_with('.') || message.ends_with('?');  // Did you mean ...?
  require(message.starts_with("[" + std::string(op) + "] ") && ends && printable, message);
}

}  // namespace fuzz
}  // namespace halftone

namespace {
const halftone::fuzz::Target* running = nullptr;
}  // namespace

extern "C" {

/// A quarantine that stays below the limit of resident memory.
const char* __asan_default_options() { return "quarantine_size_mb=8:detect_leaks=1"; }

int LLVMFuzzerInitialize(int* argc, char*** argv) {
  std::string name = std::filesystem::path((*argv)[0]).filename().string();
  if (name.starts_with("fuzz_")) name.erase(0, 5);
  running = &halftone::fuzz::target_named(name);
  const halftone::fuzz::Limits& limits = running->limits;
  static std::vector<std::string> flags{"-max_len=" + std::to_string(limits.longest_input),
                                        "-malloc_limit_mb=" + std::to_string(limits.allocation_mib),
                                        "-rss_limit_mb=" + std::to_string(limits.resident_mib)};
  static std::vector<char*> all{(*argv)[0]};
  for (std::string& flag : flags) all.push_back(flag.data());
  all.insert(all.end(), *argv + 1, *argv + *argc);  // later ones override earlier ones
  *argc = int(all.size());
  all.push_back(nullptr);
  *argv = all.data();
  return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  halftone::reset_peak_memory();
  running->check({reinterpret_cast<const char*>(data), size});
  halftone::fuzz::require(halftone::memory_report().total_now == 0, "no tensor is left");
  return 0;
}

std::size_t LLVMFuzzerCustomMutator(uint8_t* data, std::size_t size, std::size_t longest,
                                    unsigned seed) {
  return running->mutate(data, size, longest, seed);
}

}  // extern "C"
