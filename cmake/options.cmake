# Compiler options of every target of the project, as one interface library. Never add fast-math: loss scaling depends on NaN and infinity.
# The two flags below only drop errno and floating-point traps, which the project does not use, so that square roots and selections
# vectorize.
add_library(halftone_options INTERFACE)
target_compile_features(halftone_options INTERFACE cxx_std_20)
target_compile_options(halftone_options INTERFACE -Wall -Wextra -Wno-unknown-pragmas -fno-math-errno -fno-trapping-math)
if(HALFTONE_WARNINGS_AS_ERRORS)
  target_compile_options(halftone_options INTERFACE -Werror)
endif()
target_link_libraries(halftone_options INTERFACE OpenMP::OpenMP_CXX)
# Kernels get -O3. Other code gains nothing above -O2, which the release preset sets and which compiles faster.
set(HALFTONE_LOOPS $<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:-O3>)
if(HALFTONE_SANITIZERS)
  target_compile_options(halftone_options INTERFACE -fsanitize=${HALFTONE_SANITIZERS} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(halftone_options INTERFACE -fsanitize=${HALFTONE_SANITIZERS})
endif()
