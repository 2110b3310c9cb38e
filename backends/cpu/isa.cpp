// Detection by CPUID through the compiler's built-ins.
#include <halftone/backends/cpu/isa.h>

#include <array>
#include <cstdlib>
#include <string_view>

#include <halftone/core/error.h>

namespace halftone {

namespace {
struct Level {
  std::string_view name;
  bool supported;
  const simd::Kernels& (*kernels)();
};

const simd::Kernels& choose() {
  __builtin_cpu_init();
  // F16C, which the avx2 kernels use as well, came with the generation before AVX2.
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
  const bool avx512_bf16 = avx512 && __builtin_cpu_supports("avx512bf16");
  const std::array<Level, 4> levels{{{"baseline", true, simd::baseline::kernels},
                                     {"avx2", avx2, simd::avx2::kernels},
                                     {"avx512", avx512, simd::avx512::kernels},
                                     {"avx512_bf16", avx512_bf16, simd::avx512_bf16::kernels}}};
  const char* cap = std::getenv("HALFTONE_MAX_ISA");
  const Level* best = &levels[0];
  bool known = cap == nullptr;
  for (const Level& level : levels) {
    if (level.supported) best = &level;
    if (cap && level.name == cap) {
      known = true;
      break;
    }
  }
  if (!known)
    fail<UsageError>("HALFTONE_MAX_ISA", "there is no instruction set named \"", cap,
                     "\". Use baseline, avx2, avx512 or avx512_bf16.");
  return best->kernels();
}
}  // namespace

const simd::Kernels& simd_kernels() {
  static const simd::Kernels& chosen = choose();
  return chosen;
}

}  // namespace halftone
