// Makes a batch of a list of tensors: the inputs first, the targets last.
#include <halftone/data/data_loader.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <numeric>
#include <optional>
#include <stop_token>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <halftone/core/error.h>
#include <halftone/core/factory.h>
#include <halftone/core/memory.h>
#include <halftone/core/random.h>
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

// One epoch is a fixed order, and a ring of slots between the threads that collate and the loop
// that consumes: batch i goes to slot i % slots. A worker claims the next batch only if its slot is
// free. At most that many batches exist besides the loop's own, in work or waiting.

namespace {
/// Returns the sample order of this epoch: shuffled by a generator made of (seed, epoch).
std::vector<int64_t> order_of(int64_t samples, const DataLoaderOptions& options, int64_t epoch) {
  std::vector<int64_t> order;
  try {
    order.resize(static_cast<std::size_t>(samples));
  } catch (const std::exception&) {  // no memory, or more than any vector holds
    fail<UsageError>("DataLoader", "there is no memory for the order of ", samples,
                     " samples. Use a dataset of fewer.");
  }
  std::iota(order.begin(), order.end(), int64_t(0));
  if (!options.shuffle) return order;
  // Counters from the top down: no stream of random numbers under the same seed ever reaches them,
  // so the order is independent of, for example, the initial weights.
  const auto words = Philox::words(*options.seed, ~uint64_t(epoch));
  Generator generator(uint64_t(words[0]) << 32 | words[1]);
  shuffle(order, generator);
  return order;
}
int64_t samples_of(const Dataset& dataset) {
  const int64_t samples = dataset.size();
  if (samples < 0)
    fail<UsageError>("DataLoader", "the dataset says that it has ", samples,
                     " samples. Let size() return 0 or more.");
  return samples;
}
/// Runs in the loop's thread: work for a device is issued from one thread.
Batch on_device(const Batch& batch, Device device) {
  const MemoryScope scope(MemoryUse::input);
  const auto moved = [&](const Tensor& x) { return x.defined() ? x.to(device) : x; };
  Batch there{moved(batch.inputs), moved(batch.targets)};
  for (const Tensor& x : batch.more) there.more.push_back(moved(x));
  return there;
}
}  // namespace

namespace {
/// Returns how many of the first `batches` of an epoch belong to this share.
int64_t own_of(int64_t batches, const LoaderShare& share) {
  const auto within = [&](int64_t count) {
    return count > share.rank ? 1 + (count - 1 - share.rank) / share.of : 0;
  };
  return batches / share.group * within(share.group) + within(batches % share.group);
}
/// Returns the number, among all batches, of this share's batch `own`.
int64_t number_of(int64_t own, const LoaderShare& share) {
  const int64_t each = own_of(share.group, share);
  return own / each * share.group + own % each * share.of + share.rank;
}
}  // namespace

/// Batch numbers in this class count the batches of the share.
class DataLoader::Epoch {
 public:
  Epoch(std::shared_ptr<const Dataset> dataset, const DataLoaderOptions& options, int64_t epoch,
        int64_t batches, int64_t done)
      : dataset_(std::move(dataset)),
        order_(order_of(samples_of(*dataset_), options, epoch)),
        key_{*options.seed, epoch},
        batch_size_(options.batch_size),
        device_(options.device),
        share_(options.share),
        end_(batches),
        claimed_(done),
        delivered_(done),
        // No more slots than batches.
        slots_(std::min(std::size_t(options.workers) * std::size_t(options.prefetch),
                        std::size_t(batches - done))) {
    if (slots_.empty()) return;
    workers_ = make_workers(
        std::min<int64_t>(options.workers, batches - done), [this] { work(stop_.get_token()); },
        stop_);
  }
  ~Epoch() { stop_.request_stop(); }  // stops all before it waits for the first
  Epoch(const Epoch&) = delete;
  Epoch& operator=(const Epoch&) = delete;

  Device device() const { return device_; }
  /// Returns the next batch, or nothing after the last.
  std::optional<Batch> next() {
    if (workers_.empty()) {
      if (delivered_ == end_) return std::nullopt;
      std::optional<Batch> batch = collate(delivered_);
      ++delivered_;
      return batch;
    }
    std::unique_lock lock(mutex_);
    if (delivered_ == end_) return std::nullopt;
    Slot& slot = slot_of(delivered_);
    arrived_.wait(lock, [&slot] { return slot.full; });
    if (slot.error) std::rethrow_exception(slot.error);
    slot.full = false;
    ++delivered_;
    room_.notify_all();
    return std::exchange(slot.batch, {});
  }

 private:
  struct Slot {
    bool full = false;
    Batch batch;
    std::exception_ptr error;
  };
  Slot& slot_of(int64_t index) { return slots_[std::size_t(index) % slots_.size()]; }

  Batch collate(int64_t own) const {
    const MemoryScope scope(MemoryUse::input);  // scopes are per thread, so it must be set here
    const int64_t first = number_of(own, share_) * batch_size_,
                  count = std::min(batch_size_, int64_t(order_.size()) - first);
    const auto samples = std::span(order_).subspan(std::size_t(first), std::size_t(count));
    Batch batch = or_no_memory("DataLoader", int64_t(samples.size_bytes()),
                               [&] { return dataset_->batch_in_epoch(samples, key_); });
    if (!batch.inputs.defined())
      fail<UsageError>("DataLoader", "the dataset's batch() returned undefined inputs for ", count,
                       " samples from number ", order_[std::size_t(first)],
                       " on. Return a tensor with the samples along its first dimension.");
    return batch;
  }

  /// Returns the number of the next batch to collate, once a slot is free; nothing at the end.
  std::optional<int64_t> claim(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    room_.wait(lock, stop, [this] {
      return claimed_ >= end_ || claimed_ < delivered_ + int64_t(slots_.size());
    });
    if (stop.stop_requested() || claimed_ >= end_) return std::nullopt;
    return claimed_++;
  }

  void work(const std::stop_token& stop) {
    while (const std::optional<int64_t> index = claim(stop)) {
      Batch batch;
      std::exception_ptr error;
      try {
        batch = collate(*index);
      } catch (...) { error = std::current_exception(); }
      const std::lock_guard lock(mutex_);
      // The loop ends with the first error, so later batches need not be claimed.
      if (error) end_ = std::min(end_, *index + 1), room_.notify_all();
      slot_of(*index) = {.full = true, .batch = std::move(batch), .error = error};
      arrived_.notify_all();
    }
  }

  const std::shared_ptr<const Dataset> dataset_;
  const std::vector<int64_t> order_;
  const EpochKey key_;
  const int64_t batch_size_;
  const Device device_;
  const LoaderShare share_;

  std::mutex mutex_;  // guards the members below, if there are workers
  std::condition_variable_any room_, arrived_;
  int64_t end_;  // batches to claim
  int64_t claimed_, delivered_;
  std::vector<Slot> slots_;
  std::stop_source stop_;
  std::vector<std::jthread> workers_;  // last: joined before the members they use are destroyed
};

DataLoader::DataLoader(std::shared_ptr<const Dataset> dataset, DataLoaderOptions options)
    : dataset_(std::move(dataset)), options_(options) {
  if (!dataset_) fail<UsageError>("DataLoader", "the dataset is a null pointer. Pass a dataset.");
  if (options_.batch_size < 1)
    fail<UsageError>("DataLoader", "batch_size is ", options_.batch_size, ". Use 1 or more.");
  if (options_.prefetch < 0 || options_.prefetch > 65536)
    fail<UsageError>("DataLoader", "prefetch is ", options_.prefetch,
                     ". Use 0 for no thread, or a number of batches up to 65536.");
  if (options_.workers < 0 || options_.workers > 1024)
    fail<UsageError>("DataLoader", "workers is ", options_.workers,
                     ". Use 0 for no thread, or a number of threads up to 1024.");
  const LoaderShare& share = options_.share;
  if (share.of < 1 || share.rank < 0 || share.rank >= share.of || share.group < share.of)
    fail<UsageError>("DataLoader", "the share is {rank ", share.rank, ", of ", share.of, ", group ",
                     share.group,
                     "}. Use ranks from 0 to of - 1, and groups of at least one batch for each.");
  // 53 bits: checkpoints store the seed as a double.
  drew_seed_ = !options_.seed;
  if (drew_seed_) options_.seed = default_generator().next() >> 11;
}

DataLoader DataLoader::with_options(DataLoaderOptions options) const {
  DataLoader loader(dataset_, options);
  loader.drew_seed_ = loader.drew_seed_ || (drew_seed_ && options.seed == options_.seed);
  return loader;
}

int64_t DataLoader::size() const {
  const int64_t samples = samples_of(*dataset_), full = samples / options_.batch_size;
  return full + (options_.drop_last || samples % options_.batch_size == 0 ? 0 : 1);
}

void DataLoader::set_epoch(int64_t epoch) {
  if (epoch < 0) fail<UsageError>("DataLoader", "epoch is ", epoch, ". Count epochs from 0.");
  epoch_ = epoch, batches_done_ = 0;
}

void DataLoader::resume(int64_t epoch, int64_t batches_done) {
  if (batches_done < 0 || batches_done > size())
    fail<UsageError>("DataLoader", "batches_done is ", batches_done, " of an epoch of ", size(),
                     ". Resume with the dataset, batch_size and drop_last that the position was "
                     "counted with.");
  set_epoch(epoch);
  batches_done_ = batches_done;
}

DataLoader::Iterator DataLoader::begin() const {
  const int64_t done = own_of(std::exchange(batches_done_, 0), options_.share);
  return Iterator(
      std::make_unique<Epoch>(dataset_, options_, epoch_++, own_of(size(), options_.share), done));
}

DataLoader::Iterator::Iterator(std::unique_ptr<Epoch> epoch) : epoch_(std::move(epoch)) { ++*this; }
DataLoader::Iterator::Iterator(Iterator&&) noexcept = default;
DataLoader::Iterator& DataLoader::Iterator::operator=(Iterator&&) noexcept = default;
DataLoader::Iterator::~Iterator() = default;

DataLoader::Iterator& DataLoader::Iterator::operator++() {
  if (!epoch_)
    fail<UsageError>("DataLoader",
                     "++ after the last batch of an epoch. Compare with end() first, and call "
                     "begin() for another epoch.");
  batch_ = {};  // frees its memory first, for the worker to reuse
  if (std::optional<Batch> next = epoch_->next()) batch_ = on_device(*next, epoch_->device());
  else epoch_.reset();
  return *this;
}

// A thread that waits for work does not end by itself: it must be asked to stop before the join.

std::jthread make_thread(std::function<void()> run) { return std::jthread(std::move(run)); }

std::vector<std::jthread> make_workers(int64_t count, const std::function<void()>& work,
                                       std::stop_source& stop, const ThreadMaker& make) {
  std::vector<std::jthread> workers;
  try {
    while (int64_t(workers.size()) < count) workers.push_back(make(work));
    return workers;
  } catch (const std::system_error& error) {
    stop.request_stop();
    const std::size_t made = workers.size();
    workers.clear();
    fail<UsageError>("DataLoader", "the system made ", made, " of ", count,
                     " worker threads: ", error.code().message(),
                     ". Use fewer workers (0 for none), or raise the limit of processes "
                     "(ulimit -u).");
  } catch (...) {  // no memory
    stop.request_stop();
    throw;  // unwinding joins the threads
  }
}

}  // namespace halftone::data
