// The modules of a program, and a record of the instructions that ran.
#pragma once

#include <memory>
#include <vector>

#include "program.h"

namespace halftone::ptx {

/// Registers a fat binary of the program.
void register_binary(const void* wrapper);
/// Returns the module of a fat binary, and reads it at the first call.
Module& module_of(const void* wrapper);
/// Returns the modules of all fat binaries of the program.
std::vector<Module*> all_modules();

}  // namespace halftone::ptx
