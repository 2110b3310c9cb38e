// How files are written: in one step, through links, never over what is no file, never under the
// number of a standard stream.
#include <doctest/doctest.h>

#include <functional>
#include <map>

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <halftone/core/factory.h>
#include <halftone/core/files.h>
#include <halftone/data/image.h>
#include <halftone/io/safetensors.h>
#include <halftone/train/loggers.h>

#include "../nobody.h"
#include "../temporary_directory.h"

namespace halftone::test::files_test {
namespace fs = std::filesystem;

namespace {
using Write = std::function<void(const fs::path&)>;

/// Everybody who writes files.
const std::map<std::string, Write> writers{
    {"replace", [](const fs::path& path) { files::replace("test", path, "new"); }},
    {"require_replaceable", [](const fs::path& path) { files::require_replaceable("test", path); }},
    {"open_to_append", [](const fs::path& path) { files::open_to_append("test", path); }},
    {"safetensors",
     [](const fs::path& path) {
       save_safetensors(path, {{"a", zeros({2})}});
     }},
    {"png",
     [](const fs::path& path) {
       data::write_png(path, zeros({2, 2, 3}, u8));
     }},
    {"csv",
     [](const fs::path& path) {
       train::CsvLogger(path).log(1, {{"a", 1}});
     }},
    {"json lines", [](const fs::path& path) {
       train::JsonLinesLogger(path).log(1, {{"a", 1}});
     }}};

void make_socket(const fs::path& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  REQUIRE(path.string().size() < sizeof address.sun_path);
  path.string().copy(address.sun_path, sizeof address.sun_path - 1);
  const int made = socket(AF_UNIX, SOCK_STREAM, 0);
  REQUIRE(bind(made, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  close(made);
}

mode_t mode_of(const fs::path& path) {
  struct stat status {};
  REQUIRE(lstat(path.c_str(), &status) == 0);
  return status.st_mode;
}

std::size_t entries_in(const fs::path& path) {
  return std::size_t(std::distance(fs::directory_iterator(path), {}));
}
}  // namespace

TEST_CASE("files: devices, pipes, sockets and directories are refused and stay what they are") {
  const TemporaryDirectory directory;
  REQUIRE(mkfifo((directory / "pipe").c_str(), 0600) == 0);
  make_socket(directory / "socket");
  fs::create_directory(directory / "folder");
  fs::create_symlink("/dev/null", directory / "device");  // a link, in case it is replaced
  fs::create_symlink("pipe", directory / "link");
  const std::map<std::string, std::string> kinds{{"pipe", "Is a pipe"},
                                                 {"link", "Is a pipe"},
                                                 {"socket", "Is a socket"},
                                                 {"folder", "Is a directory"},
                                                 {"device", "Is a device"}};
  const std::size_t entries = entries_in(directory.path());
  for (const auto& [writer, write] : writers)
    for (const auto& [name, what] : kinds) {
      CAPTURE(writer);
      CAPTURE(name);
      const mode_t before = mode_of(directory / name);
      const std::string message = message_of<FormatError>([&] { write(directory / name); });
      CHECK(contains(message, "] cannot write " + (directory / name).string() + ": " + what +
                                  ". Name a regular file, or one that does not exist yet."));
      CHECK(mode_of(directory / name) == before);
      CHECK(entries_in(directory.path()) == entries);
    }
  CHECK(S_ISCHR(fs::status("/dev/null").type() == fs::file_type::character ? S_IFCHR : 0));
  CHECK(contains(message_of<FormatError>([] { files::replace("test", "/dev/stdout", "x"); }),
                 "cannot write /dev/stdout: Is "));
}

TEST_CASE("files: written through links, which stay; one that leads nowhere makes its target") {
  for (const auto& [writer, write] : writers) {
    if (writer == "require_replaceable") continue;
    CAPTURE(writer);
    const TemporaryDirectory directory;
    fs::create_directory(directory / "there");
    fs::create_symlink("there/file", directory / "link");
    fs::create_symlink(directory / "link", directory / "there/second");
    write(directory / "there/second");  // dangling
    CHECK(fs::is_symlink(directory / "link"));
    CHECK(fs::is_symlink(directory / "there/second"));
    REQUIRE(fs::is_regular_file(fs::symlink_status(directory / "there/file")));
    const std::string first = read_file(directory / "there/file");
    CHECK(!first.empty() == (writer != "open_to_append"));
    write(directory / "link");  // there is one now
    CHECK(fs::is_symlink(directory / "link"));
    CHECK(read_file(directory / "there/file").size() >= first.size());
    CHECK(entries_in(directory / "there") == 2);
    fs::create_symlink("round", directory / "round");
    CHECK(contains(message_of<FormatError>([&] { write(directory / "round"); }),
                   "Too many levels of symbolic links"));
  }
}

TEST_CASE(
    "files: a replaced file keeps its permissions, and an old one stays until the new one is "
    "whole") {
  const TemporaryDirectory directory;
  write_file(directory / "file", "old");
  REQUIRE(chmod((directory / "file").c_str(), 0640) == 0);
  {
    files::Replacement file("test", directory / "file");
    file.write("half of the ne");
    CHECK(read_file(directory / "file") == "old");
  }
  CHECK(read_file(directory / "file") == "old");
  files::require_replaceable("test", directory / "file");
  files::require_replaceable("test", directory / "none");
  CHECK(entries_in(directory.path()) == 1);
  for (const mode_t mode : {0640, 0600, 0755}) {
    REQUIRE(chmod((directory / "file").c_str(), mode) == 0);
    files::replace("test", directory / "file", "new");
    CHECK((mode_of(directory / "file") & 07777) == mode);
  }
  CHECK(read_file(directory / "file") == "new");
  CHECK(entries_in(directory.path()) == 1);

  const Nobody nobody(directory.path());
  REQUIRE(chmod((directory / "file").c_str(), 0444) == 0);
  CHECK(contains(message_of<FormatError>([&] { files::replace("test", directory / "file", "x"); }),
                 "Permission denied"));
  REQUIRE(chmod(directory.path().c_str(), 0555) == 0);
  for (const auto& [writer, write] : writers) {
    CAPTURE(writer);
    CHECK(contains(message_of<FormatError>([&] { write(directory / "another"); }),
                   "Permission denied"));
  }
  REQUIRE(chmod(directory.path().c_str(), 0755) == 0);
  CHECK(read_file(directory / "file") == "new");
}

TEST_CASE("files: no descriptor of ours is that of a standard stream, whatever was closed") {
  const TemporaryDirectory directory;
  write_file(directory / "input", "text");
  int saved[3];
  for (int stream = 0; stream < 3; ++stream) {
    saved[stream] = fcntl(stream, F_DUPFD_CLOEXEC, 10);
    close(stream);
  }
  const auto closed = [] {
    int count = 0;
    for (int stream = 0; stream < 3; ++stream) count += fcntl(stream, F_GETFD) < 0;
    return count;
  };
  int least = 100, while_open = 0;
  {
    const files::Descriptor read = files::open(directory / "input", O_RDONLY),
                            append = files::open_to_append("test", directory / "log");
    least = std::min(read.get(), append.get());
    files::Replacement replacement("test", directory / "new");
    train::CsvLogger csv(directory / "metrics.csv");
    train::TensorBoardLogger board(directory / "board");
    csv.log(1, {{"a", 1}});
    csv.log(2, {{"b", 2}});  // rewritten and opened again
    while_open = closed();
  }
  for (int stream = 0; stream < 3; ++stream)
    if (saved[stream] >= 0) dup2(saved[stream], stream), close(saved[stream]);
  CHECK(least > 2);
  CHECK(while_open == 3);
}

}  // namespace halftone::test::files_test
