// The one way of this library to files. Its descriptors are never those of the standard streams:
// where a program was started with its output closed, the next file that anybody opens becomes that
// output, and progress lines land in it. And whoever writes a file replaces it in one step: readers
// see the old bytes or the new ones, a link stays a link, and nothing that is no file is touched.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>

#include <signal.h>

namespace halftone::files {

/// A file descriptor that closes itself. Below 0: none.
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
  /// The number, which is the caller's to close now.
  int release() { return std::exchange(descriptor_, -1); }
  /// False, with errno, if the system says only now that something was not written.
  bool close();

 private:
  int descriptor_;
};

/// open(2) with O_CLOEXEC, and a number above those of the standard streams. No descriptor, and
/// errno, where the system refuses.
Descriptor open(const std::filesystem::path& path, int flags, unsigned permissions = 0666);
/// Up to `size` bytes, as read(2), but a signal does not interrupt it; negative, with errno, for an
/// error.
std::ptrdiff_t read_some(const Descriptor& file, void* to, std::size_t size);
/// For its scope, what this thread writes beyond the limit of a file's size (ulimit -f) is the
/// error EFBIG alone, and no signal SIGXFSZ, which would end the process.
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

/// Writes from the front of `bytes` and takes that away from it; false, with errno, if the system
/// refuses before the end: EFBIG at the limit of a file's size.
bool write_all(const Descriptor& file, std::string_view& bytes);

/// The last part of a path, of a long one the first 100 bytes: what a temporary name begins with.
std::string beginning_of_name(const std::filesystem::path& path);

/// A whole regular file of at most `most` bytes. Throws FormatError, in the name of `op`, for
/// anything else.
std::string read_text(std::string_view op, const std::filesystem::path& path, std::size_t most);

/// Opens a file to write at its end, and makes it if there is none. Throws FormatError, in the name
/// of `op`, for a directory, device, pipe or socket, and where the system refuses.
Descriptor open_to_append(std::string_view op, const std::filesystem::path& path);

/// Whether the new bytes are on the disk when a call returns. Otherwise they are there soon: a
/// crash of the machine, though not of the process, may leave the file empty.
enum class Durable { yes, no };

/// New content for a path, written beside it and renamed when it is complete; a destructor without
/// commit() leaves everything as it was. Through a link the file that it leads to is replaced, or
/// made, but not through the link of another user in a directory that all may write to (/tmp). A
/// file that was there keeps its permissions and, where the system allows it, its owner. Every
/// function throws FormatError in the name of `op`: for what is no regular file, for a file that
/// may not be written, and where the system refuses.
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

/// The whole content in one call.
void replace(std::string_view op, const std::filesystem::path& path, std::string_view bytes,
             Durable durable = Durable::yes);
/// Throws what replace() would, and changes nothing: before a long computation whose result is to
/// be written.
void require_replaceable(std::string_view op, const std::filesystem::path& path);

/// Makes a directory with its parents where it is missing. Throws FormatError if it cannot.
void make_directories(std::string_view op, const std::filesystem::path& path);

}  // namespace halftone::files
