// Muon (Jordan et al. 2024): the momentum of a matrix is brought near the closest orthogonal one,
// U V^T of its singular value decomposition, by a few Newton-Schulz iterations in low precision.
// Mirrors torch.optim.Muon, with two differences: parameters that are no matrices are taken, too,
// and updated as AdamW does (convolution weights count as matrices [out, the rest]); and the dtype
// of the iteration is an option, for how much precision it needs is a question worth asking.
#pragma once

#include <halftone/optim/grouped_optimizer.h>

namespace halftone::optim {

/// By what the rate of a matrix [rows, columns] is multiplied.
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
  double eps = 1e-7;  // the norm that a momentum is divided by is at least this
  MuonScale scale = MuonScale::original;
  // of parameters that are no matrices: AdamW at lr times this, weight_decay as above
  double vector_lr_factor = 1;
  std::array<double, 2> betas{0.9, 0.999};
  double adam_eps = 1e-8;
  std::optional<DType> state_dtype{};  // absent: f32
  bool maximize = false;               // goes up the gradient

  static constexpr std::string_view name = "Muon";
  /// exp_avg_sq is there for parameters that are no matrices, whose momentum_buffer is Adam's m.
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
