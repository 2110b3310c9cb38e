// The description of the program that a checkpoint records.
#include <halftone/train/environment.h>

#include <halftone/core/device.h>
#include <halftone/core/error.h>

namespace halftone::train {

std::string environment_of(Device device) {
  PlainText text;
  text << "halftone " HALFTONE_VERSION ", " << kernels_of(device);
  if (device.kind != DeviceKind::cpu || !portable_bits())
    text << ", " << cpu_threads() << " threads";
  return text.str();
}

}  // namespace halftone::train
