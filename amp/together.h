// Steps of several batches, of one process or of several: gradients go to a sum in the order of the
// batches (distributed/reducer.h), running statistics, too. On several ranks each may update its
// parts of the parameters (distributed/shards.h): the optimizer then has the parts in the place of
// its parameters, so what is kept for them is of their size. States are those of whole parameters:
// rank 0 puts them together, and hands them out.
#pragma once

#include <memory>
#include <optional>

#include <halftone/amp/training_core.h>
#include <halftone/distributed/reducer.h>
#include <halftone/distributed/statistics.h>

namespace halftone::amp {

class TogetherRoute final : public GradientRoute {
 public:
  /// Throws UsageError, on all ranks, if they differ in what a training depends on. begin()
  /// follows.
  TogetherRoute(TrainingCore& core, Communicator& group, const distributed::Options& options);
  ~TogetherRoute() override;
  /// All ranks take the state of rank 0, and their parts.
  void begin();

  Communicator* group() const override { return &group_; }
  void begin_batch(int64_t number) override { batch_ = number; }
  void require_fresh() const override;
  void rescale(const Tensor& old) override;
  void begin_backward() override;
  GradientListener* listener() override { return &reducer_; }
  void end_backward() override { add_batches(true); }
  void no_backward() override;
  StatisticsSink* statistics_sink() override { return &statistics_; }
  void drop() override;
  void begin_step() override;
  void gather() override;
  Tensor norm(double norm_type) const override;
  void end_step() override { reducer_.gather_parameters(); }
  std::size_t smallest(std::size_t number) const override;
  std::vector<Tensor> parameters() const override;
  Tensor weight(std::size_t index) const override;
  void on_rank_0(std::string_view what, const std::function<void()>& f) const override;
  void write_state(const std::function<void(const TensorSource&)>& write) const override;
  optim::NamedTensors part_of_state(
      const std::function<optim::NamedTensors()>& make) const override;

 private:
  bool of_several() const { return group_.size() > 1; }
  bool has_parts() const { return !reducer_.parts().empty(); }
  void add_batches(bool took_part) { reducer_.add_batches(took_part), statistics_.apply(); }

  // --- parts of parameters
  void replace_parameters(const std::vector<Tensor>& others);
  void share_out();
  void make_masters_of_parts();
  std::vector<int64_t> begins_of_parts() const;
  // --- states (together_state.cpp)
  std::optional<std::size_t> parameter_of_entry(std::string_view name) const;
  void require_shapes(const optim::NamedTensors& state) const;
  optim::NamedTensors taken_from_rank_0(const optim::NamedTensors& state) const;

  Communicator& group_;
  distributed::Reducer reducer_;
  distributed::OrderedStatistics statistics_;
  bool gathered_ = false;           // the gradients that are there are the sums
  std::optional<int64_t> batch_{};  // that begin_batch() named and no backward() has used
};

/// The parts that this rank will have of the optimizer's parameters; null: it keeps all. Every rank
/// then has rank 0's weights, in f32, so that what each makes of its parts fits those of the
/// others. Throws UsageError, on all ranks, if they differ.
std::unique_ptr<Cut> cut_for(const Strategy& strategy, const nn::Module& model,
                             const optim::Optimizer& optimizer, Communicator& group,
                             const distributed::Options& asked);

}  // namespace halftone::amp
