// The keys and values that a decoder stores of the tokens that it has read, so that each token of a
// growing text is read only once.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include <halftone/autograd/ops.h>

namespace halftone::nn::models {

/// The keys and values of the tokens that a layer has read, [n, key heads, room, e].
struct KeyValues {
  Tensor keys{}, values{};
};
/// The keys and values of all layers of a decoder; the first `length` positions are filled. An
/// empty cache starts a text.
struct KeyValueCache {
  int64_t length = 0;
  std::vector<KeyValues> layers{};
  /// The positions that memory is reserved for; 0: the context of the model that fills it.
  int64_t room = 0;
};

}  // namespace halftone::nn::models

namespace halftone::nn::detail {

/// Where the tokens of a pass are in their texts: after `before` others, whose keys and values are
/// in a cache.
struct Reading {
  int64_t before = 0, room = 0;
};

/// Appends keys or values [n, key heads, l, e] to those in `kept`; returns all of them.
Tensor appended(Tensor& kept, const Tensor& x, const Reading& reading);
/// Returns the mask of `count` new tokens: each sees itself and the tokens before it, and of those
/// only the last window - 1 if there is a window.
AttentionOptions sees_what_is_before(int64_t before, int64_t count, Device device,
                                     int64_t window = 0);
/// Throws unless tokens are [n, l] and fit into `room` positions.
void check_tokens(std::string_view model, const Tensor& tokens, int64_t before, int64_t room);
/// Makes the cache ready for a pass, and returns the place of the tokens. `shape`: that of the keys
/// of a layer, with the model's context in place of the room. Users can fill a cache by hand, and
/// kernels rely on shapes: throws UsageError and ShapeError.
Reading prepared(std::string_view model, models::KeyValueCache& cache, const Tensor& tokens,
                 std::size_t layers, Shape shape, Device device);

}  // namespace halftone::nn::detail
