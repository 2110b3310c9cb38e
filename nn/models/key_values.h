// The keys and values that a decoder stores of the tokens that it has read, so that each token of a
// growing text is read only once.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include <halftone/autograd/ops.h>

namespace halftone::nn::models {

/// The keys and values of the tokens that a layer has read: both [n, key heads, room, e], with room
/// for `room` tokens of n texts, and e numbers per head.
struct KeyValues {
  Tensor keys{}, values{};
};
/// The keys and values of all layers of a decoder. The first `length` positions are filled. Begin a
/// text with an empty cache.
struct KeyValueCache {
  int64_t length = 0;
  std::vector<KeyValues> layers{};
  /// The number of positions that memory is reserved for; 0: the model's context.
  int64_t room = 0;
};

}  // namespace halftone::nn::models

namespace halftone::nn::detail {

/// The place of a pass's tokens in their texts. `before`: the tokens already in the cache. `room`:
/// the positions that the cache has memory for.
struct Reading {
  int64_t before = 0, room = 0;
};

/// Writes keys or values [n, key heads, l, e] into `kept` after the first reading.before. Returns a
/// view of all positions that are then filled.
Tensor appended(Tensor& kept, const Tensor& x, const Reading& reading);
/// Returns the mask of `count` new tokens after `before` others: each sees itself and the tokens
/// before it; with a window above 0, itself and the window - 1 tokens before it.
AttentionOptions sees_what_is_before(int64_t before, int64_t count, Device device,
                                     int64_t window = 0);
/// Throws ShapeError unless tokens are [n, l] with before + l <= room; `before` are in the cache.
void check_tokens(std::string_view model, const Tensor& tokens, int64_t before, int64_t room);
/// Makes the cache ready for a pass, and returns the place of the tokens. `shape`: [any, key heads,
/// the model's context, e]. Throws UsageError and ShapeError for a cache that does not fit, because
/// users can fill one by hand and kernels rely on shapes.
Reading prepared(std::string_view model, models::KeyValueCache& cache, const Tensor& tokens,
                 std::size_t layers, Shape shape, Device device);

}  // namespace halftone::nn::detail
