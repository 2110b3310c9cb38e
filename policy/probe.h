// The actual change of the weights in a step, compared with the intended one: updates that were
// lost or changed because the weight's format could not hold them. The same for states on grids.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <halftone/core/formats/quantizer.h>
#include <halftone/core/update_rules.h>
#include <halftone/nn/module.h>
#include <halftone/optim/optimizer.h>

namespace halftone::policy {

/// u: the update before rounding, in f32; w and w': the weight before and after the step. There are
/// two sets: the weight as stored (with masters, remainders and compensation), and as forward sees
/// it. Sums are in f64 and add up over steps and parameters.
struct UpdateSums {
  double count = 0;               // u other than 0
  double lost = 0;                // updates with w' = w
  double du = 0, uu = 0, ww = 0;  // sums of (w' - w) u, u u, w w
  void add(const UpdateSums& other);
  double lost_share() const;
  /// Returns sum (w' - w) u / sum u u: 1 if steps have their intended effect; COLLAGE's effective
  /// descent (Yu et al. 2024).
  double effective_descent() const;
  /// Returns |u| / |w|, by norms.
  double update_ratio() const;
};

struct UpdateRow {
  int64_t step = 0;       // number of steps before this one
  std::string parameter;  // its name in the model
  std::string state{};    // a state of that parameter ("exp_avg") instead of itself: u is then the
                          // step's change before the state was rounded to its grid
  std::string form;       // core/update_rules.h
  DType dtype = f32;      // the dtype that forward sees
  UpdateSums stored{}, seen{};
  /// Updates with log2(|u| / ulp(w)) in [k, k + 1), k = lowest_bin ...: ulp(w) is the spacing of
  /// the parameter's dtype at w, or of its grid. Updates below -1 are lost if w is rounded to
  /// nearest. Empty for grids with scales, where the spacing differs from block to block.
  static constexpr int lowest_bin = -40, bins = 64;
  std::array<double, bins> by_ulp{};
};

/// Watches the updates of one model, in the thread that created it. Masters that are not companions
/// of their weights (Strategy::fused_master off) are other tensors, and not watched.
class UpdateProbe final : public optim::UpdateWatcher {
 public:
  explicit UpdateProbe(const nn::Module& model) : parameters_(model.named_parameters()) {}
  /// Watches the next step.
  void ask(int64_t step) { asked_ = true, step_ = step; }
  /// Returns the rows of the step; call it after the step. Waits for a GPU.
  std::vector<UpdateRow> collect();

  bool wants() const override;
  Tensor weight_of(const UpdateSlot& slot) override;
  void updating(const UpdateSlot& slot, const Tensor& weight, const Tensor& unrounded) override;
  void rounding(std::string_view state, const Tensor& x, const Quantizer& quantizer) override;

 private:
  struct Watched {
    std::string name;
    WeightForm form;
    Tensor parameter, companion;                      // handles
    Tensor weight, unrounded, forward;                // before; intended; as forward saw it
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
