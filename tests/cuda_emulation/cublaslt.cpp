// A substitute for cuBLASLt that computes what its descriptors say, in double, element by element;
// if they allow TF32, factors are rounded to it. It refuses addresses that are less aligned than
// the heuristic was told, and a bias that is not aligned to 16 bytes, where a GPU would fault. As
// cuBLASLt on an H100 it rounds a short product before it adds a bias, if rows are not aligned.
// Products of f8 numbers add as the GPU's architecture does with fast accumulation; other
// descriptions of them than cuBLASLt's documentation allows are refused: factors of rows are for
// sm_90, those of blocks for sm_100. Tests can have any call refused.
#include <cublasLt.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include <halftone/backends/cuda/cublaslt/functions.h>
#include <halftone/core/dtype.h>
#include <halftone/core/formats/number_format.h>
#include <halftone/core/formats/sums.h>

#include "emulator.h"

using namespace halftone;

struct EmulatedLtHandle {};
struct EmulatedLtLayout {
  cudaDataType_t type;
  int64_t rows, columns, leading;
  int32_t batch = 1;
  int64_t batch_offset = 0;
};
struct EmulatedLtProduct {
  cublasComputeType_t compute;
  cudaDataType_t scale_type;
  cublasOperation_t transpose[2] = {CUBLAS_OP_N, CUBLAS_OP_N};
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
  cudaDataType_t bias_type = CUDA_R_32F;
  const void* scales[2] = {nullptr, nullptr};
  int32_t scale_modes[2] = {CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F,
                            CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F};
  int8_t fast_sums = 0;
};
struct EmulatedLtPreference {
  uint64_t values[16] = {};
};

namespace {

double load(cudaDataType_t type, const void* data, int64_t i) {
  switch (type) {
    case CUDA_R_64F: return static_cast<const double*>(data)[i];
    case CUDA_R_32F: return double(static_cast<const float*>(data)[i]);
    case CUDA_R_16F: return double(float(static_cast<const Float16*>(data)[i]));
    case CUDA_R_8F_E4M3: return double(float(static_cast<const Float8E4M3*>(data)[i]));
    case CUDA_R_8F_E5M2: return double(float(static_cast<const Float8E5M2*>(data)[i]));
    default: return double(float(static_cast<const BFloat16*>(data)[i]));
  }
}
bool is_short(cudaDataType_t type) { return type == CUDA_R_16F || type == CUDA_R_16BF; }
bool is_f8(cudaDataType_t type) { return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2; }
void store(cudaDataType_t type, void* data, int64_t i, double value) {
  switch (type) {
    case CUDA_R_64F: static_cast<double*>(data)[i] = value; return;
    case CUDA_R_32F: static_cast<float*>(data)[i] = float(value); return;
    case CUDA_R_16F: static_cast<Float16*>(data)[i] = convert<Float16>(value); return;
    default: static_cast<BFloat16*>(data)[i] = convert<BFloat16>(value); return;
  }
}

/// The arguments of a call of cublasLtMatmul, until it runs.
struct Call {
  EmulatedLtProduct product;
  EmulatedLtLayout a_layout, b_layout, d_layout;
  const void *a, *b;
  void* d;
};

/// Returns a factor as the product reads it.
double load_factor(const EmulatedLtProduct& p, cudaDataType_t type, const void* data, int64_t i) {
  const double value = load(type, data, i);
  if (p.compute != CUBLAS_COMPUTE_32F_FAST_TF32 || type != CUDA_R_32F) return value;
  return double(round_to(formats::tf32, float(value)));
}

/// Returns the factor of 32 numbers along k: a tile of bytes has 128 rows and 4 factors of each.
float f8_block_factor(const void* factors, int64_t depth, int64_t row, int64_t k) {
  const int64_t block = k / 32, across = (depth / 32 + 3) / 4;
  const int64_t at =
      (row / 128 * across + block / 4) * 512 + row % 32 * 16 + row % 128 / 32 * 4 + block % 4;
  return std::ldexp(1.0f, int(static_cast<const uint8_t*>(factors)[at]) - 127);
}

/// Returns the sum of a row of A^T and a column of B as tensor cores make it, scaled.
double f8_sum(const Call& call, int64_t i, int64_t j) {
  const int capability = emulation::compute_capability();
  const Accumulator unit = *accumulator_named(capability < 90    ? "l40-mma-f8"
                                              : capability < 100 ? "h100-wgmma-f8"
                                                                 : "b200-tcgen05-f8");
  const auto& [p, la, lb, ld, a, b, d] = call;
  const bool blocks = p.scale_modes[0] == CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0,
             rows = p.scale_modes[0] == CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
  const auto factor = [&](int which, int64_t row, int64_t k) {
    return blocks ? f8_block_factor(p.scales[which], la.rows, row, k) : 1.0f;
  };
  const float sum = sums::added<Rounding::toward_zero, false>(
      unit, grid_of(unit.grid, unit.rounding), la.rows, 0, [&](int64_t k) {
        return sums::Factors{float(load(la.type, a, i * la.leading + k)) * factor(0, i, k),
                             float(load(lb.type, b, j * lb.leading + k)) * factor(1, j, k)};
      });
  const auto scale = [&](int which, int64_t at) {
    return blocks ? 1.0f : static_cast<const float*>(p.scales[which])[rows ? at : 0];
  };
  return double(sum * (scale(0, i) * scale(1, j)));
}

void multiply(const Call& call) {
  const auto& [p, la, lb, ld, a, b, d] = call;
  const bool ta = p.transpose[0] == CUBLAS_OP_T, tb = p.transpose[1] == CUBLAS_OP_T;
  const int64_t depth = ta ? la.rows : la.columns;
  const bool rounds_first =
      is_short(ld.type) && (ld.rows % 8 != 0 || la.leading % 8 != 0 || lb.leading % 8 != 0);
  for (int64_t batch = 0; batch < ld.batch; ++batch)
    for (int64_t j = 0; j < ld.columns; ++j)
      for (int64_t i = 0; i < ld.rows; ++i) {
        double sum = 0;
        if (is_f8(la.type)) sum = f8_sum(call, i, j);
        else
          for (int64_t k = 0; k < depth; ++k)
            sum += load_factor(
                       p, la.type, a,
                       batch * la.batch_offset + (ta ? i * la.leading + k : k * la.leading + i)) *
                   load_factor(
                       p, lb.type, b,
                       batch * lb.batch_offset + (tb ? k * lb.leading + j : j * lb.leading + k));
        const int64_t at = batch * ld.batch_offset + j * ld.leading + i;
        if (p.epilogue == CUBLASLT_EPILOGUE_BIAS) {
          if (rounds_first) store(ld.type, d, at, sum), sum = load(ld.type, d, at);
          sum += load(p.bias_type, p.bias, i);
        }
        store(ld.type, d, at, sum);
      }
}

bool fits(const EmulatedLtProduct& p, const EmulatedLtLayout& a, const EmulatedLtLayout& b,
          const EmulatedLtLayout& d) {
  const bool ta = p.transpose[0] == CUBLAS_OP_T, tb = p.transpose[1] == CUBLAS_OP_T;
  const bool sizes = (ta ? a.columns : a.rows) == d.rows &&
                     (tb ? b.rows : b.columns) == d.columns &&
                     (ta ? a.rows : a.columns) == (tb ? b.columns : b.rows);
  if (is_f8(a.type) || is_f8(b.type)) {
    const auto whole = [](int64_t n) { return n % 16 == 0; };
    const bool pair =
        is_f8(a.type) && is_f8(b.type) && (a.type == CUDA_R_8F_E4M3 || b.type == CUDA_R_8F_E4M3);
    const bool result = is_short(d.type) || d.type == CUDA_R_32F;
    const bool bias = p.epilogue == CUBLASLT_EPILOGUE_DEFAULT ||
                      p.bias_type == (d.type == CUDA_R_16F ? CUDA_R_16F : CUDA_R_16BF);
    const int capability = emulation::compute_capability(), mode = p.scale_modes[0];
    const bool factors =
        p.scale_modes[1] == mode &&
        (mode == CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F ||
         (mode == CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F && capability == 90) ||
         (mode == CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0 && capability / 10 == 10 &&
          a.rows % 32 == 0));
    return sizes && pair && result && bias && factors && ta && !tb && p.scales[0] && p.scales[1] &&
           p.fast_sums == 1 && p.compute == CUBLAS_COMPUTE_32F && d.batch == 1 &&
           whole(a.leading) && whole(b.leading) && whole(d.rows) && whole(d.leading) &&
           a.leading >= a.rows && b.leading >= b.rows;
  }
  const bool batches = a.batch == d.batch && b.batch == d.batch;
  const bool wide = p.compute == CUBLAS_COMPUTE_64F;
  const bool types = a.type == b.type && (a.type == CUDA_R_64F) == wide &&
                     (p.scale_type == CUDA_R_64F) == wide &&
                     (d.type == a.type || (d.type == CUDA_R_32F && !wide));
  const bool bias = p.epilogue == CUBLASLT_EPILOGUE_DEFAULT || (p.bias_type == d.type && !wide);
  return sizes && batches && types && bias && a.leading >= a.rows && b.leading >= b.rows &&
         d.leading >= d.rows;
}

template <class T> cublasStatus_t take(T& field, const void* value, std::size_t bytes) {
  if (bytes != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&field, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

bool aligned(const void* data, uint64_t bytes) {
  return bytes == 0 || reinterpret_cast<uintptr_t>(data) % bytes == 0;
}

/// The refusals that tests ask for, and counts of what happened.
struct Refusals {
  int status = 0, algorithms = 0;
  int64_t calls = 0, done = 0, refused = 0;
};
Refusals& refusals() {
  static Refusals all;
  return all;
}

}  // namespace

void emulation::refuse_products(int status, int64_t count) {
  refusals().status = status, refusals().calls = count;
}
void emulation::refuse_algorithms(int count) { refusals().algorithms = count; }
int64_t emulation::products_done() { return refusals().done; }
int64_t emulation::products_refused() { return refusals().refused; }

std::size_t cublasLtGetVersion() { return 130000; }
const char* cublasLtGetStatusString(cublasStatus_t) { return "a status of the substitute"; }
cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  static EmulatedLtHandle only;
  return *handle = &only, CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType_t type,
                                          uint64_t rows, uint64_t columns, int64_t leading) {
  *layout = new EmulatedLtLayout{type, int64_t(rows), int64_t(columns), leading};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  return delete layout, CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void* value, std::size_t bytes) {
  return attribute == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT ? take(layout->batch, value, bytes)
                                                         : take(layout->batch_offset, value, bytes);
}
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* product, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  *product = new EmulatedLtProduct{compute, scale};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t product) {
  return delete product, CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t product,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, std::size_t bytes) {
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA: return take(product->transpose[0], value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB: return take(product->transpose[1], value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE: return take(product->epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return take(product->bias, value, bytes);
    case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER: return take(product->scales[0], value, bytes);
    case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER: return take(product->scales[1], value, bytes);
    case CUBLASLT_MATMUL_DESC_A_SCALE_MODE: return take(product->scale_modes[0], value, bytes);
    case CUBLASLT_MATMUL_DESC_B_SCALE_MODE: return take(product->scale_modes[1], value, bytes);
    case CUBLASLT_MATMUL_DESC_FAST_ACCUM: return take(product->fast_sums, value, bytes);
    default: return take(product->bias_type, value, bytes);
  }
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  return *preference = new EmulatedLtPreference, CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  return delete preference, CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, std::size_t bytes) {
  std::memcpy(&preference->values[attribute], value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}
/// The alignments that the caller promised are stored in the algorithm, and are checked. The number
/// of the algorithm follows them.
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t product,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t* results,
                                              int* found) {
  *found = fits(*product, *a, *b, *d) ? std::min(wanted, 3) : 0;
  for (int i = 0; i < *found; ++i) {
    results[i].workspaceSize = 4096, results[i].state = CUBLAS_STATUS_SUCCESS;
    std::memcpy(results[i].algo.data,
                &preference->values[CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], 4 * 8);
    results[i].algo.data[4] = uint64_t(i);
  }
  return *found > 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}
cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t product, const void*,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void*, const void*,
                              cublasLtMatrixLayout_t, void* d, cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              std::size_t workspace_bytes, cudaStream_t stream) {
  Refusals& r = refusals();
  const auto refused = [&](int status) { return ++r.refused, cublasStatus_t(status); };
  if (r.calls > 0) return --r.calls, refused(r.status);
  if (int(algorithm->data[4]) < r.algorithms) return refused(CUBLAS_STATUS_NOT_SUPPORTED);
  const bool has_bias = product->epilogue != CUBLASLT_EPILOGUE_DEFAULT;
  if (!aligned(a, algorithm->data[0]) || !aligned(b, algorithm->data[1]) ||
      !aligned(d, algorithm->data[3]) || (has_bias && !aligned(product->bias, 16)) || !workspace ||
      workspace_bytes < 4096)
    return refused(CUBLAS_STATUS_INVALID_VALUE);
  ++r.done;
  auto* const call = new Call{*product, *a_layout, *b_layout, *d_layout, a, b, d};
  emulation::enqueue(
      stream, [](void* data) { multiply(*static_cast<Call*>(data)); }, call,
      [](void* data) { delete static_cast<Call*>(data); });
  return CUBLAS_STATUS_SUCCESS;
}

const cuda::cublaslt::Functions* cuda::cublaslt::functions() {
  static constexpr Functions table{cublasLtGetVersion,
                                   cublasLtGetStatusString,
                                   cublasLtCreate,
                                   cublasLtMatrixLayoutCreate,
                                   cublasLtMatrixLayoutDestroy,
                                   cublasLtMatrixLayoutSetAttribute,
                                   cublasLtMatmulDescCreate,
                                   cublasLtMatmulDescDestroy,
                                   cublasLtMatmulDescSetAttribute,
                                   cublasLtMatmulPreferenceCreate,
                                   cublasLtMatmulPreferenceDestroy,
                                   cublasLtMatmulPreferenceSetAttribute,
                                   cublasLtMatmulAlgoGetHeuristic,
                                   cublasLtMatmul};
  return &table;
}
std::string cuda::cublaslt::refusal() { return {}; }
