// Files that survive a crash, in a directory that one training holds.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include <halftone/core/files.h>

namespace halftone::train {

// System calls for checkpoints: files and directories that are on the disk when a call returns,
// names that never replace existing ones, checksums. Every failure is a FormatError "[checkpoint]
// ..." that names the path and the system's reason.

using files::Descriptor;

/// Writes a file that does not exist yet, and waits until it is on the disk.
void write_durably(const std::filesystem::path& path, std::string_view bytes);
/// Waits until the names in a directory are on the disk, if the file system supports that.
void sync_directory(const std::filesystem::path& path);
/// Renames a directory to a name that does not exist; returns false if it exists.
bool rename_to_new(const std::filesystem::path& from, const std::filesystem::path& to);
/// A new directory next to `path`, `.tmp-<word><name>-<pid>-<n>` (a long name is cut). This process
/// holds a lock on it while the descriptor is open, so that no other process removes it as
/// abandoned.
struct TemporaryName {
  std::filesystem::path path;
  Descriptor lock;
};
TemporaryName make_temporary(const std::filesystem::path& path);
/// Returns a name of the same form, and makes no directory.
std::filesystem::path temporary_name(const std::filesystem::path& path, std::string_view word);
bool is_temporary(const std::filesystem::path& path);
/// Opens and locks the directory. Returns no descriptor if another process has locked it, if it is
/// gone, or if the file system has no locks.
Descriptor try_lock(const std::filesystem::path& directory);

/// Reads a whole regular file (not a link, pipe or device) of at most `limit` bytes.
std::string read_text(const std::filesystem::path& path, uint64_t limit);
/// Size of a regular file, and CRC-32 (that of zip and PNG) of its bytes.
struct FileSum {
  uint64_t bytes = 0;
  uint32_t crc32 = 0;
  bool operator==(const FileSum&) const = default;
};
FileSum sum_of(const std::filesystem::path& path);
/// Returns the size without reading the bytes.
uint64_t size_of(const std::filesystem::path& path);

// Allows one training at a time in a directory: two would mix their logs and remove each other's
// checkpoints. The lock is the system's (flock on the file .lock), so it ends with the process even
// if that is killed. The file's text only tells others which process holds the lock.

class DirectoryLock {
 public:
  /// Takes the lock until this object is destroyed. Throws UsageError if another process, or
  /// another object of this one, holds it. Throws FormatError if the file cannot be made or has
  /// another name (a hard link), in the name of `op`. `system_lock`: flock(2), or a substitute in
  /// tests.
  explicit DirectoryLock(const std::filesystem::path& directory, std::string_view op = "Trainer",
                         int (*system_lock)(int file, int operation) = nullptr);

  /// Returns false if the file system has no locks; then other trainings are not excluded.
  bool holds() const { return holds_; }

 private:
  files::Descriptor file_;
  bool holds_ = false;
};

}  // namespace halftone::train
