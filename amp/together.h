// What a training keeps whose steps are made of several batches: the sums of their gradients, and
// the running statistics that they measured.
#pragma once

#include <halftone/amp/training.h>
#include <halftone/distributed/reducer.h>
#include <halftone/distributed/statistics.h>

namespace halftone::amp {

struct Training::Together {
  distributed::Reducer reducer;
  distributed::OrderedStatistics statistics;
  bool gathered = false;  // the gradients that are there are the sums

  void add_batches(bool took_part) { reducer.add_batches(took_part), statistics.apply(); }
  void drop() { reducer.drop(), statistics.drop(), gathered = false; }
};

}  // namespace halftone::amp
