// The cuBLASLt functions that halftone uses, looked up when the first GPU is used. The library has
// half a gigabyte; linking it would add 0.15 s to the start of every program of a CUDA build.
#pragma once

#include <string>

#include <cublasLt.h>

namespace halftone::cuda::cublaslt {

struct Functions {
  decltype(&cublasLtGetVersion) version;
  decltype(&cublasLtGetStatusString) status_text;
  decltype(&cublasLtCreate) create;
  decltype(&cublasLtMatrixLayoutCreate) layout_create;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy;
  decltype(&cublasLtMatrixLayoutSetAttribute) layout_set;
  decltype(&cublasLtMatmulDescCreate) product_create;
  decltype(&cublasLtMatmulDescDestroy) product_destroy;
  decltype(&cublasLtMatmulDescSetAttribute) product_set;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic;
  decltype(&cublasLtMatmul) matmul;
};

/// Returns null if the library is missing, or older than this build's headers.
const Functions* functions();
/// Returns why functions() is null; empty if it is not.
std::string refusal();

}  // namespace halftone::cuda::cublaslt
