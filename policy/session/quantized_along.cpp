// The views: a transposition before, and its inverse after.
#include <halftone/policy/session/quantized_along.h>

#include <halftone/core/views.h>

namespace halftone::policy {

Tensor quantized_along(const Tensor& x, Sums sums, const QuantizeCall& call) {
  const int rank = x.rank();
  switch (sums) {
    case Sums::over_last: break;
    case Sums::over_rows:
      if (rank < 2) break;
      return views::transpose(quantized(views::transpose(x, rank - 2, rank - 1), call), rank - 2,
                              rank - 1);
    case Sums::over_tokens: {
      if (rank < 2) break;
      const int64_t columns = x.size(-1);
      const Tensor matrix = views::reshaped(x, {columns == 0 ? 0 : x.numel() / columns, columns});
      const Tensor turned = quantized(views::transpose(matrix, 0, 1), call);
      return views::reshaped(views::transpose(turned, 0, 1), x.shape());
    }
    case Sums::over_channels:
      if (rank < 3) break;
      return views::transpose(quantized(views::transpose(x, 1, rank - 1), call), 1, rank - 1);
    case Sums::over_first:
      if (rank < 3) break;
      return views::transpose(quantized(views::transpose(x, 0, rank - 1), call), 0, rank - 1);
  }
  return quantized(x, call);
}

}  // namespace halftone::policy
