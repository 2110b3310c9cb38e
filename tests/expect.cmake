# Runs COMMAND (a list) and wants the exit status EXIT and, on standard error, text that matches
# MESSAGE. ctest itself can want only one of the two.
execute_process(COMMAND ${COMMAND} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE errors)
message(STATUS "exit status ${status}; standard error: ${errors}")
if(NOT status STREQUAL EXIT)
  message(FATAL_ERROR "the exit status must be ${EXIT}")
elseif(NOT errors MATCHES "${MESSAGE}")
  message(FATAL_ERROR "standard error must match: ${MESSAGE}")
endif()
