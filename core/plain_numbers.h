// Numbers in messages, printed tensors and files are spelled as C++ spells them: 1234 and 0.5,
// never 1.234 and 0,5. The locale that a program has set with std::locale::global(), setlocale() or
// on its stream has no effect.
#pragma once

#include <locale>
#include <ostream>
#include <sstream>

#include <locale.h>

namespace halftone {

/// A string stream whose locale is not the global one.
class PlainText : public std::ostringstream {
 public:
  PlainText() { imbue(std::locale::classic()); }
};

/// Makes a stream print numbers plainly for its scope: every operator<< of a value begins with it.
class PlainNumbers {
 public:
  explicit PlainNumbers(std::ostream& out)
      : out_(out), before_(out.imbue(std::locale::classic())) {}
  ~PlainNumbers() { out_.imbue(before_); }
  PlainNumbers(const PlainNumbers&) = delete;
  PlainNumbers& operator=(const PlainNumbers&) = delete;

 private:
  std::ostream& out_;
  std::locale before_;
};

/// Makes printf() and related functions print numbers plainly in this thread for its scope.
class PlainPrintf {
 public:
  PlainPrintf() {
    static const locale_t plain = newlocale(LC_ALL_MASK, "C", nullptr);
    if (plain != nullptr) before_ = uselocale(plain);
  }
  ~PlainPrintf() {
    if (before_ != nullptr) uselocale(before_);
  }
  PlainPrintf(const PlainPrintf&) = delete;
  PlainPrintf& operator=(const PlainPrintf&) = delete;

 private:
  locale_t before_ = nullptr;
};

}  // namespace halftone
