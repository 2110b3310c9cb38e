# An overlay port: it builds the tree that it is a part of, so nothing of halftone is downloaded.
get_filename_component(SOURCE_PATH "${CMAKE_CURRENT_LIST_DIR}/../../../.." ABSOLUTE)
vcpkg_check_linkage(ONLY_STATIC_LIBRARY)

vcpkg_check_features(OUT_FEATURE_OPTIONS features
  FEATURES
    onednn HALFTONE_ONEDNN
    tools HALFTONE_BUILD_EXAMPLES)

# Packages of the machine must not decide about a port: MPI and CUDA are off, also if they are installed.
vcpkg_cmake_configure(
  SOURCE_PATH "${SOURCE_PATH}"
  OPTIONS
    ${features}
    -DHALFTONE_BUILD_TESTS=OFF
    -DHALFTONE_UNITY=ON
    -DHALFTONE_MPI=OFF
    -DHALFTONE_CUDA=OFF)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(PACKAGE_NAME halftone CONFIG_PATH lib/cmake/halftone)
if("tools" IN_LIST FEATURES)
  vcpkg_copy_tools(TOOL_NAMES halftone-lab halftone-info AUTO_CLEAN)
endif()
file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/debug/include" "${CURRENT_PACKAGES_DIR}/debug/share")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
