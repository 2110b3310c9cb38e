// Errors are exceptions of one of six kinds, and every message has the same form:
//   [op] what is wrong: the values. What to do.
// fail<ShapeError>("matmul", "inner sizes differ: ", a, " and ", b, ". ...") builds and throws one.
// Mistakes of users throw; mistakes of this library are `assert`s.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

#include <halftone/core/plain_numbers.h>

namespace halftone {

struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
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
  throw Kind(text.str());
}

}  // namespace halftone
