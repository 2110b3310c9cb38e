// The recorded graph of one step as a picture, in the language of Graphviz: operations in the order
// of computation, casts and tapped operations as shapes of their own, dtypes as colours, and what
// each operation keeps for backward. As torchviz for PyTorch.
//
//   write_dot(loss, "step.dot", {.names = model.named_parameters()});  // before loss.backward()
//   $ dot -Tsvg step.dot -o step.svg
#pragma once

#include <filesystem>
#include <functional>
#include <iosfwd>
#include <string>
#include <utility>
#include <vector>

#include <halftone/autograd/saved_tensors.h>

namespace halftone {

struct DotOptions {
  /// What leaves, and tensors that are kept, are called. Any text.
  std::vector<std::pair<std::string, Tensor>> names{};
  /// Where an operation stands ("0/linear.0"), for its second line; null, or empty text: none.
  /// Nodes know no places: somebody who was there in forward does.
  std::function<std::string(const Node& node)> place_of{};
  /// Of operations of your own, or the picture says that it does not know what they keep:
  /// {reader_of<SwishGate>()}.
  std::vector<OperationReader> operations{};
};

/// Everything that `loss` was computed from, as far as gradients go. Call it before backward(),
/// which frees the graph. The same computation gives the same text: nothing in it is an address.
/// A kept storage is counted once, with all its bytes; those of parameters, inputs and tensors
/// with a name, which are
/// there anyhow, are not. Throws UsageError for an undefined tensor and one without a graph, and
/// FormatError if the file cannot be written.
void write_dot(const Tensor& loss, const std::filesystem::path& path,
               const DotOptions& options = {});
void write_dot(const Tensor& loss, std::ostream& out, const DotOptions& options = {});

}  // namespace halftone
