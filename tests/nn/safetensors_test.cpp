// safetensors: exact bytes, round trips, and the official list of malformed headers with a few
// more.
#include <algorithm>
#include <cstring>
#include <memory>

#include <signal.h>

#include <doctest/doctest.h>
#include <sys/resource.h>

#include <halftone/halftone.h>

#include "../support.h"

namespace halftone::test::safetensors_test {
namespace {
/// A file with this header, its correct length, and this data.
std::string file_of(const std::string& header, const std::string& data = "") {
  const uint64_t length = header.size();
  std::string text(sizeof length, '\0');
  std::memcpy(text.data(), &length, sizeof length);
  return text + header + data;
}

template <class Kind = FormatError> std::string message_for(const std::string& bytes) {
  const TemporaryDirectory directory;
  write_file(directory / "x.safetensors", bytes);
  return MESSAGE_OF(Kind, load_safetensors(directory / "x.safetensors"));
}

std::string entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return "{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}";
}

bool same(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && a.dtype() == b.dtype() && a.is_contiguous() &&
         b.is_contiguous() && std::memcmp(a.raw_data(), b.raw_data(), std::size_t(a.bytes())) == 0;
}

NamedTensors one_of_each_dtype() {
  NamedTensors tensors;
  for (int i = 0; i < dtype_count; ++i)
    tensors["layers." + std::to_string(i) + ".weight"] = from({{0, 1, 2}, {3, 4, 5}}, DType(i));
  tensors["scalar"] = scalar(2.5);
  tensors["empty"] = empty({0, 7}, f16);
  return tensors;
}
}  // namespace

TEST_CASE("a tiny safetensors file has the bytes that the official library writes") {
  const TemporaryDirectory directory;
  save_safetensors(directory / "x",
                   {{"b", from({1, 2}, u8)}, {"a", from({1}, f32)}, {"c", from({-1}, i64)}},
                   {{"format", "pt"}});
  std::string header =
      "{\"__metadata__\":{\"format\":\"pt\"},\"c\":{\"dtype\":\"I64\",\"shape\":[1],\"data_"
      "offsets\":[0,8]},"
      "\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[8,12]},"
      "\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[12,14]}}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  CHECK(read_file(directory / "x") ==
        file_of(header, std::string(8, '\xff') + std::string("\0\0\x80\x3f", 4) + "\x01\x02"));
}

TEST_CASE("safetensors round trip: every dtype, scalars, empty tensors, metadata, odd names") {
  const TemporaryDirectory directory;
  NamedTensors tensors = one_of_each_dtype();
  tensors["quote \" backslash \\ newline \n \xc3\xbc"] = from({1.0, 2, 3});
  tensors[""] = from({4.0});
  const std::map<std::string, std::string> metadata{{"format", "pt"}, {"", "\xe2\x82\xac\n"}};
  save_safetensors(directory / "x", tensors, metadata);
  const SafetensorsFile file = load_safetensors(directory / "x");
  CHECK(file.metadata == metadata);
  REQUIRE(file.tensors.size() == tensors.size());
  for (const auto& [name, tensor] : tensors) {
    CAPTURE(name);
    REQUIRE(file.tensors.contains(name));
    CHECK(same(file.tensors.at(name), tensor));
  }
}

TEST_CASE("safetensors round trip of nothing") {
  const TemporaryDirectory directory;
  save_safetensors(directory / "x", {});
  CHECK(read_file(directory / "x") == file_of("{}      "));
  const SafetensorsFile file = load_safetensors(directory / "x");
  CHECK(file.tensors.empty());
  CHECK(file.metadata.empty());
}

TEST_CASE("save_safetensors writes views in row-major order") {
  const TemporaryDirectory directory;
  const Tensor x = from({{1, 2, 3}, {4, 5, 6}}, bf16);
  save_safetensors(directory / "x", {{"transposed", views::transpose(x, 0, 1)},
                                     {"expanded", views::expand(from({7.0}), {3})},
                                     {"sliced", views::slice(x, 1, 1, 2)}});
  const NamedTensors loaded = load_safetensors(directory / "x").tensors;
  CHECK(loaded.at("transposed").shape() == Shape{3, 2});
  CHECK(loaded.at("transposed").to_vector<float>() == std::vector<float>{1, 4, 2, 5, 3, 6});
  CHECK(loaded.at("expanded").to_vector<float>() == std::vector<float>{7, 7, 7});
  CHECK(loaded.at("sliced").to_vector<float>() == std::vector<float>{2, 3, 5, 6});
}

TEST_CASE("load_safetensors charges the caller's scope and takes entries in any order") {
  const TemporaryDirectory directory;
  write_file(directory / "x", file_of("{\"b\":" + entry("U8", "[2]", "[1,3]") +
                                          ",\"none\":" + entry("F32", "[5,0]", "[1,1]") +
                                          ",\"a\":" + entry("BOOL", "[]", "[0,1]") + "} \n\t ",
                                      std::string("\x01\x02\x03")));
  const MemoryReport before = memory_report();
  const MemoryScope scope(MemoryUse::parameter);
  const SafetensorsFile file = load_safetensors(directory / "x");
  CHECK(memory_report().now_of(MemoryUse::parameter) - before.now_of(MemoryUse::parameter) == 3);
  CHECK(file.tensors.at("a").item() == 1);
  CHECK(file.tensors.at("b").to_vector<int64_t>() == std::vector<int64_t>{2, 3});
  CHECK(file.tensors.at("none").shape() == Shape{5, 0});
}

TEST_CASE("save_safetensors replaces a file in one step or does not change it") {
  const TemporaryDirectory directory;
  const auto files = [&] {
    return std::distance(std::filesystem::directory_iterator(directory.path()), {});
  };
  save_safetensors(directory / "x", {{"a", from({1.0})}});
  save_safetensors(directory / "x", {{"a", from({2.0})}});
  CHECK(load_safetensors(directory / "x").tensors.at("a").item() == 2);
  CHECK(files() == 1);

  // For this process the disk is full after a page.
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  const rlimit tight{4096, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &tight);
  const std::string message =
      MESSAGE_OF(FormatError, save_safetensors(directory / "x", {{"a", zeros({100000})}}));
  setrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, handler);
  CHECK(message ==
        "[save_safetensors] cannot write " + (directory / "x").string() +
            ": File too large. Check the directory, its permissions and the free space.");
  CHECK(load_safetensors(directory / "x").tensors.at("a").item() == 2);
  CHECK(files() == 1);
}

TEST_CASE("save_safetensors explains tensors that it cannot write") {
  const TemporaryDirectory directory;
  const Tensor x = from({1.0});
  const std::string missing = (directory / "no" / "x").string();
  CHECK(
      MESSAGE_OF(FormatError, save_safetensors(missing, {{"a", x}})) ==
      "[save_safetensors] cannot write " + missing +
          ": No such file or directory. Check the directory, its permissions and the free space.");
  std::filesystem::create_directory(directory / "folder");
  CHECK(contains(MESSAGE_OF(FormatError, save_safetensors(directory / "folder", {{"a", x}})),
                 "Is a directory"));
  CHECK(std::distance(std::filesystem::directory_iterator(directory.path()), {}) == 1);

  const auto refused = [&](const NamedTensors& tensors,
                           const std::map<std::string, std::string>& metadata = {}) {
    const std::string message =
        MESSAGE_OF(UsageError, save_safetensors(directory / "refused", tensors, metadata));
    CHECK_FALSE(std::filesystem::exists(directory / "refused"));
    return message;
  };
  CHECK(refused({{"__metadata__", x}}) ==
        "[save_safetensors] no tensor may be named \"__metadata__\". Pass metadata as such.");
  CHECK(refused({{"a", Tensor()}}) ==
        "[save_safetensors] tensor \"a\" is undefined. Leave it out.");
  CHECK(contains(refused({{std::string(1025, 'n'), x}}),
                 "a name of 1025 bytes is over the limit of 1024: \"nnn"));
  CHECK(contains(refused({{"\xff", x}}), "not UTF-8"));
  CHECK(contains(refused({{"a", x}}, {{"key", "\xc0\x80"}}), "Names and metadata must be UTF-8."));
  std::map<std::string, std::string> many;
  for (int i = 0; i < 100000; ++i) many[std::to_string(i)];
  CHECK(contains(refused({{"a", x}}, many), "100001 entries reach the limit of 100000"));
}

TEST_CASE("load_safetensors refuses files in other formats") {
  const TemporaryDirectory directory;
  const std::string missing = (directory / "missing").string();
  CHECK(MESSAGE_OF(FormatError, load_safetensors(missing)) ==
        "[load_safetensors] cannot open the file: " + missing +
            ": No such file or directory. Check the path.");
  CHECK(MESSAGE_OF(FormatError, load_safetensors(directory.path())) ==
        "[load_safetensors] not a regular file: " + directory.path().string() +
            ". Check the path.");

  CHECK(contains(message_for(""), "[load_safetensors] the file has 0 bytes, fewer than 8, in "));
  CHECK(contains(message_for("1234567"), "the file has 7 bytes, fewer than 8"));
  CHECK(contains(message_for(std::string(16, '\xff')),
                 "header length 18446744073709551615 is over the limit"));
  CHECK(contains(message_for(std::string("\x01\xe1\xf5\x05\0\0\0\0", 8)),
                 "header length 100000001 is over the limit of 100000000 bytes"));
  CHECK(contains(message_for(std::string("\0\xe1\xf5\x05\0\0\0\0", 8)),
                 "header length 100000000 is beyond the end of the file of 8 bytes"));
  CHECK(contains(message_for(std::string("\x03\0\0\0\0\0\0\0{}", 10)),
                 "is beyond the end of the file of 10 bytes"));
  CHECK(contains(message_for(file_of("")), "the header does not start with '{'"));
  CHECK(contains(message_for(file_of("[]")), "the header does not start with '{'"));
  CHECK(contains(message_for(file_of(" {}")), "the header does not start with '{'"));
  CHECK(contains(message_for(file_of("\xef\xbb\xbf{}")), "the header does not start with '{'"));
}

TEST_CASE("load_safetensors refuses headers that are not JSON") {
  const auto refused = [](const std::string& header) {
    return contains(message_for(file_of(header)), "the header is not valid JSON at byte ");
  };
  CHECK(refused("{"));
  CHECK(refused("{\"a\""));
  CHECK(refused("{}{}"));
  CHECK(refused("{} x"));
  CHECK(refused("{\"a\":" + entry("U8", "[0]", "[0,0]") + ",}"));
  CHECK(refused("{/* comment */}"));
  CHECK(refused("{\"\xff\":1}"));          // not UTF-8
  CHECK(refused("{\"\xed\xa0\x80\":1}"));  // a surrogate in UTF-8
  CHECK(refused("{\"\xc0\xaf\":1}"));      // overlong
  CHECK(refused("{}\xff"));
  CHECK(refused(std::string("{}\0more", 7)));  // after a zero byte
  CHECK(refused("{\"a\":NaN}"));
  CHECK(refused("{\"a\":" + entry("U8", "[01]", "[0,1]") + "}"));
  CHECK(contains(message_for(file_of("{\"\x01\":1}")),
                 "near \""));  // and its message has no control characters
  CHECK_FALSE(contains(message_for(file_of("{\"\x01\":1}")), "\x01"));
}

TEST_CASE("load_safetensors refuses headers of another form") {
  const std::string good = entry("U8", "[1]", "[0,1]");
  const auto message = [](const std::string& header) { return message_for(file_of(header, "x")); };
  CHECK(contains(message("{\"a\":" + good + ",\"a\":" + good + "}"), "duplicate key \"a\""));
  CHECK(contains(message("{\"a\":" + good + ",\"\\u0061\":" + good + "}"), "duplicate key \"a\""));
  CHECK(contains(message("{\"__metadata__\":{},\"__metadata__\":{}}"),
                 "duplicate key \"__metadata__\""));
  CHECK(contains(message("{\"__metadata__\":{\"k\":\"\",\"k\":\"\"}}"), "duplicate key \"k\""));
  CHECK(contains(message("{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\"}}"),
                 "duplicate key \"dtype\" of tensor \"a\""));
  CHECK(contains(message("{\"a\":{\"shape\":[],\"shape\":[]}}"),
                 "duplicate key \"shape\" of tensor \"a\""));
  CHECK(contains(message("{\"a\":{\"data_offsets\":[0,1],\"data_offsets\":[0,1]}}"),
                 "duplicate key \"data_offsets\""));

  CHECK(contains(
      message("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"strides\":[1]}}"),
      "unknown field \"strides\" of tensor \"a\""));
  CHECK(contains(message("{\"a\":{\"shape\":[1],\"data_offsets\":[0,1]}}"),
                 "tensor \"a\" has no field \"dtype\""));
  CHECK(contains(message("{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}"),
                 "has no field \"shape\""));
  CHECK(contains(message("{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}"),
                 "has no field \"data_offsets\""));

  CHECK(contains(message("{\"a\":" + entry("U8", "[-1]", "[0,1]") + "}"),
                 "a negative number is not allowed in the header"));
  CHECK(contains(message("{\"a\":" + entry("U8", "[1.0]", "[0,1]") + "}"),
                 "the number 1.0, no whole number"));
  CHECK(contains(message("{\"a\":" + entry("U8", "[1e0]", "[0,1]") + "}"),
                 "the number 1e0, no whole number"));
  CHECK(contains(message("{\"a\":" + entry("U8", "[18446744073709551616]", "[0,1]") + "}"),
                 "no whole number of 64"));
  CHECK(contains(message("{\"a\":" + entry("U8", "[\"1\"]", "[0,1]") + "}"),
                 "a string is not allowed in the header"));
  CHECK(contains(message("{\"a\":" + entry("U8", "[[1]]", "[0,1]") + "}"),
                 "an array is not allowed in the header"));
  CHECK(contains(message("{\"a\":" + entry("U8", "1", "[0,1]") + "}"),
                 "a number is not allowed in the header"));
  CHECK(contains(message("{\"a\":" + entry("U8", "null", "[0,1]") + "}"),
                 "null is not allowed in the header"));
  CHECK(contains(message("{\"a\":" + entry("U8", "[1]", "[0]") + "}"),
                 "data_offsets of tensor \"a\" has 1 numbers"));
  CHECK(contains(message("{\"a\":" + entry("U8", "[1]", "[0,1,2]") + "}"),
                 "a number is not allowed in the header"));
  CHECK(contains(message("{\"a\":" + entry("U8", "[1]", "{}") + "}"),
                 "an object is not allowed in the header"));
  CHECK(contains(message("{\"a\":{\"dtype\":8}}"),
                 "a number is not allowed in the header, after the key "
                 "\"dtype\""));
  CHECK(contains(message("{\"a\":[]}"), "an array is not allowed in the header"));
  CHECK(contains(message("{\"a\":true}"), "true or false is not allowed in the header"));
  CHECK(contains(message("{\"__metadata__\":null}"), "null is not allowed in the header"));
  CHECK(contains(message("{\"__metadata__\":{\"k\":1}}"), "a number is not allowed in the header"));
  CHECK(
      contains(message("{\"__metadata__\":{\"k\":{}}}"), "an object is not allowed in the header"));
}

TEST_CASE("load_safetensors refuses offsets that do not tile the data") {
  const auto message = [](const std::string& header, std::size_t data_bytes) {
    return message_for(file_of("{" + header + "}", std::string(data_bytes, '\0')));
  };
  const std::string a = "\"a\":" + entry("U8", "[2]", "[0,2]");
  CHECK(contains(message(a, 1),
                 "data_offsets [0, 2] of tensor \"a\" do not fit into 1 bytes of data"));
  CHECK(contains(message(a, 3), "the tensors end at byte 2 of 3 bytes of data"));  // polyglot files
  CHECK(contains(message("", 1), "the tensors end at byte 0 of 1 bytes of data"));
  CHECK(contains(message("\"a\":" + entry("U8", "[2]", "[1,3]"), 3),
                 "hole in the data: tensor \"a\" starts at 1"));
  CHECK(contains(message(a + ",\"b\":" + entry("U8", "[2]", "[3,5]"), 5),
                 "hole in the data: tensor \"b\""));
  CHECK(contains(message(a + ",\"b\":" + entry("U8", "[2]", "[1,3]"), 3),
                 "overlap in the data: tensor \"b\""));
  CHECK(contains(message(a + ",\"b\":" + entry("U8", "[2]", "[0,2]"), 2),
                 "overlap in the data: tensor \"b\""));
  CHECK(contains(message("\"a\":" + entry("U8", "[2]", "[2,0]"), 2),
                 "data_offsets [2, 0] of tensor \"a\""));
  CHECK(contains(message("\"a\":" + entry("F32", "[2]", "[0,2]"), 2),
                 "has 2 bytes of data, its shape and dtype need 8"));
  CHECK(contains(message("\"a\":" + entry("U8", "[]", "[0,0]"), 0),
                 "has 0 bytes of data, its shape and dtype need 1"));
  CHECK(contains(message("\"a\":" + entry("U8", "[0]", "[0,1]"), 1),
                 "has 1 bytes of data, its shape and dtype need 0"));

  const std::string huge = "4294967296";
  CHECK(contains(message("\"a\":" + entry("U8", "[" + huge + "," + huge + "]", "[0,0]"), 0),
                 "overflows 64 bits"));
  CHECK(contains(message("\"a\":" + entry("F64", "[2305843009213693952]", "[0,0]"), 0),
                 "overflows 64 bits"));
  CHECK(contains(message("\"a\":" + entry("U8", "[0," + huge + "," + huge + "]", "[0,0]"), 0),
                 "overflows 64 bits"));
  const std::string largest = "18446744073709551615";
  CHECK(contains(message("\"a\":" + entry("U8", "[" + largest + "]", "[0," + largest + "]"), 0),
                 "overflows 64 bits"));
  CHECK(contains(message("\"a\":" + entry("U8", "[1]", "[" + largest + ",0]"), 1),
                 "do not fit into 1 bytes"));
}

TEST_CASE("load_safetensors reads the rest of a file with tensors that it cannot hold") {
  const TemporaryDirectory directory;
  struct Case {
    const char *dtype, *shape, *what;
    int bytes;
  };
  for (const auto& [dtype, shape, what, bytes] :
       {Case{"I8", "[3]", "[3] I8", 3},
        {"U16", "[1]", "[1] U16", 2},
        {"U32", "[1]", "[1] U32", 4},
        {"U64", "[1]", "[1] U64", 8},
        {"C64", "[2]", "[2] C64", 16},
        {"F4", "[2,3]", "[2, 3] F4", 3},
        {"F6_E3M2", "[4]", "[4] F6_E3M2", 3},
        {"F8_E8M0", "[2]", "[2] F8_E8M0", 2},
        {"F9", "[2]", "[2] F9", 5},
        {"U8", "[1,1,1,1,1,1,1,1,2]", "[1, 1, 1, 1, 1, 1, 1, 1, 2] U8", 2}}) {
    CAPTURE(dtype);
    const std::string end = std::to_string(bytes), behind = std::to_string(bytes + 1);
    write_file(directory / "x",
               file_of("{\"w\":" + entry(dtype, shape, "[0," + end + "]") +
                           ",\"b\":" + entry("U8", "[1]", "[" + end + "," + behind + "]") + "}",
                       std::string(std::size_t(bytes), '\0') + "\7"));
    const SafetensorsFile file = load_safetensors(directory / "x");
    CHECK(file.at("b").item() == 7);
    CHECK(file.unsupported == std::map<std::string, std::string>{{"w", what}});
    CHECK(MESSAGE_OF(UnsupportedError, file.at("w")) ==
          std::string("[load_safetensors] tensor \"w\" is ") + what +
              ", which no tensor can be here. Convert it before saving: another dtype, at most 8 "
              "dimensions.");
    CHECK_THROWS_AS(file.require_all(), UnsupportedError);
    CHECK(contains(MESSAGE_OF(UsageError, file.at("c")), "The names are: b."));
  }
  // A module that needs the tensor cannot be loaded; another one can.
  write_file(directory / "x", file_of("{\"bias\":" + entry("F32", "[1]", "[0,4]") +
                                          ",\"weight\":" + entry("I8", "[1,1]", "[4,5]") + "}",
                                      std::string(5, '\0')));
  nn::Linear linear(1, 1);
  CHECK(MESSAGE_OF(UnsupportedError, nn::load(linear, directory / "x", {.strict = false})) ==
        "[load_state_dict] " + (directory / "x").string() +
            ": tensor \"weight\" is [1, 1] I8, which no tensor can be here. Convert it before "
            "saving.");
  nn::LayerNorm other(1, {.affine = false});
  CHECK(nn::load(other, directory / "x", {.strict = false}).unexpected ==
        std::vector<std::string>{"bias", "weight"});
  std::string many = "[1";
  for (int i = 0; i < 64; ++i) many += ",1";
  CHECK(contains(message_for<UnsupportedError>(
                     file_of("{\"w\":" + entry("U8", many + "]", "[0,1]") + "}", "x")),
                 "tensor \"w\" has more than 64 dimensions, in "));
  CHECK(contains(message_for(file_of("{\"w\":" + entry("F4", "[3]", "[0,2]") + "}", "xx")),
                 "the F4 tensor \"w\" has 12 bits, which are no whole bytes"));
  CHECK(contains(message_for(file_of("{\"w\":" + entry("BOOL", "[3]", "[0,3]") + "}",
                                     std::string("\0\1\2", 3))),
                 "a byte of the BOOL tensor \"w\" is 2, not 0 or 1"));
}

TEST_CASE("control characters of a hostile name do not reach the terminal") {
  const std::string name = R"(\u001b[2J\n\u007f\u0000ok)";  // as JSON writes them
  const auto with = [&](const std::string& dtype) {
    return file_of("{\"" + name + "\":" + entry(dtype, "[1]", "[0,1]") + "}", "x");
  };
  CHECK(contains(message_for(with("F32")),
                 R"(tensor "\x1b[2J\n\x7f\x00ok" has 1 bytes of data, its shape)"));
  const TemporaryDirectory directory;
  write_file(directory / "x", with(name));
  CHECK(contains(MESSAGE_OF(UnsupportedError, load_safetensors(directory / "x").require_all()),
                 R"(tensor "\x1b[2J\n\x7f\x00ok" is [1] \x1b[2J\n\x7f\x00ok, which)"));
}

TEST_CASE("load_safetensors bounds names, entries and depth") {
  CHECK(contains(message_for(file_of("{\"" + std::string(1025, 'n') + "\":1}")),
                 "a name of 1025 bytes is over the limit of 1024"));
  std::string many = "{\"__metadata__\":{";
  for (int i = 0; i < 100000; ++i) many += '"', many += std::to_string(i), many += "\":\"\",";
  CHECK(contains(message_for(file_of(many)), "more than 100000 entries in the header"));
  CHECK(contains(message_for(file_of("{\"a\":" + std::string(1000000, '['))),
                 "an array is not allowed in the header"));
  std::string nested;
  for (int i = 0; i < 100000; ++i) nested += "{\"a\":";
  CHECK(contains(message_for(file_of(nested)), "unknown field \"a\" of tensor \"a\""));
}

TEST_CASE("load_safetensors survives random damage") {
  const TemporaryDirectory directory;
  save_safetensors(directory / "good", one_of_each_dtype(), {{"format", "pt"}});
  const std::string good = read_file(directory / "good");
  const std::size_t header_end = good.find("}}") + 2;
  std::mt19937 random(1);
  int loaded = 0, refused = 0;
  for (int i = 0; i < 800; ++i) {
    // Three in four change only the header and set its length correctly, so that they pass the
    // first checks.
    const std::string bytes = i % 4 == 0 ? mutated(good, random)
                                         : file_of(mutated(good.substr(8, header_end - 8), random),
                                                   good.substr(header_end));
    write_file(directory / "fuzzed", bytes);
    try {
      for (const auto& [name, tensor] : load_safetensors(directory / "fuzzed").tensors)
        (void)tensor.to_vector<double>();
      ++loaded;
    } catch (const Error&) { ++refused; }
  }
  CHECK(loaded + refused == 800);
  CHECK(refused > 400);
}

}  // namespace halftone::test::safetensors_test

// A file of tensors that are not all in memory at once.

namespace halftone::test::stream_safetensors_test {
namespace {

TEST_CASE("stream_safetensors asks for one tensor after another, and writes the same bytes") {
  const TemporaryDirectory directory;
  const NamedTensors tensors{{"weight", from({{1, 2}, {3, 4}}, bf16)},
                             {"count", scalar(3, i64)},
                             {"bias", from({5.0, 6, 7})},
                             {"empty", zeros({0, 4})},
                             {"text", from({65, 66}, u8)}};
  save_safetensors(directory / "whole", tensors, {{"format", "pt"}});
  TensorSource source = source_of(tensors);
  std::ranges::reverse(source.infos);
  std::vector<std::string> asked;
  std::weak_ptr<TensorBody> last;
  source.tensor = [&](const std::string& name) {
    CHECK(last.expired());
    asked.push_back(name);
    const Tensor made = tensors.at(name).clone();
    last = made.body();
    return made;
  };
  stream_safetensors(directory / "streamed", source, {{"format", "pt"}});
  const auto bytes = [&](const char* name) {
    return files::read_text("test", directory / name, 1 << 20);
  };
  CHECK(bytes("streamed") == bytes("whole"));
  CHECK(asked == std::vector<std::string>{"count", "bias", "empty", "weight", "text"});
}

TEST_CASE("stream_safetensors refuses tensors that were not announced") {
  const TemporaryDirectory directory;
  const TensorSource source{.infos = {{.name = "a", .dtype = f32, .shape = {2}}},
                            .tensor = [](const std::string&) {
                              return from({1, 2}, bf16);
                            }};
  CHECK(MESSAGE_OF(UsageError, stream_safetensors(directory / "other", source)) ==
        "[save_safetensors] tensor \"a\" is [2] bf16, announced as [2] f32. Announce what comes.");
  CHECK_FALSE(std::filesystem::exists(directory / "other"));
}

}  // namespace
}  // namespace halftone::test::stream_safetensors_test
