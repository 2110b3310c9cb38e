// Makes the batches of the recorded passes, and writes the file.
#include <halftone/onnx/save_onnx.h>

#include <halftone/autograd/ops.h>
#include <halftone/core/files.h>
#include <halftone/core/memory.h>
#include <halftone/onnx/translator.h>

namespace halftone {

namespace {
constexpr std::string_view command = "save_onnx";

/// Evaluation mode for a scope, for each module as it was afterwards.
class Evaluating {
 public:
  explicit Evaluating(nn::Module& model) {
    for (const auto& [path, module] : model.named_modules())
      modules_.emplace_back(module, module->training);
    model.eval();
  }
  ~Evaluating() {
    for (const auto& [module, training] : modules_) module->training = training;
  }
  Evaluating(const Evaluating&) = delete;
  Evaluating& operator=(const Evaluating&) = delete;

 private:
  std::vector<std::pair<nn::Module*, bool>> modules_;
};

/// Returns `rows` rows of an example, from the first one again after the last.
Tensor with_rows(const Tensor& example, int64_t rows) {
  std::vector<Tensor> parts;
  for (int64_t done = 0; done < rows; done += example.size(0))
    parts.push_back(slice(example, 0, 0, std::min(rows - done, example.size(0))));
  return cat(parts, 0);
}
/// Returns other values of the same range: halves of floats, integers in reverse order.
Tensor with_other_values(const Tensor& x) {
  if (is_floating(x.dtype())) return cast(cast(x, f32) * 0.5, x.dtype());
  return x.rank() == 0 ? x : flip(x, {-1});
}

/// rows: 0 for those of the examples.
std::vector<Tensor> batch_of(const std::vector<Tensor>& examples, int64_t rows, bool other) {
  const NoGrad no_grad;
  std::vector<Tensor> batch;
  for (const Tensor& x : examples) {
    const Tensor sized = rows > 0 ? with_rows(x, rows) : x;
    batch.push_back((other ? with_other_values(sized) : sized).clone());
  }
  return batch;
}

void check_examples(const std::vector<Tensor>& examples, bool dynamic_batch) {
  if (examples.empty()) fail<UsageError>(command, "no example inputs. Give one batch.");
  for (const Tensor& x : examples) {
    if (!x.defined()) fail<UsageError>(command, "an example input is undefined. Give a tensor.");
    if (dynamic_batch && (x.rank() == 0 || x.size(0) == 0))
      fail<ShapeError>(command, "an example input is ", described(x),
                       ", without rows. Give at least one, or dynamic_batch = false.");
  }
}
}  // namespace

OnnxFile save_onnx(nn::Module& model, const OnnxForward& forward, const std::vector<Tensor>& inputs,
                   const std::filesystem::path& path, const OnnxOptions& options) {
  check_examples(inputs, options.dynamic_batch);
  files::require_replaceable(command, path);
  int64_t weight_bytes = 0;
  for (const auto& [name, x] : model.named_parameters()) weight_bytes += x.bytes();
  return or_no_memory(command, weight_bytes, [&] {
    const Evaluating evaluating(model);
    const policy::ModelNames names(model);
    std::vector<int64_t> rows{2, 3, 5};
    if (!options.dynamic_batch) rows = {1, 1, 1};
    std::vector<onnx::Recording> passes;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const int64_t size = options.dynamic_batch ? rows[i] : 0;
      passes.push_back(
          onnx::record(names, forward, batch_of(inputs, size, i == 2), options.region));
    }
    onnx::Translator translator(model, std::move(passes), rows);
    onnx::Graph graph = translator.graph({options.input_names, options.output_names});
    const std::string bytes = graph.serialized();
    files::replace(command, path, bytes);
    return OnnxFile{graph.opset(), graph.ir_version(), graph.node_count(), graph.weight_bytes()};
  });
}

OnnxFile save_onnx(nn::Layer& model, const std::vector<Tensor>& inputs,
                   const std::filesystem::path& path, const OnnxOptions& options) {
  if (inputs.size() != 1)
    fail<UsageError>(command, inputs.size(),
                     " example inputs for a layer, which has one. Give one, or a function for "
                     "models with several.");
  const auto forward = [&model](const std::vector<Tensor>& in) {
    return std::vector<Tensor>{model(in[0])};
  };
  return save_onnx(model, forward, inputs, path, options);
}

}  // namespace halftone
