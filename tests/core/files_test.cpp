// How files are written: in one step, through links, never over something that is not a file, and
// never with the number of a standard stream.
#include <doctest/doctest.h>

#include <csignal>
#include <functional>
#include <iterator>
#include <map>

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <halftone/halftone.h>

#include "../support.h"

namespace halftone::test::files_test {
namespace fs = std::filesystem;

namespace {
using Write = std::function<void(const fs::path&)>;

/// Every writer of files in the library.
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

TEST_CASE("files: devices, pipes, sockets and directories are refused and do not change") {
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

TEST_CASE("files: written through links, which stay; a dangling link makes its target") {
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

  const WithoutRoot without_root(directory.path());
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

TEST_CASE(
    "files: halftone's descriptors never have the number of a standard stream that was closed") {
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

TEST_CASE("names of up to 255 bytes can be written") {
  const TemporaryDirectory directory;
  for (const std::size_t size :
       {std::size_t(100), std::size_t(101), std::size_t(240), std::size_t(250), std::size_t(255)}) {
    CAPTURE(size);
    const fs::path path = directory / std::string(size, 'n');
    files::replace("test", path, "old");
    files::replace("test", path, "new");
    CHECK(read_file(path) == "new");
    save_safetensors(path, {{"a", zeros({2})}});
    CHECK(load_safetensors(path).tensors.contains("a"));
  }
  std::string letters;
  while (letters.size() < 255) letters += "\u4e2d";
  files::replace("test", directory / letters, "new");
  CHECK(read_file(directory / letters) == "new");
  CHECK(files::beginning_of_name(directory / letters) == letters.substr(0, 99));
  CHECK(files::beginning_of_name("a/" + std::string(100, 'n')) == std::string(100, 'n'));
  CHECK(contains(message_of<FormatError>(
                     [&] { files::replace("test", directory / std::string(256, 'n'), ""); }),
                 "File name too long"));
}

TEST_CASE("the limit of a file's size is an error, not the end of the process") {
  const TemporaryDirectory directory;
  files::replace("test", directory / "a", "old");
  const pid_t child = fork();
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_DFL);
    const struct rlimit low { .rlim_cur = 100, .rlim_max = 100 };
    if (setrlimit(RLIMIT_FSIZE, &low) != 0) _exit(3);
    const std::string message = message_of<FormatError>(
        [&] { files::replace("test", directory / "a", std::string(1000, 'x')); });
    if (!contains(message, "[test] cannot write ") || !contains(message, "File too large"))
      _exit(2);
    sigset_t pending{};
    _exit(sigpending(&pending) == 0 && sigismember(&pending, SIGXFSZ) == 0 ? 0 : 1);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  CHECK(read_file(directory / "a") == "old");
  CHECK(std::distance(fs::directory_iterator(directory.path()), {}) == 1);
}

TEST_CASE("another user's link in a directory for all users is not followed") {
  if (geteuid() != 0) {
    MESSAGE("skipped: only root can lay another user's link");
    return;
  }
  const TemporaryDirectory directory;
  const fs::path shared = directory / "tmp", link = shared / "m", victim = directory / "victim";
  constexpr uid_t other = 54321;
  fs::create_directory(shared);
  write_file(victim, "precious");
  fs::create_symlink(victim, link);
  REQUIRE(lchown(link.c_str(), other, gid_t(-1)) == 0);
  const auto refusal = [&](mode_t mode) {
    REQUIRE(chmod(shared.c_str(), mode) == 0);
    return message_of<FormatError>([&] { files::replace("test", link, "new"); });
  };
  CHECK(contains(refusal(01777), link.string() + " is a link of another user, 54321, in a "));
  CHECK(read_file(victim) == "precious");
  CHECK(refusal(0777).empty());
  CHECK(read_file(victim) == "new");
  CHECK(refusal(01755).empty());
  REQUIRE(lchown(shared.c_str(), other, gid_t(-1)) == 0);
  CHECK(refusal(01777).empty());  // the directory's owner may
  REQUIRE(lchown(shared.c_str(), 54322, gid_t(-1)) == 0);
  CHECK_FALSE(refusal(01777).empty());
  REQUIRE(lchown(link.c_str(), 0, gid_t(-1)) == 0);
  CHECK(refusal(01777).empty());  // this user's own link
  fs::remove(victim);
  REQUIRE(lchown(link.c_str(), other, gid_t(-1)) == 0);
  CHECK_FALSE(refusal(01777).empty());
  CHECK_FALSE(fs::exists(victim));
}

TEST_CASE("a path with a zero byte is refused, not cut off at it") {
  const TemporaryDirectory directory;
  using namespace std::string_literals;
  const fs::path path = (directory / "a").string() + "\0.png"s;
  save_safetensors(directory / "a", {{"x", zeros({1})}});
  const std::string before = read_file(directory / "a");
  const auto refused = [](const auto& call) {
    const std::string message = message_of<FormatError>(call);
    return contains(message, "\\x00.png") && contains(message, "\" has a zero byte. Leave it out.");
  };
  for (const auto& [name, write] : writers) {
    CAPTURE(name);
    CHECK(refused([&, &go = write] { go(path); }));
  }
  CHECK(refused([&] { load_safetensors(path); }));
  CHECK(refused([&] { data::read_image(path); }));
  CHECK(refused([&] { files::read_text("test", path, 1000); }));
  CHECK(refused([&] { files::make_directories("test", path); }));
  CHECK(refused([&] { files::open(path, O_RDONLY); }));
  CHECK(refused([&] { data::image_folder(path); }));
  CHECK(refused([&] { data::read_csv(path); }));
  CHECK(refused([&] { data::fashion_mnist({.directory = path.string()}); }));
  CHECK(refused([&] { train::save_checkpoint(path, {}); }));
  CHECK(refused([&] { train::load_checkpoint(path); }));
  CHECK(refused([&] { train::latest_checkpoint(path); }));
  CHECK(refused([&] { train::TensorBoardLogger{path}; }));
  CHECK(read_file(directory / "a") == before);
  CHECK(std::distance(fs::directory_iterator(directory.path()), {}) == 1);
}

}  // namespace halftone::test::files_test
