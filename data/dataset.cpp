// Makes a batch of a list of tensors: the inputs first, the targets last.
#include <halftone/data/dataset.h>

#include <cstring>
#include <numeric>
#include <string_view>

#include <halftone/core/factory.h>
#include <halftone/core/tensor.h>

namespace halftone::data {

Batch Batch::of(std::vector<Tensor> tensors) {
  if (tensors.empty())
    fail<UsageError>("Batch.of", "there is no tensor. Pass inputs, and targets after them.");
  Batch batch{.inputs = tensors.front(), .targets = {}};
  if (tensors.size() > 1) batch.targets = tensors.back();
  if (tensors.size() > 2) batch.more.assign(tensors.begin() + 1, tensors.end() - 1);
  return batch;
}

// Collates by memcpy: a batch of rows needs no kernel, and the worker thread must not start an
// OpenMP team of its own.

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
    : TensorDataset(std::vector{inputs, targets}) {}

TensorDataset::TensorDataset(std::vector<Tensor> tensors) {
  if (tensors.empty())
    fail<UsageError>("TensorDataset", "there is no tensor. Pass inputs, and targets after them.");
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const bool last = i + 1 == tensors.size();
    tensors_.push_back(row_major_on_cpu(i == 0 ? "inputs"
                                        : last ? "targets"
                                               : "a further input's samples",
                                        tensors[i]));
    if (tensors[i].size(0) != tensors[0].size(0))
      fail<ShapeError>("TensorDataset", "numbers of samples differ: inputs are ",
                       described(tensors[0]), last ? ", targets are " : ", another tensor is ",
                       described(tensors[i]), "; inputs.size(0) must equal ",
                       last ? "targets.size(0)." : "its size(0).");
  }
}

Batch TensorDataset::batch(std::span<const int64_t> indices) const {
  std::vector<Tensor> rows;
  for (const Tensor& tensor : tensors_) rows.push_back(take_rows(tensor, indices));
  return Batch::of(std::move(rows));
}

Subset::Subset(std::shared_ptr<const Dataset> whole, std::vector<int64_t> numbers)
    : whole_(std::move(whole)), numbers_(std::move(numbers)) {
  if (!whole_) fail<UsageError>("Subset", "the dataset is a null pointer. Pass a dataset.");
  for (const int64_t number : numbers_)
    if (number < 0 || number >= whole_->size())
      fail<UsageError>("Subset", "there is no sample ", number, ": the dataset has ",
                       whole_->size(), ". Number samples from 0 to size() - 1.");
}

std::vector<int64_t> Subset::numbers_of(std::span<const int64_t> indices) const {
  std::vector<int64_t> numbers;
  for (const int64_t index : indices) {
    if (index < 0 || index >= size())
      fail<UsageError>("Dataset", "there is no sample ", index, ": the dataset has ", size(),
                       ". Number samples from 0 to size() - 1.");
    numbers.push_back(numbers_[std::size_t(index)]);
  }
  return numbers;
}

Batch Subset::batch(std::span<const int64_t> indices) const {
  return whole_->batch(numbers_of(indices));
}

Batch Subset::batch_in_epoch(std::span<const int64_t> indices, const EpochKey& key) const {
  return whole_->batch_in_epoch(numbers_of(indices), key);
}

std::pair<Subset, Subset> random_split(std::shared_ptr<const Dataset> whole, double fraction,
                                       uint64_t seed) {
  if (!whole) fail<UsageError>("random_split", "the dataset is a null pointer. Pass a dataset.");
  auto [first, rest] = random_split(whole->size(), fraction, seed);
  return {Subset(whole, std::move(first)), Subset(whole, std::move(rest))};
}

std::pair<std::vector<int64_t>, std::vector<int64_t>> random_split(int64_t count, double fraction,
                                                                   uint64_t seed) {
  if (count < 0)
    fail<UsageError>("random_split", "cannot split ", count, " samples. Pass 0 or more.");
  if (!(fraction >= 0 && fraction <= 1))
    fail<UsageError>("random_split", "the fraction is ", fraction, ". Use a number from 0 to 1.");
  std::vector<int64_t> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), int64_t(0));
  Generator random(seed);
  shuffle(order, random);
  const auto first = order.begin() + int64_t(fraction * double(order.size()));
  return {{order.begin(), first}, {first, order.end()}};
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
