// What a step did to the weights beside what it meant to: updates that were lost or bent because
// the weight's format could not hold them. The same for states of the optimizer that lie on grids.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <halftone/core/quantizer.h>
#include <halftone/core/weight_form.h>
#include <halftone/nn/module.h>
#include <halftone/optim/update_watch.h>

namespace halftone::policy {

/// u: the update before rounding, in f32; w and w': the weight before and after the step. Twice:
/// as it is stored (masters, remainders and compensation included), and as forward sees it. Sums
/// are in f64 and add up over steps and parameters.
struct UpdateSums {
  double count = 0;               // u other than 0
  double lost = 0;                // of them, w' = w
  double du = 0, uu = 0, ww = 0;  // sums of (w' - w) u, u u, w w
  void add(const UpdateSums& other);
  double lost_share() const;
  /// sum (w' - w) u / sum u u: 1 where steps do what they mean to; COLLAGE's effective descent
  /// (Yu et al. 2024).
  double effective_descent() const;
  /// |u| / |w|, by norms
  double update_ratio() const;
};

struct UpdateRow {
  int64_t step = 0;       // that were done before
  std::string parameter;  // its name in the model
  std::string state{};    // a state of that parameter ("exp_avg") instead of itself: u leads to
                          // what the step left there before it went onto its grid
  std::string form;       // core/weight_form.h
  DType dtype = f32;      // that forward sees
  UpdateSums stored{}, seen{};
  /// Updates with log2(|u| / ulp(w)) in [k, k + 1), k = lowest_bin ...: ulp(w) is the spacing of
  /// the parameter's dtype at w, or of its grid. What lies below -1 is lost where w is rounded to
  /// nearest. Empty for grids with scales, where the spacing differs from block to block.
  static constexpr int lowest_bin = -40, bins = 64;
  std::array<double, bins> by_ulp{};
};

/// Watches the updates of one model, in the thread that made it. Masters that are no companions of
/// their weights (Strategy::fused_master off) are other tensors, and not watched.
class UpdateProbe final : public optim::UpdateWatcher {
 public:
  explicit UpdateProbe(const nn::Module& model) : parameters_(model.named_parameters()) {}
  /// The next step is watched.
  void ask(int64_t step) { asked_ = true, step_ = step; }
  /// After the step: its rows. Waits for a GPU.
  std::vector<UpdateRow> collect();

  bool wants() const override;
  Tensor weight_of(const UpdateSlot& slot) override;
  void updating(const UpdateSlot& slot, const Tensor& weight, const Tensor& unrounded) override;
  void rounding(std::string_view state, const Tensor& x, const Quantizer& quantizer) override;

 private:
  struct Watched {
    std::string name;
    WeightForm form;
    Tensor parameter, companion;        // handles
    Tensor weight, unrounded, forward;  // before; what it should become; what forward saw
    std::array<Tensor, 3> states{}, states_before{};  // handles; copies
    std::optional<Quantizer> grid{};
  };
  struct WatchedState {
    std::string parameter, name;
    Tensor state, before, unrounded;  // a handle; copies
    Quantizer grid;
  };
  nn::Named<Tensor> parameters_;  // handles, which follow the model
  bool asked_ = false;
  int64_t step_ = 0;
  std::vector<Watched> watched_{};
  std::vector<WatchedState> states_{};
  optim::UpdateWatch watch_{this};
};

}  // namespace halftone::policy
