// Embedding: allocation and first values.
#include <halftone/nn/embedding.h>

#include <halftone/nn/arguments.h>
#include <halftone/nn/init.h>

namespace halftone::nn {

Embedding::Embedding(int64_t count, int64_t width, EmbeddingOptions options)
    : padding_index(options.padding_index) {
  detail::require_positive("Embedding", "count", count);
  detail::require_positive("Embedding", "width", width);
  if (padding_index < -1 || padding_index >= count)
    fail<UsageError>("Embedding", "padding_index ", padding_index, " is not one of the ", count,
                     " rows. Use a row, or -1 for none.");
  weight = Parameter(Shape{count, width});
  init::normal(weight);
  if (padding_index >= 0) init::zeros(weight.detach().view_as({width}, {1}, padding_index * width));
}

}  // namespace halftone::nn
