// Devices, and the switches on which bits depend.
#include <halftone/core/device.h>

#include <atomic>
#include <charconv>
#include <string_view>

#include <halftone/core/error.h>
#include <halftone/core/files.h>
#include <halftone/core/language.h>

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

// One flag of the process, and an override for each thread.

namespace {
std::atomic<bool> allowed{false};
thread_local std::optional<bool> allowed_here;
constinit thread_local ScopeOrder<std::optional<bool>> scopes;
}  // namespace

bool allow_tf32() { return allowed_here.value_or(allowed.load(std::memory_order_relaxed)); }
void set_allow_tf32(bool allow) { allowed.store(allow, std::memory_order_relaxed); }

Tf32Scope::Tf32Scope(std::optional<bool> allow) : number_(scopes.begin()), before_(allowed_here) {
  if (allow) allowed_here = allow;
}
Tf32Scope::~Tf32Scope() { scopes.end(number_, before_, allowed_here); }

}  // namespace halftone
