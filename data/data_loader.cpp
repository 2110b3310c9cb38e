// One epoch = a fixed order, and a queue between the thread that collates and the loop that
// consumes. The worker starts a batch only when fewer than `prefetch` are waiting, so at most that
// many exist besides the loop's own.
#include <halftone/data/data_loader.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <numeric>
#include <optional>
#include <stop_token>
#include <thread>
#include <vector>

#include <halftone/core/memory_ledger.h>
#include <halftone/core/random.h>

namespace halftone::data {

namespace {
/// The samples in the order of this epoch: Fisher-Yates with a generator made of (seed, epoch).
std::vector<int64_t> order_of(int64_t samples, const DataLoaderOptions& options, int64_t epoch) {
  std::vector<int64_t> order(static_cast<std::size_t>(samples));
  std::iota(order.begin(), order.end(), int64_t(0));
  if (!options.shuffle) return order;
  // Counters from the top down: no stream of random numbers under the same seed ever gets there, so
  // the order has nothing in common with, say, the initial weights.
  const auto words = Philox::words(options.seed, ~uint64_t(epoch));
  Generator generator(uint64_t(words[0]) << 32 | words[1]);
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[generator.below(i)]);
  return order;
}
}  // namespace

class DataLoader::Epoch {
 public:
  Epoch(std::shared_ptr<const Dataset> dataset, const DataLoaderOptions& options,
        std::vector<int64_t> order, int64_t batches)
      : dataset_(std::move(dataset)),
        order_(std::move(order)),
        batch_size_(options.batch_size),
        batches_(batches),
        prefetch_(std::size_t(options.prefetch)) {
    if (prefetch_ > 0 && batches_ > 0)
      worker_ = std::jthread([this](const std::stop_token& stop) { work(stop); });
  }

  /// The next batch, or nothing after the last.
  std::optional<Batch> next() {
    if (delivered_ == batches_) return std::nullopt;
    std::optional<Batch> batch = prefetch_ > 0 ? take() : collate(delivered_);
    ++delivered_;
    return batch;
  }

 private:
  Batch collate(int64_t index) const {
    const MemoryScope scope(MemoryUse::input);  // per thread, so it has to be here
    const int64_t first = index * batch_size_,
                  count = std::min(batch_size_, int64_t(order_.size()) - first);
    return dataset_->batch(std::span(order_).subspan(std::size_t(first), std::size_t(count)));
  }

  Batch take() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !ready_.empty() || error_; });
    if (ready_.empty()) std::rethrow_exception(error_);
    Batch batch = std::move(ready_.front());
    ready_.pop_front();
    changed_.notify_all();
    return batch;
  }

  void work(const std::stop_token& stop) {
    try {
      for (int64_t index = 0; index < batches_; ++index) {
        {
          std::unique_lock lock(mutex_);
          changed_.wait(lock, stop, [this] { return ready_.size() < prefetch_; });
        }
        if (stop.stop_requested()) return;
        Batch batch = collate(index);
        const std::lock_guard lock(mutex_);
        ready_.push_back(std::move(batch));
        changed_.notify_all();
      }
    } catch (...) {
      const std::lock_guard lock(mutex_);
      error_ = std::current_exception();
      changed_.notify_all();
    }
  }

  const std::shared_ptr<const Dataset> dataset_;
  const std::vector<int64_t> order_;
  const int64_t batch_size_, batches_;
  const std::size_t prefetch_;
  int64_t delivered_ = 0;

  std::mutex mutex_;  // guards the queue and the error
  std::condition_variable_any changed_;
  std::deque<Batch> ready_;
  std::exception_ptr error_;
  std::jthread worker_;  // last: it is stopped and joined before anything it uses goes away
};

DataLoader::DataLoader(std::shared_ptr<const Dataset> dataset, DataLoaderOptions options)
    : dataset_(std::move(dataset)), options_(options) {
  if (!dataset_) fail<UsageError>("DataLoader", "the dataset is a null pointer. Pass a dataset.");
  if (options_.batch_size < 1)
    fail<UsageError>("DataLoader", "batch_size is ", options_.batch_size, ". Use 1 or more.");
  if (options_.prefetch < 0)
    fail<UsageError>("DataLoader", "prefetch is ", options_.prefetch,
                     ". Use 0 for no thread, or a number of batches.");
}

int64_t DataLoader::size() const {
  const int64_t samples = dataset_->size(), full = samples / options_.batch_size;
  return full + (options_.drop_last || samples % options_.batch_size == 0 ? 0 : 1);
}

void DataLoader::set_epoch(int64_t epoch) {
  if (epoch < 0) fail<UsageError>("DataLoader", "epoch is ", epoch, ". Count epochs from 0.");
  epoch_ = epoch;
}

DataLoader::Iterator DataLoader::begin() {
  std::vector<int64_t> order = order_of(dataset_->size(), options_, epoch_++);
  return Iterator(std::make_unique<Epoch>(dataset_, options_, std::move(order), size()));
}

DataLoader::Iterator::Iterator(std::unique_ptr<Epoch> epoch) : epoch_(std::move(epoch)) { ++*this; }
DataLoader::Iterator::Iterator(Iterator&&) noexcept = default;
DataLoader::Iterator& DataLoader::Iterator::operator=(Iterator&&) noexcept = default;
DataLoader::Iterator::~Iterator() = default;

DataLoader::Iterator& DataLoader::Iterator::operator++() {
  batch_ = {};  // first give its memory back, for the worker to reuse
  if (std::optional<Batch> next = epoch_->next()) batch_ = *std::move(next);
  else epoch_.reset();
  return *this;
}

}  // namespace halftone::data
