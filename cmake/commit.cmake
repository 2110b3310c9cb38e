# Makes a source file with the commit it is built from. Each build runs this, and rewrites the file only if the commit changed. The target
# below runs it as a script; SOURCE is this tree, OUT the file.
if(CMAKE_SCRIPT_MODE_FILE)
  set(commit "")
  execute_process(COMMAND git -C ${SOURCE} rev-parse --show-toplevel OUTPUT_VARIABLE top ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(top STREQUAL SOURCE)  # a copy without git may be inside another repository
    execute_process(COMMAND git -C ${SOURCE} describe --always --dirty --abbrev=12 --exclude=* OUTPUT_VARIABLE commit ERROR_QUIET
                    OUTPUT_STRIP_TRAILING_WHITESPACE)
  endif()
  set(text "// Made by cmake/commit.cmake.\nnamespace halftone::lab {\nextern const char* const built_from_commit;\nconst char* const built_from_commit = \"${commit}\";\n}\n")
  set(before "")
  if(EXISTS ${OUT})
    file(READ ${OUT} before)
  endif()
  if(NOT text STREQUAL before)
    file(WRITE ${OUT} "${text}")
  endif()
  return()
endif()

set(HALFTONE_COMMIT_SOURCE ${PROJECT_BINARY_DIR}/built_from_commit.cpp)
add_custom_target(halftone_commit BYPRODUCTS ${HALFTONE_COMMIT_SOURCE}
                  COMMAND ${CMAKE_COMMAND} -DSOURCE=${PROJECT_SOURCE_DIR} -DOUT=${HALFTONE_COMMIT_SOURCE}
                          -P ${PROJECT_SOURCE_DIR}/cmake/commit.cmake VERBATIM)
