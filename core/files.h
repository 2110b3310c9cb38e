// All file access of this library. Its descriptors are never those of the standard streams: in a
// program that was started with its output closed, the next opened file would become that output,
// and progress lines would land in it. A write replaces the file in one step: readers see the old
// bytes or the new ones. A link stays a link, and only regular files are touched.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>

#include <signal.h>

namespace halftone::files {

/// A file descriptor that closes itself. Negative: none.
class Descriptor {
 public:
  explicit Descriptor(int descriptor = -1) : descriptor_(descriptor) {}
  Descriptor(Descriptor&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~Descriptor();

  int get() const { return descriptor_; }
  explicit operator bool() const { return descriptor_ >= 0; }
  /// Returns the number; the caller must close it.
  int release() { return std::exchange(descriptor_, -1); }
  /// Closes the file. Returns false, with errno, if the system reports a failed write only now.
  bool close();

 private:
  int descriptor_;
};

/// Throws FormatError, in the name of `op`, for a path with a zero byte: the system would take what
/// comes before it for the path.
void require_path(std::string_view op, const std::filesystem::path& path);

/// Calls open(2) with O_CLOEXEC, and returns a number above those of the standard streams. Returns
/// no descriptor, with errno, if the system refuses. Throws as require_path().
Descriptor open(const std::filesystem::path& path, int flags, unsigned permissions = 0666);
/// Reads up to `size` bytes and returns how many, as read(2), but signals do not interrupt it.
/// Returns -1, with errno, for an error.
std::ptrdiff_t read_some(const Descriptor& file, void* to, std::size_t size);
/// For its scope, a write of this thread beyond the file size limit (ulimit -f) fails with EFBIG
/// only, without the signal SIGXFSZ, which would end the process.
class SizeLimitIsAnError {
 public:
  SizeLimitIsAnError();
  ~SizeLimitIsAnError();
  SizeLimitIsAnError(const SizeLimitIsAnError&) = delete;
  SizeLimitIsAnError& operator=(const SizeLimitIsAnError&) = delete;

 private:
  sigset_t signal_{}, before_{};
  bool pending_before_ = false;
};

/// Writes from the front of `bytes` and removes the written part from it. Returns false, with
/// errno, if the system refuses before the end: EFBIG at the file size limit.
bool write_all(const Descriptor& file, std::string_view& bytes);

/// Returns the last part of a path, at most its first 100 bytes: the start of a temporary name.
std::string beginning_of_name(const std::filesystem::path& path);

/// Returns the content of a regular file of at most `most` bytes. Throws FormatError, in the name
/// of `op`, if the file is larger, is not regular, or cannot be read.
std::string read_text(std::string_view op, const std::filesystem::path& path, std::size_t most);

/// Opens a file to append to it, and creates it if it does not exist. Throws FormatError, in the
/// name of `op`, for a directory, device, pipe or socket, and if the system refuses.
Descriptor open_to_append(std::string_view op, const std::filesystem::path& path);

/// Whether the new bytes are on the disk when a call returns. With `no` they are there soon: a
/// crash of the machine, though not of the process, may leave the file empty.
enum class Durable { yes, no };

/// New content for a path, written next to it and renamed when it is complete; a destructor without
/// commit() changes nothing. Through a link its target is replaced or created, but not through the
/// link of another user in a directory that all may write to (/tmp). An existing file keeps its
/// permissions and, if the system allows it, its owner. Every function throws FormatError in the
/// name of `op`: if the path is not a regular file, if the file may not be written, or if the
/// system refuses.
class Replacement {
 public:
  Replacement(std::string_view op, const std::filesystem::path& path,
              Durable durable = Durable::yes);
  ~Replacement();
  Replacement(const Replacement&) = delete;
  Replacement& operator=(const Replacement&) = delete;

  void write(const void* data, std::size_t size);
  void write(std::string_view bytes) { write(bytes.data(), bytes.size()); }
  void commit();

 private:
  [[noreturn]] void fail_with(int error) const;

  std::string op_;
  std::filesystem::path path_, target_, temporary_;
  Durable durable_;
  Descriptor file_;
};

/// Replaces the whole content of the file by `bytes`, as a Replacement does.
void replace(std::string_view op, const std::filesystem::path& path, std::string_view bytes,
             Durable durable = Durable::yes);
/// Throws the errors of replace(), and changes nothing: call it before a long computation whose
/// result will be written.
void require_replaceable(std::string_view op, const std::filesystem::path& path);

/// Creates a directory and its parents if they are missing. Throws FormatError, in the name of
/// `op`, if the system refuses.
void make_directories(std::string_view op, const std::filesystem::path& path);

}  // namespace halftone::files

// Environment variables: an empty variable counts as not set, as in a shell's ${NAME:-default}.

namespace halftone {

/// Returns the value of an environment variable, or null if it is not set or empty.
inline const char* environment_variable(const char* name) {
  const char* const value = std::getenv(name);
  return value && *value ? value : nullptr;
}

}  // namespace halftone
