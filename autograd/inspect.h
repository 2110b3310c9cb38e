// Gradients compared with central differences, and the recorded graph of a step as a picture.
#pragma once

#include <filesystem>
#include <functional>
#include <iosfwd>
#include <string>
#include <utility>
#include <vector>

#include <halftone/autograd/engine.h>
#include <halftone/core/tensor.h>

namespace halftone {

// gradcheck: compares an operation's gradient with central differences, in f64. As
// torch.autograd.gradcheck.

struct GradcheckOptions {
  double step = 1e-6;
  double relative_tolerance = 1e-5, absolute_tolerance = 1e-7;
};
struct GradcheckResult {
  bool passed = true;
  double worst_error = 0;  // largest |analytic - numeric| seen
  std::string message;     // the first disagreement: input, element, both values
  explicit operator bool() const { return passed; }
};

/// Checks the gradients of `function`, which returns one tensor of any shape. Throws DTypeError if
/// an input that requires a gradient is not f64. `function` must be smooth within `step` of the
/// inputs.
GradcheckResult gradcheck(const std::function<Tensor(const std::vector<Tensor>&)>& function,
                          const std::vector<Tensor>& inputs, const GradcheckOptions& options = {});

// Draws the recorded graph of one step in the language of Graphviz: operations in the order of
// computation, casts and operations with a tap (OpTap, autograd/slots.h) as shapes of their own,
// dtypes as colors, and the tensors that each operation saves for backward. As PyTorch's torchviz.
//
//   write_dot(loss, "step.dot", {.names = model.named_parameters()});  // before loss.backward()
//   $ dot -Tsvg step.dot -o step.svg

struct DotOptions {
  /// The names of leaves and of kept tensors. Any text.
  std::vector<std::pair<std::string, Tensor>> names{};
  /// Returns the site of an operation, its place in the model ("0/linear.0"), for its second line.
  /// A null function or an empty text gives no such line. Nodes do not store sites: an object that
  /// saw the forward pass knows them.
  std::function<std::string(const Node& node)> place_of{};
  /// Readers for operations of your own, such as {reader_of<SwishGate>()}. Without a reader, the
  /// picture says that the saved tensors of the operation are unknown.
  std::vector<OperationReader> operations{};
};

/// Draws all operations that `loss` was computed from, as far as gradients go. Call it before
/// backward(), which frees the graph. The same computation gives the same text: it contains no
/// addresses. The storage of a saved tensor is counted once, with all its bytes; storages of
/// parameters, inputs and named tensors are not counted, because they exist anyway. Throws
/// UsageError if `loss` is undefined, or has no graph, or its graph was freed. Throws FormatError
/// if the file cannot be written.
void write_dot(const Tensor& loss, const std::filesystem::path& path,
               const DotOptions& options = {});
void write_dot(const Tensor& loss, std::ostream& out, const DotOptions& options = {});

}  // namespace halftone
