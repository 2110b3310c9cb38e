#include <halftone/core/portable_bits.h>

#include <atomic>
#include <string_view>

#include <halftone/core/environment.h>
#include <halftone/core/error.h>
#include <halftone/core/quoted.h>

namespace halftone {

namespace {
bool asked_for() {
  const char* const value = environment_variable("HALFTONE_PORTABLE_BITS");
  const std::string_view text = value ? value : "0";
  if (text != "0" && text != "1")
    fail<UsageError>("HALFTONE_PORTABLE_BITS", "expected 0 or 1, got ", in_quotes(text),
                     ". Write 1 for portable bits, or unset the variable.");
  return text == "1";
}

std::atomic<bool>& choice() {
  static std::atomic<bool> on = asked_for();
  return on;
}
}  // namespace

void set_portable_bits(bool on) { choice().store(on, std::memory_order_relaxed); }
bool portable_bits() { return choice().load(std::memory_order_relaxed); }

}  // namespace halftone
