// Models and batches of the workloads.
#include <halftone/lab/workload_data.h>

#include <halftone/autograd/ops.h>
#include <halftone/core/factory.h>
#include <halftone/core/memory.h>
#include <halftone/core/random.h>
#include <halftone/lab/workloads/untuned.h>
#include <halftone/nn/models/gpt.h>
#include <halftone/nn/models/models.h>

namespace halftone::lab {

double gflop_of_step(double samples, const std::vector<double>& multiply_adds) {
  double total = 0;
  for (std::size_t i = 0; i < multiply_adds.size(); ++i)
    total += (i == 0 ? 2 : 3) * 2 * samples * multiply_adds[i];
  return total * 1e-9;
}

namespace {

SyntheticWorkload mlp(const std::string& name, const std::vector<int64_t>& sizes, int64_t batch) {
  std::vector<double> products;
  for (std::size_t i = 0; i + 1 < sizes.size(); ++i)
    products.push_back(double(sizes[i] * sizes[i + 1]));
  auto model = std::make_unique<nn::Sequential>(nn::models::mlp(sizes));
  const MemoryScope scope(MemoryUse::input);
  return {name, std::move(model), randn({batch, sizes.front()}), randint(0, sizes.back(), {batch}),
          gflop_of_step(double(batch), products)};
}

SyntheticWorkload lenet() {
  auto model = std::make_unique<nn::models::LeNet>();
  const MemoryScope scope(MemoryUse::input);
  return {"lenet", std::move(model), randn({128, 1, 28, 28}), randint(0, 10, {128}),
          gflop_of_step(128, {784 * 32 * 9, 196 * 64 * 288, 3136 * 128, 128 * 10})};
}

/// Counts the convolutions of ResNet-18 on images of `side`, and its linear layer.
SyntheticWorkload resnet18(const std::string& name, const nn::models::ResNetOptions& o,
                           int64_t batch, int64_t side) {
  double per_image = 0;
  const auto conv = [&](double in, double out, double kernel, double out_side) {
    per_image += in * out * kernel * kernel * out_side * out_side;
  };
  double place = o.cifar_stem ? double(side) : double(side / 2), width = 64;
  conv(3, width, o.cifar_stem ? 3 : 7, place);
  const double stem = per_image;
  if (!o.cifar_stem) place /= 2;
  for (int stage = 0; stage < 4; ++stage) {
    const double in = stage == 0 ? width : width / 2;
    if (stage > 0) place /= 2, conv(in, width, 1, place);
    conv(in, width, 3, place);
    for (int i = 0; i < 3; ++i) conv(width, width, 3, place);
    if (stage < 3) width *= 2;
  }
  per_image += width * double(o.classes);
  auto model = std::make_unique<nn::models::ResNet>(nn::models::resnet18(o));
  const MemoryScope scope(MemoryUse::input);
  return {name, std::move(model), randn({batch, 3, side, side}), randint(0, o.classes, {batch}),
          gflop_of_step(double(batch), {stem, per_image - stem})};
}

/// Counts a decoder's linear maps, its head, and the two products of causal attention, of which
/// half is masked.
SyntheticWorkload gpt(const std::string& name, const nn::models::GptOptions& o, int64_t batch,
                      int64_t length) {
  const auto width = double(o.width);
  const double per_token =
      double(o.layers) * width * (12 * width + double(length)) + double(o.vocabulary) * width;
  auto model = std::make_unique<nn::models::Gpt>(o);
  const MemoryScope scope(MemoryUse::input);
  return {name, std::move(model), randint(0, o.vocabulary, {batch, length}),
          randint(0, o.vocabulary, {batch, length}),
          gflop_of_step(double(batch * length), {0, per_token})};
}
}  // namespace

std::vector<std::string> synthetic_names() {
  return {"mlp_tiny",     "mlp",      "lenet",    "resnet18_cifar",
          "resnet18_224", "gpt_tiny", "gpt_char", "gpt2_124m"};
}

std::string synthetic_list() {
  std::string list;
  for (const std::string& name : synthetic_names()) list += (list.empty() ? "" : ", ") + name;
  return list;
}

Tensor logits_loss(const Tensor& logits, const Tensor& targets) {
  return cross_entropy(flatten(logits, 0, -2), flatten(targets));
}

namespace {
/// `large`: batches that keep a GPU busy.
SyntheticWorkload on_cpu(const std::string& name, bool large) {
  if (name == "mlp_tiny") return mlp(name, {784, 128, 10}, 64);
  if (name == "mlp")
    return large ? mlp(name, {784, 8192, 8192, 10}, 8192) : mlp(name, {784, 2048, 2048, 10}, 512);
  if (name == "lenet") return lenet();
  if (name == "resnet18_cifar")
    return resnet18(name, {.classes = 10, .cifar_stem = true}, large ? 512 : 64, 32);
  if (name == "resnet18_224")
    return resnet18(name, {.classes = large ? 1000 : 37}, large ? 256 : 16, 224);
  if (name == "gpt_tiny")
    return gpt(name, {.vocabulary = 65, .context = 64, .layers = 4, .heads = 4, .width = 128}, 16,
               64);
  if (name == "gpt_char")
    return gpt(name, {.vocabulary = 65, .context = 256, .layers = 6, .heads = 6, .width = 384},
               large ? 64 : 8, 256);
  if (name == "gpt2_124m")
    return gpt(name,
               {.vocabulary = 50304, .context = 1024, .layers = 12, .heads = 12, .width = 768},
               large ? 16 : 1, large ? 1024 : 512);
  if (auto untuned = make_untuned(name)) return std::move(*untuned);
  fail<UsageError>("workload", "there is no workload named \"", name, "\". Use one of ",
                   synthetic_list(), ".");
}
}  // namespace

SyntheticWorkload make_synthetic(const std::string& name, Device device, uint64_t seed) {
  manual_seed(seed);
  SyntheticWorkload w = on_cpu(name, device.kind != DeviceKind::cpu);
  w.model->to(device);
  const MemoryScope scope(MemoryUse::input);
  w.inputs = w.inputs.to(device), w.targets = w.targets.to(device);
  return w;
}

}  // namespace halftone::lab
