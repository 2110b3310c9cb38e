// What commands print: a stream's text for a scope.
#pragma once

#include <iostream>
#include <sstream>
#include <string>

namespace halftone::test {

/// What a command writes to a stream of the program, as if it were the first to write there. The
/// stream has its own buffer and format again afterwards.
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
