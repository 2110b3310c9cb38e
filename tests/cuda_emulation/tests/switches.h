// Switches of the emulated GPU, for as long as a variable lives; then as they were in the program.
#pragma once

#include "emulator.h"

namespace halftone::test {

class Deferred {
 public:
  explicit Deferred(uint64_t seed) : before_(emulation::deferred()) {
    emulation::set_deferred(0), emulation::set_deferred(seed);
  }
  ~Deferred() { emulation::set_deferred(0), emulation::set_deferred(before_ ? 1 : 0); }
  Deferred(const Deferred&) = delete;
  Deferred& operator=(const Deferred&) = delete;

 private:
  bool before_;
};

class Poisoned {
 public:
  Poisoned() : before_(emulation::set_poison(true)) {}
  ~Poisoned() { emulation::set_poison(before_); }
  Poisoned(const Poisoned&) = delete;
  Poisoned& operator=(const Poisoned&) = delete;

 private:
  bool before_;
};

}  // namespace halftone::test
