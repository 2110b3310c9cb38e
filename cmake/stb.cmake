# Finds the headers of stb_image and stb_image_write. data/ compiles them into itself, so no library is linked.
find_path(HALFTONE_STB_INCLUDE stb_image_write.h PATH_SUFFIXES stb)
if(NOT HALFTONE_STB_INCLUDE OR NOT EXISTS ${HALFTONE_STB_INCLUDE}/stb_image.h)
  message(FATAL_ERROR "stb_image.h and stb_image_write.h were not found. Install libstb-dev, or set HALFTONE_STB_INCLUDE "
                      "to the directory that has them.")
endif()
