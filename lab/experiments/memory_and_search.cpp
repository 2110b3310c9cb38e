// E15. Compares the ledger's counts with bytes computed from shapes alone, for one step of a small
// MLP, a CNN and a GPT under every strategy.
#include <set>

#include <halftone/amp/strategy.h>
#include <halftone/core/memory.h>
#include <halftone/lab/experiments/experiments.h>
#include <halftone/lab/setting.h>
#include <halftone/lab/table.h>
#include <halftone/nn/models/gpt.h>

namespace halftone::lab {
namespace e15 {

using Use = MemoryUse;

constexpr int64_t mlp_biases = 256 + 128 + 10;

struct Case {
  std::unique_ptr<nn::Layer> model;
  Tensor inputs, labels;
};

Case make(const std::string& name) {
  manual_seed(15);
  Case made;
  if (name == "MLP") {
    made.model = std::make_unique<nn::Sequential>(nn::models::mlp({128, 256, 128, 10}));
    made.inputs = randn({8, 128});
  } else if (name == "CNN") {
    made.model = std::make_unique<nn::Sequential>(nn::Sequential{
        nn::Conv2d(3, 16, 3), nn::BatchNorm2d(16), nn::Relu(), nn::Flatten(), nn::Linear(576, 10)});
    made.inputs = randn({8, 3, 8, 8});
  } else {
    made.model = std::make_unique<nn::models::Gpt>(nn::models::GptOptions{
        .vocabulary = 10, .context = 16, .layers = 2, .heads = 2, .width = 128});
    made.inputs = randint(0, 10, {1, 8});
  }
  made.labels = randint(0, 10, {8});
  return made;
}

struct Bytes {
  int64_t parameters = 0;  // number of parameters
  int64_t parameter = 0, companion = 0, gradient = 0, state = 0;
  int64_t casts = 0, kept_casts = 0;  // the most within forward; the part kept for backward
  int64_t wrong = 0;                  // difference from the prediction
};

Bytes counted(const std::string& workload, std::string_view strategy_name) {
  const MemoryReport before = memory_report();
  Case run = make(workload);
  optim::AdamW adamw(run.model->parameters());
  const amp::Strategy strategy = amp::Strategy::named(strategy_name);
  const amp::StrategyBytes predicted = amp::predicted_bytes(strategy, *run.model, adamw);
  amp::Training training(strategy, *run.model, adamw);
  const auto held = [&](Use use) { return memory_report().now_of(use) - before.now_of(use); };
  training.zero_grad();
  reset_peak_memory();
  Bytes bytes{.parameters = run.model->parameter_count()};
  {
    const Tensor logits = training.forward(*run.model, run.inputs);
    const Tensor loss = cross_entropy(flatten(logits, 0, -2), run.labels);
    bytes.casts = memory_report().peak_of(Use::cast_cache),
    bytes.kept_casts = held(Use::cast_cache);
    training.backward(loss);
  }
  training.step();
  int64_t buffers = 0;
  for (const auto& [name, x] : run.model->named_buffers()) buffers += x.bytes();
  bytes.parameter = held(Use::parameter) - buffers;
  bytes.companion = held(Use::master_weight) + held(Use::compensation);
  bytes.gradient = held(Use::gradient), bytes.state = held(Use::optimizer_state);
  bytes.wrong = std::abs(bytes.parameter - predicted.parameter) +
                std::abs(bytes.companion - predicted.companion) +
                std::abs(bytes.gradient - predicted.gradient) +
                std::abs(bytes.state - predicted.optimizer_state);
  return bytes;
}

/// Bytes of a matrix as if its format were native: codes, and scales of blocks. Also counts blocks
/// with more different numbers than the codes can represent.
struct AsIf {
  int64_t bits = 0, too_rich = 0;
};

AsIf as_if(const Tensor& x, const Quantizer& quantizer) {
  const int64_t rows = x.size(0), columns = x.size(1), width = quantizer.scaling.columns;
  const std::vector<float> y = quantize(x, quantizer).to_vector<float>();
  AsIf sum;
  for (int64_t first = 0; first < rows * columns; first += width) {
    sum.bits += width * quantizer.grid.bits + quantizer.scaling.scale_format.bits;
    const std::set<float> numbers(y.begin() + first, y.begin() + first + width);
    sum.too_rich += int64_t(numbers.size()) > int64_t(1) << quantizer.grid.bits;
  }
  return sum;
}

void run(Findings& found) {
  const MemoryReport empty = memory_report();
  Table table(
      {"bytes / parameter, MLP", "weights", "companion", "gradients", "AdamW", "casts", "kept"});
  int64_t wrong = 0, cases = 0, casts_wrong = 0;
  for (const std::string_view strategy : amp::Strategy::names())
    for (const char* workload : {"MLP", "CNN", "GPT"}) {
      const Bytes b = counted(workload, strategy);
      wrong += b.wrong, ++cases;
      if (std::string_view(workload) != "MLP") continue;
      const bool casts = amp::Strategy::named(strategy).autocast.has_value();
      casts_wrong += std::abs(b.casts - (casts ? 2 * b.parameters : 0)) +
                     std::abs(b.kept_casts - (casts ? 2 * (b.parameters - mlp_biases) : 0));
      const auto each = [&](int64_t bytes) { return number(double(bytes) / double(b.parameters)); };
      table.row({std::string(strategy), each(b.parameter), each(b.companion), each(b.gradient),
                 each(b.state), each(b.casts), each(b.kept_casts)});
    }
  found.out() << table;
  found.exactly(
      "bytes by which predictions are off, " + std::to_string(cases) + " trainings together",
      double(wrong), 0);
  // Backward does not need biases, so only the region keeps casts of biases.
  found.exactly("bytes by which casts are not 2 a parameter, and then 2 a weight without biases",
                double(casts_wrong), 0);
  found.exactly("bytes left behind", double(memory_report().total_now - empty.total_now), 0);

  Table formats({"matrices of the GPT", "bits each", "bytes as if native", "f32"});
  const Case gpt = make("GPT");
  int64_t off = 0, too_rich = 0;
  for (const char* name : {"mxfp8", "mxfp6", "mxfp4", "nvfp4", "fp8_block"}) {
    const Quantizer quantizer = *quantizer_named(name);
    int64_t elements = 0, bits = 0;
    for (const Tensor& w : gpt.model->parameters()) {
      if (w.rank() != 2) continue;
      const AsIf sum = as_if(w.detach(), quantizer);
      elements += w.numel(), bits += sum.bits, too_rich += sum.too_rich;
    }
    const double said = double(elements) * quantizer.bits_per_element();
    off += said != double(bits);
    formats.row({name, number(quantizer.bits_per_element()), number(double(bits) / 8, 9),
                 number(4.0 * double(elements), 9)});
  }
  found.out() << formats;
  found.exactly("formats whose bytes are not elements x bits", double(off), 0);
  found.exactly("blocks with more numbers than codes", double(too_rich), 0);
}

}  // namespace e15

const Experiment found::e15{
    "E15",
    "The memory table of mixed precision is exact: bytes of weights, masters, gradients and states "
    "follow from shapes, to the byte, for every strategy; autocast needs 2 bytes more per "
    "parameter in forward, and keeps the bytes of weights until backward.",
    e15::run};

}  // namespace halftone::lab
