// Tests of tests: HALFTONE_PTX_MUTANT="KERNEL PLACE KIND" changes one instruction of one kernel.
#pragma once

#include "program.h"

namespace halftone::ptx {

/// KIND: `drop` (it does nothing, a jump is not taken), `swap` (its last two values are exchanged),
/// `invert` (its guard, or the guard of a selection). Does nothing if the kernel is another one.
void mutate(Kernel& kernel);
/// The same, with the change as an argument.
void mutate(Kernel& kernel, std::size_t place, std::string_view kind);

}  // namespace halftone::ptx
