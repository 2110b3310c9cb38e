// Matrix products by cuBLASLt. It is column-major, so c = a b is computed as c^T = b^T a^T: a
// row-major [k, n] is its column-major [n, k], and nothing is copied. The epilogue adds the bias.
// Short floats are summed in f32, also into an f32 result. The heuristic's proposals for a shape
// are cached, without those that the library then refuses.
#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <optional>
#include <tuple>
#include <vector>

#include <halftone/backends/cuda/cublaslt/functions.h>
#include <halftone/backends/cuda/for_cudnn.h>
#include <halftone/backends/cuda/libraries.h>
#include <halftone/core/device.h>
#include <halftone/core/error.h>

namespace halftone::cuda::cublaslt {

namespace {

// --- the parameters of a product for cuBLASLt

cudaDataType_t data_type(DType dtype) {
  switch (dtype) {
    case f64: return CUDA_R_64F;
    case f32: return CUDA_R_32F;
    case f16: return CUDA_R_16F;
    case bf16: return CUDA_R_16BF;
    case f8_e4m3: return CUDA_R_8F_E4M3;
    case f8_e5m2: return CUDA_R_8F_E5M2;
    default: return CUDA_R_32F;  // not reached: products are floating
  }
}

/// The last two dimensions in memory: rows of `leading` elements, or their transpose.
struct Matrix {
  bool transposed = false;  // columns are contiguous
  int64_t leading = 0, batch_stride = 0;

  auto operator<=>(const Matrix&) const = default;
};

std::optional<Matrix> matrix_of(const Tensor& x) {
  const int last = x.rank() == 3 ? 2 : 1;
  const int64_t rows = x.shape()[last - 1], columns = x.shape()[last];
  const int64_t row_step = x.strides()[last - 1], column_step = x.strides()[last];
  Matrix m{.batch_stride = x.rank() == 3 && x.shape()[0] > 1 ? x.strides()[0] : 0};
  if (column_step == 1 || columns == 1) m.leading = rows == 1 ? columns : row_step;
  else if (row_step == 1 || rows == 1)
    m.transposed = true, m.leading = columns == 1 ? rows : column_step;
  const int64_t least = m.transposed ? rows : columns;
  return m.leading >= least ? std::optional(m) : std::nullopt;
}

/// Returns the power of two that the address is a multiple of, as far as cuBLASLt uses it.
int alignment_of(const Tensor& x) {
  const auto address = x.defined() ? reinterpret_cast<uintptr_t>(x.raw_data()) : 0;
  return address == 0 ? 256 : int(std::min<uintptr_t>(256, address & (~address + 1)));
}

/// The alignment that a bias needs: epilogues load it 16 bytes at a time.
constexpr int least_bias_alignment = 16;

/// The factors of f8 matrices, of a and of b: scalars, one for each row of a and each column of b,
/// or bytes of e8m0 for 32 numbers of a sum.
using Factors = std::array<Tensor, 2>;
enum class Factor : uint8_t { none, scalar, row, block };
Factor factor_of(const Factors& factors) {
  const Tensor& of_a = factors[0];
  if (!of_a.defined()) return Factor::none;
  return of_a.dtype() == u8 ? Factor::block : of_a.rank() == 0 ? Factor::scalar : Factor::row;
}
#if CUBLAS_VERSION >= 120900
constexpr bool has_other_factors = true;
cublasLtMatmulMatrixScale_t scale_mode(Factor factor) {
  return factor == Factor::row     ? CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F
         : factor == Factor::block ? CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0
                                   : CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
}
#else
constexpr bool has_other_factors = false;
#endif

struct Product {
  int64_t m, n, k, batch;
  DType in, in_b, out;        // in_b differs from in for f8
  std::optional<DType> bias;  // which the epilogue adds
  bool tf32;                  // factors may be rounded to tf32
  Matrix a, b;
  std::array<int, 3> alignment;  // of a, b, c
  Factor factor = Factor::none;  // of f8 matrices

  bool is_f8() const { return size_of(in) == 1; }
  auto operator<=>(const Product&) const = default;
};

/// cuBLASLt 13.1 on an H100 rounds a short product before it adds a bias, if rows of the matrices
/// are not aligned.
bool rounds_once(const Product& p) {
  const auto aligned = [](int64_t columns) { return columns * 2 % least_bias_alignment == 0; };
  return !p.bias || size_of(p.out) > 2 ||
         (aligned(p.n) && aligned(p.a.leading) && aligned(p.b.leading) &&
          *std::ranges::min_element(p.alignment) >= least_bias_alignment);
}

std::optional<Product> product_of(const Tensor& a, const Tensor& b, const Tensor& bias,
                                  const Tensor& c, const Factors& factors) {
  const auto matrix_a = matrix_of(a), matrix_b = matrix_of(b);
  const int last = c.rank() - 1;
  const bool alike = a.dtype() == b.dtype() || (size_of(a.dtype()) == 1 && size_of(b.dtype()) == 1);
  if (!matrix_a || !matrix_b || !alike || c.numel() == 0 || a.shape()[last] == 0 ||
      (bias.defined() && bias.strides()[0] != 1 && bias.numel() > 1) ||
      alignment_of(bias) < least_bias_alignment)
    return std::nullopt;
  return Product{.m = c.shape()[last - 1],
                 .n = c.shape()[last],
                 .k = a.shape()[last],
                 .batch = c.rank() == 3 ? c.shape()[0] : 1,
                 .in = a.dtype(),
                 .in_b = b.dtype(),
                 .out = c.dtype(),
                 .bias = bias.defined() ? std::optional(bias.dtype()) : std::nullopt,
                 .tf32 = a.dtype() == f32 && allow_tf32(),
                 .a = *matrix_a,
                 .b = *matrix_b,
                 .alignment = {alignment_of(a), alignment_of(b), alignment_of(c)},
                 .factor = factor_of(factors)};
}

// --- cuBLASLt's objects

void check_status(cublasStatus_t status, std::string_view what) {
  if (status != CUBLAS_STATUS_SUCCESS)
    fail<DeviceError>("matmul", "cuBLASLt ", functions()->version(), ": ", what,
                      " failed: ", functions()->status_text(status),
                      ". Set HALFTONE_CUDA_LIBRARIES=off to go without it.");
}

class Layout {
 public:
  Layout(DType dtype, int64_t rows, int64_t columns, int64_t leading, int64_t batch,
         int64_t batch_stride) {
    check_status(functions()->layout_create(&layout_, data_type(dtype), uint64_t(rows),
                                            uint64_t(columns), leading),
                 "describing a matrix");
    if (batch == 1) return;
    const auto count = int32_t(batch);
    set(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, count);
    set(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, batch_stride);
  }
  ~Layout() { functions()->layout_destroy(layout_); }
  Layout(const Layout&) = delete;
  Layout& operator=(const Layout&) = delete;
  cublasLtMatrixLayout_t get() const { return layout_; }

 private:
  template <class T> void set(cublasLtMatrixLayoutAttribute_t attribute, const T& value) {
    check_status(functions()->layout_set(layout_, attribute, &value, sizeof value),
                 "describing a matrix");
  }
  cublasLtMatrixLayout_t layout_ = nullptr;
};

/// Interprets the status of a call: a refusal of this algorithm for these matrices, lack of memory,
/// or an error, which is thrown.
Outcome outcome_of(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS: return {};
    case CUBLAS_STATUS_INVALID_VALUE:
    case CUBLAS_STATUS_ARCH_MISMATCH:
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return {Answer::unsupported, functions()->status_text(status)};
    case CUBLAS_STATUS_ALLOC_FAILED: return {Answer::not_now, functions()->status_text(status)};
    default: check_status(status, "a product"); return {};
  }
}

/// The descriptors of a product and, once proposed, its algorithms.
class Plan {
 public:
  /// Matrices of cuBLASLt, columns first: `left` is b, `right` is a, `result` is c.
  explicit Plan(const Product& p)
      : left_(p.in_b, p.b.transposed ? p.k : p.n, p.b.transposed ? p.n : p.k, p.b.leading, p.batch,
              p.b.batch_stride),
        right_(p.in, p.a.transposed ? p.m : p.k, p.a.transposed ? p.k : p.m, p.a.leading, p.batch,
               p.a.batch_stride),
        result_(p.out, p.n, p.m, p.n, p.batch, p.m * p.n) {
    const bool wide = p.in == f64;
    const cublasComputeType_t compute = wide     ? CUBLAS_COMPUTE_64F
                                        : p.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32
                                                 : CUBLAS_COMPUTE_32F;
    check_status(functions()->product_create(&product_, compute, wide ? CUDA_R_64F : CUDA_R_32F),
                 "describing a product");
    set(CUBLASLT_MATMUL_DESC_TRANSA, p.b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, p.a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    // All of a product's sums are made in the tensor cores' own accumulators.
    if (p.is_f8()) set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, int8_t(1));
#if CUBLAS_VERSION >= 120900
    if (p.factor > Factor::scalar)
      for (const auto side : {CUBLASLT_MATMUL_DESC_A_SCALE_MODE, CUBLASLT_MATMUL_DESC_B_SCALE_MODE})
        set(side, int32_t(scale_mode(p.factor)));
#endif
    if (!p.bias) return;
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, data_type(*p.bias));
  }
  ~Plan() { functions()->product_destroy(product_); }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  /// Requests algorithms; returns false if there are none. Does not read the bias, but the
  /// heuristic learns its alignment from its address.
  bool choose(cublasLtHandle_t handle, const Product& p, const Tensor& bias,
              const Factors& factors) {
    point_to(bias, factors);
    cublasLtMatmulPreference_t preference = nullptr;
    check_status(functions()->preference_create(&preference), "making a preference");
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
      functions()->preference_set(preference, attribute, &value, sizeof value);
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t(32) << 20);
    // The other schemes for a split depth add up in the dtype of the result. A split product of f8
    // would have other sums than the tensor cores'.
    prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
           uint32_t(p.is_f8() ? CUBLASLT_REDUCTION_SCHEME_NONE
                              : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, uint32_t(p.alignment[1]));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, uint32_t(p.alignment[0]));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, uint32_t(p.alignment[2]));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, uint32_t(p.alignment[2]));
    std::array<cublasLtMatmulHeuristicResult_t, 8> found{};
    int count = 0;
    const cublasStatus_t status =
        functions()->heuristic(handle, product_, left_.get(), right_.get(), result_.get(),
                               result_.get(), preference, int(found.size()), found.data(), &count);
    functions()->preference_destroy(preference);
    if (status != CUBLAS_STATUS_SUCCESS) return false;
    for (int i = count; i-- > 0;)
      if (found[std::size_t(i)].state == CUBLAS_STATUS_SUCCESS)
        proposals_.push_back(found[std::size_t(i)]);
    return !proposals_.empty();
  }

  /// Runs the first algorithm that the library accepts; refused ones are not tried again.
  Outcome run(cublasLtHandle_t handle, const Context& context, const Tensor& a, const Tensor& b,
              const Tensor& bias, const Tensor& c, const Factors& factors) {
    point_to(bias, factors);
    for (;;) {
      Outcome outcome = run(proposals_.back(), handle, context, a, b, c);
      if (outcome.answer != Answer::unsupported) return outcome;
      proposals_.pop_back();
      if (proposals_.empty()) return outcome;
    }
  }

 private:
  Outcome run(const cublasLtMatmulHeuristicResult_t& proposal, cublasLtHandle_t handle,
              const Context& context, const Tensor& a, const Tensor& b, const Tensor& c) const {
    const double one = 1, zero = 0;
    const float one_f32 = 1, zero_f32 = 0;
    const bool wide = a.dtype() == f64;
    const std::size_t bytes = proposal.workspaceSize;
    const Tensor workspace = scratch(context, {int64_t(bytes)}, u8);
    return outcome_of(functions()->matmul(
        handle, product_, wide ? static_cast<const void*>(&one) : &one_f32, b.raw_data(),
        left_.get(), a.raw_data(), right_.get(), wide ? static_cast<const void*>(&zero) : &zero_f32,
        c.raw_data(), result_.get(), c.raw_data(), result_.get(), &proposal.algo,
        bytes > 0 ? workspace.raw_data() : nullptr, bytes, context.stream()));
  }

  /// Stores the addresses that a product reads besides its matrices.
  void point_to(const Tensor& bias, const Factors& factors) const {
    if (bias.defined()) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias.raw_data());
    if (!factors[0].defined()) return;
    set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, factors[1].raw_data());  // cuBLASLt's A is b
    set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, factors[0].raw_data());
  }
  template <class T> void set(cublasLtMatmulDescAttributes_t attribute, const T& value) const {
    check_status(functions()->product_set(product_, attribute, &value, sizeof value),
                 "describing a product");
  }
  Layout left_, right_, result_;
  cublasLtMatmulDesc_t product_ = nullptr;
  std::vector<cublasLtMatmulHeuristicResult_t> proposals_;  // the best one last
};

/// For each device: the handle, and a plan for every product seen. Plans hold no device memory.
struct Library {
  std::mutex mutex;
  cublasLtHandle_t handle = nullptr;
  PlanCache<Product, Plan> plans{4096};
};

Library& library_of(const Context& context) {
  static std::mutex mutex;
  static auto* const libraries = new std::map<int, std::unique_ptr<Library>>;
  const std::lock_guard lock(mutex);
  std::unique_ptr<Library>& library = (*libraries)[context.device().index];
  if (!library) {
    library = std::make_unique<Library>();
    check_status(functions()->create(&library->handle), "opening it");
  }
  return *library;
}

std::string text_of(const Tensor& a, const Tensor& b, const Tensor& bias, const Tensor& c) {
  PlainText text;
  text << described(a) << " and " << described(b);
  if (bias.defined()) text << " and a bias " << described(bias);
  text << " into " << described(c);
  return text.str();
}

}  // namespace

bool is_usable() { return libraries_wanted() && functions(); }

std::string description() {
  if (!functions()) return refusal();
  const std::size_t version = functions()->version();
  return "cuBLASLt " + std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) +
         "." + std::to_string(version % 100);
}

bool matmul(Context& context, const Tensor& a, const Tensor& b, const Tensor& bias, Tensor& c,
            const Factors& factors) {
  if (!is_usable()) return false;
  const auto declined = [&](const std::string& why) {
    if (log_wanted()) say_declined(By::cublaslt, Family::matmul, text_of(a, b, bias, c), why);
    return false;
  };
  const std::optional<Product> product = product_of(a, b, bias, c, factors);
  if (product && product->factor > Factor::scalar && !has_other_factors)
    return declined("factors that CUDA 12.9 brought, and the build has an older one");
  if (!product) return declined("strides, sizes or an alignment that it does not take");
  if (!rounds_once(*product)) return declined("it would round the result before it adds the bias");
  context.activate();
  Library& library = library_of(context);
  const std::lock_guard lock(library.mutex);
  const auto make = [&](std::unique_ptr<Plan>& plan) -> Outcome {
    auto made = std::make_unique<Plan>(*product);
    if (!made->choose(library.handle, *product, bias, factors))
      return {Answer::unsupported, "no algorithm"};
    plan = std::move(made);
    return {};
  };
  const Outcome outcome = library.plans.run(
      *product,
      {.make = make,
       .run = [&](Plan& plan) { return plan.run(library.handle, context, a, b, bias, c, factors); },
       .trim = [&] { context.memory().trim(); }});
  return outcome.answer == Answer::done || declined(outcome.why);
}

}  // namespace halftone::cuda::cublaslt
