// The runtime functions of the emulator for the device and its memory: pages whose access is
// granted and revoked.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <utility>

#include <sys/mman.h>
#include <unistd.h>

#include <cuda_runtime.h>
#include <halftone/backends/cuda/cuda_backend.h>
#include <halftone/backends/registry.h>
#include <halftone/core/files.h>
#include <nccl.h>

#include "machine.h"

namespace halftone::emulation {

namespace {
constexpr std::size_t page = 4096, address_space = std::size_t(1) << 36;
constexpr int reserved = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
}  // namespace

DeviceMemory::DeviceMemory() : closed_(environment_variable("HALFTONE_EMULATED_CLOSED")) {
  void* const memory = mmap(nullptr, address_space, PROT_NONE, reserved, -1, 0);
  if (memory == MAP_FAILED) std::abort();
  base_ = static_cast<std::byte*>(memory);
}

void* DeviceMemory::allocate(std::size_t bytes) {
  const std::size_t pages = (bytes + page - 1) / page * page;
  if (allocated_ + pages > total || used_ + pages + page > address_space) return nullptr;
  std::byte* const first = base_ + used_;
  std::byte* const data = first + (pages - (bytes + 255) / 256 * 256);
  used_ += pages + page, allocated_ += pages;
  blocks_[data] = {first, pages, bytes};
  if (!closed_ || depth_ > 0) mprotect(first, pages, PROT_READ | PROT_WRITE);
  return data;
}

bool DeviceMemory::release(void* data) {
  const auto found = blocks_.find(static_cast<std::byte*>(data));
  if (found == blocks_.end()) return false;
  allocated_ -= found->second.bytes;
  mmap(found->second.first, found->second.bytes, PROT_NONE, reserved | MAP_FIXED, -1, 0);
  blocks_.erase(found);
  return true;
}

DeviceMemory::Allocation DeviceMemory::allocation_at(const void* address) const {
  auto after = blocks_.upper_bound(static_cast<std::byte*>(const_cast<void*>(address)));
  if (after == blocks_.begin()) return {};
  --after;
  return {after->first, after->second.asked};
}

void DeviceMemory::open() {
  if (depth_++ == 0) protect(PROT_READ | PROT_WRITE);
}
void DeviceMemory::close() {
  if (--depth_ == 0) protect(PROT_NONE);
}
void DeviceMemory::protect(int access) const {
  if (closed_ && used_ > 0) mprotect(base_, used_, access);
}

// Fills memory that no replay may read with NaNs. A captured graph is replayed with the addresses
// of its capture; the memory it uses must not be free for other work meanwhile. Before each replay
// all free memory outside of the pools of graphs is filled with a pattern, which is a NaN in every
// floating dtype. After the replay the pattern must be unchanged. A replay that reads such memory
// gives NaNs; a replay that writes there is found.

namespace {
constexpr auto pattern = std::byte{0xff};

bool& switched_on() {
  static bool on = number_from("HALFTONE_EMULATED_POISON") != 0;
  return on;
}
int64_t outside = 0;
}  // namespace

bool set_poison(bool on) { return std::exchange(switched_on(), on); }
bool poisoned() { return switched_on(); }
int64_t replays_outside() { return outside; }

void poison(void* data, std::size_t bytes) {
  const DeviceAccess access;
  std::memset(data, int(pattern), bytes);
}

std::vector<FreeBlock> free_blocks() {
  std::vector<FreeBlock> blocks;
  auto& backend = static_cast<CudaBackend&>(*cuda_backend(0));
  for (const auto& [data, bytes] : backend.context().memory().free_blocks())
    blocks.push_back({data, bytes});
  return blocks;
}

void replay_poisoned(const std::vector<FreeBlock>& blocks, const std::vector<Work>& replay) {
  for (const auto& [data, bytes] : blocks) poison(data, bytes);
  for (const Work& work : replay) work();
  for (const auto& [data, bytes] : blocks) {
    const auto* const first = static_cast<const std::byte*>(data);
    const auto* const wrong =
        std::find_if(first, first + bytes, [](std::byte b) { return b != pattern; });
    if (wrong == first + bytes) continue;
    std::fprintf(stderr, "[cuda emulation] a replay wrote to byte %td of %zu that is free\n",
                 wrong - first, bytes);
    ++outside;
    machine().found = cudaErrorIllegalAddress;
    return;
  }
}

}  // namespace halftone::emulation

namespace halftone::emulation {

Machine& machine() {
  static Machine* const instance = [] {
    auto* const made = new Machine;
    if (const uint64_t wanted = number_from("HALFTONE_EMULATED_MULTIPROCESSORS"))
      made->multiprocessors = int(wanted);
    if (const uint64_t wanted = number_from("HALFTONE_EMULATED_DEVICES"))
      made->devices = int(wanted);
    if (const uint64_t wanted = number_from("HALFTONE_EMULATED_CAPABILITY"))
      made->major = int(wanted / 10), made->minor = int(wanted % 10);
    return made;
  }();
  return *instance;
}

uint64_t number_from(const char* variable) {
  const char* const text = environment_variable(variable);
  return text ? std::strtoull(text, nullptr, 10) : 0;
}

cudaError_t failed(cudaError_t error) { return machine().last_error = error; }

DeviceAccess::DeviceAccess() {
  machine().mutex.lock();
  machine().memory.open();
}
DeviceAccess::~DeviceAccess() {
  machine().memory.close();
  machine().mutex.unlock();
}

int64_t host_waits() { return machine().waits; }
int64_t kernel_launches() { return machine().launches; }
void set_compute_capability(int major, int minor) {
  machine().major = major, machine().minor = minor;
}
int compute_capability() { return machine().major * 10 + machine().minor; }
void set_driver_version(int version) { machine().driver = version; }
void set_multiprocessors(int count) { machine().multiprocessors = count; }
void set_total_memory(std::size_t bytes) { machine().memory.total = bytes; }
std::size_t allocated_bytes() { return machine().memory.allocated(); }
void fail_allocations(int64_t after, int64_t failures) {
  const Lock lock(machine().mutex);
  machine().good_allocations = after, machine().bad_allocations = failures;
}
int64_t allocations() { return machine().allocations; }

int devices() { return machine().devices; }
void break_device(bool broken) {
  const Lock lock(machine().mutex);
  machine().broken = broken;
}

namespace {
thread_local int device_of_thread = 0;

/// Returns whether this call of cudaMalloc has to fail.
bool told_to_fail() {
  Machine& m = machine();
  ++m.allocations;
  if (m.bad_allocations == 0) return false;
  if (m.good_allocations > 0) return --m.good_allocations, false;
  return --m.bad_allocations, true;
}

/// Page-locked memory, by its start. Freeing it unmaps its pages: a copy that is late then faults.
std::map<void*, std::size_t>& locked_pages() {
  static auto* const instance = new std::map<void*, std::size_t>;
  return *instance;
}
}  // namespace

int current_device() { return device_of_thread; }

}  // namespace halftone::emulation

using namespace halftone::emulation;

const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : "cudaError";
}
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "out of memory" : "an error of the emulated GPU";
}
cudaError_t cudaGetLastError() { return std::exchange(machine().last_error, cudaSuccess); }
cudaError_t cudaGetDeviceCount(int* count) {
  *count = 0;
  if (machine().driver < 13000) return failed(cudaErrorInsufficientDriver);
  return *count = machine().devices, cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) { return *device = current_device(), cudaSuccess; }
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= machine().devices) return failed(cudaErrorInvalidDevice);
  return device_of_thread = device, cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int) {
  const Machine& m = machine();
  *p = {};
  std::snprintf(p->name, sizeof p->name, "emulated GPU");
  p->totalGlobalMem = m.memory.total, p->multiProcessorCount = m.multiprocessors;
  p->major = m.major, p->minor = m.minor;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int) {
  const char* const given = halftone::environment_variable("HALFTONE_EMULATED_BUS");
  const std::string bus = given ? given : "emulated " + std::to_string(getpid());
  std::snprintf(text, std::size_t(length), "%s", bus.c_str());
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) { return *version = machine().driver, cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int* version) { return *version = 13000, cudaSuccess; }
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  const Lock lock(machine().mutex);
  *total = machine().memory.total;
  *free = *total - machine().memory.allocated();
  return cudaSuccess;
}
cudaError_t cudaMalloc(void** at, std::size_t bytes) {
  const Lock lock(machine().mutex);
  if (machine().broken) return failed(cudaErrorIllegalAddress);
  const std::size_t wanted = std::max<std::size_t>(bytes, 1);
  *at = told_to_fail() ? nullptr : machine().memory.allocate(wanted);
  if (!*at) return failed(cudaErrorMemoryAllocation);
  if (poisoned()) poison(*at, wanted);
  return cudaSuccess;
}
cudaError_t cudaFree(void* data) {
  std::unique_lock lock(machine().mutex);
  while (!run_all()) nap(lock);
  return !data || machine().memory.release(data) ? cudaSuccess : failed(cudaErrorInvalidValue);
}
cudaError_t cudaHostAlloc(void** at, std::size_t bytes, unsigned) {
  const Lock lock(machine().mutex);
  void* const pages =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) return failed(cudaErrorMemoryAllocation);
  locked_pages()[*at = pages] = bytes;
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* data) {
  const Lock lock(machine().mutex);
  const auto found = locked_pages().find(data);
  if (found == locked_pages().end()) return failed(cudaErrorInvalidValue);
  munmap(data, found->second);
  locked_pages().erase(found);
  return cudaSuccess;
}
