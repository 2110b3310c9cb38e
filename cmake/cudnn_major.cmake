# cuDNN in a Python package: pip's packages for CUDA 12 and CUDA 13 lie in one place, with one name of library, and only
# the record of the installation tells them apart. Loaded into a process with another CUDA, it fails anywhere.
# Sets `why` to the reason not to take the cuDNN in `root` (.../site-packages/nvidia/cudnn), or to nothing.
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
