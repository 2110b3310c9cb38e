// A reader of TensorBoard's event files for the tests: TFRecord framing with its CRCs, then a
// minimal parser of protocol buffers. It shares no code with the writer except the checked CRC.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <fcntl.h>
#include <termios.h>
#include <unistd.h>

#include <doctest/doctest.h>
#include <sys/ioctl.h>

#include <halftone/train/loggers.h>

namespace halftone::test {

/// A message's fields by number, each as its raw value: varints and fixed sizes as integers.
struct Message {
  std::multimap<int, uint64_t> numbers{};
  std::multimap<int, std::string_view> bytes{};

  explicit Message(std::string_view from) {
    while (!from.empty()) {
      const uint64_t key = varint(from);
      const int field = int(key >> 3);
      switch (key & 7) {
        case 0: numbers.emplace(field, varint(from)); break;
        case 1: numbers.emplace(field, fixed(from, 8)); break;
        case 5: numbers.emplace(field, fixed(from, 4)); break;
        case 2: bytes.emplace(field, take(from, varint(from))); break;
        default: throw std::runtime_error("unknown wire type");
      }
    }
  }
  uint64_t number(int field) const { return numbers.find(field)->second; }
  std::string_view text(int field) const {
    const auto found = bytes.find(field);
    return found == bytes.end() ? std::string_view() : found->second;
  }

  static std::string_view take(std::string_view& from, uint64_t count) {
    if (count > from.size()) throw std::runtime_error("ends early");
    const std::string_view head = from.substr(0, count);
    from.remove_prefix(count);
    return head;
  }
  static uint64_t fixed(std::string_view& from, std::size_t count) {
    uint64_t value = 0;
    std::memcpy(&value, take(from, count).data(), count);
    return value;
  }
  static uint64_t varint(std::string_view& from) {
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(from, 1)[0]);
      value |= uint64_t(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
  }
};

struct Event {
  double seconds;
  int64_t step = 0;
  std::string version{};
  std::vector<std::pair<std::string, float>> scalars{};
  std::vector<std::pair<std::string, std::string>> texts{};
};

/// Throws std::runtime_error for wrong CRCs and truncated files.
inline std::vector<Event> read_events(std::string_view file) {
  std::vector<Event> events;
  while (!file.empty()) {
    const std::string_view header = file.substr(0, 8);
    const uint64_t length = Message::fixed(file, 8);
    if (Message::fixed(file, 4) != train::event_file::masked_crc(header))
      throw std::runtime_error("CRC of the length");
    const std::string_view body = Message::take(file, length);
    if (Message::fixed(file, 4) != train::event_file::masked_crc(body))
      throw std::runtime_error("CRC of the bytes");
    const Message message(body);
    Event event{.seconds = std::bit_cast<double>(message.number(1))};
    event.version = message.text(3);
    if (message.numbers.count(2)) event.step = int64_t(message.number(2));
    const Message summary(message.text(5));
    for (auto [at, end] = summary.bytes.equal_range(1); at != end; ++at) {
      const Message value(at->second);
      const std::string tag(value.text(1));
      if (value.numbers.count(2))
        event.scalars.emplace_back(tag, std::bit_cast<float>(uint32_t(value.number(2))));
      else event.texts.emplace_back(tag, Message(value.text(8)).text(8));
    }
    events.push_back(std::move(event));
  }
  return events;
}

// A pseudo-terminal for tests of terminal output, and a reader of its contents.

/// An environment variable for a scope; null unsets it.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    if (const char* const before = std::getenv(name)) before_ = before;
    value ? setenv(name, value, 1) : unsetenv(name);
  }
  ~Variable() { before_ ? setenv(name_, before_->c_str(), 1) : unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
  std::optional<std::string> before_{};
};

/// Some containers have no /dev/pts: tests that need a terminal end if this is false.
inline bool has_terminals() {
  const int master = posix_openpt(O_RDWR | O_NOCTTY);
  const bool has = master >= 0 && grantpt(master) == 0 && unlockpt(master) == 0;
  const char* const name = has ? ptsname(master) : nullptr;
  const int slave = name ? open(name, O_RDWR | O_NOCTTY) : -1;
  if (slave >= 0) close(slave);
  if (master >= 0) close(master);
  if (slave < 0) MESSAGE("skipped: this system gives no pseudo-terminals (/dev/pts)");
  return slave >= 0;
}

/// A pseudo-terminal: a program's side as a FILE, and the bytes that arrived at the other side.
class Terminal {
 public:
  explicit Terminal(int columns) : master_(posix_openpt(O_RDWR | O_NOCTTY)) {
    REQUIRE(master_ >= 0);
    REQUIRE(grantpt(master_) == 0);
    REQUIRE(unlockpt(master_) == 0);
    slave_ = fdopen(open(ptsname(master_), O_RDWR | O_NOCTTY), "w");
    REQUIRE(slave_ != nullptr);
    termios raw{};
    tcgetattr(fileno(slave_), &raw);
    cfmakeraw(&raw);
    tcsetattr(fileno(slave_), TCSANOW, &raw);
    resize(columns);
    fcntl(master_, F_SETFL, O_NONBLOCK);
  }
  ~Terminal() {
    std::fclose(slave_);
    close(master_);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  void resize(int columns) {
    const winsize size{24, static_cast<unsigned short>(columns), 0, 0};
    REQUIRE(ioctl(master_, TIOCSWINSZ, &size) == 0);
  }
  std::FILE* file() const { return slave_; }
  std::string arrived() {
    std::string text;
    char block[4096];
    for (ssize_t got; (got = read(master_, block, sizeof block)) > 0;)
      text.append(block, std::size_t(got));
    return text;
  }

 private:
  int master_;
  std::FILE* slave_ = nullptr;
};

/// Returns the visible text of a terminal: the last text of each line, without escape sequences.
/// Sets `widest` to the length of the longest text that was ever drawn.
inline std::vector<std::string> screen(const std::string& bytes, std::size_t& widest) {
  std::vector<std::string> lines(1);
  widest = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] == '\r') lines.back().clear();
    else if (bytes[i] == '\n') lines.emplace_back();
    else if (bytes[i] == '\33') i = bytes.find_first_of("Km", i);
    else lines.back() += bytes[i];
    widest = std::max(widest, lines.back().size());
  }
  return lines;
}

}  // namespace halftone::test
