// Sets switches of the emulated GPU for the lifetime of a variable, then restores them.
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
