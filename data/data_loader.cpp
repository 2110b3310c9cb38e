// One epoch is a fixed order, and a ring of slots between the threads that collate and the loop
// that consumes: batch i goes to slot i % slots. A worker claims the next batch only if its slot is
// free. At most that many batches exist besides the loop's own, in work or waiting.
#include <halftone/data/data_loader.h>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <numeric>
#include <optional>
#include <stop_token>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <halftone/core/error.h>
#include <halftone/core/memory.h>
#include <halftone/core/random.h>
#include <halftone/data/dataset.h>

namespace halftone::data {

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
