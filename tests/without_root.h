// Permissions have no effect for root: tests of them run as another user.
#pragma once

#include <filesystem>

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

namespace halftone::test {

/// For its scope, root becomes a user without permissions, and this user owns a directory and
/// its files. For other users nothing changes.
class WithoutRoot {
 public:
  explicit WithoutRoot(const std::filesystem::path& directory) : was_(geteuid()) {
    constexpr uid_t user = 65534;  // an account without rights on Linux
    if (was_ != 0) return;
    REQUIRE(chown(directory.c_str(), user, gid_t(-1)) == 0);
    for (const auto& entry : std::filesystem::recursive_directory_iterator(directory))
      REQUIRE(lchown(entry.path().c_str(), user, gid_t(-1)) == 0);
    REQUIRE(seteuid(user) == 0);
  }
  ~WithoutRoot() { static_cast<void>(seteuid(was_) == 0); }
  WithoutRoot(const WithoutRoot&) = delete;
  WithoutRoot& operator=(const WithoutRoot&) = delete;

 private:
  uid_t was_;
};

}  // namespace halftone::test
