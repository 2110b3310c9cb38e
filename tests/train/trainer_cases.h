// A small classification, and the loop by hand that a Trainer must equal to the bit.
#pragma once

#include <cmath>
#include <filesystem>
#include <set>
#include <string>

#include <halftone/halftone.h>

#include "../amp/cases.h"
#include "../support.h"

namespace halftone::test {

constexpr int64_t trainer_samples = 72;

/// 12 features, 4 classes; the classes can be learned.
inline data::DataLoader trainer_loader(const data::DataLoaderOptions& options = {
                                           .batch_size = 16, .shuffle = true, .seed = 3}) {
  const Generator before = default_generator();
  manual_seed(99);
  const Tensor inputs = randn({trainer_samples, 12});
  const Tensor labels = argmax(matmul(inputs, randn({12, 4})), -1);
  default_generator() = before;
  return data::DataLoader(data::TensorDataset(inputs, labels), options);
}

/// A model with dropout and batch norm, so that generator and buffers matter, and its optimizer.
struct TrainerCase {
  nn::Sequential model;
  optim::AdamW adamw;

  static nn::Sequential network(uint64_t seed, int64_t width) {
    manual_seed(seed);
    return nn::Sequential(nn::Linear(12, width), nn::BatchNorm1d(width), nn::Relu(),
                          nn::Dropout(0.2), nn::Linear(width, 4));
  }
  explicit TrainerCase(uint64_t seed = 1, int64_t width = 20)
      : model(network(seed, width)), adamw(model.parameters(), {.lr = 1e-2}) {
    manual_seed(seed + 7);
  }
  train::Task task() { return train::classification(model); }
};

/// Options that print and write nothing.
inline train::TrainerOptions quiet(train::TrainerOptions options = {}) {
  options.progress_bar = options.model_summary = false;
  return options;
}

/// A Trainer with its own case.
struct TrainerRun {
  TrainerCase parts;
  train::Trainer trainer;

  explicit TrainerRun(train::TrainerOptions options, uint64_t seed = 1, int64_t width = 20)
      : parts(seed, width), trainer(parts.task(), parts.adamw, quiet(std::move(options))) {}
  optim::NamedTensors state() { return copy_of(trainer.training().state_dict()); }
};

/// A callback made of lambdas.
struct Hooks final : train::Callback {
  std::function<void(train::Trainer&)> step_end, validation_end, fit_start;
  std::function<void(data::Batch&)> batch;
  std::function<bool(const Tensor&)> loss;

  void on_fit_start(train::Trainer& trainer) override {
    if (fit_start) fit_start(trainer);
  }
  void on_batch_start(train::Trainer&, data::Batch& next) override {
    if (batch) batch(next);
  }
  bool on_loss(train::Trainer&, const Tensor& value) override { return !loss || loss(value); }
  bool drops_steps() const override { return bool(loss); }
  void on_step_end(train::Trainer& trainer) override {
    if (step_end) step_end(trainer);
  }
  void on_validation_end(train::Trainer& trainer) override {
    if (validation_end) validation_end(trainer);
  }
};

// Checkpoints of a few tensors, and operations of tests on them.

namespace fs = std::filesystem;

inline train::Checkpoint small_checkpoint(int64_t step) {
  const double x = double(step);
  return {.state = {.step = step,
                    .epoch = 3,
                    .batches = 17,
                    .numbers = {{"loss", 1 / (x + 3)}, {"best \"so\" far", -0.0}},
                    .texts = {{"strategy", "fp32"}, {"note", "line\nü"}}},
          .tensors = {{"model.weight", from_vector<double>({x, 1.0, 2.0, 3.0}, {2, 2}, f32)},
                      {"model.bias", from_vector<double>({x, -x}, {2}, bf16)},
                      {"optimizer.step", from_vector<double>({x}, {1}, f64)},
                      {"generator", from_vector<double>({1.0, 2.0}, {2}, i64)}}};
}

inline bool same(const train::Checkpoint& a, const train::Checkpoint& b) {
  if (a.state.step != b.state.step || a.state.epoch != b.state.epoch ||
      a.state.batches != b.state.batches || a.state.texts != b.state.texts ||
      a.state.numbers != b.state.numbers || a.tensors.size() != b.tensors.size())
    return false;
  for (const auto& [name, x] : a.tensors) {
    const auto other = b.tensors.find(name);
    if (other == b.tensors.end() || other->second.dtype() != x.dtype() ||
        other->second.shape() != x.shape() ||
        other->second.to_vector<double>() != x.to_vector<double>())
      return false;
  }
  return true;
}

/// Changes a checkpoint's last byte of weights; its size is unchanged.
inline void damage(const fs::path& checkpoint) {
  std::string bytes = read_file(checkpoint / "model.safetensors");
  bytes.back() = char(bytes.back() ^ 1);
  write_file(checkpoint / "model.safetensors", bytes);
}

/// Names directly in a directory.
inline std::set<std::string> names_in(const fs::path& directory) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory))
    names.insert(entry.path().filename().string());
  return names;
}

/// Returns the message of load_checkpoint(); it must be a FormatError of this format, or nothing.
inline std::string refusal(const fs::path& path) {
  const std::string message = message_of<FormatError>([&] { train::load_checkpoint(path); });
  return message.empty() || message.starts_with("[checkpoint] ") ? message : "NOT OURS: " + message;
}

}  // namespace halftone::test
