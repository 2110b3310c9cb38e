// Operations of all ranks together, on ranks that are threads.
#include "thread_group.h"

#include <doctest/doctest.h>

#include <halftone/distributed/collectives.h>

#include "../amp/cases.h"
#include "../support.h"

namespace halftone::test::collectives_test {
namespace {

TEST_CASE("collectives: texts of any length, by rank, on every rank") {
  std::vector<std::vector<std::string>> all(4);
  std::vector<std::string> told(4);
  on_ranks(4, [&](ThreadRank& self) {
    const auto rank = std::size_t(self.rank());
    all[rank] =
        distributed::all_gather_texts(self, "test", std::string(3 * rank, char('a' + rank)));
    told[rank] = distributed::broadcast_text(self, "test", rank == 0 ? "from 0" : "ignored");
    CHECK(distributed::largest(self, "test", 10 - self.rank()) == 10);
  });
  for (const auto& texts : all)
    CHECK(texts == std::vector<std::string>{"", "bbb", "cccccc", "ddddddddd"});
  CHECK(told == std::vector<std::string>(4, "from 0"));
}

TEST_CASE("collectives: rank 0's tensors, of any dtype, shape and layout") {
  manual_seed(5);
  optim::NamedTensors sent{{"weights", randn({3, 5})},
                           {"short", cast(randn({7}), bf16)},
                           {"count", scalar(41, i64)},
                           {"nothing", zeros({0, 4})},
                           {"images", views::channels_last(randn({2, 3, 4, 5}))}};
  std::vector<optim::NamedTensors> got(3);
  on_ranks(3, [&](ThreadRank& self) {
    got[std::size_t(self.rank())] =
        distributed::broadcast(self, "test", self.rank() == 0 ? sent : optim::NamedTensors{});
  });
  for (const auto& tensors : got) {
    REQUIRE(tensors.size() == sent.size());
    for (const auto& [name, x] : sent) {
      CHECK(tensors.at(name).dtype() == x.dtype());
      CHECK(tensors.at(name).shape() == x.shape());
      CHECK(tensors.at(name).to_vector<double>() == x.to_vector<double>());
    }
  }
}

TEST_CASE("collectives: every rank learns which rank differs, and in what") {
  std::vector<std::string> heard(3);
  on_ranks(3, [&](ThreadRank& self) {
    const std::string text =
        self.rank() == 2 ? "samples 9\nbatch_size 64\nend" : "samples 9\nbatch_size 32\nend";
    heard[std::size_t(self.rank())] =
        message_of<UsageError>([&] { distributed::require_agreement(self, "agreement", text); });
  });
  for (const std::string& message : heard)
    CHECK(message ==
          "[distributed] rank 2 has batch_size 64, rank 0 has batch_size 32. Start all ranks "
          "alike.");
}

TEST_CASE("collectives: a text differs from its own prefix") {
  on_ranks(2, [&](ThreadRank& self) {
    CHECK(message_of<UsageError>([&] {
            distributed::require_agreement(self, "agreement",
                                           self.rank() == 0 ? "a 1" : "a 1\nb 2");
          }) == "[distributed] rank 1 has b 2, rank 0 has nothing. Start all ranks alike.");
  });
}

}  // namespace
}  // namespace halftone::test::collectives_test
