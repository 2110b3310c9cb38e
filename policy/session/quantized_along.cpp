// The views: a transposition before, and its inverse after.
#include <halftone/policy/session/quantized_along.h>

#include <halftone/core/tensor.h>

namespace halftone::policy {

namespace {

/// Returns quantized() of a view of x, of which call.average has the same view.
template <class View> Tensor quantized_view(const Tensor& x, const QuantizeCall& call, View view) {
  QuantizeCall viewed = call;
  if (call.average.defined()) viewed.average = view(call.average);
  return quantized(view(x), viewed);
}

}  // namespace

Tensor quantized_along(const Tensor& x, Sums sums, const QuantizeCall& call) {
  const int rank = x.rank();
  const auto exchanged = [&](int a, int b) {
    const auto view = [&](const Tensor& tensor) { return views::transpose(tensor, a, b); };
    return view(quantized_view(x, call, view));
  };
  switch (sums) {
    case Sums::over_last: break;
    case Sums::over_rows:
      if (rank < 2) break;
      return exchanged(rank - 2, rank - 1);
    case Sums::over_tokens: {
      if (rank < 2) break;
      const int64_t columns = x.size(-1);
      const auto view = [&](const Tensor& tensor) {
        const int64_t rows = columns == 0 ? 0 : tensor.numel() / columns;
        return views::transpose(views::reshaped(tensor, {rows, columns}), 0, 1);
      };
      return views::reshaped(views::transpose(quantized_view(x, call, view), 0, 1), x.shape());
    }
    case Sums::over_channels:
      if (rank < 3) break;
      return exchanged(1, rank - 1);
    case Sums::over_first:
      if (rank < 3) break;
      return exchanged(0, rank - 1);
  }
  return quantized(x, call);
}

}  // namespace halftone::policy
