// Prints tensors: nested brackets as NumPy's, long dimensions shortened to three at each end, then
// shape and dtype.
#include <algorithm>
#include <cmath>
#include <iomanip>
#include <ostream>

#include <halftone/core/plain_numbers.h>
#include <halftone/core/tensor.h>

namespace halftone {

namespace {
constexpr int64_t shown_at_each_end = 3, longest_shown = 8;

/// block() prints the part that starts at element `offset` and spans dimensions dim.. of the shape.
class Printer {
 public:
  Printer(std::ostream& out, const Tensor& x)
      : out_(out), shape_(x.shape()), strides_(contiguous_strides(x.shape())), dtype_(x.dtype()) {
    if (is_floating(dtype_)) values_ = x.to_vector<double>();
    else integers_ = x.to_vector<int64_t>();
    for (int64_t i = 0; i < x.numel(); ++i) width_ = std::max(width_, text(std::size_t(i)).size());
  }

  void block(int dim, int64_t offset) {
    if (dim == shape_.rank()) {
      out_ << std::setw(int(width_)) << text(std::size_t(offset));
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

  std::string text(std::size_t i) const {
    PlainText s;
    if (dtype_ == boolean) s << (integers_[i] != 0 ? "true" : "false");
    else if (!is_floating(dtype_)) s << integers_[i];
    else s << std::setprecision(5) << values_[i];
    return s.str();
  }

  std::ostream& out_;
  const Shape& shape_;
  Strides strides_;
  std::vector<double> values_;  // only one of the two is filled: a double does not hold every i64
  std::vector<int64_t> integers_;
  DType dtype_;
  std::size_t width_ = 0;
};
}  // namespace

std::ostream& operator<<(std::ostream& out, const Tensor& x) {
  if (!x.defined()) return out << "undefined tensor";
  Printer(out, x).block(0, 0);
  return out << "  " << described(x);
}

}  // namespace halftone
