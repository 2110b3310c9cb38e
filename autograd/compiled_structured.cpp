// The other operations of the catalog, compiled.
#include <halftone/autograd/compiled_ops.h>
#include <halftone/autograd/ops.h>

namespace halftone::detail {

extern const void* const compiled_structured;
const void* const compiled_structured = compiled(StructuredOps{});

}  // namespace halftone::detail
