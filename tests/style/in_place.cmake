# A write in place that does not bump the version of its storage leaves stale casts. Outside of kernels only core/backend.h writes in
# place.
include(${CMAKE_CURRENT_LIST_DIR}/sources.cmake)
foreach(file IN LISTS all_files)
  if(NOT file MATCHES "\\.(h|cpp|cu)$" OR file MATCHES "^(backends|tests)/" OR
     file MATCHES "^core/(memory|backend)\\.h$")
    continue()
  endif()
  file(STRINGS ${ROOT}/${file} writes REGEX "bump_version")
  foreach(write IN LISTS writes)
    violation("${file}: ${write}: use core/backend.h")
  endforeach()
endforeach()
finish(all_files)
