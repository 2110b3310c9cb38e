#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <type_traits>
#include <utility>

#include <immintrin.h>

#include "../cuda_emulation/machine.h"
#include "execution.h"
#include "operations.h"
#include "program.h"

namespace halftone::ptx {

namespace {

constexpr int warp_size = 32;

}  // namespace

Block::Block(Machine& machine, Kernel& kernel, Order order, uint64_t seed, uint64_t most_steps)
    : machine_(machine),
      kernel_(kernel),
      order_(order),
      random_state_(seed * 0x9e3779b97f4a7c15 | 1),
      most_steps_(most_steps) {}

uint64_t Block::random() {
  random_state_ ^= random_state_ << 13, random_state_ ^= random_state_ >> 7;
  return random_state_ ^= random_state_ << 17;
}

void Block::put(std::vector<Group>& groups, Group group) {
  for (Group& other : groups) {
    if (other.at != group.at || other.warp != group.warp) continue;
    Threads both(other.threads.size() + group.threads.size());
    std::merge(other.threads.begin(), other.threads.end(), group.threads.begin(),
               group.threads.end(), both.begin());
    other.threads = std::move(both);
    return;
  }
  groups.push_back(std::move(group));
}

void Block::start() {
  ready_.clear(), at_barrier_.clear(), in_exchange_.clear();
  left_ = machine_.threads, steps_ = 0;
  gone_.assign(std::size_t(left_), false);
  const int size = order_ == Order::in_step ? left_ : warp_size;
  for (int first = 0; first < left_; first += size) {
    Threads threads(std::size_t(std::min(size, left_ - first)));
    std::iota(threads.begin(), threads.end(), uint16_t(first));
    ready_.push_back({0, order_ == Order::in_step ? -1 : first / warp_size, std::move(threads)});
  }
}

Block::Group Block::take_next() {
  int warp = ready_.front().warp;
  if (order_ == Order::shuffled) warp = ready_[random() % ready_.size()].warp;
  for (const Group& group : ready_) {
    if (order_ == Order::ascending) warp = std::min(warp, group.warp);
    if (order_ == Order::descending) warp = std::max(warp, group.warp);
  }
  std::size_t best = ready_.size();
  for (std::size_t n = 0; n < ready_.size(); ++n)
    if (ready_[n].warp == warp && (best == ready_.size() || ready_[n].at < ready_[best].at))
      best = n;
  Group group = std::move(ready_[best]);
  ready_.erase(ready_.begin() + std::ptrdiff_t(best));
  return group;
}

int Block::next_of_others(int warp) const {
  int next = std::numeric_limits<int>::max();
  for (const Group& group : ready_)
    if (group.warp == warp) next = std::min(next, group.at);
  return next;
}

void Block::release() {
  if (!in_exchange_.empty()) {
    machine_.current = &kernel_.code[std::size_t(in_exchange_.front().at)];
    machine_.fail("threads wait for others of their mask that never come");
  }
  machine_.current = &kernel_.code[std::size_t(at_barrier_.front().at - 1)];
  if (left_ < machine_.threads) machine_.fail("a barrier that some threads have left out");
  std::swap(ready_, at_barrier_);
}

void Block::run() {
  start();
  while (left_ > 0) {
    if (ready_.empty()) release();
    go(take_next());
  }
}

void Block::go(Group group) {
  const int meeting = next_of_others(group.warp);
  uint64_t turns =
      order_ == Order::shuffled ? 1 + random() % 40 : std::numeric_limits<uint64_t>::max();
  do {
    if (group.at >= meeting || turns-- == 0) return put(ready_, std::move(group));
    if (++steps_ > most_steps_) machine_.fail("it does not end");
    ++kernel_.executed[std::size_t(group.at)];
  } while (step(group, kernel_.code[std::size_t(group.at)]));
}

/// Returns the threads for which the guard holds; the others are in others_.
Block::Guarded Block::guarded(const Group& group, const Instruction& i) {
  const Threads& threads = group.threads;
  const int count = int(threads.size());
  others_.clear();
  if (!i.guarded) return {threads.data(), count};
  const uint8_t* const guard =
      reinterpret_cast<const uint8_t*>(machine_.registers + i.guard * machine_.padded);
  const uint8_t inverted = i.guard_inverted;
  int holding = 0;
  Lanes(threads.data(), count).each([&](int l) { holding += guard[l] ^ inverted; });
  if (holding == count) return {threads.data(), count};
  if (holding == 0) return others_ = threads, Guarded{nullptr, 0};
  taken_.clear();
  for (const uint16_t l : threads) (guard[l] ^ inverted ? taken_ : others_).push_back(l);
  return {taken_.data(), holding};
}

bool Block::step(Group& group, const Instruction& i) {
  machine_.current = &i;
  const Guarded taken = guarded(group, i);
  switch (i.flow) {
    case Flow::next:
      if (taken.count > 0) i.run(machine_, i, Lanes(taken.list, taken.count));
      return ++group.at, true;
    case Flow::branch: return branch(group, i, taken);
    case Flow::leave: return leave(group, taken);
    case Flow::barrier: return arrive(group, taken);
    case Flow::exchange: return exchange(group, i, taken);
  }
  return false;
}

bool Block::branch(Group& group, const Instruction& i, const Guarded& taken) {
  if (others_.empty()) return group.at = i.target, true;
  if (taken.count == 0) return ++group.at, true;
  ready(i.target, group.warp, taken_), ready(group.at + 1, group.warp, others_);
  return false;
}

bool Block::leave(Group& group, const Guarded& taken) {
  for (int n = 0; n < taken.count; ++n) gone_[taken.list[n]] = true;
  left_ -= taken.count;
  if (others_.empty()) return false;
  group.threads = others_, ++group.at;
  return true;
}

bool Block::arrive(Group& group, const Guarded& taken) {
  ++group.at;
  if (taken.count == machine_.threads) return true;
  if (taken.count > 0)
    put(at_barrier_, {group.at, group.warp, Threads(taken.list, taken.list + taken.count)});
  if (!others_.empty()) ready(group.at, group.warp, others_);
  return false;
}

/// Returns whether the threads are whole warps and their masks name all lanes: the usual case.
bool Block::all_present(const Instruction& i, const Threads& threads) const {
  const int count = int(threads.size());
  if (threads[0] % warp_size != 0 || count % warp_size != 0 ||
      threads.back() - threads[0] + 1 != count)
    return false;
  if (i.whole_warp) return true;
  const uint32_t* const mask = machine_.row<uint32_t>(i.operands[i.operand_count - 1]);
  uint32_t all = ~uint32_t(0);
  for (int l = threads[0]; l < threads[0] + count; ++l) all &= mask[l];
  return all == ~uint32_t(0);
}

Block::Threads Block::complete(const Instruction& i, Threads& threads) const {
  Threads here, missing;
  for (std::size_t first = 0; first < threads.size();) {
    const int warp = threads[first] / warp_size;
    std::size_t last = first;
    uint32_t present = 0, exist = 0;
    for (; last < threads.size() && threads[last] / warp_size == warp; ++last)
      present |= 1u << threads[last] % warp_size;
    for (int lane = 0; lane < warp_size; ++lane) {
      const int thread = warp * warp_size + lane;
      if (thread < machine_.threads && !gone_[std::size_t(thread)]) exist |= 1u << lane;
    }
    const uint32_t mask =
        i.whole_warp ? ~0u
                     : machine_.row<uint32_t>(i.operands[i.operand_count - 1])[threads[first]];
    if (present & ~mask) machine_.fail("a lane in an exchange whose mask leaves it out");
    if (i.whole_warp && exist != ~0u)
      machine_.fail("an instruction of a whole warp, of which lanes have left");
    Threads& to = present == (mask & exist) ? here : missing;
    to.insert(to.end(), threads.begin() + std::ptrdiff_t(first),
              threads.begin() + std::ptrdiff_t(last));
    first = last;
  }
  threads = std::move(missing);
  return here;
}

bool Block::exchange(Group& group, const Instruction& i, const Guarded& taken) {
  if (others_.empty() && all_present(i, group.threads)) {
    i.run(machine_, i, Lanes(taken.list, taken.count));
    return ++group.at, true;
  }
  if (!others_.empty()) ready(group.at + 1, group.warp, others_);
  if (taken.count == 0) return false;
  Threads waiting(taken.list, taken.list + taken.count);
  put(in_exchange_, {group.at, group.warp, std::move(waiting)});
  const auto met = std::find_if(in_exchange_.begin(), in_exchange_.end(), [&](const Group& g) {
    return g.at == group.at && g.warp == group.warp;
  });
  const Threads here = complete(i, met->threads);
  if (met->threads.empty()) in_exchange_.erase(met);
  if (here.empty()) return false;
  i.run(machine_, i, Lanes(here.data(), int(here.size())));
  ready(group.at + 1, group.warp, here);
  return false;
}

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

// Shuffles and votes between the lanes of a warp. Before them, the block has checked that every
// lane of a mask has arrived.

namespace {

/// Calls f(first, count) for the lanes of each warp.
template <class F> void each_warp(const Lanes& lanes, F f) {
  for (int first = 0; first < lanes.count;) {
    int last = first;
    while (last < lanes.count && lanes.list[last] / warp_size == lanes.list[first] / warp_size)
      ++last;
    f(first, last - first);
    first = last;
  }
}

enum Direction : uint8_t { up, down, butterfly, index };
struct Source {
  int lane;
  bool inside;  // in the segment; otherwise a lane keeps its own value
};
/// "PTX ISA", shfl: c has a mask of segments (bits 8 to 12) and a clamp (bits 0 to 4).
Source source_of(int lane, uint32_t b, uint32_t c, uint8_t direction) {
  const uint32_t segment = c >> 8 & 31, clamp = c & 31, own = uint32_t(lane);
  const int last = int((own & segment) | (clamp & ~segment)), first = int(own & segment),
            by = int(b & 31);
  int from = 0;
  if (direction == up) from = lane - by;
  if (direction == down) from = lane + by;
  if (direction == butterfly) from = lane ^ by;
  if (direction == index) from = first | (by & ~int(segment));
  const bool inside = direction == up ? from >= last : from <= last;
  return {inside ? from : lane, inside};
}

/// Operands: d, p, a, b, c, mask.
void shuffle(Machine& m, const Instruction& i, const Lanes& lanes) {
  uint32_t* const d = m.result<uint32_t>(i);
  uint8_t* const p = m.result<uint8_t>(i, 1);
  const uint32_t *const a = m.value<uint32_t>(i, 2), *const b = m.value<uint32_t>(i, 3),
                        *const c = m.value<uint32_t>(i, 4);
  each_warp(lanes, [&](int first, int count) {
    std::array<uint32_t, warp_size> offered{};
    uint32_t here = 0;
    for (int k = first; k < first + count; ++k) {
      const int l = lanes.list[k];
      offered[std::size_t(l % warp_size)] = a[l], here |= 1u << l % warp_size;
    }
    for (int k = first; k < first + count; ++k) {
      const int l = lanes.list[k];
      const Source source = source_of(l % warp_size, b[l], c[l], i.variant);
      if (!(here >> source.lane & 1))
        m.fail("thread " + std::to_string(l) + " reads from lane " + std::to_string(source.lane) +
               ", which takes no part");
      d[l] = offered[std::size_t(source.lane)], p[l] = source.inside;
    }
  });
}

/// Operands: d, a, mask.
void ballot(Machine& m, const Instruction& i, const Lanes& lanes) {
  uint32_t* const d = m.result<uint32_t>(i);
  const uint8_t* const a = m.value<uint8_t>(i, 1);
  const bool inverted = i.operands[1].inverted;
  each_warp(lanes, [&](int first, int count) {
    uint32_t votes = 0;
    for (int k = first; k < first + count; ++k)
      votes |= uint32_t((a[lanes.list[k]] != 0) != inverted) << lanes.list[k] % warp_size;
    for (int k = first; k < first + count; ++k) d[lanes.list[k]] = votes;
  });
}

}  // namespace

void add_exchanges(Operations& all) {
  uint8_t direction = up;
  for (const char* name : {"up", "down", "bfly", "idx"}) {
    Operation& operation = all.add(std::string("shfl.sync.") + name + ".b32", shuffle, {4, 1, 4});
    operation.form = Form::shuffle, operation.flow = Flow::exchange, operation.results = 2;
    operation.variant = direction++;
  }
  all.add("vote.sync.ballot.b32", ballot, {4, 1, 4}).flow = Flow::exchange;
}

// Loads, stores and atomics, with the bounds of each kind of memory.

namespace {

std::string hexadecimal(uint64_t number) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(number));
  return text;
}

}  // namespace

/// Throws a fault, or finds another allocation of global memory for an address than the last one.
std::byte* Machine::checked_memory(Space space, uint64_t address, uint32_t bytes, int thread) {
  const std::string access = std::to_string(bytes) + " bytes at " + hexadecimal(address) +
                             ", thread " + std::to_string(thread);
  if (address % bytes != 0) fail("not aligned: " + access);
  static constexpr const char* names[] = {"global", "shared", "local", "parameter"};
  if (space != Space::generic)
    fail("outside of the " + std::to_string(ranges[int(space)].bytes) + " bytes of " +
         names[int(space)] + " memory: " + access);
  const Range shared{reinterpret_cast<uint64_t>(bases[int(Space::shared)]),
                     ranges[int(Space::shared)].bytes};
  // Every thread has the same generic addresses for its own local memory.
  const Range local{reinterpret_cast<uint64_t>(bases[int(Space::local)]),
                    ranges[int(Space::local)].bytes};
  if (local.holds(address, bytes))
    return bases[int(Space::local)] + (address - local.first) + std::size_t(thread) * local.bytes;
  Range found = shared.holds(address, bytes) ? shared : kernel->module->variable_at(address);
  if (!found.holds(address, bytes) && find_allocation) found = find_allocation(address);
  if (!found.holds(address, bytes)) fail("in no allocation: " + access);
  ranges[int(space)] = found;
  return reinterpret_cast<std::byte*>(address);
}

namespace {

/// Calls access(lane, memory) for each lane. The first memory operand of `i` is an address.
template <class F>
void each_address(Machine& m, const Operand& operand, Space space, uint32_t bytes,
                  const Lanes& lanes, F access) {
  const uint64_t displacement = uint64_t(operand.displacement);
  if (operand.width == 8) {
    const uint64_t* const row = m.row<uint64_t>(operand);
    lanes.each([&](int l) { access(l, m.memory(space, row[l] + displacement, bytes, l)); });
  } else {
    const uint32_t* const row = m.row<uint32_t>(operand);
    lanes.each(
        [&](int l) { access(l, m.memory(space, uint32_t(row[l] + displacement), bytes, l)); });
  }
}

/// Returns the first address if the numbers of the lanes are adjacent in memory.
template <class T>
const uint64_t* consecutive(Machine& m, const Operand& operand, const Lanes& lanes) {
  if (!lanes.dense || operand.width != 8) return nullptr;
  const uint64_t* const row = m.row<uint64_t>(operand) + lanes.list[0];
  uint64_t wrong = 0;
  for (int k = 0; k < lanes.count; ++k) wrong |= row[k] - row[0] - sizeof(T) * unsigned(k);
  return wrong == 0 ? row : nullptr;
}

template <class Memory, class Register>
void load(Machine& m, const Instruction& i, const Lanes& lanes) {
  const Operand& address = i.operands[i.results];
  const int elements = i.results;
  if (elements == 1 && i.space == Space::generic) {
    if (const uint64_t* const first = consecutive<Memory>(m, address, lanes)) {
      const auto bytes = uint32_t(sizeof(Memory)) * uint32_t(lanes.count);
      const uint64_t start = *first + uint64_t(address.displacement);
      if (start % sizeof(Memory) == 0 && m.ranges[0].holds(start, bytes)) {
        const auto* const from = reinterpret_cast<const Memory*>(start);
        Register* const d = m.result<Register>(i) + lanes.list[0];
        for (int k = 0; k < lanes.count; ++k) d[k] = Register(from[k]);
        return;
      }
    }
  }
  Register* d[4]{};
  for (int e = 0; e < elements; ++e) d[e] = m.result<Register>(i, e);
  each_address(m, address, i.space, uint32_t(sizeof(Memory)) * uint32_t(elements), lanes,
               [&](int l, const std::byte* at) {
                 const auto* const from = reinterpret_cast<const Memory*>(at);
                 for (int e = 0; e < elements; ++e) d[e][l] = Register(from[e]);
               });
}

template <class Memory, class Register>
void store(Machine& m, const Instruction& i, const Lanes& lanes) {
  const int elements = i.operand_count - 1;
  const Register* from[4]{};
  for (int e = 0; e < elements; ++e) from[e] = m.value<Register>(i, 1 + e);
  each_address(m, i.operands[0], i.space, uint32_t(sizeof(Memory)) * uint32_t(elements), lanes,
               [&](int l, std::byte* at) {
                 auto* const to = reinterpret_cast<Memory*>(at);
                 for (int e = 0; e < elements; ++e) to[e] = Memory(from[e][l]);
               });
}

/// A value that is narrower than its register is extended by its sign or by zeros.
template <class Type>
void add_access(Operations& all, const std::string& start, Form form, Space space,
                uint8_t elements) {
  using T = typename Type::T;
  Operation operation;
  operation.name = start + Type::name;
  operation.form = form, operation.space = space, operation.elements = elements;
  operation.results = form == Form::load ? elements : 0;
  operation.widths = {sizeof(T)};
  const bool loads = form == Form::load;
  if constexpr (sizeof(T) <= 2)
    operation.by_width[0] = loads ? load<T, uint16_t> : store<T, uint16_t>;
  if constexpr (sizeof(T) <= 4 && std::is_integral_v<T>)
    operation.by_width[1] = loads ? load<T, uint32_t> : store<T, uint32_t>;
  if constexpr (std::is_same_v<T, float>)
    operation.by_width[1] = loads ? load<T, float> : store<T, float>;
  if constexpr (std::is_integral_v<T>)
    operation.by_width[2] = loads ? load<T, uint64_t> : store<T, uint64_t>;
  if constexpr (std::is_same_v<T, double>)
    operation.by_width[2] = loads ? load<T, double> : store<T, double>;
  all.add(std::move(operation));
}
template <class... Types>
void add_accesses(Operations& all, const std::string& name, Form form, Space space) {
  (add_access<Types>(all, name + ".", form, space, 1), ...);
  (add_access<Types>(all, name + ".v2.", form, space, 2), ...);
  (add_access<Types>(all, name + ".v4.", form, space, 4), ...);
}

/// Converts an address of a space to a generic one, or with `back` a generic one to an address of
/// the space.
template <bool back> void space_cast(Machine& m, const Instruction& i, const Lanes& lanes) {
  uint64_t* const d = m.result<uint64_t>(i);
  const uint64_t* const a = m.value<uint64_t>(i, 1);
  const uint64_t base =
      i.space == Space::generic ? 0 : reinterpret_cast<uint64_t>(m.bases[int(i.space)]);
  lanes.each([=](int l) { d[l] = back ? a[l] - base : a[l] + base; });
}

struct Exchange {
  template <class T> T operator()(T, T b, T) const { return b; }
};
struct AtomicAdd {
  template <class T> T operator()(T old, T b, T) const { return T(old + b); }
};
struct AtomicMax {
  template <class T> T operator()(T old, T b, T) const { return std::max(old, b); }
};
struct AtomicMin {
  template <class T> T operator()(T old, T b, T) const { return std::min(old, b); }
};
struct CompareAndSwap {
  template <class T> T operator()(T old, T b, T c) const { return old == b ? c : old; }
};

/// Threads run one after another, in the order of the lanes.
template <class T, class Op> void atomic(Machine& m, const Instruction& i, const Lanes& lanes) {
  T* const d = m.result<T>(i);
  const T *const b = m.value<T>(i, 2), *const c = i.operand_count > 3 ? m.value<T>(i, 3) : b;
  each_address(m, i.operands[1], i.space, sizeof(T), lanes, [=](int l, std::byte* at) {
    T* const place = reinterpret_cast<T*>(at);
    const T old = *place;
    *place = Op()(old, b[l], c[l]);
    d[l] = old;
  });
}
template <class Type, class Op> void add_atomic(Operations& all, const std::string& name) {
  using T = typename Type::T;
  for (const auto& [text, space] :
       {std::pair("global", Space::generic), {"shared", Space::shared}}) {
    Operation& operation = all.add("atom." + std::string(text) + "." + name + "." + Type::name,
                                   atomic<T, Op>, {sizeof(T)});
    operation.form = Form::atomic, operation.space = space;
  }
}

}  // namespace

void add_memory(Operations& all) {
  for (const auto& [name, space] : {std::pair("ld", Space::generic),
                                    {"ld.global", Space::generic},
                                    {"ld.global.nc", Space::generic},
                                    {"ld.param", Space::parameter},
                                    {"ld.shared", Space::shared},
                                    {"ld.local", Space::local}})
    add_accesses<U8, S8, U16, S16, B16, U32, S32, B32, U64, S64, B64, F32, F64>(all, name,
                                                                                Form::load, space);
  // A parameter of a call is in the thread's memory.
  for (const auto& [name, space] : {std::pair("st", Space::generic),
                                    {"st.global", Space::generic},
                                    {"st.param", Space::local},
                                    {"st.shared", Space::shared},
                                    {"st.local", Space::local}})
    add_accesses<U8, U16, B16, U32, B32, U64, B64, F32, F64>(all, name, Form::store, space);
  for (const auto& [name, space] : {std::pair("global.u64", Space::generic),
                                    {"shared.u64", Space::shared},
                                    {"local.u64", Space::local}}) {
    for (const bool back : {false, true}) {
      Operation& operation = all.add(std::string(back ? "cvta.to." : "cvta.") + name,
                                     back ? space_cast<true> : space_cast<false>, {8});
      operation.form = Form::space_cast, operation.space = space;
    }
  }
  add_atomic<U32, AtomicAdd>(all, "add"), add_atomic<S32, AtomicAdd>(all, "add");
  add_atomic<U32, AtomicMax>(all, "max"), add_atomic<S32, AtomicMax>(all, "max");
  add_atomic<U32, AtomicMin>(all, "min"), add_atomic<S32, AtomicMin>(all, "min");
  add_atomic<B32, CompareAndSwap>(all, "cas"), add_atomic<B32, Exchange>(all, "exch");
}

// Tensor cores: wmma of 16 x 16 x 16. PTX does not define which lane has which element of a tile;
// here element e of lane t is number 8 t + e in the order of rows. A tile of f16 has eight
// registers; four of them repeat the others.

namespace {

constexpr int side = 16, lane_elements = 8;
enum Variant : uint8_t { rows = 0, columns = 1, is_bf16 = 2 };

/// A tile in memory: all lanes must have the same address and stride.
struct Tile {
  std::byte* data;
  uint64_t stride;
  bool by_columns;
  std::byte* element(int number, std::size_t bytes) const {
    const uint64_t row = uint64_t(number / side), column = uint64_t(number % side);
    return data + (by_columns ? column * stride + row : row * stride + column) * bytes;
  }
};
uint64_t address_at(Machine& m, const Operand& operand, int lane) {
  if (operand.width == 8) return m.row<uint64_t>(operand)[lane] + uint64_t(operand.displacement);
  return uint32_t(m.row<uint32_t>(operand)[lane] + uint64_t(operand.displacement));
}
Tile tile_of(Machine& m, const Instruction& i, const Operand& where, const Operand& stride,
             int first, uint32_t bytes) {
  const uint64_t address = address_at(m, where, first);
  const uint32_t* const strides = m.row<uint32_t>(stride);
  for (int l = first; l < first + warp_size; ++l)
    if (address_at(m, where, l) != address || strides[l] != strides[first])
      m.fail("the lanes of a warp have different tiles");
  if (strides[first] * bytes % 16 != 0)
    m.fail("a stride of " + std::to_string(strides[first]) +
           " elements is not a multiple of 16 bytes");
  std::byte* const data = m.memory(i.space, address, 32, first);
  const uint64_t last = address + ((side - 1) * uint64_t(strides[first]) + side) * bytes;
  m.memory(i.space, last - bytes, bytes, first);
  return {data, strides[first], bool(i.variant & columns)};
}

/// Operands: registers, address, stride.
template <class T> void load_tile(Machine& m, const Instruction& i, const Lanes& lanes) {
  const int registers = i.results, per_register = int(4 / sizeof(T));
  for (int k = 0; k < lanes.count; k += warp_size) {
    const int first = lanes.list[k];
    const Tile tile =
        tile_of(m, i, i.operands[registers], i.operands[registers + 1], first, sizeof(T));
    for (int l = first; l < first + warp_size; ++l)
      for (int r = 0; r < registers; ++r) {
        std::array<T, 4 / sizeof(T)> values;
        for (int e = 0; e < per_register; ++e)
          std::memcpy(
              &values[std::size_t(e)],
              tile.element(lane_elements * (l - first) + (r * per_register + e) % lane_elements,
                           sizeof(T)),
              sizeof(T));
        std::memcpy(m.result<uint32_t>(i, r) + l, &values, 4);
      }
  }
}
/// Operands: address, registers, stride.
void store_tile(Machine& m, const Instruction& i, const Lanes& lanes) {
  for (int k = 0; k < lanes.count; k += warp_size) {
    const int first = lanes.list[k];
    const Tile tile = tile_of(m, i, i.operands[0], i.operands[1 + lane_elements], first, 4);
    for (int l = first; l < first + warp_size; ++l)
      for (int e = 0; e < lane_elements; ++e)
        std::memcpy(tile.element(lane_elements * (l - first) + e, 4), m.value<float>(i, 1 + e) + l,
                    4);
  }
}

using Matrix = std::array<std::array<float, side>, side>;
Matrix short_matrix(Machine& m, const Instruction& i, int operand, int first) {
  Matrix matrix;
  for (int t = 0; t < warp_size; ++t)
    for (int e = 0; e < lane_elements; ++e) {
      const uint32_t pair = m.value<uint32_t>(i, operand + e / 2)[first + t];
      const auto bits = uint16_t(pair >> (16 * (e % 2)));
      const auto number = std::size_t(lane_elements * t + e);
      matrix[number / side][number % side] =
          i.variant & is_bf16 ? bits_as<float>(uint32_t(bits) << 16) : _cvtsh_ss(bits);
    }
  return matrix;
}
/// Operands: d (8), a, b, c (8). Products are exact; each sum is rounded once.
void multiply(Machine& m, const Instruction& i, const Lanes& lanes) {
  const int factor = (i.operand_count - 2 * lane_elements) / 2;
  for (int k = 0; k < lanes.count; k += warp_size) {
    const int first = lanes.list[k];
    const Matrix a = short_matrix(m, i, lane_elements, first),
                 b = short_matrix(m, i, lane_elements + factor, first);
    for (std::size_t row = 0; row < side; ++row) {
      std::array<double, side> sums{};
      for (std::size_t inner = 0; inner < side; ++inner)
        for (std::size_t column = 0; column < side; ++column)
          sums[column] += double(a[row][inner]) * b[inner][column];
      for (std::size_t column = 0; column < side; ++column) {
        const int number = int(row * side + column), l = first + number / lane_elements,
                  e = number % lane_elements;
        const float before = m.value<float>(i, lane_elements + 2 * factor + e)[l];
        m.result<float>(i, e)[l] = float(before + sums[column]);
      }
    }
  }
}

}  // namespace

void add_matrices(Operations& all) {
  const auto add = [&](const std::string& name, Run run, uint8_t results, unsigned variant,
                       Space space) {
    Operation& operation = all.add("wmma." + name, run, {4});
    operation.form = Form::matrix, operation.flow = Flow::exchange, operation.results = results;
    operation.variant = uint8_t(variant), operation.space = space;
  };
  for (const auto& [order, by_columns] : {std::pair(".row", rows), {".col", columns}})
    for (const auto& [shared, space] :
         {std::pair("", Space::generic), {".shared", Space::shared}}) {
      const std::string shape = ".sync.aligned" + std::string(order) + ".m16n16k16" + shared;
      for (const char* factor : {"load.a", "load.b"}) {
        add(factor + shape + ".f16", load_tile<uint16_t>, 8, by_columns, space);
        add(factor + shape + ".bf16", load_tile<uint16_t>, 4, by_columns, space);
      }
      add("load.c" + shape + ".f32", load_tile<float>, 8, by_columns, space);
      add("store.d" + shape + ".f32", store_tile, 0, by_columns, space);
    }
  for (const char* a : {"row", "col"})
    for (const char* b : {"row", "col"}) {
      const std::string shape = std::string("mma.sync.aligned.") + a + "." + b + ".m16n16k16.f32.";
      add(shape + "f32", multiply, 8, rows, Space::generic);
      add(shape + "bf16.bf16.f32", multiply, 8, is_bf16, Space::generic);
    }
}

}  // namespace halftone::ptx
