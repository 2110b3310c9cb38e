// One entry per leaf and dtype; an entry whose storage or version has changed is replaced.
#include <halftone/amp/cast_cache.h>

#include <halftone/autograd/ops/cast.h>
#include <halftone/autograd/slots.h>

namespace halftone::amp {

bool CastCache::serves(const Tensor& x) {
  return x.dtype() == f32 && x.requires_grad() && x.is_leaf() && x.offset() == 0 &&
         x.bytes() == x.storage()->bytes();
}

Tensor CastCache::cast(const Tensor& x, DType dtype, bool channels_last) {
  Entry& entry = entries_[{x.meta().get(), dtype}];
  const std::shared_ptr<Storage>& storage = x.storage();
  if (entry.storage == storage && entry.version == storage->version()) {
    ++counters_.hits;
    return entry.result;
  }
  const EnableGrad recorded;
  const MemoryScope scope(MemoryUse::cast_cache);
  entry = {x, storage, storage->version(),
           apply(Cast{.to = dtype, .channels_last = channels_last}, x)};
  ++counters_.misses;
  counters_.bytes += entry.result.bytes();
  return entry.result;
}

}  // namespace halftone::amp
