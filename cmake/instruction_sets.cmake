# The instruction sets that SIMD kernels are compiled for: HALFTONE_FASTER_SETS, a list without the baseline, which is always compiled.
# `native` is for a program that runs on the machine that
# compiles it: only the baseline and the best set of its CPU are compiled.
set(HALFTONE_INSTRUCTION_SETS all CACHE STRING "SIMD kernels for: all instruction sets, or native, the best of this CPU")
set_property(CACHE HALFTONE_INSTRUCTION_SETS PROPERTY STRINGS all native)

set(HALFTONE_FASTER_SETS avx2 avx512 avx512_bf16)
if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(HALFTONE_FASTER_SETS "")  # the baseline is vectors of 16 bytes: NEON on AArch64
elseif(HALFTONE_INSTRUCTION_SETS STREQUAL "native" AND EXISTS /proc/cpuinfo)
  file(STRINGS /proc/cpuinfo has REGEX "^flags" LIMIT_COUNT 1)
  separate_arguments(has)
  set(needs_avx2 avx2 fma f16c)
  set(needs_avx512 avx512f avx512bw avx512dq avx512vl)
  set(needs_avx512_bf16 avx512_bf16)
  set(best "")
  foreach(isa IN LISTS HALFTONE_FASTER_SETS)  # each set needs those before it
    list(REMOVE_ITEM needs_${isa} ${has})
    if(needs_${isa})
      break()
    endif()
    set(best ${isa})
  endforeach()
  set(HALFTONE_FASTER_SETS ${best})
elseif(NOT HALFTONE_INSTRUCTION_SETS MATCHES "^(all|native)$")
  message(FATAL_ERROR "HALFTONE_INSTRUCTION_SETS is \"${HALFTONE_INSTRUCTION_SETS}\". Use all or native.")
endif()
set(has_sets ${HALFTONE_FASTER_SETS})
list(TRANSFORM has_sets PREPEND HALFTONE_HAS_)
set_source_files_properties(cpu/isa.cpp PROPERTIES COMPILE_DEFINITIONS "${has_sets}")
