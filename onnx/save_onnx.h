// Writes a model as an ONNX file, for runtimes such as onnxruntime. It records a forward pass in
// evaluation mode and writes each operation as ONNX nodes, with the weights in the same file.
//
//   save_onnx(model, {images}, "model.onnx");        // images: one example batch
//
// Supported operations and measured errors: docs/onnx.md.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <halftone/amp/autocast.h>
#include <halftone/nn/module.h>

namespace halftone {

struct OnnxOptions {
  /// Names of the graph's inputs and outputs; absent ones are input, input2, ... and output,
  /// output2, ...
  std::vector<std::string> input_names{}, output_names{};
  /// Dimension 0 of all inputs is the batch, of any size. False: all sizes are those of the
  /// examples.
  bool dynamic_batch = true;
  /// Records the pass in this region: its casts become Cast nodes, and a policy's quantizers become
  /// pairs of QuantizeLinear and DequantizeLinear. Training::region() has it.
  std::optional<amp::Region> region{};
};

/// The properties of a written file.
struct OnnxFile {
  int opset = 0, ir_version = 0;  // of ONNX; at least 18 and 8
  int64_t nodes = 0, weight_bytes = 0;
};

/// The forward pass of a model with several inputs or outputs.
using OnnxForward = std::function<std::vector<Tensor>(const std::vector<Tensor>&)>;

/// Writes forward(inputs) as an ONNX graph. Parameters and buffers have their names from
/// named_parameters() and named_buffers(), and PyTorch's layouts. `inputs`: examples. The pass runs
/// three times on batches made of them; with dynamic_batch these have 2, 3 and 5 rows. The model is
/// in evaluation mode meanwhile. Throws UnsupportedError for operations, quantizers and sizes that
/// ONNX does not have, UsageError for names used twice, ShapeError for examples without rows under
/// dynamic_batch, FormatError if the file cannot be written. An error changes no file. As
/// torch.onnx.export.
OnnxFile save_onnx(nn::Module& model, const OnnxForward& forward, const std::vector<Tensor>& inputs,
                   const std::filesystem::path& path, const OnnxOptions& options = {});
/// The same for a layer, which has one input.
OnnxFile save_onnx(nn::Layer& model, const std::vector<Tensor>& inputs,
                   const std::filesystem::path& path, const OnnxOptions& options = {});

}  // namespace halftone
