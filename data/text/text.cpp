// Windows are copied out of one long row of tokens, the only data stored.
#include <halftone/data/text/text.h>

#include <algorithm>
#include <vector>

#include <halftone/core/factory.h>
#include <halftone/core/tensor.h>
#include <halftone/data/file_bytes.h>

namespace halftone::data {

namespace {
void check_tokens(std::string_view op, const Tensor& tokens) {
  if (!tokens.defined() || tokens.rank() != 1 || tokens.device() != Device::cpu())
    fail<ShapeError>(op, "the tokens must be i64 [n] on the CPU",
                     tokens.defined() ? ": they have " + std::to_string(tokens.rank()) +
                                            " dimensions or are elsewhere"
                                      : std::string(": they are undefined"),
                     ". Pass the result of tokenize().");
  if (tokens.dtype() != i64)
    fail<DTypeError>(op, "the tokens must be i64: they are ", described(tokens),
                     ". Pass the result of tokenize().");
}
}  // namespace

std::string read_text(const std::filesystem::path& path, int64_t max_bytes) {
  std::string text = file_bytes("read_text", path, max_bytes);
  if (text.starts_with("\xef\xbb\xbf")) text.erase(0, 3);
  return text;
}

Tensor tokenize(const Tokenizer& tokenizer, std::string_view text) {
  const std::vector<int64_t> tokens = tokenizer.encode(text);
  Tensor result = empty({int64_t(tokens.size())}, i64);
  std::ranges::copy(tokens, result.data<int64_t>());
  return result;
}

TextSplit split_text(const Tensor& tokens, double validation_fraction) {
  check_tokens("split_text", tokens);
  if (!(validation_fraction >= 0 && validation_fraction < 1))
    fail<UsageError>("split_text", "the fraction is ", validation_fraction,
                     ". Give a number from 0, below 1.");
  const auto held_out = int64_t(double(tokens.size(0)) * validation_fraction),
             kept = tokens.size(0) - held_out;
  return {views::slice(tokens, 0, 0, kept), views::slice(tokens, 0, kept, held_out)};
}

TextDataset::TextDataset(const Tensor& tokens, TextDatasetOptions options) : options_(options) {
  check_tokens("TextDataset", tokens);
  if (options_.stride == 0) options_.stride = options_.context;
  if (options_.context < 1 || options_.stride < 1)
    fail<UsageError>("TextDataset", "context is ", options_.context, " and stride is ",
                     options_.stride, ". Give positive numbers of tokens.");
  if (tokens.size(0) <= options_.context)
    fail<ShapeError>("TextDataset", "too few tokens: ", tokens.size(0), " for a context of ",
                     options_.context, " and the target after it. Use more text or less context.");
  tokens_ = views::contiguous(tokens.detach());
}

int64_t TextDataset::size() const {
  return 1 + (tokens_.size(0) - 1 - options_.context) / options_.stride;
}

Batch TextDataset::batch(std::span<const int64_t> indices) const {
  const Shape shape{int64_t(indices.size()), options_.context};
  const Tensor inputs = empty(shape, i64), targets = empty(shape, i64);
  int64_t *x = inputs.data<int64_t>(), *y = targets.data<int64_t>();
  for (const int64_t index : indices) {
    if (index < 0 || index >= size())
      fail<UsageError>("Dataset", "there is no sample ", index, ": the dataset has ", size(),
                       ". Number samples from 0 to size() - 1.");
    const int64_t* window = tokens_.data<int64_t>() + index * options_.stride;
    x = std::copy_n(window, options_.context, x);
    y = std::copy_n(window + 1, options_.context, y);
  }
  return {inputs, targets};
}

}  // namespace halftone::data
