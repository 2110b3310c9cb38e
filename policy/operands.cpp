// The table: linear, matmul and convolutions; everything else runs along its last dimension.
#include <halftone/policy/operands.h>

#include <halftone/core/views.h>

namespace halftone::policy {

namespace {
bool is_conv(std::string_view op) { return op == "conv2d" || op == "conv_transpose2d"; }
}  // namespace

Sums forward_sums(std::string_view op, std::size_t input) {
  if (op == "matmul" && input == 1) return Sums::over_rows;
  if (op == "conv_transpose2d" && input == 1) return Sums::over_first;  // of [in, out, kh, kw]
  return is_conv(op) ? Sums::over_channels : Sums::over_last;
}

Sums backward_sums(std::string_view op, std::size_t input) {
  if (op == "linear") return Sums::over_tokens;  // of x: tokens; of [out, in]: out
  if (op == "matmul") return input == 0 ? Sums::over_rows : Sums::over_last;
  if (op == "conv2d" && input == 1) return Sums::over_first;  // of [out, in, kh, kw]
  return is_conv(op) ? Sums::over_channels : Sums::over_last;
}

Sums gradient_sums(std::string_view op, std::size_t input) {
  if (op == "linear") return input == 0 ? Sums::over_last : Sums::over_tokens;
  if (op == "matmul") return input == 0 ? Sums::over_last : Sums::over_rows;
  return is_conv(op) ? Sums::over_channels : Sums::over_last;
}

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
