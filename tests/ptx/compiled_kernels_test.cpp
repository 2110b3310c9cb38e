// The PTX of all kernels of this program: every instruction is known.
#include <doctest/doctest.h>

#include <string>

#include "modules.h"

namespace halftone::test::compiled_kernels {

TEST_CASE("every kernel that nvcc compiled is decoded") {
  int kernels = 0;
  for (ptx::Module* const module : ptx::all_modules())
    for (const auto& [name, kernel] : module->kernels) {
      INFO(name);
      CHECK_NOTHROW(ptx::decode(*kernel));
      CHECK(kernel->code.size() > 1);
      ++kernels;
    }
  MESSAGE(kernels, " kernels");
  CHECK(kernels > 1000);
}

}  // namespace halftone::test::compiled_kernels
