// The saved tensors that readers list (autograd/engine.h) equal the ledger's bytes for every
// operation: none keeps a tensor that its reader does not list.
#include <algorithm>
#include <set>

#include <halftone/autograd/engine.h>
#include <halftone/core/memory.h>

#include "ops/properties.h"

namespace halftone::test::properties_saved {
namespace {

/// The storages that the nodes of a tensor's graph keep, and its own.
std::set<const Storage*> storages_behind(const Tensor& y) {
  static const std::vector<OperationReader> readers = catalogue_readers();
  std::set<const Storage*> storages{y.storage().get()};
  std::set<const Node*> seen;
  std::vector<const Node*> waiting;
  if (y.meta() && y.meta()->creator) waiting.push_back(y.meta()->creator.get());
  while (!waiting.empty()) {
    const Node* const node = waiting.back();
    waiting.pop_back();
    if (!seen.insert(node).second) continue;
    std::vector<Tensor> kept;
    const auto reader =
        std::ranges::find_if(readers, [&](const auto& r) { return r.saved(*node, kept); });
    REQUIRE(reader != readers.end());
    CHECK(reader->info == node->info);
    for (const Tensor& x : kept) storages.insert(x.storage().get());
    for (const Edge& edge : node->edges)
      if (edge.input && edge.input->creator) waiting.push_back(edge.input->creator.get());
  }
  return storages;
}

TEST_CASE("an operation keeps what its reader lists, and nothing else") {
  constexpr std::array dtypes{f32, bf16};
  each_case(dtypes, [](const OpSamples&, const Case& test, DType dtype) {
    const Tensors leaves = leaves_of(test, inputs_of(test, dtype));
    const int64_t before = memory_report(test_device()).total_now;
    const Tensor y = test.call(leaves);
    std::set<const Storage*> kept = storages_behind(y);
    for (const Tensor& x : leaves)
      if (x.defined()) kept.erase(x.storage().get());
    int64_t bytes = 0;  // statistics of a case may be on another device
    for (const Storage* storage : kept)
      if (storage->device() == test_device()) bytes += storage->bytes();
    CHECK(memory_report(test_device()).total_now - before == bytes);
  });
}

}  // namespace
}  // namespace halftone::test::properties_saved
