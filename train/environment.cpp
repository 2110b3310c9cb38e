// The description of the program that a checkpoint records.
#include <halftone/train/environment.h>

#include <halftone/core/kernel_identity.h>
#include <halftone/core/plain_numbers.h>
#include <halftone/core/portable_bits.h>

namespace halftone::train {

std::string environment_of(Device device) {
  PlainText text;
  text << "halftone " HALFTONE_VERSION ", " << kernels_of(device);
  if (device.kind != DeviceKind::cpu || !portable_bits())
    text << ", " << cpu_threads() << " threads";
  return text.str();
}

}  // namespace halftone::train
