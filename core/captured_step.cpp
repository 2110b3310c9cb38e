// Captured work where a device has none.
#include <halftone/core/backend.h>

namespace halftone {

void Backend::begin_capture() {
  fail<UnsupportedError>("captured_step", "the ", name(),
                         " backend cannot record work. Use a CUDA device, or run the step itself.");
}
std::unique_ptr<CapturedWork> Backend::end_capture() {
  fail<UnsupportedError>("captured_step", "nothing is being recorded. Call begin_capture() first.");
}

}  // namespace halftone
