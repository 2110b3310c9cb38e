# Installs the build BUILD into WORK/prefix, then configures, builds and runs the project beside this
# file against it, with nothing of the source tree in sight. FLAGS are the sanitizers', if any.
file(REMOVE_RECURSE ${WORK})
function(run)
  execute_process(COMMAND ${ARGV} COMMAND_ERROR_IS_FATAL ANY)
endfunction()
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${WORK}/prefix)
file(COPY ${CMAKE_CURRENT_LIST_DIR}/ DESTINATION ${WORK}/source)
run(${CMAKE_COMMAND} -S ${WORK}/source -B ${WORK}/build -DCMAKE_PREFIX_PATH=${WORK}/prefix
    -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_COMPILER=${COMPILER} -DCMAKE_CXX_FLAGS=${FLAGS})
run(${CMAKE_COMMAND} --build ${WORK}/build)
run(${WORK}/build/consumer)

# The policies that are shipped come with it.
file(GLOB policies RELATIVE ${CMAKE_CURRENT_LIST_DIR}/../../policies ${CMAKE_CURRENT_LIST_DIR}/../../policies/*.json)
foreach(policy IN LISTS policies)
  if(NOT EXISTS ${WORK}/prefix/share/halftone/policies/${policy})
    message(FATAL_ERROR "the policy ${policy} was not installed")
  endif()
endforeach()
if(NOT policies)
  message(FATAL_ERROR "no policies were found to compare with")
endif()

file(GLOB_RECURSE headers ${WORK}/prefix/include/halftone/*.h)
foreach(header IN LISTS headers)
  file(STRINGS ${header} private REGEX "#include <(nlohmann|dnnl|zlib|stb|doctest|CLI)")
  if(private)
    message(FATAL_ERROR "the installed header ${header} needs a private dependency: ${private}")
  endif()
endforeach()
