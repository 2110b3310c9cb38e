// The readers of the catalog, compiled once in the library.
#include <halftone/autograd/saved_tensors.h>

#include <halftone/autograd/checkpoint.h>
#include <halftone/autograd/ops.h>

namespace halftone {

namespace {
template <class... Op> std::vector<OperationReader> readers_of(TypeList<Op...>) {
  return {reader_of<Op>()...};
}
}  // namespace

std::vector<OperationReader> catalogue_readers() { return readers_of(AllOps{}); }

}  // namespace halftone
