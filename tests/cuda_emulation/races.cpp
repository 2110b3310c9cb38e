// Switches to another thread of the block at any access to memory. The kernels of this build are
// compiled with -fsanitize=thread, only for its calls before each access. These calls are
// implemented here and switch now and then. A kernel whose threads share memory without a barrier
// then gives results that differ from those in order.
#include "races.h"

#include "machine.h"

namespace halftone::emulation {

namespace {
int undivided = 0;
const uint64_t chance = number_from("HALFTONE_EMULATED_RACES");  // one access in `chance`; 0: none
uint64_t state = 88172645463325252;

void at_access() {
  if (chance == 0 || undivided > 0) return;
  state ^= state << 13, state ^= state >> 7, state ^= state << 17;  // Marsaglia 2003
  if (state % chance == 0) hand_over(1 + int(state >> 40) % 64);
}
}  // namespace

Undivided::Undivided() { ++undivided; }
Undivided::~Undivided() { --undivided; }

}  // namespace halftone::emulation

#define HALFTONE_ACCESS(name) \
  extern "C" void __tsan_##name(void*) { halftone::emulation::at_access(); }
HALFTONE_ACCESS(read1)
HALFTONE_ACCESS(read2)
HALFTONE_ACCESS(read4)
HALFTONE_ACCESS(read8)
HALFTONE_ACCESS(read16)
HALFTONE_ACCESS(write1)
HALFTONE_ACCESS(write2)
HALFTONE_ACCESS(write4)
HALFTONE_ACCESS(write8)
HALFTONE_ACCESS(write16)
HALFTONE_ACCESS(unaligned_read2)
HALFTONE_ACCESS(unaligned_read4)
HALFTONE_ACCESS(unaligned_read8)
HALFTONE_ACCESS(unaligned_read16)
HALFTONE_ACCESS(unaligned_write2)
HALFTONE_ACCESS(unaligned_write4)
HALFTONE_ACCESS(unaligned_write8)
HALFTONE_ACCESS(unaligned_write16)
HALFTONE_ACCESS(func_entry)
extern "C" {
void __tsan_init() {}
void __tsan_func_exit() {}
void __tsan_read_range(void*, unsigned long) { halftone::emulation::at_access(); }
void __tsan_write_range(void*, unsigned long) { halftone::emulation::at_access(); }
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
// For guards of static variables and for shared pointers: host code.
unsigned char __tsan_atomic8_load(const volatile unsigned char* at, int order) {
  return __atomic_load_n(at, order);
}
int __tsan_atomic32_fetch_add(volatile int* at, int value, int) {
  return __atomic_fetch_add(at, value, __ATOMIC_SEQ_CST);
}
int __tsan_atomic32_fetch_sub(volatile int* at, int value, int) {
  return __atomic_fetch_sub(at, value, __ATOMIC_SEQ_CST);
}
int __tsan_atomic32_load(const volatile int* at, int) {
  return __atomic_load_n(at, __ATOMIC_SEQ_CST);
}
long __tsan_atomic64_load(const volatile long* at, int) {
  return __atomic_load_n(at, __ATOMIC_SEQ_CST);
}
void __tsan_atomic64_store(volatile long* at, long value, int) {
  __atomic_store_n(at, value, __ATOMIC_SEQ_CST);
}
long __tsan_atomic64_fetch_add(volatile long* at, long value, int) {
  return __atomic_fetch_add(at, value, __ATOMIC_SEQ_CST);
}
}
