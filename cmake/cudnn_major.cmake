# cuDNN in a Python package: pip installs the packages for CUDA 12 and CUDA 13 in one place, under one library name. Only the record of the
# installation distinguishes them. In a process with the other CUDA, cuDNN fails at unpredictable points. Sets `why` to the reason against
# the cuDNN in `root` (.../site-packages/nvidia/cudnn), or to nothing.
function(halftone_cudnn_refused root cuda_major why)
  set(${why} "" PARENT_SCOPE)
  get_filename_component(packages ${root}/../.. ABSOLUTE)
  file(GLOB records RELATIVE ${packages} ${packages}/nvidia_cudnn_cu*.dist-info)
  if(records AND NOT records MATCHES "nvidia_cudnn_cu${cuda_major}-")
    list(GET records 0 record)
    string(REGEX MATCH "^nvidia_cudnn_cu[0-9]+" package ${record})
    string(REPLACE "_" "-" package ${package})
    set(${why} "${root} is ${package}'s, and this toolkit is CUDA ${cuda_major}'s: pip install nvidia-cudnn-cu${cuda_major}" PARENT_SCOPE)
  endif()
endfunction()
