// The PTX of all kernels of this program has only known instructions.
#include <doctest/doctest.h>

#include <string>

#include "../fuse.h"
#include "../modules.h"

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

TEST_CASE("kernels that promise the reference's bits have no product and sum that ptxas may fuse") {
  int kernels = 0;
  for (const ptx::Module* const module : ptx::all_modules()) {
    ptx::Module copy(module->text);
    for (const auto& [name, kernel] : copy.kernels) {
      const bool promises = name.find("_quantize_cu_") != name.npos ||
                            name.find("_loss_scale_cu_") != name.npos ||
                            name.find("accumulating_") != name.npos;
      if (!promises) continue;
      INFO(name);
      ptx::decode(*kernel);
      const int64_t before = ptx::fused_sums();
      ptx::fuse(*kernel);
      CHECK(ptx::fused_sums() == before);
      ++kernels;
    }
  }
  CHECK(kernels >= 10);
}

}  // namespace halftone::test::compiled_kernels
