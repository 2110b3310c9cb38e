// read_idx: good files, and every way in which a file can be wrong.
#include <doctest/doctest.h>

#include <zlib.h>

#include <halftone/data/sets.h>

#include "../support.h"

namespace halftone::test::idx_test {

using data::read_idx;

namespace {
std::string bytes_of(std::initializer_list<int> values) {
  std::string text;
  for (const int value : values) text += char(value);
  return text;
}

/// A matrix [2, 3] of 1 to 6.
std::string valid_file() {
  return bytes_of({0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3, 1, 2, 3, 4, 5, 6});
}

void write_gzip(const std::filesystem::path& path, const std::string& bytes) {
  gzFile file = gzopen(path.c_str(), "wb");
  gzwrite(file, bytes.data(), unsigned(bytes.size()));
  gzclose(file);
}

/// The error message for a file of these bytes.
std::string message_for(const std::string& bytes) {
  const TemporaryDirectory directory;
  write_file(directory / "x.idx", bytes);
  return message_of<FormatError>([&] { read_idx(directory / "x.idx"); });
}
}  // namespace

TEST_CASE("read_idx reads plain and compressed files") {
  const TemporaryDirectory directory;
  write_file(directory / "plain", valid_file());
  write_gzip(directory / "packed.gz", valid_file());
  for (const char* name : {"plain", "packed.gz"}) {
    const Tensor x = read_idx(directory / name);
    CHECK(x.dtype() == u8);
    CHECK(x.shape() == Shape{2, 3});
    CHECK(x.to_vector<int64_t>() == std::vector<int64_t>{1, 2, 3, 4, 5, 6});
  }
}

TEST_CASE("read_idx reads files longer than its chunks, and empty tensors") {
  const TemporaryDirectory directory;
  std::string large = bytes_of({0, 0, 8, 1, 0, 0x2f, 0xff, 0xff});  // 3 MiB - 1
  for (int i = 0; i < 0x2fffff; ++i) large += char(i * 7);
  write_gzip(directory / "large.gz", large);
  const Tensor x = read_idx(directory / "large.gz");
  REQUIRE(x.numel() == 0x2fffff);
  CHECK(std::equal(large.begin() + 8, large.end(), reinterpret_cast<const char*>(x.raw_data())));

  write_file(directory / "none", bytes_of({0, 0, 8, 3, 0, 0, 0, 0, 0, 0, 0, 28, 0, 0, 0, 28}));
  CHECK(read_idx(directory / "none").shape() == Shape{0, 28, 28});
}

TEST_CASE("read_idx explains what is wrong with a file") {
  const TemporaryDirectory directory;
  const std::string missing = (directory / "missing").string();
  CHECK(message_of<FormatError>([&] { read_idx(missing); }) ==
        "[read_idx] no such file: " + missing + ". Check the path.");
  CHECK(contains(message_of<FormatError>([&] { read_idx(directory.path()); }),
                 "Is a directory. Check the path."));
  write_file(directory / "file", "x");
  CHECK(contains(message_of<FormatError>([&] { read_idx(directory / "file" / "under"); }),
                 "Not a directory"));

  CHECK(contains(message_for(""), "[read_idx] the file is empty: "));
  CHECK(contains(message_for(bytes_of({0, 0, 8})),
                 "starts with 00 00 08; it must start with 00 00 08 and a rank"));
  CHECK(contains(message_for("GIF89a..."), "not an IDX file of bytes: "));
  CHECK(contains(message_for(bytes_of({1, 0, 8, 1, 0, 0, 0, 0})), "starts with 01 00 08 01"));
  CHECK(contains(message_for(bytes_of({0, 0, 13, 1, 0, 0, 0, 0})), "starts with 00 00 0d 01"));
  CHECK(contains(message_for(bytes_of({0, 0, 8, 0, 7})), "starts with 00 00 08 00"));
  CHECK(contains(message_for(bytes_of({0, 0, 8, 5, 0, 0, 0, 1})), "starts with 00 00 08 05"));
  CHECK(contains(message_for(bytes_of({0, 0, 8, 2, 0, 0, 0, 2, 0})),
                 "holds 5 of the 8 bytes of its sizes"));
  CHECK(contains(message_for(valid_file().substr(0, 16)),
                 "holds 4 of the 6 bytes that its header promises, [2, 3]. Fetch the file again."));
  CHECK(contains(
      message_for(valid_file() + "x"),
      "goes on after the 6 bytes that its header promises, [2, 3]. Fetch the file again."));
}

TEST_CASE("read_idx does not rely on the sizes in a header") {
  const std::string half = bytes_of({0x7f, 0xff, 0xff, 0xff}),
                    full = bytes_of({0xff, 0xff, 0xff, 0xff});
  const std::string two_gib = bytes_of({0, 0, 8, 1}) + half;
  CHECK(contains(message_for(two_gib + std::string(32, 'x')),
                 "of 40 bytes, cannot hold the 2147483647 bytes"));
  CHECK(contains(message_for(bytes_of({0, 0, 8, 1}) + full),
                 "promises [4294967295] bytes, the limit is 2147483648"));
  CHECK(contains(message_for(bytes_of({0, 0, 8, 4}) + full + full + full + full), "too large: "));
  CHECK(contains(message_for(bytes_of({0, 0, 8, 4, 0, 0, 0, 0}) + full + full + full),
                 "too large: "));
}

TEST_CASE("read_idx notices damaged gzip files") {
  const TemporaryDirectory directory;
  write_gzip(directory / "good.gz", valid_file());
  const std::string good = read_file(directory / "good.gz");

  CHECK(contains(message_for(good.substr(0, good.size() - 5)), "[read_idx] damaged gzip file: "));
  CHECK(contains(message_for(good.substr(0, 12)), "unexpected end of file. Fetch the file again."));
  std::string wrong_checksum = good;
  wrong_checksum[good.size() - 8] ^= 1;
  CHECK(contains(message_for(wrong_checksum), "incorrect data check. Fetch the file again."));
  std::string wrong_length = good;
  wrong_length[good.size() - 1] ^= 1;
  CHECK(contains(message_for(wrong_length), "incorrect length check. Fetch the file again."));
  std::string wrong_method = good;
  wrong_method[2] = 1;
  CHECK(contains(message_for(wrong_method), "[read_idx] "));
}

TEST_CASE("read_idx survives random damage") {
  const TemporaryDirectory directory;
  write_gzip(directory / "good.gz", valid_file());
  std::mt19937 random(1);
  int read = 0, refused = 0;
  for (const std::string& good : {valid_file(), read_file(directory / "good.gz")}) {
    for (int i = 0; i < 300; ++i) {
      write_file(directory / "fuzzed", mutated(good, random));
      try {
        (void)read_idx(directory / "fuzzed").to_vector<int64_t>();
        ++read;
      } catch (const Error&) { ++refused; }
    }
  }
  CHECK(read + refused == 600);
  CHECK(refused > 300);
}

}  // namespace halftone::test::idx_test
