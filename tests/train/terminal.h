// A pseudo-terminal for tests of terminal output, and a reader of its contents.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

namespace halftone::test {

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
