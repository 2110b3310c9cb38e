// Lesson 29: train here, serve there. You will see a training in bf16 end with one ONNX file. Then
// a few lines of Python, in 29_train_here_serve_there.py, run the file in onnxruntime and get the
// same logits.
#include <cstdio>

#include <halftone/core/files.h>
#include <halftone/halftone.h>

#include "program.h"

namespace ht = halftone;
namespace fs = std::filesystem;

namespace {

/// Writes the f32 numbers of a tensor, for numpy.fromfile().
void write_numbers(const fs::path& path, const ht::Tensor& x) {
  const auto numbers = x.to_vector<float>();
  ht::files::replace(
      "--directory", path,
      {reinterpret_cast<const char*>(numbers.data()), sizeof(float) * numbers.size()});
}

void run(const fs::path& directory, int64_t batches) {
  ht::files::make_directories("--directory", directory);
  ht::manual_seed(0);
  ht::nn::models::LeNet model;
  ht::optim::AdamW adamw(model.parameters(), {.lr = 2e-3});
  const ht::data::ByteImages test = ht::data::fashion_mnist({.split = ht::data::Split::test});
  const ht::data::DataLoader images(ht::data::fashion_mnist(),
                                    {.batch_size = 128, .shuffle = true, .seed = 0}),
      test_images(test, {.batch_size = 500});
  ht::train::Trainer trainer(
      ht::train::classification(model), adamw,
      {.precision = "bf16-mixed", .max_epochs = 1, .limit_train_batches = batches});
  const ht::train::FitResult result = trainer.fit(images, test_images);
  std::printf("test accuracy %.1f %%\n", 100 * result.metrics.at("val/top1"));

  // The example says which sizes and dtype an input has. The file accepts batches of any size.
  const ht::data::Batch batch = *test_images.begin();
  const ht::OnnxFile file = ht::save_onnx(model, {batch.inputs}, directory / "lenet.onnx");
  std::printf("lenet.onnx: opset %d, IR version %d, %ld nodes, %ld bytes of weights in f32\n",
              file.opset, file.ir_version, long(file.nodes), long(file.weight_bytes));

  // The same images and their logits, for the comparison in Python.
  const ht::train::Evaluation evaluation(model);
  const ht::Tensor logits = model(batch.inputs);
  write_numbers(directory / "images.f32", batch.inputs);
  write_numbers(directory / "logits.f32", logits);
  for (int64_t i = 0; i < 3; ++i) {
    const auto label = std::size_t(batch.targets.to_vector<int64_t>()[std::size_t(i)]);
    std::printf("%-12s", test.class_names()[label].c_str());
    for (const float x : ht::views::slice(logits, 0, i, 1).to_vector<float>())
      std::printf("%8.3f", double(x));
    std::puts("");
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::string directory = "runs/onnx";
  int64_t batches = 100;
  Program program("Trains LeNet on Fashion-MNIST and writes it as an ONNX file.");
  program.flag("--directory", directory, "for the file, images and logits");
  program.flag("--batches", batches, "of the epoch; 0: all").not_negative();
  return program.run(argc, argv, [&] { run(directory, batches); });
}

// Conclusion. A training in bf16 has f32 weights, and one call writes them with the graph of a
// forward pass. The runtime needs neither halftone nor this source.
//
// Exercises
// 1 (predict). Add {.region = ht::amp::Region{.dtype = ht::f16}} to the call of save_onnx(). How
//   large is the error that the Python program prints?
// 2 (implement). The file gives logits. Write a file that gives probabilities, without another
//   model: save_onnx() also takes a function.
// 3 (design). The loader standardizes the images before the model sees them. A server has bytes
//   from 0 to 255. Where do you standardize, and what can go wrong in each place?
