// What a training keeps whose steps are made of several batches: the sums of their gradients, and
// the running statistics that they measured.
#pragma once

#include <optional>

#include <halftone/amp/training.h>
#include <halftone/distributed/reducer.h>
#include <halftone/distributed/statistics.h>

namespace halftone::amp {

struct Training::Cut {
  distributed::Shards shards;
  int rank;
};

struct Training::Together {
  Communicator& group;
  distributed::Reducer reducer;
  distributed::OrderedStatistics statistics;
  bool gathered = false;           // the gradients that are there are the sums
  std::optional<int64_t> batch{};  // that begin_batch() named and no backward() has used

  bool of_several() const { return group.size() > 1; }
  void add_batches(bool took_part) { reducer.add_batches(took_part), statistics.apply(); }
  void drop() { reducer.drop(), statistics.drop(), gathered = false; }
};

}  // namespace halftone::amp
