// Allows one training at a time in a directory: two would mix their logs and remove each other's
// checkpoints. The lock is the system's (flock on the file .lock), so it ends with the process even
// if that is killed. The file's text only tells others which process holds the lock.
#pragma once

#include <filesystem>
#include <string_view>

#include <halftone/core/files.h>

namespace halftone::train {

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
