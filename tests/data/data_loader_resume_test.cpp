// A loader that resumes in the middle of an epoch: it gives the batches of a full epoch, and does
// not collate the skipped ones.
#include <doctest/doctest.h>

#include <atomic>
#include <memory>
#include <vector>

#include <halftone/core/factory.h>
#include <halftone/data/data_loader.h>

#include "../support.h"

namespace halftone::test::data_loader_resume_test {

using data::Batch, data::DataLoader, data::DataLoaderOptions, data::Dataset, data::EpochKey;

namespace {
/// Sample numbers as targets, numbers drawn from (seed, epoch, sample) as inputs; counts calls.
struct Counted final : Dataset {
  std::shared_ptr<std::atomic<int>> calls = std::make_shared<std::atomic<int>>(0);

  int64_t size() const override { return 43; }
  Batch batch(std::span<const int64_t> indices) const override {
    return batch_in_epoch(indices, {});
  }
  Batch batch_in_epoch(std::span<const int64_t> indices, const EpochKey& key) const override {
    ++*calls;
    std::vector<double> numbers;
    for (const int64_t sample : indices) {
      const auto words = Philox::words(key.seed + 1000 * uint64_t(key.epoch), uint64_t(sample));
      numbers.push_back(double(words[0]));
    }
    const Shape shape{int64_t(indices.size())};
    return {from_vector(numbers, shape, f64), from_span<int64_t>(indices, shape, i64)};
  }
};

struct Seen {
  std::vector<double> inputs;
  std::vector<int64_t> targets;
  bool operator==(const Seen&) const = default;
};

std::vector<Seen> walk(DataLoader& loader) {
  std::vector<Seen> seen;
  for (const auto& [inputs, targets] : loader)
    seen.push_back({inputs.to_vector<double>(), targets.to_vector<int64_t>()});
  return seen;
}
}  // namespace

TEST_CASE("DataLoader.resume: the batches of a full epoch, none of the skipped collated") {
  for (const int workers : {0, 1, 3}) {
    for (const bool shuffle : {false, true}) {
      for (const bool drop_last : {false, true}) {
        const DataLoaderOptions options{.batch_size = 5,
                                        .shuffle = shuffle,
                                        .drop_last = drop_last,
                                        .workers = workers,
                                        .seed = 7};
        DataLoader whole(Counted(), options);
        walk(whole), walk(whole);
        const std::vector<Seen> third = walk(whole), fourth = walk(whole);
        for (int64_t done = 0; done <= whole.size(); ++done) {
          CAPTURE(workers);
          CAPTURE(done);
          const Counted dataset;
          DataLoader loader(dataset, options);
          loader.resume(2, done);
          const std::vector<Seen> rest = walk(loader);
          CHECK(rest == std::vector<Seen>(third.begin() + done, third.end()));
          CHECK(*dataset.calls == whole.size() - done);
          CHECK(walk(loader) == fourth);  // later epochs are whole
        }
      }
    }
  }
}

TEST_CASE("DataLoader.resume refuses positions that the epoch does not have") {
  DataLoader loader(Counted(), {.batch_size = 5, .shuffle = true});
  const std::vector<Seen> first = walk(loader);
  loader.resume(0, 4);
  CHECK(message_of<UsageError>([&] { loader.resume(1, 10); }) ==
        "[DataLoader] batches_done is 10 of an epoch of 9. Resume with the dataset, batch_size and "
        "drop_last that the position was counted with.");
  CHECK(contains(message_of<UsageError>([&] { loader.resume(1, -1); }), "batches_done is -1"));
  CHECK(contains(message_of<UsageError>([&] { loader.resume(-1, 2); }), "epoch is -1"));
  CHECK(walk(loader) == std::vector<Seen>(first.begin() + 4, first.end()));
  loader.resume(3, 4);
  loader.set_epoch(0);  // forgets the position
  CHECK(walk(loader) == first);
}

}  // namespace halftone::test::data_loader_resume_test
