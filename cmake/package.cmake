# cpack -G DEB: a development package, after which find_package(halftone) works. What the static library needs at link
# time comes as dependencies.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME libhalftone-dev)
set(CPACK_PACKAGE_VENDOR halftone)
set(CPACK_PACKAGE_CONTACT "The halftone developers <halftone@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES OFF)  # a static library keeps its symbols
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_PACKAGE_DEPENDS "g++ (>= 12), zlib1g-dev")
if(HALFTONE_HAVE_ONEDNN)
  string(APPEND CPACK_DEBIAN_PACKAGE_DEPENDS ", libdnnl-dev")
endif()
include(CPack)
