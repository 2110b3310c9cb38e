// Collating by memcpy: a batch of rows needs no kernel, and the worker thread must not start an
// OpenMP team of its own.
#include <halftone/data/tensor_dataset.h>

#include <cstring>
#include <string_view>

#include <halftone/core/factory.h>
#include <halftone/core/views.h>

namespace halftone::data {

namespace {
Tensor row_major_on_cpu(std::string_view role, const Tensor& x) {
  if (!x.defined() || x.rank() == 0)
    fail<ShapeError>(
        "TensorDataset", role,
        " have no first dimension: they must be [samples, ...]. Pass a tensor of rank 1 or more.");
  if (x.device() != Device::cpu())
    fail<DeviceError>("TensorDataset", role, " are on another device: ", described(x), " on ",
                      x.device(), ". Call to(Device::cpu()) first and move batches instead.");
  return views::contiguous(x.detach());
}
}  // namespace

TensorDataset::TensorDataset(const Tensor& inputs, const Tensor& targets)
    : inputs_(row_major_on_cpu("inputs", inputs)), targets_(row_major_on_cpu("targets", targets)) {
  if (inputs.size(0) != targets.size(0))
    fail<ShapeError>("TensorDataset", "numbers of samples differ: inputs are ", described(inputs),
                     ", targets are ", described(targets),
                     "; inputs.size(0) must equal targets.size(0).");
}

Batch TensorDataset::batch(std::span<const int64_t> indices) const {
  return {take_rows(inputs_, indices), take_rows(targets_, indices)};
}

Tensor take_rows(const Tensor& rows, std::span<const int64_t> indices) {
  const int64_t count = rows.size(0);
  Shape shape = rows.shape();
  shape[0] = 1;
  const auto row_bytes = std::size_t(numel_of(shape) * size_of(rows.dtype()));
  shape[0] = int64_t(indices.size());
  Tensor taken = empty(shape, rows.dtype());
  std::byte* to = taken.raw_data();
  for (const int64_t index : indices) {
    if (index < 0 || index >= count)
      fail<UsageError>("Dataset", "there is no sample ", index, ": the dataset has ", count,
                       ". Number samples from 0 to size() - 1.");
    std::memcpy(to, rows.raw_data() + std::size_t(index) * row_bytes, row_bytes);
    to += row_bytes;
  }
  return taken;
}

Tensor stack_samples(std::string_view op, std::span<const Tensor> samples,
                     std::span<const int64_t> numbers) {
  if (samples.empty()) return empty({0});
  const Tensor& first = samples.front();
  for (std::size_t i = 0; i < samples.size(); ++i) {
    if (!samples[i].defined() || samples[i].device() != Device::cpu())
      fail<ShapeError>(op, "the transform gives nothing, or not on the CPU: sample ", numbers[i],
                       ". Return a defined CPU tensor.");
    if (samples[i].shape() != first.shape() || samples[i].dtype() != first.dtype())
      fail<ShapeError>(op, "samples of a batch differ: sample ", numbers[0], " is ",
                       described(first), ", sample ", numbers[i], " is ", described(samples[i]),
                       ". End the transform with one size for all, such as Resize and CenterCrop.");
  }
  Shape shape = first.shape();
  shape.insert(0, int64_t(samples.size()));
  Tensor stacked = empty(shape, first.dtype());
  std::byte* to = stacked.raw_data();
  const auto bytes = std::size_t(first.numel() * size_of(first.dtype()));
  for (const Tensor& sample : samples) {
    const Tensor row_major = views::contiguous(sample.detach());
    if (bytes) std::memcpy(to, row_major.raw_data(), bytes);
    to += bytes;
  }
  return stacked;
}

}  // namespace halftone::data
