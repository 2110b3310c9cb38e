// The threads of a block are fibers on one operating system thread. Each runs until it waits at a
// barrier or a warp exchange. When all of them wait, the waits that are complete are released. A
// barrier that some threads never reach is an error here, and a hang on a GPU.

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include <sys/mman.h>

#include <cuda_runtime.h>

#include "machine.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

// Saves the registers that a call preserves, changes the stack, restores them (System V, x86-64).
extern "C" void halftone_switch_stack(void** from, void* to);
asm(R"(
.text
.type halftone_switch_stack, @function
.globl halftone_switch_stack
halftone_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");

namespace halftone::emulation {

namespace {
constexpr std::size_t stack_bytes = std::size_t(1) << 17;
constexpr int most_threads = 1024, warp = 32;

enum class State : uint8_t { ready, at_block_barrier, in_exchange, done };

struct Fiber {
  void* stack_pointer = nullptr;
  std::byte* stack = nullptr;
  State state = State::done;
  int rests = 0;          // turns that it skips although it is ready
  unsigned mask = 0;      // the lanes of the exchange that it waits in
  unsigned turn = 0;      // the number of exchanges it has done
  uint64_t offered[2]{};  // by parity: a lane is at most one exchange ahead
  uint3 index{};
};

struct Block {
  std::vector<Fiber> fibers;
  int threads = 0, current = 0;
  bool running = false;  // a thread runs
  void* scheduler = nullptr;
  const std::function<void()>* thread = nullptr;
  ThreadOrder order = ThreadOrder::ascending;
  uint64_t block_order = number_from("HALFTONE_EMULATED_BLOCK_ORDER");
};
Block& block() {
  static Block* instance = new Block;
  return *instance;
}

[[noreturn]] void stop(const char* what) {
  std::fprintf(stderr, "[cuda emulation] %s: block (%u, %u, %u), thread %d of %d\n", what,
               blockIdx.x, blockIdx.y, blockIdx.z, block().current, block().threads);
  std::abort();
}

void switch_stack(void** from, void* to, [[maybe_unused]] const void* bottom,
                  [[maybe_unused]] std::size_t size, [[maybe_unused]] bool dies = false) {
#if defined(__SANITIZE_ADDRESS__)
  void* fake = nullptr;
  __sanitizer_start_switch_fiber(dies ? nullptr : &fake, bottom, size);
  halftone_switch_stack(from, to);
  __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#else
  halftone_switch_stack(from, to);
#endif
}

#if defined(__SANITIZE_ADDRESS__)
const void* scheduler_bottom = nullptr;
std::size_t scheduler_size = 0;
#else
constexpr const void* scheduler_bottom = nullptr;
constexpr std::size_t scheduler_size = 0;
#endif

void yield() {
  Fiber& fiber = block().fibers[std::size_t(block().current)];
  switch_stack(&fiber.stack_pointer, block().scheduler, scheduler_bottom, scheduler_size);
  threadIdx = fiber.index;
}

void fiber_main() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &scheduler_bottom, &scheduler_size);
#endif
  (*block().thread)();
  Fiber& fiber = block().fibers[std::size_t(block().current)];
  fiber.state = State::done;
  switch_stack(&fiber.stack_pointer, block().scheduler, scheduler_bottom, scheduler_size, true);
  std::abort();  // a fiber that is done is never resumed
}

std::byte* new_stack() {
  void* memory = mmap(nullptr, stack_bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) stop("no memory for a stack");
  mprotect(memory, 4096, PROT_NONE);
  return static_cast<std::byte*>(memory);
}

void prepare(Fiber& fiber) {
  if (!fiber.stack) fiber.stack = new_stack();
  void** top = reinterpret_cast<void**>(fiber.stack + stack_bytes);
  *--top = nullptr;  // where a return address would be: keeps the stack aligned as after a call
  *--top = reinterpret_cast<void*>(&fiber_main);
  for (int saved = 0; saved < 6; ++saved) *--top = nullptr;
  fiber.stack_pointer = top;
  fiber.state = State::ready, fiber.turn = 0, fiber.rests = 0;
}

void resume(int thread) {
  Block& b = block();
  Fiber& fiber = b.fibers[std::size_t(thread)];
  b.current = thread;
  threadIdx = fiber.index;
  b.running = true;
  switch_stack(&b.scheduler, fiber.stack_pointer, fiber.stack, stack_bytes);
  b.running = false;
}

bool release_exchanges() {
  Block& b = block();
  bool any = false;
  for (int first = 0; first < b.threads; first += warp) {
    const int lanes = std::min(warp, b.threads - first);
    for (int lane = 0; lane < lanes; ++lane) {
      const Fiber& one = b.fibers[std::size_t(first + lane)];
      if (one.state != State::in_exchange) continue;
      // All lanes of its mask that exist must be in the same exchange.
      bool complete = true;
      for (int other = 0; other < lanes; ++other) {
        if (!(one.mask >> other & 1)) continue;
        const Fiber& f = b.fibers[std::size_t(first + other)];
        complete &= f.state == State::in_exchange && f.mask == one.mask && f.turn == one.turn;
      }
      if (!complete) continue;
      const unsigned mask = one.mask;
      for (int other = 0; other < lanes; ++other)
        if (mask >> other & 1) b.fibers[std::size_t(first + other)].state = State::ready;
      any = true;
    }
  }
  return any;
}

bool release_block_barrier() {
  Block& b = block();
  for (int i = 0; i < b.threads; ++i)
    if (b.fibers[std::size_t(i)].state != State::at_block_barrier &&
        b.fibers[std::size_t(i)].state != State::done)
      return false;
  bool any = false, early = false;
  for (int i = 0; i < b.threads; ++i) {
    Fiber& fiber = b.fibers[std::size_t(i)];
    early |= fiber.state == State::done;
    if (fiber.state != State::at_block_barrier) continue;
    fiber.state = State::ready, any = true;
  }
  if (any && early) stop("a barrier that some threads have left out");
  return any;
}

/// The n-th thread to run: a permutation of 0 .. threads - 1.
int in_order(int n) {
  const Block& b = block();
  if (b.order == ThreadOrder::ascending) return n;
  if (b.order == ThreadOrder::descending) return b.threads - 1 - n;
  int step = 7919;
  while (std::gcd(step, b.threads) != 1) ++step;
  return int((int64_t(n) * step + 13) % b.threads);
}

void run_block() {
  Block& b = block();
  for (int i = 0; i < b.threads; ++i) prepare(b.fibers[std::size_t(i)]);
  for (;;) {
    int ran = 0, done = 0;
    for (int n = 0; n < b.threads; ++n) {
      const int i = in_order(n);
      Fiber& fiber = b.fibers[std::size_t(i)];
      if (fiber.state == State::ready) {
        if (fiber.rests > 0) --fiber.rests;
        else resume(i);
        ++ran;
      }
      done += fiber.state == State::done;
    }
    if (done == b.threads) return;
    const bool released = release_exchanges() || release_block_barrier();
    if (!released && ran == 0) stop("threads wait for others that never come");
  }
}

}  // namespace

void run_grid(dim3 grid, dim3 threads, const std::function<void()>& thread) {
  Block& b = block();
  b.threads = int(threads.x * threads.y * threads.z);
  if (b.threads < 1 || b.threads > most_threads) stop("a block of a size that no GPU takes");
  if (int(b.fibers.size()) < b.threads) b.fibers.resize(std::size_t(b.threads));
  b.thread = &thread;
  gridDim = grid, blockDim = threads;
  int i = 0;
  for (unsigned z = 0; z < threads.z; ++z)
    for (unsigned y = 0; y < threads.y; ++y)
      for (unsigned x = 0; x < threads.x; ++x) b.fibers[std::size_t(i++)].index = {x, y, z};
  const uint64_t blocks = uint64_t(grid.x) * grid.y * grid.z;
  for (uint64_t n = 0; n < blocks; ++n) {
    const uint64_t at = block_in_order(n, blocks, b.block_order);
    blockIdx = {unsigned(at % grid.x), unsigned(at / grid.x % grid.y),
                unsigned(at / grid.x / grid.y)};
    run_block();
  }
}

cudaError_t launch(const cudaLaunchConfig_t& config, std::function<void()> thread) {
  return launch_work(config, [grid = config.gridDim, threads = config.blockDim,
                              thread = std::move(thread)] { run_grid(grid, threads, thread); });
}

void hand_over(int turns) {
  if (!block().running) return;
  block().fibers[std::size_t(block().current)].rests = turns;
  yield();
}

void set_block_order(uint64_t seed) { block().block_order = seed; }
void set_thread_order(ThreadOrder order) { block().order = order; }

int lane() { return block().current % warp; }

void block_barrier() {
  block().fibers[std::size_t(block().current)].state = State::at_block_barrier;
  yield();
}

namespace {
/// Waits until all lanes of the mask are here. Returns the parity under which they left their
/// offers.
unsigned meet(unsigned mask, uint64_t value) {
  Fiber& fiber = block().fibers[std::size_t(block().current)];
  if (!(mask >> lane() & 1)) stop("a lane in an exchange whose mask leaves it out");
  const unsigned parity = fiber.turn & 1;
  fiber.offered[parity] = value;
  fiber.mask = mask, fiber.state = State::in_exchange;
  yield();
  ++fiber.turn;
  return parity;
}
}  // namespace

void warp_barrier(unsigned mask) { meet(mask, 0); }

uint64_t exchange(unsigned mask, uint64_t value, int (*source)(int lane, int argument),
                  int argument) {
  const unsigned parity = meet(mask, value);
  const int from = source(lane(), argument), first = block().current - lane();
  if (first + from >= block().threads || !(mask >> from & 1))
    stop("an exchange with a lane that takes no part");
  return block().fibers[std::size_t(first + from)].offered[parity];
}

unsigned ballot(unsigned mask, bool value) {
  const unsigned parity = meet(mask, value);
  const int first = block().current - lane();
  unsigned result = 0;
  for (int i = 0; i < warp && first + i < block().threads; ++i)
    if (mask >> i & 1)
      result |= unsigned(block().fibers[std::size_t(first + i)].offered[parity]) << i;
  return result;
}

}  // namespace halftone::emulation
