// Printing tensors: nested brackets as NumPy's, long dimensions shortened to three at each end,
// then shape and dtype.
#include <algorithm>
#include <cmath>
#include <iomanip>
#include <ostream>
#include <sstream>

#include <halftone/core/tensor.h>

namespace halftone {

namespace {
constexpr int64_t shown_at_each_end = 3, longest_shown = 8;

/// Prints the block of `values` that starts at `offset` and spans dimensions dim.. of the shape.
class Printer {
 public:
  Printer(std::ostream& out, const Shape& shape, const std::vector<double>& values, DType dtype)
      : out_(out),
        shape_(shape),
        strides_(contiguous_strides(shape)),
        values_(values),
        dtype_(dtype) {
    for (double v : values_) width_ = std::max(width_, text(v).size());
  }

  void block(int dim, int64_t offset) {
    if (dim == shape_.rank()) {
      out_ << std::setw(int(width_)) << text(values_[std::size_t(offset)]);
      return;
    }
    out_ << '[';
    const int64_t size = shape_[dim];
    for (int64_t i = 0; i < size; ++i) {
      if (size > longest_shown && i == shown_at_each_end) {
        separator(dim, i);
        out_ << "...";
        i = size - shown_at_each_end;
      }
      separator(dim, i);
      block(dim + 1, offset + i * strides_[dim]);
    }
    out_ << ']';
  }

 private:
  void separator(int dim, int64_t i) {
    if (i == 0) return;
    if (dim == shape_.rank() - 1) out_ << ", ";
    else out_ << ",\n" << std::string(std::size_t(dim + 1), ' ');
  }

  std::string text(double value) const {
    std::ostringstream s;
    if (dtype_ == boolean) s << (value != 0 ? "true" : "false");
    else if (!is_floating(dtype_)) s << int64_t(value);
    else s << std::setprecision(5) << value;
    return s.str();
  }

  std::ostream& out_;
  const Shape& shape_;
  Strides strides_;
  const std::vector<double>& values_;
  DType dtype_;
  std::size_t width_ = 0;
};
}  // namespace

std::ostream& operator<<(std::ostream& out, const Tensor& x) {
  if (!x.defined()) return out << "undefined tensor";
  const std::vector<double> values = x.to_vector<double>();
  Printer(out, x.shape(), values, x.dtype()).block(0, 0);
  return out << "  " << described(x);
}

}  // namespace halftone
