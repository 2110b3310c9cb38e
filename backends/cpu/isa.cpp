// Detection by CPUID, with the compiler's built-ins if they know the name. The operating system
// must also permit the use of AMX's tiles. A virtual machine may hide AMX.
#include <halftone/backends/cpu/staging.h>

#include <array>
#include <string>
#include <string_view>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <halftone/core/device.h>
#include <halftone/core/error.h>
#include <halftone/core/files.h>

namespace halftone {

namespace {
struct Level {
  std::string_view name;
  bool supported;
  const simd::Kernels& (*kernels)();
  const simd::Kernels& (*portable)();
  bool bf16_products = false, amx = false;
};

// Null if this build leaves a set out (cmake/instruction_sets.cmake).
using KernelsOf = const simd::Kernels& (*)();
#ifdef HALFTONE_HAS_avx2
constexpr KernelsOf kernels_avx2 = simd::avx2::kernels;
constexpr KernelsOf portable_avx2 = simd::portable_avx2::kernels;
#else
constexpr KernelsOf kernels_avx2 = nullptr, portable_avx2 = nullptr;
#endif
#ifdef HALFTONE_HAS_avx512
constexpr KernelsOf kernels_avx512 = simd::avx512::kernels;
#else
constexpr KernelsOf kernels_avx512 = nullptr;
#endif
#ifdef HALFTONE_HAS_avx512_bf16
constexpr KernelsOf kernels_avx512_bf16 = simd::avx512_bf16::kernels;
#else
constexpr KernelsOf kernels_avx512_bf16 = nullptr;
#endif
#if defined(HALFTONE_HAS_avx512) || defined(HALFTONE_HAS_avx512_bf16)
constexpr KernelsOf portable_avx512 = simd::portable_avx512::kernels;
#else
constexpr KernelsOf portable_avx512 = nullptr;
#endif

/// The sets that the CPU has beyond the baseline.
struct Extensions {
  bool avx2 = false, avx512 = false, avx512_bf16 = false;
};

#if defined(__x86_64__)
/// Asks Linux, once, to permit tiles (8 KiB of registers per thread) in this process.
bool tiles_are_granted() {
  constexpr unsigned amx_bf16 = 1u << 22, amx_tile = 1u << 24;
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return false;
  constexpr int request_permission = 0x1023, tile_data = 18;
  return (edx & amx_bf16) && (edx & amx_tile) &&
         syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}

/// Returns whether vdpbf16ps does fewer multiply-adds a second than an f32 instruction. On Intel's
/// cores with AMX it does half as many (measured on an Emerald Rapids that hid its AMX), on AMD's
/// twice as many. Cooper Lake (family 6, model 85) has no AMX, and counts as AMD's.
bool bf16_instruction_is_slow() {
  constexpr unsigned genuine = 0x756e6547, intel = 0x49656e69, of_intel = 0x6c65746e;
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (!__get_cpuid(0, &eax, &ebx, &ecx, &edx)) return false;
  if (ebx != genuine || edx != intel || ecx != of_intel) return false;
  if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx)) return false;
  const unsigned family = eax >> 8 & 15, model = (eax >> 4 & 15) | (eax >> 12 & 0xf0);
  return family != 6 || model != 85;
}

Extensions extensions() {
  __builtin_cpu_init();
  // The avx2 kernels also use F16C, which came with the generation before AVX2.
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
  return {avx2, avx512, avx512 && __builtin_cpu_supports("avx512bf16")};
}
#else
Extensions extensions() { return {}; }
bool tiles_are_granted() { return false; }
bool bf16_instruction_is_slow() { return false; }
#endif

/// Returns the sets from the smallest to the largest; each one needs those before it.
const std::array<Level, 5>& levels() {
  static const auto [avx2, avx512, avx512_bf16] = extensions();
  static const std::array<Level, 5> all{
      {{"baseline", true, simd::baseline::kernels, simd::portable_baseline::kernels},
       {"avx2", avx2, kernels_avx2, portable_avx2},
       {"avx512", avx512, kernels_avx512, portable_avx512},
       {"avx512_bf16", avx512_bf16, kernels_avx512_bf16, portable_avx512, true},
       {"amx", avx512_bf16, kernels_avx512_bf16, portable_avx512, true, true}}};
  return all;
}

Level choose() {
  const char* cap = environment_variable("HALFTONE_MAX_ISA");
  const Level* best = &levels()[0];
  bool known = cap == nullptr;
  for (const Level& level : levels()) {
    if (level.supported && level.kernels) best = &level;
    if (cap && level.name == cap) {
      known = true;
      break;
    }
  }
  if (!known)
    fail<UsageError>("HALFTONE_MAX_ISA", "there is no instruction set named \"", cap,
                     "\". Use baseline, avx2, avx512, avx512_bf16 or amx.");
  Level chosen = *best;
  chosen.amx = chosen.amx && tiles_are_granted();
  if (!cap && !chosen.amx && bf16_instruction_is_slow()) chosen.bf16_products = false;
  return chosen;
}

const Level& chosen_level() {
  static const Level chosen = choose();
  return chosen;
}
}  // namespace

const simd::Kernels& simd_kernels() {
  static const simd::Kernels& kernels = chosen_level().kernels();
  static const simd::Kernels& portable = chosen_level().portable();
  return portable_bits() ? portable : kernels;
}

std::vector<const simd::Kernels*> supported_simd_kernels() {
  std::vector<const simd::Kernels*> tables;
  for (const Level& level : levels())
    if (level.supported && level.kernels && !level.amx) tables.push_back(&level.kernels());
  return tables;
}

std::vector<const simd::Kernels*> portable_simd_kernels() {
  std::vector<const simd::Kernels*> tables;
  for (const Level& level : levels())
    if (level.supported && level.portable && !level.bf16_products)
      tables.push_back(&level.portable());
  return tables;
}

std::string kernels_in_use() {
  const std::string_view name = simd_kernels().name;
  const bool widened = name.ends_with("bf16") && !has_bf16_products();
  return std::string(name) + (use_amx() ? " and amx" : "") + " kernels" +
         (widened ? ", bf16 products in f32" : "");
}
bool has_bf16_products() { return chosen_level().bf16_products && !portable_bits(); }
bool use_amx() { return chosen_level().amx && !portable_bits(); }

}  // namespace halftone
