// Readers of published sets.
#include <halftone/data/sets.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <zlib.h>

#include <halftone/core/error.h>
#include <halftone/core/factory.h>
#include <halftone/core/files.h>
#include <halftone/core/memory.h>
#include <halftone/data/text.h>

namespace halftone::data {

// The size of a file is only a hint (it may grow while it is read), so the limit is checked on the
// bytes that arrive. With the hint, a small file (a folder of images has thousands) needs no buffer
// of a whole chunk.

namespace fs = std::filesystem;

std::string file_bytes(std::string_view op, const fs::path& path, int64_t max_bytes) {
  files::require_path(op, path);
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found)
    fail<FormatError>(op, "no such file: ", path.string(), ". Check the path.");
  if (error)
    fail<FormatError>(op, "cannot open the file: ", path.string(), ": ", error.message(),
                      ". Check the path.");
  if (!fs::is_regular_file(status))
    fail<FormatError>(op, "not a file: ", path.string(), " is ",
                      fs::is_directory(status) ? "a directory" : "a device or a pipe",
                      ". Name a regular file.");

  const files::Descriptor file = files::open(path, O_RDONLY | O_NONBLOCK);
  if (!file)
    fail<FormatError>(op, "cannot open the file: ", path.string(), ": ", std::strerror(errno),
                      ". Check the path.");
  std::string bytes;
  constexpr std::size_t chunk = std::size_t(1) << 20;
  const auto limit = std::size_t(std::max<int64_t>(max_bytes, 0));
  const std::uintmax_t promised = fs::file_size(path, error);
  if (!error && promised <= limit)
    or_no_memory(op, int64_t(promised), [&] { bytes.reserve(std::size_t(promised) + 1); });
  const std::size_t step = !error && promised < chunk ? std::size_t(promised) + 1 : chunk;
  std::ptrdiff_t got = 1;
  while (got > 0 && bytes.size() <= limit) {
    const std::size_t before = bytes.size(), wanted = std::min(step, limit + 1 - before);
    or_no_memory(op, int64_t(before + wanted), [&] { bytes.resize(before + wanted); });
    got = files::read_some(file, bytes.data() + before, wanted);
    bytes.resize(before + std::size_t(std::max<std::ptrdiff_t>(got, 0)));
  }
  if (got < 0)
    fail<FormatError>(op, "cannot read the file: ", path.string(), ": ", std::strerror(errno),
                      ". Check the disk.");
  if (bytes.size() > limit)
    fail<FormatError>(op, "the file is too large: ", path.string(), " has more than ", max_bytes,
                      " bytes. Raise the limit if it is meant to be so.");
  return bytes;
}

// The search order: the user's directory, the environment variable, the working directory, Debian.

namespace fs = std::filesystem;

std::vector<fs::path> directories_to_search(const std::string& given, std::string_view name) {
  files::require_path(name, given);
  if (!given.empty()) return {given};
  std::vector<fs::path> directories;
  if (const char* root = environment_variable("HALFTONE_DATA")) {
    std::error_code ignored;
    if (!fs::is_directory(root, ignored))
      fail<FormatError>("HALFTONE_DATA", "no directory ", root,
                        ". Name one that exists, or unset the variable.");
    directories.push_back(fs::path(root) / name);
  }
  directories.push_back(fs::path("./data") / name);
  directories.push_back(fs::path("/usr/share/datasets") / name);
  return directories;
}

std::string listed(const std::vector<fs::path>& directories) {
  std::string text;
  for (const fs::path& directory : directories) {
    if (!text.empty()) text += &directory == &directories.back() ? " or " : ", ";
    text += directory.string();
  }
  return text;
}

// The reader does not trust the header: it takes no more memory than the file can
// deliver. One read beyond the end makes zlib verify the checksum of a compressed
// file.

namespace {
constexpr int64_t largest_idx = int64_t(1) << 31;  // bytes of elements
constexpr std::size_t chunk_bytes = std::size_t(1) << 20;

/// A file for reading through zlib, which passes plain files through unchanged. Bytes after the
/// compressed stream are ignored, as gzip itself ignores them.
class GzipFile {
 public:
  explicit GzipFile(const std::string& path) : path_(path) {
    files::require_path("read_idx", path);
    files::Descriptor file = files::open(path, O_RDONLY | O_NONBLOCK);
    if (file) file_ = gzdopen(file.get(), "rb");
    if (file_) {
      file.release();
      return;
    }
    if (errno == ENOENT) fail<FormatError>("read_idx", "no such file: ", path, ". Check the path.");
    fail<FormatError>("read_idx", "cannot open the file: ", path, ": ", std::strerror(errno),
                      ". Check the path.");
  }
  ~GzipFile() { gzclose_r(file_); }
  GzipFile(const GzipFile&) = delete;
  GzipFile& operator=(const GzipFile&) = delete;

  /// Reads up to `wanted` bytes (at most chunk_bytes); fewer only at the end of the file.
  std::size_t read(uint8_t* to, std::size_t wanted) {
    const int got = gzread(file_, to, unsigned(wanted));
    if (got < 0 || std::size_t(got) < wanted) check();
    return std::size_t(std::max(got, 0));
  }

 private:
  void check() {
    int code = Z_OK;
    std::string text = gzerror(file_, &code);  // "<fd:3>: what"
    text.replace(0, std::min(text.find('>') + 1, text.size()), path_);
    if (code == Z_OK || code == Z_STREAM_END) return;
    if (code == Z_ERRNO)
      fail<FormatError>("read_idx", "cannot read the file: ", text, ". Check the path.");
    fail<FormatError>("read_idx", "damaged gzip file: ", text, ". Fetch the file again.");
  }

  std::string path_;
  gzFile file_ = nullptr;
};

std::string in_hex(const uint8_t* bytes, std::size_t count) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string text;
  for (std::size_t i = 0; i < count; ++i) {
    if (i) text += ' ';
    text += digits[bytes[i] >> 4];
    text += digits[bytes[i] & 15];
  }
  return text;
}

Shape read_header(GzipFile& file, const std::string& path) {
  std::array<uint8_t, 16> bytes{};
  const std::size_t got = file.read(bytes.data(), 4);
  if (got == 0)
    fail<FormatError>("read_idx", "the file is empty: ", path, ". Fetch the file again.");
  const std::size_t rank = bytes[3];
  if (got < 4 || bytes[0] != 0 || bytes[1] != 0 || bytes[2] != 8 || rank < 1 || rank > 4)
    fail<FormatError>(
        "read_idx", "not an IDX file of bytes: ", path, " starts with ", in_hex(bytes.data(), got),
        "; it must start with 00 00 08 and a rank of 01 to 04. Check that this is the right file.");
  const std::size_t sizes = file.read(bytes.data(), 4 * rank);
  if (sizes < 4 * rank)
    fail<FormatError>("read_idx", "truncated header: ", path, " holds ", sizes, " of the ",
                      4 * rank, " bytes of its sizes. Fetch the file again.");
  Shape shape;
  for (std::size_t i = 0; i < rank; ++i) {
    const uint8_t* b = bytes.data() + 4 * i;
    shape.push_back(int64_t(b[0]) << 24 | int64_t(b[1]) << 16 | int64_t(b[2]) << 8 | int64_t(b[3]));
  }
  return shape;
}

/// Checks the product of the sizes, each below 2^32. A size of 0 counts as 1 here, so that no later
/// product of sizes (strides) can overflow either.
void check_total(const Shape& shape, const std::string& path) {
  int64_t total = 1;
  for (const int64_t size : shape) {
    total *= std::max<int64_t>(size, 1);  // at most 2^31 * 2^32
    if (total > largest_idx)
      fail<FormatError>("read_idx", "too large: ", path, " promises ", shape,
                        " bytes, the limit is ", largest_idx,
                        ". Split the file, or fetch it again if it should be smaller.");
  }
}

/// Allocates the elements that the header promises, if the file can hold that many: deflate packs
/// at most 1032 bytes into one.
Tensor elements_for(const Shape& shape, const std::string& path) {
  std::error_code error;
  const auto in_file = std::filesystem::file_size(path, error);
  if (!error && std::size_t(numel_of(shape)) > 1032 * in_file)
    fail<FormatError>("read_idx", "truncated file: ", path, ", of ", in_file,
                      " bytes, cannot hold the ", numel_of(shape),
                      " bytes that its header promises, ", shape, ". Fetch the file again.");
  return empty(shape, u8);
}

void read_elements(GzipFile& file, Tensor& to, const std::string& path) {
  const auto promised = std::size_t(to.numel());
  for (std::size_t done = 0; done < promised; done += chunk_bytes) {
    const std::size_t wanted = std::min(chunk_bytes, promised - done);
    const std::size_t got = file.read(to.data<uint8_t>() + done, wanted);
    if (got < wanted)
      fail<FormatError>("read_idx", "truncated file: ", path, " holds ", done + got, " of the ",
                        promised, " bytes that its header promises, ", to.shape(),
                        ". Fetch the file again.");
  }
  uint8_t beyond = 0;
  if (file.read(&beyond, 1) != 0)
    fail<FormatError>("read_idx", "trailing bytes: ", path, " goes on after the ", promised,
                      " bytes that its header promises, ", to.shape(), ". Fetch the file again.");
}
}  // namespace

Tensor read_idx(const std::filesystem::path& path) {
  const std::string name = path.string();
  GzipFile file(name);
  const Shape shape = read_header(file, name);
  check_total(shape, name);
  Tensor tensor = elements_for(shape, name);
  read_elements(file, tensor, name);
  return tensor;
}

// The files hold planes, as ByteImages does, so the reader only copies.

namespace {
namespace fs = std::filesystem;
constexpr int64_t pixel_bytes = 3 * 32 * 32, record_bytes = 1 + pixel_bytes;

std::vector<std::string> names_of(Split split) {
  if (split == Split::test) return {"test_batch.bin"};
  std::vector<std::string> names;
  for (int i = 1; i <= 5; ++i) names.push_back("data_batch_" + std::to_string(i) + ".bin");
  return names;
}

/// Returns the first directory that has the first file.
fs::path find_directory(const std::string& given, const std::string& name) {
  const std::vector<fs::path> directories = directories_to_search(given, "cifar10");
  std::error_code ignored;
  for (const fs::path& directory : directories)
    for (const fs::path& candidate : {directory, directory / "cifar-10-batches-bin"})
      if (fs::exists(candidate / name, ignored)) return candidate;
  fail<FormatError>("cifar10", "no file ", name, " in ", listed(directories),
                    ". Unpack cifar-10-binary.tar.gz from https://www.cs.toronto.edu/~kriz/ "
                    "there, or pass the directory.");
}

/// Returns the bytes of one file, a whole number of records.
std::string read_records(const fs::path& path, int64_t images_per_file) {
  const int64_t limit = (images_per_file > 0 ? images_per_file : 100000) * record_bytes;
  std::string bytes = file_bytes("cifar10", path, limit);
  const auto length = int64_t(bytes.size());
  if (length == 0 || length % record_bytes != 0 || (images_per_file > 0 && length != limit))
    fail<FormatError>("cifar10", "wrong length: ", path.string(), " has ", length, " bytes, ",
                      images_per_file > 0 ? "not " : "no multiple of ",
                      images_per_file > 0 ? limit : record_bytes, ". Fetch the file again.");
  for (int64_t i = 0; i < length / record_bytes; ++i)
    if (const int label = uint8_t(bytes[std::size_t(i * record_bytes)]); label > 9)
      fail<FormatError>("cifar10", "label out of range: ", path.string(), " gives image ", i,
                        " the label ", label,
                        ", labels are 0 to 9. Check that this is the binary version.");
  return bytes;
}
}  // namespace

ByteImages cifar10(const Cifar10Options& options) {
  const MemoryScope scope(MemoryUse::input);
  const std::vector<std::string> names = names_of(options.split);
  const fs::path directory = find_directory(options.directory, names.front());
  std::vector<std::string> files;
  int64_t count = 0;
  for (const std::string& name : names) {
    files.push_back(read_records(directory / name, options.images_per_file));
    count += int64_t(files.back().size()) / record_bytes;
  }

  const Tensor images = empty({count, 3, 32, 32}, u8), labels = empty({count}, i64);
  uint8_t* pixel = images.data<uint8_t>();
  int64_t* label = labels.data<int64_t>();
  for (const std::string& file : files)
    for (std::size_t at = 0; at < file.size(); at += std::size_t(record_bytes)) {
      *label++ = uint8_t(file[at]);
      pixel =
          std::copy_n(reinterpret_cast<const uint8_t*>(file.data()) + at + 1, pixel_bytes, pixel);
    }
  return ByteImages(images, labels,
                    {.mean = options.mean,
                     .std = options.std,
                     .class_names = {"airplane", "automobile", "bird", "cat", "deer", "dog", "frog",
                                     "horse", "ship", "truck"},
                     .transform = options.transform});
}

// Finds, reads and cross-checks the two files of a split. The checks are on content (sizes, counts,
// labels), not on checksums: Debian compressed the files again, so they differ from upstream's
// bytes.

namespace {
namespace fs = std::filesystem;

std::optional<fs::path> file_in(const fs::path& directory, const std::string& name) {
  std::error_code ignored;
  for (const char* suffix : {".gz", ""})
    if (const fs::path path = directory / (name + suffix); fs::exists(path, ignored)) return path;
  return std::nullopt;
}

[[noreturn]] void fail_missing(const std::string& name, const std::vector<fs::path>& directories) {
  fail<FormatError>("fashion_mnist", "no file ", name, ".gz in ", listed(directories),
                    ". Install the Debian package dataset-fashion-mnist, or pass --data DIR.");
}

struct Files {
  fs::path images, labels;
};

/// Returns both files from one directory: the first that has the images.
Files find_files(Split split, const std::vector<fs::path>& directories) {
  const std::string prefix = split == Split::train ? "train" : "t10k";
  const std::string images_name = prefix + "-images-idx3-ubyte",
                    labels_name = prefix + "-labels-idx1-ubyte";
  for (const fs::path& directory : directories) {
    const std::optional<fs::path> images = file_in(directory, images_name);
    if (!images) continue;
    const std::optional<fs::path> labels = file_in(directory, labels_name);
    if (!labels) fail_missing(labels_name, {directory});
    return {*images, *labels};
  }
  fail_missing(images_name, directories);
}

void check_content(const Tensor& images, const Tensor& labels, const Files& files) {
  if (images.rank() != 3 || images.size(1) != 28 || images.size(2) != 28)
    fail<FormatError>("fashion_mnist", "wrong images: ", files.images.string(), " holds ",
                      described(images),
                      ", it must hold [n, 28, 28]. Check that this is the right file.");
  if (labels.rank() != 1 || labels.size(0) != images.size(0))
    fail<FormatError>("fashion_mnist",
                      "images and labels differ in number: ", files.images.string(), " holds ",
                      described(images), ", ", files.labels.string(), " holds ", described(labels),
                      ". Check that they belong together.");
  const uint8_t* label = labels.data<uint8_t>();
  for (int64_t i = 0; i < labels.size(0); ++i)
    if (label[i] >= 10)
      fail<FormatError>("fashion_mnist", "label out of range: ", files.labels.string(),
                        " gives sample ", i, " the label ", int(label[i]),
                        ", labels are 0 to 9. Check that this is the right file.");
}
}  // namespace

ByteImages fashion_mnist(const FashionMnistOptions& options) {
  const MemoryScope scope(MemoryUse::input);
  const Files files =
      find_files(options.split, directories_to_search(options.directory, "fashion-mnist"));
  const Tensor bytes = read_idx(files.images), byte_labels = read_idx(files.labels);
  check_content(bytes, byte_labels, files);

  const int64_t count = bytes.size(0);
  const Shape shape{count, 1, 28, 28};
  const Tensor labels = empty({count}, i64);
  for (int64_t i = 0; i < count; ++i) labels.data<int64_t>()[i] = byte_labels.data<uint8_t>()[i];
  return ByteImages(bytes.view_as(shape, contiguous_strides(shape), 0), labels,
                    {.mean = {options.mean},
                     .std = {options.std},
                     .class_names = {"T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
                                     "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"},
                     .transform = options.transform});
}

// A line of a list is "Name CLASS-ID SPECIES BREED-ID"; lines that begin with # are comments.

namespace {
namespace fs = std::filesystem;
constexpr int classes = 37;
constexpr int64_t largest_list = int64_t(16) << 20;

std::vector<std::string_view> words_of(std::string_view line) {
  std::vector<std::string_view> words;
  constexpr std::string_view blanks = " \t\r";
  for (std::size_t at = 0; (at = line.find_first_not_of(blanks, at)) != std::string_view::npos;) {
    const std::size_t end = std::min(line.find_first_of(blanks, at), line.size());
    words.push_back(line.substr(at, end - at));
    at = end;
  }
  return words;
}

std::optional<int> number_in(std::string_view word) {
  int number = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  if (error != std::errc() || end != word.data() + word.size()) return std::nullopt;
  return number;
}

/// Turns "american_bulldog_12" into "American Bulldog"; nothing without a number at the end.
std::optional<std::string> class_name_of(std::string_view image) {
  const std::size_t last = image.rfind('_');
  if (last == std::string_view::npos || last == 0 || !number_in(image.substr(last + 1)))
    return std::nullopt;
  std::string name(image.substr(0, last));
  bool start = true;
  for (char& c : name) {
    if (c == '_') c = ' ';
    if (start && c >= 'a' && c <= 'z') c = char(c - 'a' + 'A');
    start = c == ' ';
  }
  return name;
}

struct List {
  std::vector<LabelledFile> files;
  std::vector<std::string> class_names = std::vector<std::string>(classes);
};

List read_list(const fs::path& path, const fs::path& images) {
  const std::string text = read_text(path, largest_list);
  List list;
  std::string_view left = text;
  for (int64_t line_number = 1; !left.empty(); ++line_number) {
    const std::string_view line = left.substr(0, left.find('\n'));
    left.remove_prefix(std::min(line.size() + 1, left.size()));
    const std::vector<std::string_view> words = words_of(line);
    if (words.empty() || words[0].starts_with('#')) continue;

    const auto fail_line = [&](const auto&... what) {
      fail<FormatError>("oxford_pets", "wrong line: ", path.string(), ":", line_number, " ",
                        what...,
                        ". Lines are \"Name CLASS-ID SPECIES BREED-ID\"; fetch the file again.");
    };
    if (words.size() != 4) fail_line("has ", words.size(), " words");
    const std::string name(words[0]);
    if (name.find('/') != std::string::npos || name.find('\0') != std::string::npos)
      fail_line("names an image elsewhere");
    const std::optional<int> label = number_in(words[1]);
    if (!label || *label < 1 || *label > classes)
      fail_line("has the class ", shortened(words[1], 40), ", classes are 1 to ", classes);
    const std::optional<std::string> class_name = class_name_of(name);
    if (!class_name)
      fail_line("has the name ", shortened(name, 40), " without a breed and a number");
    std::string& known = list.class_names[std::size_t(*label - 1)];
    if (known.empty()) known = *class_name;
    if (known != *class_name)
      fail_line("calls class ", *label, " ", shortened(*class_name, 40), ", an earlier line ",
                shortened(known, 40));
    list.files.push_back({(images / (name + ".jpg")).string(), *label - 1});
  }
  if (list.files.empty())
    fail<FormatError>("oxford_pets", "no images in the list: ", path.string(),
                      " has no line with one. Fetch the file again.");
  for (std::size_t i = 0; i < list.class_names.size(); ++i)
    if (list.class_names[i].empty()) list.class_names[i] = "class " + std::to_string(i + 1);
  return list;
}
}  // namespace

ImageFiles oxford_pets(const OxfordPetsOptions& options) {
  const std::string name = options.split == Split::train ? "trainval.txt" : "test.txt";
  const std::vector<fs::path> directories =
      directories_to_search(options.directory, "oxford-iiit-pet");
  std::error_code ignored;
  for (const fs::path& directory : directories) {
    if (!fs::exists(directory / "annotations" / name, ignored)) continue;
    if (!fs::is_directory(directory / "images", ignored))
      fail<FormatError>("oxford_pets", "no directory images in ", directory.string(),
                        ". Unpack images.tar.gz next to annotations.");
    List list = read_list(directory / "annotations" / name, directory / "images");
    return {std::move(list.files),
            std::move(list.class_names),
            {.transform = options.transform, .image = options.image, .broken = options.broken}};
  }
  fail<FormatError>("oxford_pets", "no file annotations/", name, " in ", listed(directories),
                    ". Unpack images.tar.gz and annotations.tar.gz from "
                    "https://www.robots.ox.ac.uk/~vgg/data/pets/ there, or pass the directory.");
}

}  // namespace halftone::data
