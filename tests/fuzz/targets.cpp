// The fuzz targets: for each kind of file a check of every input of libFuzzer, its limits, and
// sometimes a mutator.
#include "fuzz.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <set>
#include <span>

#include <zlib.h>

#include <halftone/core/named_tensors.h>
#include <halftone/data/csv.h>
#include <halftone/data/images.h>
#include <halftone/data/sets.h>
#include <halftone/data/byte_pairs.h>
#include <halftone/amp/policy.h>
#include <halftone/amp/rules.h>
#include <halftone/train/checkpoint.h>

// Tables of comma-separated values. An accepted table has the form that it says, and is the same
// table when it is written with every cell quoted.

namespace halftone::fuzz::csv {
namespace {

constexpr Limits limits{.longest_input = 2048, .allocation_mib = 3, .resident_mib = 256};

std::optional<data::CsvTable> read(std::string_view text, const data::CsvOptions& options) {
  return accepted<FormatError>("csv", [&] { return data::csv_from_text(text, options); });
}

std::string in_quotes(std::string_view cell) {
  std::string text = "\"";
  for (const char c : cell) text += c == '"' ? std::string("\"\"") : std::string(1, c);
  return text + '"';
}

void check(std::string_view bytes) {
  const data::CsvOptions options{.separator = bytes.starts_with(';') ? ';' : ','};
  const std::optional<data::CsvTable> table = read(bytes, options);
  if (!table) return;
  const auto& names = table->columns();
  std::string text;
  const auto add_line = [&](const auto& cell_of) {
    for (std::size_t i = 0; i < names.size(); ++i)
      text += (i ? std::string(1, options.separator) : "") + in_quotes(cell_of(names[i]));
    text += "\r\n";
  };
  add_line([](const std::string& name) { return name; });
  for (int64_t row = 0; row < table->rows(); ++row)
    add_line([&](const std::string& name) { return table->cell(row, name); });

  for (const std::string& name : names) {
    const auto numbers = accepted<FormatError>("csv", [&] { return table->column(name, f64); });
    if (numbers) require(numbers->numel() == table->rows(), "a number for every row");
    const data::Classes classes = table->classes(name);
    for (const int64_t number : classes.numbers.to_vector<int64_t>())
      require(number >= 0 && number < int64_t(classes.names.size()), "every class has a name");
  }
  // A single column of blanks looks like an empty line.
  if (names.size() < 2) return;
  const std::optional<data::CsvTable> again = read(text, options);
  require(again.has_value() && again->columns() == names && again->rows() == table->rows(),
          "quotes change nothing");
  for (int64_t row = 0; row < table->rows(); ++row)
    for (const std::string& name : names)
      require(again->cell(row, name) == table->cell(row, name), "nor any cell");
}

}  // namespace
}  // namespace halftone::fuzz::csv

// IDX files. A plain file is accepted exactly if its header describes its data; the same bytes
// compressed must give the same result. A tensor from a compressed file is at most as large as
// deflate can pack.

namespace halftone::fuzz::idx {
namespace {

constexpr Limits limits{.longest_input = 1024, .allocation_mib = 3, .resident_mib = 256};

constexpr int64_t best_ratio = 1032;  // of deflate

std::optional<Tensor> read(std::string_view bytes) {
  const std::filesystem::path file = scratch_directory() / "idx";
  write_file(file, bytes);
  return accepted<FormatError>("read_idx", [&] { return data::read_idx(file); });
}

std::string little_endian(uint32_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text += char(value >> 8 * i & 255);
  return text;
}

/// A gzip file with one stored block of fewer than 2^16 bytes.
std::string stored(std::string_view bytes) {
  const auto size = uint32_t(bytes.size());
  const uLong sum = crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size());
  return std::string("\x1f\x8b\x08\0\0\0\0\0\0\xff\x01", 11) + little_endian(size, 2) +
         little_endian(~size, 2) + std::string(bytes) + little_endian(uint32_t(sum), 4) +
         little_endian(size, 4);
}

/// The shape of a plain file that must be accepted.
std::optional<Shape> expected_shape(std::string_view bytes) {
  const auto at = [&](std::size_t i) { return int64_t(uint8_t(bytes[i])); };
  if (!bytes.starts_with(std::string_view("\0\0\x08", 3)) || bytes.size() < 4) return {};
  const auto rank = std::size_t(at(3));
  if (rank < 1 || rank > 4 || bytes.size() < 4 + 4 * rank) return {};
  Shape shape;
  int64_t total = 1;
  for (std::size_t i = 4; i < 4 + 4 * rank; i += 4) {
    shape.push_back(at(i) << 24 | at(i + 1) << 16 | at(i + 2) << 8 | at(i + 3));
    total *= std::max<int64_t>(shape[shape.rank() - 1], 1);
    if (total > int64_t(1) << 31) return {};
  }
  if (numel_of(shape) != int64_t(bytes.size() - 4 - 4 * rank)) return {};
  return shape;
}

void check(std::string_view bytes) {
  const std::optional<Tensor> image = read(bytes);
  require(peak_tensor_bytes() <= best_ratio * int64_t(bytes.size()),
          "a tensor is not larger than its file can be");
  if (image) require(image->dtype() == u8 && image->is_contiguous(), "elements are bytes");
  if (bytes.starts_with("\x1f\x8b")) return;

  const std::optional<Shape> shape = expected_shape(bytes);
  require(image.has_value() == shape.has_value(), "a file is read if its header is true");
  const std::optional<Tensor> packed = read(stored(bytes));
  require(packed.has_value() == image.has_value(), "compression changes nothing");
  if (!image) return;
  require(image->shape() == *shape, "the shape is the header's");
  const std::string_view elements = bytes.substr(bytes.size() - std::size_t(image->bytes()));
  require(std::equal(elements.begin(), elements.end(),
                     reinterpret_cast<const char*>(image->raw_data())),
          "the elements are the file's");
  require(same(*packed, *image), "compression changes no element");
}

}  // namespace
}  // namespace halftone::fuzz::idx

// CIFAR-10 batches are accepted exactly if the length is a number of records and every label is
// valid; then pixels and labels are those of the file. The five training files are links to the
// same bytes.

namespace halftone::fuzz::cifar10 {
namespace {

// Four records, and five times two records, are far below these limits.
constexpr Limits limits{.longest_input = 4 * 3073, .allocation_mib = 1, .resident_mib = 256};

constexpr std::size_t pixels = 3072, record = 1 + pixels;

/// Made once: the file of the test split, and links to it as the other files.
const std::filesystem::path& test_file() {
  static const std::filesystem::path path = [] {
    const std::filesystem::path file = scratch_directory() / "test_batch.bin";
    for (int i = 1; i <= 5; ++i)
      std::filesystem::create_symlink(
          file, scratch_directory() / ("data_batch_" + std::to_string(i) + ".bin"));
    return file;
  }();
  return path;
}

std::optional<data::ByteImages> read(data::Split split, int64_t images_per_file) {
  return accepted<FormatError>("cifar10", [&] {
    return data::cifar10({.split = split,
                          .directory = scratch_directory().string(),
                          .mean = {0, 0, 0},
                          .std = {1, 1, 1},
                          .images_per_file = images_per_file});
  });
}

/// Requires every record of `bytes`, once or several times, in order.
void require_records(const data::ByteImages& images, std::string_view bytes, std::size_t times) {
  const std::size_t count = bytes.size() / record;
  require(images.size() == int64_t(times * count), "there are as many images as records");
  std::vector<int64_t> indices(times * count);
  std::iota(indices.begin(), indices.end(), 0);
  const data::Batch batch = images.batch(indices);
  require(batch.inputs.shape() == Shape{images.size(), 3, 32, 32}, "images are 3 x 32 x 32");
  const float* pixel = batch.inputs.data<float>();
  for (std::size_t i = 0; i < indices.size(); ++i) {
    const std::string_view one = bytes.substr(i % count * record, record);
    require(batch.targets.data<int64_t>()[i] == uint8_t(one[0]), "labels are the file's");
    for (std::size_t k = 1; k < record; ++k)
      require(*pixel++ == float(uint8_t(one[k])) / 255.0f, "pixels are the file's");
  }
}

void check(std::string_view bytes) {
  write_file(test_file(), bytes);
  bool labels = true;
  for (std::size_t at = 0; at < bytes.size(); at += record) labels &= uint8_t(bytes[at]) <= 9;
  const bool whole = !bytes.empty() && bytes.size() % record == 0;

  const std::optional<data::ByteImages> test = read(data::Split::test, 0);
  require(peak_tensor_bytes() <= int64_t(bytes.size() + 8 * (bytes.size() / record)),
          "pixels take what they take in the file, and labels 8 bytes");
  require(test.has_value() == (whole && labels), "a file is read if all of its records are");
  const std::optional<data::ByteImages> train = read(data::Split::train, 2);
  require(train.has_value() == (bytes.size() == 2 * record && labels),
          "each file has the number of images that was asked for");
  if (test) require_records(*test, bytes, 1);
  if (train) require_records(*train, bytes, 5);
}

}  // namespace
}  // namespace halftone::fuzz::cifar10

// JPEG and PNG files. Gray and RGB, strict and accepting truncation: the same files are images, of
// the size in the header, and decoding twice gives the same. The image is written as a PNG and read
// again. The mutator corrects the checksums of a PNG, because otherwise the decoder is never
// reached.

namespace halftone::fuzz::image {
namespace {

// images.cpp allows the decoder (1 + 64) * (1,024 + 64) * 76 bytes + 1 MiB + 4 files, in total.
constexpr Limits limits{.longest_input = 4096, .allocation_mib = 7, .resident_mib = 256};

using data::Channels, data::ImageOptions;
constexpr int64_t max_pixels = 1024;

std::optional<Tensor> decode(std::span<const uint8_t> bytes, Channels channels, bool truncated) {
  return accepted<FormatError>("read_image", [&] {
    return data::decode_image(
        bytes, "x",
        {.channels = channels, .max_pixels = max_pixels, .accept_truncated = truncated});
  });
}

/// For a complete file, strict reading makes no difference.
std::optional<Tensor> check_decoding(std::span<const uint8_t> bytes, Channels channels) {
  const std::optional<Tensor> strict = decode(bytes, channels, false);
  const std::optional<Tensor> tolerant = decode(bytes, channels, true);
  for (const std::optional<Tensor>& image : {strict, tolerant})
    if (image)
      require(image->dtype() == u8 && image->is_contiguous() && image->rank() == 3 &&
                  image->size(0) > 0 && image->size(1) > 0 &&
                  image->size(0) * image->size(1) <= max_pixels &&
                  image->size(2) == int64_t(channels),
              "an image has a size, within the limit, and the channels that were asked for");
  if (strict) {
    const data::ImageHeader header = data::walk_image(bytes);
    require(header.problem.empty() && strict->size(0) == header.height &&
                strict->size(1) == header.width,
            "the size is the header's");
    require(tolerant && same(*strict, *tolerant), "a complete file needs no tolerance");
  }
  return tolerant;
}

void check_writing(const Tensor& image) {
  const std::filesystem::path file = scratch_directory() / "image.png";
  data::write_png(file, image);
  const Tensor again = data::read_image(file, {.channels = Channels(image.size(2))});
  require(same(again, image), "writing and reading keeps every pixel");
}

void check(std::string_view text) {
  const std::span bytes(reinterpret_cast<const uint8_t*>(text.data()), text.size());
  const std::optional<Tensor> rgb = check_decoding(bytes, Channels::rgb),
                              grey = check_decoding(bytes, Channels::gray);
  require(rgb.has_value() == grey.has_value(), "what is an image does not depend on the channels");
  require(peak_tensor_bytes() <= 6 * max_pixels, "tensors are images within the limit");
  if (!rgb) return;
  check_writing(*rgb);
  check_writing(*grey);
}

std::size_t mutate(uint8_t* data, std::size_t size, std::size_t longest, unsigned seed) {
  size = LLVMFuzzerMutate(data, size, longest);
  if (seed % 8 == 0 || size < 8 || data[0] != 0x89) return size;
  // Length, type, data and checksum, big-endian, after a signature of 8 bytes.
  for (std::size_t at = 8; size - at >= 12;) {
    const uint64_t length =
        uint64_t(data[at]) << 24 | data[at + 1] << 16 | data[at + 2] << 8 | data[at + 3];
    if (length > size - at - 12) break;
    const uLong sum = crc32_z(0, data + at + 4, length + 4);
    at += 8 + length;
    for (int shift = 24; shift >= 0; shift -= 8) data[at++] = uint8_t(sum >> shift);
  }
  return size;
}

}  // namespace
}  // namespace halftone::fuzz::image

// The two files of a byte-pair tokenizer, and a text: vocab.json, 0xff, merges.txt, 0xff,
// text. With an accepted pair of files, any text is encoded and decoded to itself. Without a
// vocabulary, one is made that has all tokens of the merges, so that most merges are
// accepted.

namespace halftone::fuzz::tokenizer {
namespace {

// A vocabulary of 8,192 bytes has a few hundred tokens.
constexpr Limits limits{.longest_input = 8192, .allocation_mib = 1, .resident_mib = 256};

/// GPT-2's characters for the 256 bytes.
std::set<std::string> byte_characters() {
  std::set<std::string> characters;
  char32_t next = 0x100;
  for (char32_t byte = 0; byte < 256; ++byte) {
    const bool itself = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte != 0xad);
    std::string text;
    data::append_utf8(text, itself ? byte : next++);
    characters.insert(text);
  }
  return characters;
}

/// A vocabulary of all bytes and of all merged tokens of `merges`.
std::string vocabulary_for(std::string_view merges) {
  static const std::set<std::string> bytes = byte_characters();
  std::set<std::string> tokens = bytes;
  while (!merges.empty()) {
    std::string line(merges.substr(0, merges.find('\n')));
    merges.remove_prefix(std::min(line.size() + 1, merges.size()));
    if (line.ends_with('\r')) line.pop_back();
    if (const std::size_t space = line.find(' '); space != std::string::npos)
      tokens.insert(line.erase(space, 1));
  }
  tokens.erase("");
  std::string text;
  int64_t number = 0;
  for (const std::string& token : tokens) {
    text += text.empty() ? "{\"" : ",\"";
    for (const char c : token) {
      if (c == '"' || c == '\\') text += '\\';
      text += c;
    }
    text += "\":" + std::to_string(number++);
  }
  return text + '}';
}

/// One object, and otherwise only JSON white space.
bool is_one_object(std::string_view json) {
  const std::size_t last = json.find_last_not_of(" \t\r\n");
  return last != std::string_view::npos && json[last] == '}' &&
         json.find('\0') == std::string_view::npos;
}

void check_tokens(const data::BytePairTokenizer& tokenizer) {
  require(tokenizer.vocabulary_size() >= 256, "every byte has a token");
  for (int64_t token = 0; token < tokenizer.vocabulary_size(); ++token) {
    const std::string bytes = tokenizer.decode(std::vector{token});
    require(!bytes.empty() && tokenizer.token(bytes) == token, "tokens and their bytes are pairs");
  }
}

void check(std::string_view bytes) {
  const std::filesystem::path vocabulary = scratch_directory() / "vocab.json",
                              merges = scratch_directory() / "merges.txt";
  std::vector<std::string> parts = parts_of(bytes, 3);
  if (parts[0].empty()) parts[0] = vocabulary_for(parts[1]);
  write_file(vocabulary, parts[0]);
  write_file(merges, parts[1]);
  const auto tokenizer = accepted<FormatError>(
      "BytePairTokenizer", [&] { return data::BytePairTokenizer(vocabulary, merges); });
  if (!tokenizer) return;

  require(is_one_object(parts[0]), "nothing follows the vocabulary");
  check_tokens(*tokenizer);
  const std::vector<int64_t> tokens = tokenizer->encode(parts[2]);
  require(tokens.size() <= parts[2].size(), "a token is one byte or more");
  require(tokenizer->decode(tokens) == parts[2], "decoding undoes encoding");
}

}  // namespace
}  // namespace halftone::fuzz::tokenizer

// tokenizer.json, 0xff, text. The tokens of an accepted file are within its vocabulary, and a saved
// tokenizer encodes the same.

namespace halftone::fuzz::tokenizer_json {
namespace {

// The parser's document and the vocabulary are within a few hundred bytes per byte of the file.
constexpr Limits limits{.longest_input = 8192, .allocation_mib = 1, .resident_mib = 256};

void check(std::string_view bytes) {
  const std::filesystem::path path = scratch_directory() / "tokenizer.json";
  const std::vector<std::string> parts = parts_of(bytes, 2);
  write_file(path, parts[0]);
  const auto read = [&] { return data::BytePairTokenizer(path); };
  const auto tokenizer = accepted<FormatError>("BytePairTokenizer", read);
  if (!tokenizer) return;
  const data::EncodeOptions framed{.add_special_tokens = true};
  const std::vector<int64_t> tokens = tokenizer->encode(parts[1], framed);
  tokenizer->decode(tokens);
  tokenizer->save(path);
  require(read().encode(parts[1], framed) == tokens, "saving keeps the tokens");
}

}  // namespace
}  // namespace halftone::fuzz::tokenizer_json

// safetensors files. An accepted file has no unused byte; saving and loading it again changes
// nothing, and saving it twice gives the same. The mutator keeps the length of the header correct;
// otherwise nearly every mutation would fail at the first check.

namespace halftone::fuzz::safetensors {
namespace {

// A header of 4,096 bytes has at most about a hundred entries.
constexpr Limits limits{.longest_input = 4096, .allocation_mib = 1, .resident_mib = 256};

constexpr std::size_t length_bytes = sizeof(uint64_t);

void require_same(const SafetensorsFile& a, const SafetensorsFile& b) {
  require(a.metadata == b.metadata, "saving keeps the metadata");
  require(std::ranges::equal(a.tensors, b.tensors,
                             [](const auto& x, const auto& y) {
                               return x.first == y.first && same(x.second, y.second);
                             }),
          "saving keeps the tensors");
}

void check(std::string_view bytes) {
  const std::filesystem::path file = scratch_directory() / "file",
                              copy = scratch_directory() / "copy";
  write_file(file, bytes);
  const std::optional<SafetensorsFile> loaded = accepted<FormatError, UnsupportedError>(
      "load_safetensors", [&] { return load_safetensors(file); });
  require(peak_tensor_bytes() <= int64_t(bytes.size()), "tensors are not larger than their file");
  if (!loaded) return;

  uint64_t header = 0;
  std::memcpy(&header, bytes.data(), length_bytes);
  uint64_t total = length_bytes + header;
  for (const auto& [name, tensor] : loaded->tensors) total += uint64_t(tensor.bytes());
  require(loaded->unsupported.empty() ? total == bytes.size() : total <= bytes.size(),
          "header and tensors are the whole file");

  save_safetensors(copy, loaded->tensors, loaded->metadata);
  const std::string saved = read_file(copy);
  const SafetensorsFile again = load_safetensors(copy);
  require_same(*loaded, again);
  save_safetensors(copy, again.tensors, again.metadata);
  require(read_file(copy) == saved, "there is one way to save tensors");
}

std::size_t mutate(uint8_t* data, std::size_t size, std::size_t longest, unsigned seed) {
  size = LLVMFuzzerMutate(data, size, longest);
  if (seed % 8 == 0 || size <= length_bytes) return size;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const std::size_t end = text.rfind('}');
  if (end == std::string_view::npos || end < length_bytes) return size;
  const uint64_t header = end + 1 - length_bytes;
  std::memcpy(data, &header, sizeof header);
  return size;
}

}  // namespace
}  // namespace halftone::fuzz::safetensors

// Checkpoints. An input without 0xff is a text for both parsers: printing what they accept gives
// the same text. With 0xff it has four parts, manifest (empty: one that fits), state, model and
// optimizer. As a directory they are accepted exactly if the manifest is that of these files and
// each file is valid by itself. Saving it again changes nothing, and a change of one byte is found.

namespace halftone::fuzz::checkpoint {
namespace {

// Checksums are computed through a buffer of the size of the file.
constexpr Limits limits{.longest_input = 4096, .allocation_mib = 1, .resident_mib = 256};

namespace fs = std::filesystem;
using train::Checkpoint, train::CheckpointState, train::Manifest;

std::optional<CheckpointState> parsed_state(const std::string& text) {
  return accepted<FormatError>("checkpoint", [&] { return train::parse_state(text, "x"); });
}

void check_texts(const std::string& text) {
  if (const auto manifest =
          accepted<FormatError>("checkpoint", [&] { return train::parse_manifest(text, "x"); }))
    require(train::manifest_text(*manifest) == text, "a manifest has one spelling");
  if (const auto state = parsed_state(text)) {
    require(train::state_text(*state) == text, "a state has one spelling");
    require(state->step >= 0 && state->epoch >= 0 && state->batches >= 0, "counts start at 0");
  }
}

uint32_t sum_of(std::string_view bytes) {
  return uint32_t(crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

/// Returns the manifest of files with these bytes, in the order of listed_files.
std::string true_manifest(const std::array<std::string_view, 3>& files) {
  Manifest manifest;
  std::ranges::transform(files, manifest.files.begin(), [](std::string_view bytes) {
    return train::FileSum{.bytes = bytes.size(), .crc32 = sum_of(bytes)};
  });
  return train::manifest_text(manifest);
}

/// Returns whether both files of tensors are valid, and every name is in the right one.
bool tensors_are_valid(const fs::path& path) {
  const auto load = [&](std::string_view name) {
    return accepted<FormatError, UnsupportedError>("load_safetensors", [&] {
      SafetensorsFile file = load_safetensors(path / name);
      file.require_all();
      return file;
    });
  };
  const auto model = load(train::model_file), others = load(train::optimizer_file);
  return model && others && std::ranges::none_of(others->tensors, [](const auto& item) {
           return item.first.starts_with("model.");
         });
}

void require_same(const Checkpoint& a, const Checkpoint& b) {
  require(train::state_text(a.state) == train::state_text(b.state), "saving keeps the state");
  require(std::ranges::equal(a.tensors, b.tensors,
                             [](const auto& x, const auto& y) {
                               return x.first == y.first && same(x.second, y.second);
                             }),
          "saving keeps the tensors");
}

std::optional<CheckpointState> verified(const fs::path& path) {
  return accepted<FormatError>("checkpoint", [&] { return train::verify_checkpoint(path); });
}

void check_change_of_one_byte(const fs::path& path, std::size_t seed) {
  const fs::path file = path / train::listed_files[seed % train::listed_files.size()];
  std::string bytes = read_file(file);
  if (bytes.empty()) return;
  bytes[seed % bytes.size()] = char(bytes[seed % bytes.size()] ^ (1 << seed % 8));
  write_file(file, bytes);
  require(!verified(path), "a changed byte is noticed");
}

void check_directory(const std::vector<std::string>& parts) {
  const fs::path path = scratch_directory() / "step-1", copy = scratch_directory() / "step-2";
  fs::create_directory(path);
  write_file(path / train::state_file, parts[1]);
  write_file(path / train::model_file, parts[2]);
  write_file(path / train::optimizer_file, parts[3]);
  const std::string fitting = true_manifest({parts[2], parts[3], parts[1]});
  const std::string& manifest = parts[0].empty() ? fitting : parts[0];
  write_file(path / train::manifest_file, manifest);

  const std::optional<CheckpointState> state = parsed_state(parts[1]);
  const bool valid = manifest == fitting && state;
  const auto loaded =
      accepted<FormatError>("checkpoint", [&] { return train::load_checkpoint(path); });
  require(loaded.has_value() == (valid && tensors_are_valid(path)),
          "a checkpoint is loaded if its manifest is true, and its state and tensors are valid");
  require(loaded || verified(path).has_value() == valid,  // loading verifies
          "a checkpoint is verified if its manifest is true and its state is valid");
  const auto looked_at =
      accepted<FormatError>("checkpoint", [&] { return train::read_checkpoint_state(path); });
  require(looked_at || !valid, "a valid checkpoint has a state to look at");
  if (loaded) {
    require(train::state_text(loaded->state) == parts[1], "the state is the file's");
    fs::remove_all(copy);
    train::save_checkpoint(copy, *loaded);
    require_same(train::load_checkpoint(copy), *loaded);
  }
  if (valid) check_change_of_one_byte(path, sum_of(parts[1]));
}

void check(std::string_view bytes) {
  if (bytes.find('\xff') == std::string_view::npos) return check_texts(std::string(bytes));
  const std::vector<std::string> parts = parts_of(bytes, 4);
  // A directory costs as much as fifty texts, so one input in eight becomes a directory.
  if (sum_of(bytes) % 8 == 0) return check_directory(parts);
  check_texts(parts[0]);
  check_texts(parts[1]);
}

}  // namespace
}  // namespace halftone::fuzz::checkpoint

// Policy files. An accepted file is written, read again, and then is the same policy with the same
// hash; a refusal gives the position. Files that extend files are not tested here: an input is one
// text.

namespace halftone::fuzz::policy_file {
namespace {

// The installed policies have at most 2,500 bytes; a tree of JSON is about ten times its text.
constexpr Limits limits{.longest_input = 4096, .allocation_mib = 1, .resident_mib = 256};

void check(std::string_view bytes) {
  const std::optional<amp::Policy> file =
      accepted<FormatError>("policy fuzz", [&] { return policy::read_text(bytes, "fuzz"); });
  if (!file) return;
  const std::string written = policy::write(*file);
  const amp::Policy again = policy::read_text(written, "again");
  require(policy::write(again) == written, "there is one way to write a policy");
  require(again.rules == file->rules, "writing keeps the rules");
  require(again.about == file->about && again.meant_for == file->meant_for, "and what is said");
  require(policy::hash(again) == policy::hash(*file), "and the hash");
  for (const policy::Rule& rule : file->rules.rules) {
    const policy::PathPattern pattern("policy fuzz", rule.match.path);
    for (const char* path : {"", "transformer.h.1.attn.c_attn", "2", "lm_head"})
      pattern.matches(path, {.lists = {{"transformer.h", 3}, {"", 5}},
                             .blocks = {"transformer.h.0", "transformer.h.1"},
                             .heads = {"lm_head"}});
  }
}

}  // namespace
}  // namespace halftone::fuzz::policy_file

namespace halftone::fuzz {

const Target& target_named(std::string_view name) {
  static const Target targets[]{
      {"csv", csv::limits, csv::check},
      {"idx", idx::limits, idx::check},
      {"cifar10", cifar10::limits, cifar10::check},
      {"image", image::limits, image::check, image::mutate},
      {"tokenizer", tokenizer::limits, tokenizer::check},
      {"tokenizer_json", tokenizer_json::limits, tokenizer_json::check},
      {"safetensors", safetensors::limits, safetensors::check, safetensors::mutate},
      {"checkpoint", checkpoint::limits, checkpoint::check},
      {"policy_file", policy_file::limits, policy_file::check},
  };
  for (const Target& target : targets)
    if (target.name == name) return target;
  fail<UsageError>("fuzz", "there is no target ", name,
                   ". Start a program fuzz_NAME of the build.");
}

}  // namespace halftone::fuzz
