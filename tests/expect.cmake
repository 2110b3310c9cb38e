# Runs COMMAND (a list) and requires the exit status EXIT, standard output that matches OUTPUT, and standard error
# that matches MESSAGE. ctest itself checks only one of them: with PASS_REGULAR_EXPRESSION a crash after the text
# passes.
execute_process(COMMAND ${COMMAND} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE errors)
message(STATUS "exit status ${status}; standard output: ${output}\nstandard error: ${errors}")
if(NOT status STREQUAL EXIT)
  message(FATAL_ERROR "the exit status must be ${EXIT}")
elseif(NOT output MATCHES "${OUTPUT}")
  message(FATAL_ERROR "standard output must match: ${OUTPUT}")
elseif(NOT errors MATCHES "${MESSAGE}")
  message(FATAL_ERROR "standard error must match: ${MESSAGE}")
endif()
