// Checks names, so that all file formats can hold them.
#include <halftone/train/logging/logger.h>

#include <chrono>

#include <halftone/core/error.h>
#include <halftone/data/text/utf8.h>

namespace halftone::train {

namespace {

double now() {
  const auto since_1970 = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<double>(since_1970).count();
}

bool is_utf8(std::string_view text) {
  for (std::size_t at = 0, length; at < text.size(); at += length)
    if (length = data::code_point_at(text, at).length; length == 0) return false;
  return true;
}

}  // namespace

void check_log_name(std::string_view name) {
  if (name.empty() || name == "step" || name == "time")
    fail<UsageError>("log", "'", name, "' is not a valid name for a number. Choose another one.");
  for (const char c : name)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f)
      fail<UsageError>("log", "the name '", name, "' has a control character. Leave it out.");
  if (!is_utf8(name)) fail<UsageError>("log", "the name '", name, "' is not UTF-8. Convert it.");
}

void Logger::log(int64_t step, std::span<const NamedNumber> numbers) {
  log(LogRecord{step, now(), numbers});
}

void Logger::log(const LogRecord& record) {
  for (std::size_t i = 0; i < record.numbers.size(); ++i) {
    check_log_name(record.numbers[i].name);
    for (std::size_t j = 0; j < i; ++j)  // a loop over a few names is faster than a set
      if (record.numbers[i].name == record.numbers[j].name)
        fail<UsageError>("log", "'", record.numbers[i].name, "' occurs twice. Log it once.");
  }
  write(record);
}

void Logger::log_text(int64_t step, std::string_view name, std::string_view text) {
  check_log_name(name);
  if (!is_utf8(text)) fail<UsageError>("log", "the text '", name, "' is not UTF-8. Convert it.");
  write_text(step, now(), name, text);
}

}  // namespace halftone::train
