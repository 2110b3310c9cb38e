// halftone-info: prints the features of this build and this machine, for bug reports and for the
// question "why is it slow here?". Everything about backends comes from backend_statuses().
#include <cstdlib>
#include <iomanip>
#include <iostream>

#include <cpuid.h>

#include <halftone/core/communicator.h>
#include <halftone/core/device.h>
#include <halftone/halftone.h>

#include "../examples/output.h"

namespace ht = halftone;

namespace {

std::ostream& line(std::string_view label) {
  return std::cout << std::left << std::setw(14) << label;
}

void print_build() {
  line("halftone") << HALFTONE_VERSION << '\n';
  line("build") << HALFTONE_BUILD_TYPE << ", compiler " << __VERSION__ << '\n';
}

/// Asks CPUID directly, because compilers use different names for AMX. AMX also needs permission
/// from the operating system; the description of the kernels shows it.
bool cpu_has_amx_bf16() {
  constexpr unsigned amx_bf16 = 1u << 22, amx_tile = 1u << 24;
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && (edx & amx_bf16) && (edx & amx_tile);
}

/// Prints which of the kernels' instruction sets the CPU supports.
void print_cpu() {
  __builtin_cpu_init();
  line("CPU has") << (__builtin_cpu_supports("avx2") ? "avx2 " : "")
                  << (__builtin_cpu_supports("fma") ? "fma " : "")
                  << (__builtin_cpu_supports("f16c") ? "f16c " : "")
                  << (__builtin_cpu_supports("avx512f") ? "avx512f " : "")
                  << (__builtin_cpu_supports("avx512bw") ? "avx512bw " : "")
                  << (__builtin_cpu_supports("avx512dq") ? "avx512dq " : "")
                  << (__builtin_cpu_supports("avx512vl") ? "avx512vl " : "")
                  << (__builtin_cpu_supports("avx512bf16") ? "avx512bf16 " : "")
                  << (cpu_has_amx_bf16() ? "amx_bf16 " : "") << '\n';
  line("threads") << ht::cpu_threads() << '\n';
}

void print_backends() {
  for (const ht::BackendStatus& status : ht::backend_statuses())
    line(status.name) << (status.backend ? "" : "absent: ") << status.description << '\n';
  line("the CPU uses") << ht::backend_for(ht::Device::cpu()).name() << '\n';
}

void print_processes() {
  for (const ht::EngineStatus& engine : ht::engine_statuses())
    line(engine.name) << (engine.present ? "" : "absent: ") << engine.description << '\n';
  const ht::Communicator& world = ht::world();
  if (world.size() > 1)
    line("process") << world.rank() << " of " << world.size() << ", on " << world.machines()
                    << (world.machines() == 1 ? " machine" : " machines") << '\n';
}

void print_environment() {
  for (const char* variable :
       {"HALFTONE_CPU_BACKEND", "HALFTONE_MAX_ISA", "HALFTONE_PORTABLE_BITS", "HALFTONE_FIXED_TEAM",
        "HALFTONE_PENDING", "HALFTONE_CUDA_ENGINES", "HALFTONE_DATA", "HALFTONE_CUDA_LIBRARIES",
        "HALFTONE_CUDA_CACHE", "HALFTONE_CUDA_LOG", "CUDA_VISIBLE_DEVICES", "ONEDNN_MAX_CPU_ISA",
        "HALFTONE_DISTRIBUTED_TIMEOUT", "OMP_NUM_THREADS"})
    if (const char* value = std::getenv(variable))
      line("environment") << variable << '=' << value << '\n';
}

}  // namespace

int main() {
  try {
    print_build();
    print_cpu();
    print_backends();
    print_processes();
    print_environment();
  } catch (const ht::Error& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
  return after_output();
}
