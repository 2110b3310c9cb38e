# No target may be compiled with a flag that lets the compiler assume that NaN and infinity do not occur, or reorder sums: loss scaling
# needs NaN checks. No source may switch it on for itself.
include(${CMAKE_CURRENT_LIST_DIR}/sources.cmake)
set(forbidden
    "-(ffast-math|Ofast|ffinite-math-only|fassociative-math|funsafe-math-optimizations|freciprocal-math|fno-signed-zeros)")
file(STRINGS ${BUILD}/compile_commands.json commands REGEX "\"command\"")
foreach(command IN LISTS commands)
  if(command MATCHES "${forbidden}")
    violation("${CMAKE_MATCH_0}: ${command}")
  endif()
endforeach()
foreach(file IN LISTS cpp_files)
  file(STRINGS ${ROOT}/${file} switches REGEX "(#pragma GCC optimize|__attribute__.*optimize|gnu::optimize|#pragma float_control)")
  foreach(switch IN LISTS switches)
    violation("${file}: ${switch}")
  endforeach()
endforeach()
finish(commands)
