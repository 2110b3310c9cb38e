// Shares of a loader: each rank's batches, by number, and all of them together.
#include <doctest/doctest.h>

#include <halftone/data/data_loader.h>
#include <halftone/data/dataset.h>
#include <halftone/halftone.h>

#include "../support.h"

namespace halftone::test::data_loader_share_test {
namespace {

using data::DataLoader;
using data::DataLoaderOptions;
using data::LoaderShare;

constexpr int64_t samples = 39, batch_size = 2, batches = 20;

std::vector<double> firsts_of(DataLoader loader, int64_t done = 0) {
  loader.resume(1, done);
  std::vector<double> firsts;
  for (const data::Batch& batch : loader) firsts.push_back(batch.inputs.at({0, 0}));
  return firsts;
}

TEST_CASE("DataLoader: shares are the batches of the whole, by their number in the group") {
  const data::TensorDataset dataset(cast(reshape(arange(samples), {samples, 1}), f32),
                                    zeros({samples}, i64));
  for (const int workers : {0, 2}) {
    DataLoaderOptions options{
        .batch_size = batch_size, .shuffle = true, .workers = workers, .seed = 4};
    const DataLoader whole(dataset, options);
    REQUIRE(whole.size() == batches);
    const std::vector<double> all = firsts_of(whole);
    for (const auto& [of, group] :
         {std::pair<int64_t, int64_t>{1, 1}, {2, 2}, {3, 3}, {2, 6}, {4, 7}, {3, 20}, {5, 50}})
      for (int64_t rank = 0; rank < of; ++rank)
        for (const int64_t done : {int64_t(0), group, 2 * group, batches}) {
          if (done > batches) continue;
          CAPTURE(of);
          CAPTURE(group);
          CAPTURE(rank);
          CAPTURE(done);
          options.share = {.rank = rank, .of = of, .group = group};
          const DataLoader own = whole.with_options(options);
          CHECK(own.size() == batches);
          std::vector<double> expected;
          for (int64_t j = done; j < batches; ++j)
            if (j % group % of == rank) expected.push_back(all[std::size_t(j)]);
          CHECK(firsts_of(own, done) == expected);
        }
  }
}

TEST_CASE("DataLoader: shares that do not exist") {
  const auto refused = [](const LoaderShare& share) {
    return message_of<UsageError>([&] {
      DataLoader(data::TensorDataset(zeros({4, 1}), zeros({4}, i64)),
                 {.batch_size = 1, .share = share});
    });
  };
  CHECK(refused({.rank = 2, .of = 2, .group = 2}) ==
        "[DataLoader] the share is {rank 2, of 2, group 2}. Use ranks from 0 to of - 1, and groups "
        "of at least one batch for each.");
  CHECK(refused({.rank = 0, .of = 2, .group = 1}).starts_with("[DataLoader] the share is"));
  CHECK(refused({.rank = -1}).starts_with("[DataLoader] the share is"));
}

}  // namespace
}  // namespace halftone::test::data_loader_share_test
