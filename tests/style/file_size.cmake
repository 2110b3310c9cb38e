# A file should be readable in one sitting: over 400 lines it should be two.
include(${CMAKE_CURRENT_LIST_DIR}/sources.cmake)
list(REMOVE_ITEM all_files examples/one_file.cpp)  # style.one_file allows it 600
foreach(file IN LISTS all_files)
  file(READ ${ROOT}/${file} text)
  string(REGEX REPLACE "[^\n]" "" breaks "${text}")
  string(LENGTH "${breaks}" lines)
  if(lines GREATER 400 AND NOT file STREQUAL "docs/cli_help.md")  # a script writes that one, for searches
    violation("${file}: ${lines} lines, at most 400 are allowed")
  endif()
endforeach()
finish(all_files)
