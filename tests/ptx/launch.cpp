#include "launch.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "../cuda_emulation/block_order.h"

namespace halftone::ptx {

namespace {

constexpr std::size_t alignment = 128;

/// Memory that starts at a multiple of 128, filled with a pattern that is a NaN as a float.
class Memory {
 public:
  std::byte* filled(std::size_t bytes) {
    if (storage_.size() < bytes + alignment) storage_.resize(bytes + alignment);
    std::byte* const data =
        storage_.data() + (alignment - reinterpret_cast<uint64_t>(storage_.data()) % alignment);
    std::memset(data, 0xff, bytes);
    return data;
  }

 private:
  std::vector<std::byte> storage_{};
};

void fill(Machine& m, const FilledRow& row, uint64_t value) {
  const Operand operand{row.row, row.width, false, 0};
  const int n = m.threads;
  if (row.width == 1) std::fill_n(m.row<uint8_t>(operand), n, uint8_t(value));
  if (row.width == 2) std::fill_n(m.row<uint16_t>(operand), n, uint16_t(value));
  if (row.width == 4) std::fill_n(m.row<uint32_t>(operand), n, uint32_t(value));
  if (row.width == 8) std::fill_n(m.row<uint64_t>(operand), n, value);
}

void fill_threads(Machine& m, const FilledRow& row, const Size& block) {
  uint32_t* const numbers = m.row<uint32_t>({row.row, row.width, false, 0});
  for (unsigned l = 0; l < unsigned(m.threads); ++l) {
    const Size thread{l % block[0], l / block[0] % block[1], l / block[0] / block[1]};
    numbers[l] = thread[row.dimension];
  }
}

/// The data that all blocks share.
void fill_rows(Machine& m, const Kernel& kernel, const Launch& launch) {
  using What = FilledRow::What;
  for (const FilledRow& row : kernel.filled) {
    if (row.what == What::bits) fill(m, row, row.bits);
    if (row.what == What::block_size) fill(m, row, launch.block[row.dimension]);
    if (row.what == What::grid_size) fill(m, row, launch.grid[row.dimension]);
    if (row.what == What::thread) fill_threads(m, row, launch.block);
  }
}

void check_size(const Kernel& kernel, const Launch& launch, std::size_t parameters) {
  const uint64_t threads = uint64_t(launch.block[0]) * launch.block[1] * launch.block[2];
  const std::string where = " in " + kernel.name;
  if (threads < 1 || threads > kernel.most_threads)
    throw Fault("[ptx] a block of " + std::to_string(threads) + " threads, at most " +
                std::to_string(kernel.most_threads) + " are allowed," + where);
  if (parameters != kernel.parameter_bytes)
    throw Fault("[ptx] " + std::to_string(parameters) + " bytes of parameters, " +
                std::to_string(kernel.parameter_bytes) + " are wanted," + where);
}

}  // namespace

void Machine::fail(const std::string& what) const {
  throw Fault("[ptx] " + what + ": `" + std::string(kernel->text_of(*current)) + "` in " +
              kernel->name);
}

void run(Kernel& kernel, const Launch& launch, const std::vector<std::byte>& parameters) {
  decode(kernel);
  check_size(kernel, launch, parameters.size());
  static Memory registers, shared, local, constants;  // large, and kept between launches
  Machine m;
  m.kernel = &kernel, m.find_allocation = launch.find_allocation;
  m.threads = int(launch.block[0] * launch.block[1] * launch.block[2]);
  m.padded = (std::size_t(m.threads) + 63) / 64 * 64;
  const std::size_t register_bytes = (kernel.register_bytes + 1) * m.padded;
  m.registers = registers.filled(register_bytes);
  std::byte* const given = constants.filled(parameters.size());
  std::copy(parameters.begin(), parameters.end(), given);
  m.set(Space::parameter, given, parameters.size());
  m.set(Space::local, local.filled(std::size_t(kernel.local_bytes) * std::size_t(m.threads)),
        kernel.local_bytes);
  fill_rows(m, kernel, launch);
  ++kernel.launches;
  const Size& grid = launch.grid;
  const uint64_t blocks = uint64_t(grid[0]) * grid[1] * grid[2];
  Block block(m, kernel, launch.order, launch.block_order + kernel.launches, launch.most_steps);
  for (uint64_t n = 0; n < blocks; ++n) {
    const uint64_t at = emulation::block_in_order(n, blocks, launch.block_order);
    const Size index{unsigned(at % grid[0]), unsigned(at / grid[0] % grid[1]),
                     unsigned(at / grid[0] / grid[1])};
    if (kernel.mutated) registers.filled(register_bytes), fill_rows(m, kernel, launch);
    for (const FilledRow& row : kernel.filled)
      if (row.what == FilledRow::What::block) fill(m, row, index[row.dimension]);
    m.set(Space::shared, shared.filled(kernel.shared_bytes), kernel.shared_bytes);
    block.run();
  }
}

}  // namespace halftone::ptx
