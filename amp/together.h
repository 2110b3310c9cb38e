// Steps of several batches, on one process or on several. Gradients and running statistics are
// summed in the order of the batches (distributed/reducer.h). Each of several ranks may update its
// own parts of the parameters (distributed/shards.h): then the optimizer holds the parts instead of
// the parameters, and optimizer state and masters have their sizes. A saved state has whole
// tensors: rank 0 joins the parts, and distributes them after loading.
#pragma once

#include <memory>
#include <optional>

#include <halftone/amp/training_core.h>
#include <halftone/distributed/reducer.h>

namespace halftone::amp {

class TogetherRoute final : public GradientRoute {
 public:
  /// Throws UsageError, on all ranks, if they differ in model, strategy or environment. Call
  /// begin() next.
  TogetherRoute(TrainingCore& core, Communicator& group, const distributed::Options& options);
  ~TogetherRoute() override;
  /// Gives all ranks the state of rank 0, or their parts of it.
  void begin();

  Communicator* group() const override { return &group_; }
  void begin_batch(int64_t number) override { batch_ = number; }
  void begin_forward() override;
  void end_forward() override;
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
  double sum(double own) const override;
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
  // --- states (together.cpp)
  std::optional<std::size_t> parameter_of_entry(std::string_view name) const;
  void require_shapes(const optim::NamedTensors& state) const;
  optim::NamedTensors taken_from_rank_0(const optim::NamedTensors& state) const;

  Communicator& group_;
  distributed::Reducer reducer_;
  distributed::OrderedStatistics statistics_;
  nn::BufferCopies buffers_{};      // of several ranks, before a forward pass
  bool gathered_ = false;           // the present gradients are the sums
  std::optional<int64_t> batch_{};  // from begin_batch(), and not yet used by a backward()
};

/// Returns the parts of the optimizer's parameters that this rank will keep; null: it keeps all.
/// First every rank gets the f32 weights of rank 0, so that masters of all parts come from the same
/// weights. Throws UsageError, on all ranks, if ranks differ in model, strategy or environment.
std::unique_ptr<Cut> cut_for(const Strategy& strategy, const nn::Module& model,
                             const optim::Optimizer& optimizer, Communicator& group,
                             const distributed::Options& asked);

}  // namespace halftone::amp
