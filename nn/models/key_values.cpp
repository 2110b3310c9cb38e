// Checks of caches, and the masks that go with them.
#include <halftone/nn/models/key_values.h>

#include <string>

#include <halftone/core/backend.h>
#include <halftone/core/error.h>
#include <halftone/core/factory.h>

namespace halftone::nn::detail {

Tensor appended(Tensor& kept, const Tensor& x, const Reading& reading) {
  if (!kept.defined()) {
    Shape shape = x.shape();
    shape[2] = reading.room;
    kept = empty(shape, x.dtype(), x.device());
  }
  const int64_t added = x.shape()[2];
  copy_into(views::slice(kept, 2, reading.before, added), x);
  return views::slice(kept, 2, 0, reading.before + added);
}

AttentionOptions sees_what_is_before(int64_t before, int64_t count, Device device, int64_t window) {
  const bool cut = window > 0 && before + count > window;
  if (before == 0 && !cut) return {.causal = true};
  if (count == 1 && !cut) return {};
  const Tensor seen = reshape(arange(before + count, i64, device), {1, before + count});
  const Tensor own = reshape(arange(count, i64, device), {count, 1});
  const Tensor mask = seen <= own + double(before);
  return {.mask = cut ? logical_and(mask, seen > own + double(before - window)) : mask};
}

void check_tokens(std::string_view model, const Tensor& tokens, int64_t before, int64_t room) {
  if (tokens.defined() && tokens.rank() == 2 && tokens.shape()[1] + before <= room) return;
  fail<ShapeError>(model, "the tokens are ", tokens.defined() ? tokens.shape() : Shape{},
                   before > 0 ? ", after " + std::to_string(before) + " others" : std::string(),
                   ". They must be [n, l], ", before > 0 ? "all together" : "l",
                   " at most the context ", room, ".");
}

Reading prepared(std::string_view model, models::KeyValueCache& cache, const Tensor& tokens,
                 std::size_t layers, Shape shape, Device device) {
  if (grad_enabled())
    fail<UsageError>(model,
                     "a cache of keys and values has no gradients. Read with it under "
                     "NoGrad, or without it.");
  const int64_t context = shape[2];
  if (cache.room < 0 || cache.room > context)
    fail<UsageError>(model, "the cache has room for ", cache.room, " positions, the context is ",
                     context, ". Reserve 1 to ", context, ".");
  const int64_t room = shape[2] = cache.room == 0 ? context : cache.room;
  if (cache.length < 0 || cache.length > room)
    fail<UsageError>(model, "the cache has read ", cache.length, " tokens, the context is ", room,
                     ". Begin with an empty one.");
  if (cache.layers.size() != layers && !(cache.length == 0 && cache.layers.empty()))
    fail<UsageError>(model, "the cache is of a model with ", cache.layers.size(),
                     " layers, this one has ", layers, ". Begin with an empty one.");
  if (tokens.defined() && tokens.rank() == 2) shape[0] = tokens.shape()[0];
  for (const models::KeyValues& layer : cache.layers)
    for (const Tensor* x : {&layer.keys, &layer.values}) {
      if (!x->defined() && cache.length == 0) continue;
      if (!x->defined() || x->shape() != shape || !is_floating(x->dtype()) || x->device() != device)
        fail<ShapeError>(model, "the cache holds ", described(*x), ", these tokens need ", shape,
                         " on ", device,
                         ". Go on with as many texts, or begin with an empty cache.");
    }
  check_tokens(model, tokens, cache.length, room);
  cache.layers.resize(layers);
  return {cache.length, room};
}

}  // namespace halftone::nn::detail
