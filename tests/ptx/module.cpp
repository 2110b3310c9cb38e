// Finds the kernels, functions and variables of a PTX file, without reading their instructions.
#include <algorithm>
#include <cctype>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <cuda_runtime.h>
#include <unistd.h>

#include <halftone/backends/opened_library.h>
#include <halftone/core/files.h>

#include "../cuda_emulation/machine.h"
#include "execution.h"
#include "program.h"

namespace halftone::ptx {

namespace {

constexpr auto npos = std::string_view::npos;

void blank_comments(std::string& text) {
  for (std::size_t i = text.find('/'); i != std::string::npos; i = text.find('/', i + 1)) {
    std::size_t end = i;
    if (text.compare(i, 2, "//") == 0) end = text.find('\n', i);
    if (text.compare(i, 2, "/*") == 0) end = text.find("*/", i) + 2;
    std::fill(text.begin() + std::ptrdiff_t(i),
              text.begin() + std::ptrdiff_t(std::min(end, text.size())), ' ');
  }
}

void read_parameters(Kernel& kernel, std::string_view header) {
  const std::size_t open = header.find('('), close = header.rfind(')');
  if (open == npos) return;
  for (const std::string_view one : split(header.substr(open + 1, close - open - 1))) {
    const Declaration d = declaration(one);
    const uint32_t offset = (kernel.parameter_bytes + d.alignment - 1) / d.alignment * d.alignment;
    kernel.parameters.push_back({std::string(d.name), offset, d.bytes});
    kernel.parameter_bytes = offset + d.bytes;
  }
}

void add_kernel(Module& module, std::size_t entry, std::size_t body) {
  auto kernel = std::make_unique<Kernel>();
  const std::string_view text = module.text, name = name_after(text, entry);
  kernel->name = name, kernel->module = &module;
  kernel->header = std::size_t(name.data() + name.size() - text.data()), kernel->body = body;
  const std::string_view header = text.substr(kernel->header, body - kernel->header);
  read_parameters(*kernel, header);
  if (const std::size_t most = header.find(".maxntid"); most != npos) {
    kernel->most_threads = 1;
    const std::size_t end = std::min(header.find('\n', most), header.size());
    for (const std::string_view size : split(header.substr(most + 8, end - most - 8)))
      kernel->most_threads *= unsigned(number(size));
  }
  module.kernels[kernel->name] = std::move(kernel);
}

void write_initial_values(std::byte* data, std::string_view list, const Declaration& d) {
  std::size_t at = 0;
  for (const std::string_view one : split(list.substr(1, list.rfind('}') - 1))) {
    if (at + d.element > d.bytes)
      throw Fault("[ptx] too many initial values of " + std::string(d.name));
    const uint64_t value = number(one);
    std::memcpy(data + at, &value, d.element), at += d.element;
  }
}

void add_variable(Module& module, std::string_view statement) {
  const std::size_t equals = statement.find('=');
  const std::string_view declared = trimmed(statement.substr(0, equals));
  const Declaration d = declaration(declared);
  Variable variable{declared.find(".shared") != npos, d.bytes, d.alignment, nullptr};
  if (!variable.shared) {
    constexpr std::size_t alignment = 64;
    std::byte* const memory = module.data.emplace_back(new std::byte[d.bytes + alignment]()).get();
    variable.data = memory + (alignment - reinterpret_cast<uint64_t>(memory) % alignment);
    if (equals != npos)
      write_initial_values(variable.data, trimmed(statement.substr(equals + 1)), d);
  }
  module.variables[std::string(d.name)] = variable;
}

/// Reads the item that starts at `at`, and returns the start of the next one.
std::size_t read_item(Module& module, std::size_t at) {
  const std::string_view text = module.text;
  for (const std::string_view directive : {".version", ".target", ".address_size"})
    if (text.substr(at, directive.size()) == directive) return text.find('\n', at);
  const std::size_t end = text.find_first_of("{;", at);
  if (end == npos) throw Fault("[ptx] not known: " + std::string(text.substr(at, 60)));
  const std::size_t entry = text.substr(0, end).find(".entry", at),
                    function = text.substr(0, end).find(".func", at);
  if (entry != npos) add_kernel(module, entry + 6, end);
  if (function != npos && text[end] == '{')
    module.functions[std::string(name_after(text, function + 5))] = {function, end};
  if (entry != npos || function != npos)
    return text[end] == ';' ? end + 1 : end_of_braces(text, end) + 1;
  const std::size_t semicolon = text.find(';', at);
  add_variable(module, text.substr(at, semicolon - at));
  return semicolon + 1;
}

}  // namespace

Module::Module(std::string ptx) : text(std::move(ptx)) {
  blank_comments(text);
  for (std::size_t at = 0; (at = text.find_first_not_of(" \t\r\n;", at)) != std::string::npos;)
    at = read_item(*this, at);
}

Kernel& Module::kernel(std::string_view name) {
  const auto found = kernels.find(name);
  if (found == kernels.end()) throw Fault("[ptx] there is no kernel " + std::string(name));
  return *found->second;
}

Range Module::variable_at(uint64_t address) const {
  for (const auto& [name, variable] : variables) {
    const Range range{reinterpret_cast<uint64_t>(variable.data), variable.bytes};
    if (range.holds(address, 1)) return range;
  }
  return {};
}

std::string_view Kernel::text_of(const Instruction& instruction) const {
  const std::string_view all = module->text;
  return trimmed(all.substr(instruction.text, all.find(';', instruction.text) - instruction.text));
}

namespace {

struct Modules {
  std::map<const void*, std::unique_ptr<Module>> all{};
  /// HALFTONE_PTX_COVERAGE=file: writes a line for each kernel, and for each instruction of kernels
  /// that ran. A folder, which ends in /, gets a file for each process.
  ~Modules();
};
Modules& modules() {
  static Modules instance;
  return instance;  // destroyed at the end of the program
}

void write_kernel(std::FILE* file, const Kernel& kernel) {
  std::size_t executed = 0;
  for (const uint64_t times : kernel.executed) executed += times != 0;
  std::fprintf(file, "kernel %s %llu launches %zu of %zu instructions\n", kernel.name.c_str(),
               static_cast<unsigned long long>(kernel.launches), executed, kernel.code.size());
  for (std::size_t n = 0; n < kernel.code.size(); ++n) {
    const std::string text(kernel.text_of(kernel.code[n]));
    std::fprintf(file, "%llu %zu %s\n", static_cast<unsigned long long>(kernel.executed[n]), n,
                 text.c_str());
  }
}

Modules::~Modules() {
  const char* const wanted = environment_variable("HALFTONE_PTX_COVERAGE");
  if (!wanted) return;
  std::string path = wanted;
  if (path.ends_with('/')) path += std::to_string(getpid());
  std::FILE* const file = std::fopen(path.c_str(), "w");
  if (!file) return;
  for (const auto& [wrapper, module] : all)
    for (const auto& [name, kernel] : module_of(wrapper).kernels) write_kernel(file, *kernel);
  std::fprintf(file, "fused %lld\n", static_cast<long long>(fused_sums()));
  std::fclose(file);
}

}  // namespace

void register_binary(const void* wrapper) { modules().all[wrapper] = nullptr; }

Module& module_of(const void* wrapper) {
  std::unique_ptr<Module>& module = modules().all[wrapper];
  if (!module) module = std::make_unique<Module>(text_of_fat_binary(wrapper));
  return *module;
}

std::vector<Module*> all_modules() {
  std::vector<Module*> list;
  for (const auto& [wrapper, module] : modules().all) list.push_back(&module_of(wrapper));
  return list;
}

// The format is that of NVIDIA's fatbinary tool (nvcc 12 and 13): a header, then entries. Each
// entry has a header and a payload: PTX or machine code, compressed with zstd or not.

namespace {

struct Wrapper {
  uint32_t magic, version;
  const char* data;
  const void* more;
};
struct Header {
  uint32_t magic;
  uint16_t version, header_bytes;
  uint64_t bytes;  // without the header
};
struct Entry {
  uint16_t kind, version;
  uint32_t header_bytes;
  uint64_t payload_bytes;
  uint32_t compressed_bytes, options;
  uint16_t minor, major;
  uint32_t architecture, name_offset, name_bytes;
  uint64_t flags, reserved, bytes;  // `bytes`: after decompression
};
static_assert(sizeof(Entry) == 64);
constexpr uint32_t wrapper_magic = 0x466243b1, data_magic = 0xba55ed50;
constexpr uint16_t kind_ptx = 1;
constexpr uint64_t compressed_by_zstd = 0x8000, compressed_by_lz4 = 0x2000;

std::string decompressed(const char* data, std::size_t bytes, std::size_t wanted) {
  using Decompress = std::size_t (*)(void*, std::size_t, const void*, std::size_t);
  static Decompress decompress = nullptr;
  static OpenedLibrary library({"libzstd.so.1"});
  if (!library.is_open())
    throw Fault("[ptx] the PTX is compressed: " + library.error() + ". Install libzstd1.");
  library.find("ZSTD_decompress", decompress);
  std::string text(wanted, '\0');
  if (decompress(text.data(), wanted, data, bytes) != wanted)
    throw Fault("[ptx] the PTX of a fat binary cannot be decompressed");
  return text;
}

std::string text_of(const Entry& entry, const char* payload) {
  if (entry.flags & compressed_by_lz4)
    throw Fault("[ptx] the PTX is compressed with LZ4. Compile it with --compress-mode=size.");
  std::string text = entry.flags & compressed_by_zstd
                         ? decompressed(payload, entry.compressed_bytes, entry.bytes)
                         : std::string(payload, entry.payload_bytes);
  text.resize(std::strlen(text.c_str()));
  return text;
}

}  // namespace

std::string text_of_fat_binary(const void* wrapper) {
  Wrapper w;
  std::memcpy(&w, wrapper, sizeof w);
  Header header;
  std::memcpy(&header, w.data, sizeof header);
  if (w.magic != wrapper_magic || header.magic != data_magic) throw Fault("[ptx] not a fat binary");
  const char *at = w.data + header.header_bytes, *const end = at + header.bytes;
  while (at < end) {
    Entry entry;
    std::memcpy(&entry, at, sizeof entry);
    const char* const payload = at + entry.header_bytes;
    if (entry.kind == kind_ptx) return text_of(entry, payload);
    at = payload + entry.payload_bytes;
  }
  throw Fault("[ptx] a fat binary without PTX. Compile it for a virtual architecture as well.");
}

}  // namespace halftone::ptx

// The part of libcudart that nvcc's host code calls: it registers fat binaries and kernels, and
// starts kernels. The emulated GPU (../cuda_emulation) implements the rest: streams, events,
// graphs, memory. Objects that nvcc made for a real GPU link with both, unchanged.

namespace halftone {

namespace emulation {
namespace {

/// The choices of set_thread_order() and set_block_order().
ptx::Order order = ptx::Order::in_step;
uint64_t block_order = number_from("HALFTONE_EMULATED_BLOCK_ORDER");

}  // namespace

void set_thread_order(ThreadOrder chosen) {
  static constexpr ptx::Order orders[] = {ptx::Order::in_step, ptx::Order::descending,
                                          ptx::Order::shuffled};
  order = orders[int(chosen)];
}
void set_block_order(uint64_t seed) { block_order = seed; }

}  // namespace emulation

namespace ptx {

namespace {

struct Registered {
  void* binary;
  std::string name;
};
std::map<const void*, Registered>& registered() {
  static auto* const instance = new std::map<const void*, Registered>;
  return *instance;
}

/// A fault of a kernel ends the program: memory may be wrong.
template <class F> auto or_end(F f) {
  try {
    return f();
  } catch (const std::exception& fault) {
    std::fprintf(stderr, "%s\n", fault.what());
    std::fflush(nullptr);
    std::_Exit(70);
  }
}

Range allocation_at(uint64_t address) {
  const auto found =
      emulation::machine().memory.allocation_at(reinterpret_cast<const void*>(address));
  return {reinterpret_cast<uint64_t>(found.data), found.bytes};
}

std::vector<std::byte> copied_parameters(const Kernel& kernel, void** arguments) {
  std::vector<std::byte> bytes(kernel.parameter_bytes);
  for (std::size_t n = 0; n < kernel.parameters.size(); ++n)
    std::memcpy(bytes.data() + kernel.parameters[n].offset, arguments[n],
                kernel.parameters[n].bytes);
  return bytes;
}

/// HALFTONE_PTX_BLOCKS=n: grids have at most n blocks. Every kernel has a grid-stride loop, so
/// fewer blocks are slower, never wrong (backends/cuda/launch.h).
unsigned fewer(unsigned blocks) {
  static const uint64_t most = emulation::number_from("HALFTONE_PTX_BLOCKS");
  return most == 0 ? blocks : unsigned(std::min<uint64_t>(blocks, most));
}

cudaError_t start(const cudaLaunchConfig_t& config, const void* function, void** arguments) {
  const auto found = registered().find(function);
  if (found == registered().end()) return emulation::failed(cudaErrorInvalidValue);
  if (config.dynamicSmemBytes != 0 || config.numAttrs != 0)
    throw Fault("[ptx] a launch with dynamic shared memory or attributes: " + found->second.name);
  Kernel& kernel = module_of(found->second.binary).kernel(found->second.name);
  const dim3 grid = config.gridDim, block = config.blockDim;
  Launch launch{{fewer(grid.x), grid.y, grid.z}, {block.x, block.y, block.z}};
  launch.order = emulation::order, launch.block_order = emulation::block_order;
  launch.find_allocation = allocation_at;
  return emulation::launch_work(config,
                                [=, &kernel, parameters = copied_parameters(kernel, arguments)] {
                                  or_end([&] { run(kernel, launch, parameters); });
                                });
}

/// <<<grid, block>>> stores its numbers here for the stub of the kernel.
std::vector<cudaLaunchConfig_t>& configurations() {
  static auto* const instance = new std::vector<cudaLaunchConfig_t>;
  return *instance;
}

}  // namespace
}  // namespace ptx
}  // namespace halftone

using namespace halftone::ptx;

extern "C" {

void** __cudaRegisterFatBinary(void* wrapper) {
  register_binary(wrapper);
  return static_cast<void**>(wrapper);
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void** binary, const char* stub, char*, const char* name, int, uint3*,
                            uint3*, dim3*, dim3*, int*) {
  registered()[stub] = {binary, name};
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* stub) {
  return *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(stub)), cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments,
                               std::size_t shared, cudaStream_t stream) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid, config.blockDim = block, config.dynamicSmemBytes = shared,
  config.stream = stream;
  return or_end([&] { return start(config, kernel, arguments); });
}
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, std::size_t shared,
                                     cudaStream_t stream) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid, config.blockDim = block, config.dynamicSmemBytes = shared,
  config.stream = stream;
  return configurations().push_back(config), 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, std::size_t* shared, void* stream) {
  const cudaLaunchConfig_t config = configurations().back();
  configurations().pop_back();
  *grid = config.gridDim, *block = config.blockDim, *shared = config.dynamicSmemBytes;
  *static_cast<cudaStream_t*>(stream) = config.stream;
  return cudaSuccess;
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function,
                                void** arguments) {
  return or_end([&] { return start(*config, function, arguments); });
}

}  // extern "C"
