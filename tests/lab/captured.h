// The output of commands: a stream's text for a scope.
#pragma once

#include <iostream>
#include <sstream>
#include <string>

namespace halftone::test {

/// Captures the text that a command writes to a stream of the program, in the format of a new
/// stream. Afterwards the stream has its own buffer and format again.
class Captured {
 public:
  explicit Captured(std::ostream& stream) : stream_(stream), before_(stream.rdbuf(text_.rdbuf())) {
    format_.copyfmt(stream);
    stream.copyfmt(std::ios(nullptr));
  }
  ~Captured() { stream_.copyfmt(format_), stream_.rdbuf(before_); }
  Captured(const Captured&) = delete;
  Captured& operator=(const Captured&) = delete;
  std::string text() const { return text_.str(); }

 private:
  std::ostringstream text_{};
  std::ios format_{nullptr};
  std::ostream& stream_;
  std::streambuf* before_;
};

}  // namespace halftone::test
