# A file is one subject. A header over 400 lines, or a source over 900, is more than one.
include(${CMAKE_CURRENT_LIST_DIR}/sources.cmake)
list(REMOVE_ITEM all_files examples/one_file.cpp)  # style.one_file allows it 600
foreach(file IN LISTS all_files)
  file(READ ${ROOT}/${file} text)
  string(REGEX REPLACE "[^\n]" "" breaks "${text}")
  string(LENGTH "${breaks}" lines)
  set(most 900)
  if(file MATCHES "\\.(h|cuh)$")
    set(most 400)
  endif()
  if(lines GREATER most AND NOT file STREQUAL "docs/cli_help.md")  # a script writes that one, for searches
    violation("${file}: ${lines} lines, at most ${most} are allowed")
  endif()
endforeach()
finish(all_files)
