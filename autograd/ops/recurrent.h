// Recurrent layers: one direction of one layer, over all time steps, as one operation. One node per
// step would cost a dozen kernels and, in backward, a gradient of the whole sequence at each step.
// Here the gradients of the weights are one product over all steps. The projection of the inputs is
// separate: one `linear` before it.
#pragma once

#include <halftone/autograd/ops/matmul.h>

namespace halftone {

/// x: [time, n, 4h], the inputs' contributions to the gates (in, forget, cell, out); h0, c0: [n,
/// h]; weight: [4h, h]; bias: [4h] or undefined. The result [time + 1, n, h]: the states of all
/// steps, then the last cell. Between the steps, cells are stored in f32 even if the data is short:
/// they are sums over time.
struct Lstm {
  static constexpr OpInfo info{
      "lstm", CastClass::low_precision, cast_reason::made_of_products, {.sums = sums_over_last}};
  static constexpr std::array wide_gradients{false, false, false, true, true};
  bool reverse;  // from the last step to the first
  Tensor h0{}, c0{}, weight{}, y{}, gates{}, cells{};
  Needs<5> needs{};

  Tensor forward(const Tensor& x, const Tensor& h, const Tensor& c, const Tensor& w,
                 const Tensor& bias);
  std::array<Tensor, 5> backward(const Tensor& dy) const;
};

/// x: [time, n, 3h], the inputs' contributions to (reset, update, new); h0: [n, h]; weight: [3h,
/// h]; bias: [3h] or undefined. The result [time, n, h]: the states of all steps.
struct Gru {
  static constexpr OpInfo info{
      "gru", CastClass::low_precision, cast_reason::made_of_products, {.sums = sums_over_last}};
  static constexpr std::array wide_gradients{false, false, true, true};
  bool reverse;
  Tensor h0{}, weight{}, y{}, gates{};
  Needs<4> needs{};

  Tensor forward(const Tensor& x, const Tensor& h, const Tensor& w, const Tensor& bias);
  std::array<Tensor, 4> backward(const Tensor& dy) const;
};

struct LstmStates {
  Tensor y;     // [time, n, h]
  Tensor h, c;  // [n, h], after the last step
};
/// Runs one direction of a torch.nn.LSTM layer on projected inputs; see Lstm for the shapes.
LstmStates lstm(const Tensor& x, const Tensor& h0, const Tensor& c0, const Tensor& weight,
                const Tensor& bias = {}, bool reverse = false);

struct GruStates {
  Tensor y;  // [time, n, h]
  Tensor h;  // [n, h], after the last step
};
/// Runs one direction of a torch.nn.GRU layer on projected inputs; see Gru for the shapes.
GruStates gru(const Tensor& x, const Tensor& h0, const Tensor& weight, const Tensor& bias = {},
              bool reverse = false);

}  // namespace halftone
