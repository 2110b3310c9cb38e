// Permissions have no effect for root: tests of them run as another user.
#pragma once

#include <filesystem>

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

namespace halftone::test {

/// For its scope, root becomes the user `nobody`, who first becomes the owner of a directory and
/// its files. For other users nothing changes.
class Nobody {
 public:
  explicit Nobody(const std::filesystem::path& directory) : was_(geteuid()) {
    constexpr uid_t nobody = 65534;
    if (was_ != 0) return;
    REQUIRE(chown(directory.c_str(), nobody, gid_t(-1)) == 0);
    for (const auto& entry : std::filesystem::recursive_directory_iterator(directory))
      REQUIRE(lchown(entry.path().c_str(), nobody, gid_t(-1)) == 0);
    REQUIRE(seteuid(nobody) == 0);
  }
  ~Nobody() { static_cast<void>(seteuid(was_) == 0); }
  Nobody(const Nobody&) = delete;
  Nobody& operator=(const Nobody&) = delete;

 private:
  uid_t was_;
};

}  // namespace halftone::test
