# The sources of lab/ that read run folders. The Python module is compiled with them, and with nothing else of lab/.
set(HALFTONE_PYTHON_LAB_SOURCES commands/table.cpp run_folder.cpp summary.cpp table.cpp)
list(TRANSFORM HALFTONE_PYTHON_LAB_SOURCES PREPEND ${CMAKE_CURRENT_LIST_DIR}/../lab/)
