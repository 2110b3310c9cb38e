# Finds the CUDA toolkit, which is optional, and the libraries in it. Machines without a GPU compile and link the
# backend all the same. HALFTONE_CUDA: AUTO (where nvcc is), ON or OFF. HALFTONE_CUDA_ARCHITECTURES: the GPUs to compile
# for; by default 80, as machine code and as PTX, from which drivers make the code of all later ones when a program first
# runs (the preset `release-gpus` has machine code for four). HALFTONE_CUDNN_ROOT: cuDNN outside of the
# toolkit, for example the nvidia/cudnn folder that a Python package brings.
set(HALFTONE_HAVE_CUDA FALSE)
set(HALFTONE_HAVE_CUDNN FALSE)
set(HALFTONE_CUDA_SUMMARY "off (HALFTONE_CUDA=OFF)")
if(NOT HALFTONE_CUDA STREQUAL "OFF")
  set(HALFTONE_CUDA_ARCHITECTURES "" CACHE STRING "GPUs to compile for, as CMAKE_CUDA_ARCHITECTURES; empty: that, or 80")
  # A plain variable: a project around this one keeps its own.
  if(HALFTONE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES ${HALFTONE_CUDA_ARCHITECTURES})
  elseif(NOT CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 80)
  endif()
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    find_package(CUDAToolkit 12.1 REQUIRED)
    if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know yet that nvcc has C++20
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
      set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
      list(APPEND CMAKE_CUDA_COMPILE_FEATURES cuda_std_20)
    endif()
    set(CMAKE_CUDA_STANDARD 20)
    set(CMAKE_CUDA_STANDARD_REQUIRED ON)
    set(CMAKE_CUDA_EXTENSIONS OFF)
    set(HALFTONE_HAVE_CUDA TRUE)
    list(JOIN CMAKE_CUDA_ARCHITECTURES ", " architectures)
    set(HALFTONE_CUDA_SUMMARY "${CUDAToolkit_VERSION} for sm ${architectures}")
    file(GLOB python_roots /usr/lib/python3*/site-packages/nvidia/cudnn /usr/local/lib/python3*/site-packages/nvidia/cudnn
         /usr/local/lib/python3*/dist-packages/nvidia/cudnn $ENV{VIRTUAL_ENV}/lib/python3*/site-packages/nvidia/cudnn)
    find_path(HALFTONE_CUDNN_INCLUDE cudnn_backend.h HINTS ${HALFTONE_CUDNN_ROOT} ${CUDAToolkit_INCLUDE_DIRS} ${python_roots}
              PATH_SUFFIXES include)
    find_library(HALFTONE_CUDNN_LIBRARY NAMES cudnn libcudnn.so.9 HINTS ${HALFTONE_CUDNN_ROOT} ${CUDAToolkit_LIBRARY_DIR}
                 ${python_roots} PATH_SUFFIXES lib lib64)
    if(HALFTONE_CUDNN_INCLUDE AND HALFTONE_CUDNN_LIBRARY)
      set(HALFTONE_HAVE_CUDNN TRUE)
      string(APPEND HALFTONE_CUDA_SUMMARY ", cuDNN ${HALFTONE_CUDNN_LIBRARY}")
    else()
      string(APPEND HALFTONE_CUDA_SUMMARY ", no cuDNN (own convolution and attention serve; set HALFTONE_CUDNN_ROOT)")
    endif()
  elseif(HALFTONE_CUDA STREQUAL "ON")
    message(FATAL_ERROR "HALFTONE_CUDA=ON, but nvcc was not found. Put it on PATH, or set CMAKE_CUDA_COMPILER.")
  else()
    set(HALFTONE_CUDA_SUMMARY "not found (no nvcc on PATH)")
  endif()
endif()
