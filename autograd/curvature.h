// Products with second derivatives, and what is measured with them: the curvature of a loss. All
// are made of autograd::grad() with create_graph.
#pragma once

#include <cstdint>
#include <vector>

#include <halftone/core/tensor.h>

namespace halftone::autograd {

/// Returns H v, one tensor per input: H is the matrix of second derivatives of `loss`, a tensor of
/// one element with history, by all elements of the inputs. `v` has the inputs' shapes and dtypes.
/// The graph of the loss stays. As torch.autograd.functional.hvp. Throws as grad() does, and
/// UsageError or ShapeError if `v` does not fit the inputs.
std::vector<Tensor> hessian_vector_product(const Tensor& loss, const std::vector<Tensor>& inputs,
                                           const std::vector<Tensor>& v);

/// Returns J v, one tensor per output: the derivative of the outputs along the direction `v` of the
/// inputs. It makes two backward passes: the first gives J^T u, which is linear in u, and the
/// second differentiates that by u. As torch.autograd.functional.jvp.
std::vector<Tensor> jacobian_vector_product(const std::vector<Tensor>& outputs,
                                            const std::vector<Tensor>& inputs,
                                            const std::vector<Tensor>& v);

struct TraceOptions {
  int64_t samples = 32;      // random vectors, at least 2: the error falls with their square root
  double confidence = 0.95;  // that an interval contains the trace
};
/// An estimate for one parameter: the trace of the matrix of second derivatives by its elements.
struct TraceEstimate {
  double trace = 0;
  double low = 0, high = 0;  // Student's interval of the mean of the samples
};
/// Returns an estimate per parameter: the mean of v H v over vectors of random signs (Hutchinson
/// 1990), which come from the default generator. One product with the Hessian of all parameters per
/// sample. Dong et al. 2019 (HAWQ) rank layers by it.
std::vector<TraceEstimate> hutchinson_trace(const Tensor& loss,
                                            const std::vector<Tensor>& parameters,
                                            const TraceOptions& options = {});

struct EigenvalueOptions {
  int64_t max_steps = 100;
  double tolerance = 1e-3;  // the relative residual at which the iteration ends
};
struct Eigenvalue {
  double value = 0;     // the one of largest magnitude; negative at a saddle
  double residual = 0;  // |H v - value v| / |value|: an eigenvalue is that near, relatively
  int64_t steps = 0;
  std::vector<Tensor> vector{};  // of length 1, one tensor per parameter
};
/// Returns the Hessian's eigenvalue of largest magnitude, by power iteration from a random vector.
/// The eigenvalue's inverse bounds the learning rate of plain gradient descent. Check `residual`:
/// two eigenvalues of nearly one magnitude make the iteration slow.
Eigenvalue largest_hessian_eigenvalue(const Tensor& loss, const std::vector<Tensor>& parameters,
                                      const EigenvalueOptions& options = {});

}  // namespace halftone::autograd
