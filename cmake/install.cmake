# cmake --install makes a package that find_package(halftone) finds. Headers of backends and tests stay private, and so do headers that need
# a JSON library or a command-line library.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(CMAKE_INSTALL_DEFAULT_COMPONENT_NAME dev)
install(TARGETS halftone halftone_pch EXPORT halftone_targets)
foreach(folder core autograd distributed nn optim data amp train)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/${folder} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/halftone
          FILES_MATCHING PATTERN "*.h" PATTERN json_value.h EXCLUDE PATTERN record.h EXCLUDE PATTERN policy_reader.h EXCLUDE)
endforeach()
install(FILES ${PROJECT_SOURCE_DIR}/onnx/save_onnx.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/halftone/onnx)
if(TARGET halftone_lab_library)
  install(TARGETS halftone-lab halftone-info COMPONENT tools)
  install(TARGETS halftone_lab_library EXPORT halftone_targets)
  install(FILES ${PROJECT_SOURCE_DIR}/lab/lab.h ${PROJECT_SOURCE_DIR}/lab/workload.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/halftone/lab)
endif()
install(FILES ${PROJECT_SOURCE_DIR}/halftone.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/halftone)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/amp/policies DESTINATION ${CMAKE_INSTALL_DATADIR}/halftone COMPONENT tools FILES_MATCHING PATTERN "*.json")
install(DIRECTORY ${PROJECT_SOURCE_DIR}/core/formats/vectors DESTINATION ${CMAKE_INSTALL_DATADIR}/halftone COMPONENT tools)
install(EXPORT halftone_targets FILE halftone-targets.cmake NAMESPACE halftone::
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/halftone)
configure_package_config_file(cmake/halftone-config.cmake.in ${PROJECT_BINARY_DIR}/halftone-config.cmake
                              INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/halftone)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/halftone-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/halftone-config.cmake ${PROJECT_BINARY_DIR}/halftone-config-version.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/halftone)
