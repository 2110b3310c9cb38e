// Where tests find their files, and directories and rights that they need for a while.
#pragma once

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <random>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>

#include <omp.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <halftone/core/error.h>

namespace halftone::test {

// Returns the folder of the committed fixtures. A function, and not a macro of every file, so that
// a compiler cache can use objects of one checkout for another.

std::string fixtures_directory();

// Returns the folder of the policies that the library installs.

std::filesystem::path policies_directory();

// For tests that write files: a directory that disappears with the scope, whole files as strings,
// the message of an exception, and a seeded mutator for fuzzing readers.

class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string pattern = (std::filesystem::temp_directory_path() / "halftone-XXXXXX").string();
    if (!mkdtemp(pattern.data())) fail<FormatError>("test", "no temporary directory: ", pattern);
    path_ = pattern;
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

inline void write_file(const std::filesystem::path& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), std::streamsize(bytes.size()));
}

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Returns the message of the Kind that `call` throws. Empty if it throws nothing; passes on other
/// kinds.
template <class Kind, class Call> std::string message_of(Call&& call) {
  try {
    call();
  } catch (const Kind& error) { return error.what(); }
  return {};
}

/// The message of an expression.
#define MESSAGE_OF(Kind, ...) ::halftone::test::message_of<Kind>([&] { __VA_ARGS__; })

/// Returns the text that `call` writes to standard error.
template <class Call> std::string told(Call&& call) {
  std::ostringstream text;
  std::streambuf* const before = std::cerr.rdbuf(text.rdbuf());
  call();
  std::cerr.rdbuf(before);
  return text.str();
}

inline bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

/// One to four random edits: bits flipped, bytes overwritten, doubled or removed, the end cut off.
inline std::string mutated(std::string bytes, std::mt19937& random) {
  for (unsigned edits = 1 + random() % 4; edits > 0 && !bytes.empty(); --edits) {
    const std::size_t at = random() % bytes.size();
    switch (random() % 5) {
      case 0: bytes[at] = char(bytes[at] ^ (1 << random() % 8)); break;
      case 1: bytes[at] = char(random()); break;
      case 2: bytes.insert(at, bytes.substr(at, 1 + random() % 16)); break;
      case 3: bytes.erase(at, 1 + random() % 16); break;
      default: bytes.resize(at); break;
    }
  }
  return bytes;
}

// Sets the number of OpenMP threads until the end of the scope.

class Threads {
 public:
  explicit Threads(int count) : before_(omp_get_max_threads()) { omp_set_num_threads(count); }
  ~Threads() { omp_set_num_threads(before_); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

 private:
  int before_;
};

// Permissions have no effect for root: tests of them run as another user.

/// For its scope, root becomes a user without permissions, and this user owns a directory and
/// its files. For other users nothing changes.
class WithoutRoot {
 public:
  explicit WithoutRoot(const std::filesystem::path& directory) : was_(geteuid()) {
    constexpr uid_t user = 65534;  // an account without rights on Linux
    if (was_ != 0) return;
    require(chown(directory.c_str(), user, gid_t(-1)));
    for (const auto& entry : std::filesystem::recursive_directory_iterator(directory))
      require(lchown(entry.path().c_str(), user, gid_t(-1)));
    require(seteuid(user));
  }
  ~WithoutRoot() { static_cast<void>(seteuid(was_) == 0); }
  WithoutRoot(const WithoutRoot&) = delete;
  WithoutRoot& operator=(const WithoutRoot&) = delete;

 private:
  static void require(int result) {
    if (result != 0) throw std::system_error(errno, std::generic_category(), "WithoutRoot");
  }
  uid_t was_;
};

}  // namespace halftone::test
