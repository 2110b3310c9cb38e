// The modules of a program, and what of them was executed.
#pragma once

#include <memory>
#include <vector>

#include "program.h"

namespace halftone::ptx {

/// Remembers a fat binary of the program.
void register_binary(const void* wrapper);
/// The module of a fat binary, which is read when it is first asked for.
Module& module_of(const void* wrapper);
/// Those of all fat binaries of the program.
std::vector<Module*> all_modules();

}  // namespace halftone::ptx
