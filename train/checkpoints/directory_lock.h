// One training at a time in a directory: two would mix their logs and remove each other's
// checkpoints. The lock is the system's (flock on the file .lock), so that a process which is
// killed leaves none behind; what is written in the file only tells others who holds it.
#pragma once

#include <filesystem>
#include <string_view>

#include <halftone/core/files.h>

namespace halftone::train {

class DirectoryLock {
 public:
  /// Takes the lock, which ends with this object. Throws UsageError if another process, or another
  /// object of this one, holds it, and FormatError if the file cannot be made or has
  /// another name (a hard link), in the name of `op`. `system_lock`: flock(2), but for tests.
  explicit DirectoryLock(const std::filesystem::path& directory, std::string_view op = "Trainer",
                         int (*system_lock)(int file, int operation) = nullptr);

  /// False where the file system has no locks: then nobody is kept out.
  bool holds() const { return holds_; }

 private:
  files::Descriptor file_;
  bool holds_ = false;
};

}  // namespace halftone::train
