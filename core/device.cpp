// Devices by name.
#include <halftone/core/device.h>

#include <charconv>

#include <halftone/core/error.h>

namespace halftone {

Device device_named(std::string_view name) {
  constexpr std::string_view numbered = "cuda:";
  if (name == "cpu") return Device::cpu();
  if (name == "cuda") return Device::cuda();
  int index = -1;
  if (name.starts_with(numbered)) {
    const std::string_view digits = name.substr(numbered.size());
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), index);
    if (error == std::errc{} && end == digits.data() + digits.size() && index >= 0)
      return Device::cuda(index);
  }
  fail<UsageError>("device", "there is no device named \"", name,
                   "\". Use cpu, cuda, or cuda: with a number.");
}

}  // namespace halftone
