# cmake --build --preset release --target docs: makes the API reference with Debian's doxygen. Without doxygen, the target says so and
# fails. A warning is an error. The test style.api_reference runs doxygen as well. docs/api_filter.sh gives doxygen the
# comment at the top of each header.
set(headers ${PROJECT_BINARY_DIR}/include/halftone)
set(HALFTONE_DOCS_INPUT ${headers}/halftone.h ${headers}/docs/api.md ${headers}/onnx/save_onnx.h)
foreach(folder core autograd distributed nn optim data amp train)
  list(APPEND HALFTONE_DOCS_INPUT ${headers}/${folder})
endforeach()
list(JOIN HALFTONE_DOCS_INPUT " " HALFTONE_DOCS_INPUT)
configure_file(docs/Doxyfile.in ${PROJECT_BINARY_DIR}/docs/Doxyfile @ONLY)
find_program(HALFTONE_DOXYGEN doxygen)
if(HALFTONE_DOXYGEN)
  add_custom_target(docs COMMAND ${HALFTONE_DOXYGEN} ${PROJECT_BINARY_DIR}/docs/Doxyfile
                    COMMAND ${CMAKE_COMMAND} -E echo "${PROJECT_BINARY_DIR}/docs/index.html"
                    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} VERBATIM)
else()
  add_custom_target(docs COMMAND ${CMAKE_COMMAND} -E echo "docs: there is no doxygen. Install it (apt-get install doxygen) and configure again."
                    COMMAND ${CMAKE_COMMAND} -E false)
endif()
