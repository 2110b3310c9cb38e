// Sequential: calls its layers one after the other.
#include <halftone/nn/sequential.h>

#include <halftone/core/error.h>

namespace halftone::nn {

Layer& Sequential::operator[](int place) const {
  const int at = place < 0 ? place + size() : place;
  if (at < 0 || at >= size())
    fail<UsageError>("Sequential", "there is no layer ", place, " among ", size(),
                     ". Count from 0, or back from -1.");
  return *layers_[std::size_t(at)];
}

Tensor Sequential::forward(const Tensor& x) const {
  Tensor y = x;
  for (const auto& layer : layers_) y = (*layer)(y);
  return y;
}

void Sequential::describe(Fields& field) {
  for (std::size_t i = 0; i < layers_.size(); ++i) field(std::to_string(i), *layers_[i]);
}

}  // namespace halftone::nn
