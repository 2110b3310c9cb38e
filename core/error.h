// Errors are exceptions of one of six kinds, and every message has the same form. Also here: parts
// of messages (numbers, text from outside, suggested names), and sizes that detect an overflow.
#pragma once

#include <cstddef>
#include <cstdint>
#include <locale>
#include <ostream>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>

#include <locale.h>

namespace halftone {

// Numbers in messages, printed tensors and files are spelled as C++ spells them: 1234 and 0.5,
// never 1.234 and 0,5. The locale that a program has set with std::locale::global(), setlocale() or
// on its stream has no effect.

/// A string stream that prints numbers as C++ spells them, whatever the global locale is.
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

// Errors are exceptions of one of six kinds, and every message has the same form:
//   [op] what is wrong: the values. What to do.
// fail<ShapeError>("matmul", "inner sizes differ: ", a, " and ", b, ". ...") builds and throws one.
// Mistakes of users throw; mistakes of this library are `assert`s.

class Error : public std::runtime_error {
 public:
  /// head: how many characters of the text are "[op] ".
  explicit Error(const std::string& text, std::size_t head = 0)
      : std::runtime_error(text), head_(head) {}
  /// Returns the text without "[op] ".
  std::string_view message() const { return std::string_view(what()).substr(head_); }
  /// Returns the message without its last sentence, which says what to do.
  std::string_view problem() const { return message().substr(0, message().rfind(". ")); }

 private:
  std::size_t head_;
};
struct ShapeError : Error {
  using Error::Error;
};  // sizes, ranks, dimensions
struct DTypeError : Error {
  using Error::Error;
};  // dtypes that do not fit or do not agree
struct DeviceError : Error {
  using Error::Error;
};  // devices, memory, backend libraries
struct UsageError : Error {
  using Error::Error;
};  // calls out of order, values out of range
struct UnsupportedError : Error {
  using Error::Error;
};  // valid, but not implemented here
struct FormatError : Error {
  using Error::Error;
};  // files that are missing or malformed

template <class Kind, class... Parts>
[[noreturn, gnu::cold, gnu::noinline]] void fail(std::string_view op, const Parts&... parts) {
  PlainText text;
  text << '[' << op << "] ";
  (text << ... << parts);
  throw Kind(text.str(), op.size() + 3);
}

// Errors for names that do not exist, with the nearest known name.

/// Returns the last sentence of a message about an unknown name: "Did you mean "nearest"?", or
/// "Known: a, b." if no known name is near.
std::string suggestion(std::string_view given, std::span<const std::string_view> known);
/// Throws UsageError: [where] there is no `kind` named "given". Did you mean "nearest"? If no name
/// is near, all known names are listed.
[[noreturn]] void fail_unknown_name(std::string_view where, std::string_view kind,
                                    std::string_view given,
                                    std::span<const std::string_view> known);

// Makes text from outside (names in files, cells, strings in a checkpoint) safe for messages and
// terminals. No other file decides which characters are shown and which are escaped.

/// Returns the text with everything escaped that a terminal would act on: control characters ("\n",
/// "\x1b", "\u0085"), characters that turn the direction of writing ("\u202e"), and bytes that are
/// not UTF-8 ("\xff"). A backslash is not escaped, so a second call changes nothing.
std::string printable(std::string_view text);

/// Returns the first `most` bytes, printable and cut between characters, and "..." if more follow.
std::string shortened(std::string_view text, std::size_t most);
/// Returns shortened(text, most) in quotes.
std::string in_quotes(std::string_view text, std::size_t most = 80);

/// Returns "a, b, c" with each name printable and shortened; if there are more than `most` names,
/// only the first `most` of them and "and 89,980 more".
std::string listed(std::span<const std::string> names, std::size_t most = 20);

// Arithmetic on sizes that come from users: an overflow of 64 bits is detected, not undefined.

/// An integer that remembers whether any operation that led to it overflowed.
struct Checked {
  int64_t value = 0;
  bool overflowed = false;

  // NOLINTNEXTLINE(google-explicit-constructor): so that formulas read as they do with int64_t
  Checked(int64_t number) : value(number) {}

  friend Checked operator+(Checked a, Checked b) {
    a.overflowed |= __builtin_add_overflow(a.value, b.value, &a.value) || b.overflowed;
    return a;
  }
  friend Checked operator-(Checked a, Checked b) {
    a.overflowed |= __builtin_sub_overflow(a.value, b.value, &a.value) || b.overflowed;
    return a;
  }
  friend Checked operator*(Checked a, Checked b) {
    a.overflowed |= __builtin_mul_overflow(a.value, b.value, &a.value) || b.overflowed;
    return a;
  }
};

}  // namespace halftone
