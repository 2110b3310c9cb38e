// Muon (Jordan et al. 2024): a few Newton-Schulz iterations in low precision bring the momentum of
// a matrix near the closest orthogonal one, U V^T of its singular value decomposition. Mirrors
// torch.optim.Muon, with two differences. Parameters that are not matrices are accepted as well and
// updated as AdamW does (convolution weights count as matrices [out, the rest]). And the dtype of
// the iteration is an option, so that its need for precision can be studied.
#pragma once

#include <halftone/optim/grouped_optimizer.h>

namespace halftone::optim {

/// The factor of the rate of a matrix [rows, columns].
enum class MuonScale : uint8_t {
  original,         // sqrt(max(1, rows / columns))
  match_rms_adamw,  // 0.2 sqrt(max(rows, columns)): AdamW's rates fit (Liu et al. 2025)
};

struct MuonOptions {
  double lr = 1e-3, weight_decay = 0.1, momentum = 0.95;
  bool nesterov = true;
  DType iteration_dtype = bf16;  // f64, f32, bf16 or f16
  int iterations = 5;
  std::array<double, 3> coefficients{3.4445, -4.7750, 2.0315};
  double eps = 1e-7;  // lower bound of the norm that a momentum is divided by
  MuonScale scale = MuonScale::original;
  // for parameters that are not matrices: AdamW at lr times this, weight_decay as above
  double vector_lr_factor = 1;
  std::array<double, 2> betas{0.9, 0.999};
  double adam_eps = 1e-8;
  std::optional<DType> state_dtype{};  // absent: f32
  bool maximize = false;               // moves along the gradient, not against it

  static constexpr std::string_view name = "Muon";
  /// exp_avg_sq exists for parameters that are not matrices; their momentum_buffer is Adam's m.
  static constexpr StateLayout layout{.names = {"momentum_buffer", "exp_avg_sq"}, .essential = 1};
  void describe(OptionFields& field);
  void check(std::string_view optimizer) const;
};

class Muon final : public GroupedOptimizer<MuonOptions> {
 public:
  using GroupedOptimizer::GroupedOptimizer;

 private:
  StateMask needed_state(int group, const Tensor& parameter) const override;
  void update(int group, const Batch& batch, Backend& backend) override;
};

}  // namespace halftone::optim
