// Running statistics of batch norm on several processes. Each batch is normalized by its own
// statistics, as on one process. All batches of a step update the running statistics, in their
// order, on every rank.
#pragma once

#include <vector>

#include <halftone/autograd/slots.h>
#include <halftone/core/communicator.h>

namespace halftone::distributed {

class OrderedStatistics final : public StatisticsSink {
 public:
  /// Takes the model's buffers, in one order on all ranks.
  OrderedStatistics(Communicator& group, std::vector<Tensor> buffers);

  void measured(const BatchStatistics& batch) override { measured_.push_back(batch); }
  void counted(const Tensor& batches) override { counted_.push_back(batches); }
  /// Updates the running statistics with the measurements of all ranks since the last call, in the
  /// order of the ranks. Collective.
  void apply();
  /// Drops all measurements.
  void drop() { measured_.clear(), counted_.clear(); }

 private:
  std::string packed() const;
  void apply_packed(std::string_view bytes) const;
  std::size_t position_of(const Tensor& buffer) const;

  Communicator& group_;
  std::vector<Tensor> buffers_;
  std::vector<BatchStatistics> measured_{};
  std::vector<Tensor> counted_{};
};

}  // namespace halftone::distributed
