// The elementwise operations of the catalog, compiled.
#include <halftone/autograd/compiled_ops.h>
#include <halftone/autograd/ops/elementwise.h>

namespace halftone::detail {

extern const void* const compiled_elementwise;
const void* const compiled_elementwise = compiled(ElementwiseOps{});

}  // namespace halftone::detail
