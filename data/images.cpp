// Reads image files: limits, messages, checks of their structure. stb.cpp decodes.
#include <halftone/data/images.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <zlib.h>

#include <halftone/core/error.h>
#include <halftone/core/factory.h>
#include <halftone/core/files.h>
#include <halftone/core/memory.h>
#include <halftone/core/tensor.h>
#include <halftone/data/data_loader.h>
#include <halftone/data/sets.h>
#include <halftone/data/transforms.h>

namespace halftone::data {

namespace {
std::span<const uint8_t> as_bytes(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

void check_header(const ImageHeader& header, std::string_view name, const ImageOptions& options) {
  if (header.format == ImageFormat::unknown)
    fail<FormatError>("read_image", "not an image: ", name, ": ", header.problem,
                      ". Pass a JPEG or PNG file, whatever its extension.");
  // Before the problem: if a file promises too much, nothing else matters.
  constexpr int64_t largest_side = 65535;
  if (header.height > largest_side || header.width > largest_side ||
      header.height * header.width > options.max_pixels)
    fail<FormatError>("read_image", "the image is too large: ", name, " promises ", header.height,
                      " x ", header.width, " pixels, the limits are ", options.max_pixels,
                      " in all and ", largest_side,
                      " per side. Raise max_pixels if it is meant to be so.");
  if (header.truncated)
    fail<FormatError>("read_image", "truncated image: ", name, ": ", header.problem,
                      ". Fetch the file again.");
  if (!header.problem.empty())
    fail<FormatError>("read_image", "damaged image: ", name, ": ", header.problem,
                      ". Fetch the file again.");
}

/// The decoder would take the four channels of a JPEG for YCbCr and drop one.
void check_colors(const ImageHeader& header, std::string_view name) {
  const bool known = header.adobe_transform == 0 || header.adobe_transform == 2;
  if (header.format == ImageFormat::jpeg && header.bytes_per_pixel == 4 && !known)
    fail<FormatError>("read_image", "unknown colors: ", name,
                      " is a JPEG of four channels, and no marker of Adobe's says whether they are "
                      "CMYK or YCCK. Convert it to RGB with the program that wrote it.");
}

/// Returns the memory limit of decoding, in bytes. JPEG: planes and, if progressive, coefficients
/// of 2 bytes, padded to blocks. PNG: the stream, its inflated form (which doubles while it grows),
/// and up to three forms of the pixels.
int64_t memory_for(const ImageHeader& header, std::size_t file_bytes) {
  const int64_t padded = (header.height + 64) * (header.width + 64);
  return padded * (8 * header.bytes_per_pixel + 12) + 4 * int64_t(file_bytes) + (1 << 20);
}

/// Returns the PNG with its first palette extended by black to 256 entries. For pixels beyond the
/// palette stb_image returns leftover stack bytes. No checksum is updated: stb_image ignores them.
std::vector<uint8_t> with_whole_palette(std::span<const uint8_t> bytes, std::size_t at) {
  constexpr std::size_t whole = 3 * 256, before_data = 8;
  std::vector<uint8_t> result(bytes.begin(), bytes.end());
  const std::size_t length = std::size_t(bytes[at]) << 24 | std::size_t(bytes[at + 1]) << 16 |
                             std::size_t(bytes[at + 2]) << 8 | bytes[at + 3];
  if (length == 0 || length % 3 != 0 || length >= whole) return result;  // valid, or refused later
  result.insert(result.begin() + int64_t(at + before_data + length), whole - length, 0);
  result[at + 2] = whole >> 8, result[at + 3] = whole & 255;
  return result;
}
}  // namespace

Tensor decode_image(std::span<const uint8_t> bytes, std::string_view name,
                    const ImageOptions& options) {
  if (int64_t(bytes.size()) > std::min<int64_t>(options.max_file_bytes, int64_t(1) << 30))
    fail<FormatError>("read_image", "the file is too large: ", name, " has ", bytes.size(),
                      " bytes, the limit is ",
                      std::min<int64_t>(options.max_file_bytes, int64_t(1) << 30),
                      ". Raise max_file_bytes if it is meant to be so.");
  if (bytes.empty())
    fail<FormatError>("read_image", "the file is empty: ", name, ". Fetch the file again.");
  ImageHeader header = walk_image(bytes);
  std::vector<uint8_t> completed;
  if (header.truncated && options.accept_truncated && header.format == ImageFormat::jpeg) {
    completed.assign(bytes.begin(), bytes.end());
    completed.insert(completed.end(), {0xff, 0xd9});
    if (const ImageHeader again = walk_image(completed); again.problem.empty())
      header = again, bytes = completed;
  }
  check_header(header, name, options);
  check_colors(header, name);
  if (header.palette_at > 0)
    completed = with_whole_palette(bytes, header.palette_at), bytes = completed;

  const auto channels = int64_t(options.channels);
  const int64_t memory = memory_for(header, bytes.size());
  const DecodedBytes decoded = or_no_memory(
      "read_image", memory, [&] { return decode_with_stb(bytes, int(channels), memory); });
  if (!decoded.problem.empty())
    fail<FormatError>("read_image", "damaged image: ", name, ": ", decoded.problem,
                      ". Fetch the file again.");
  if (decoded.height != header.height || decoded.width != header.width)
    fail<FormatError>("read_image", "damaged image: ", name, " promises ", header.height, " x ",
                      header.width, " pixels and has ", decoded.height, " x ", decoded.width,
                      ". Fetch the file again.");
  Tensor image = empty({decoded.height, decoded.width, channels}, u8);
  std::ranges::copy(decoded.pixels, image.data<uint8_t>());
  return image;
}

Tensor read_image(const std::filesystem::path& path, const ImageOptions& options) {
  const std::string bytes = file_bytes("read_image", path, options.max_file_bytes);
  return decode_image(as_bytes(bytes), path.string(), options);
}

void check_image(std::string_view op, const Tensor& image) {
  if (!image.defined() || image.rank() != 3 || image.numel() == 0)
    fail<ShapeError>(op, "not an image: ",
                     image.defined()
                         ? "it has " + std::to_string(image.rank()) + " dimensions and " +
                               std::to_string(image.numel()) + " elements"
                         : std::string("it is undefined"),
                     ". Pass u8 [height, width, channels].");
  if (image.dtype() != u8)
    fail<DTypeError>(op, "not an image of bytes: it is ", described(image),
                     ". Pass u8 [height, width, channels].");
  if (image.device() != Device::cpu())
    fail<DeviceError>(op, "the image is on another device: ", described(image), " on ",
                      image.device(), ". Call to(Device::cpu()) first.");
}

void write_png(const std::filesystem::path& path, const Tensor& image) {
  Tensor x = image;
  if (x.defined() && x.rank() == 2) x = views::reshaped(x.detach(), {x.size(0), x.size(1), 1});
  check_image("write_png", x);
  const int64_t channels = x.size(2);
  if (channels == 2 || channels > 4)
    fail<ShapeError>("write_png", "no PNG has ", channels, " channels: the image is ",
                     described(image), ". Pass 1, 3 or 4 channels, last.");
  if (x.numel() >= int64_t(1) << 30)
    fail<ShapeError>("write_png", "the image is too large: ", described(image),
                     " has 2^30 bytes or more. Write it in parts.");
  x = views::contiguous(x.detach());
  const std::vector<uint8_t> bytes =
      encode_png_with_stb(x.data<uint8_t>(), int(x.size(0)), int(x.size(1)), int(channels));
  if (bytes.empty())
    fail<FormatError>("write_png", "cannot encode ", described(image), " for ", path.string(),
                      ". Is there enough memory?");
  files::replace("write_png", path, {reinterpret_cast<const char*>(bytes.data()), bytes.size()},
                 files::Durable::no);
}

// Bytes become normalized floats by a table of 256 values per channel: exact in the arithmetic of
// PyTorch's transforms (f32 division by 255, subtraction, division), at the cost of a load.

namespace {
void check_tensors(const Tensor& images, const Tensor& labels) {
  const bool fit = images.defined() && labels.defined() && images.rank() == 4 &&
                   images.dtype() == u8 && labels.rank() == 1 && labels.dtype() == i64 &&
                   images.size(0) == labels.size(0);
  if (fit) return;
  if (!images.defined() || !labels.defined())
    fail<ShapeError>(
        "ByteImages",
        "images or labels are undefined. Pass u8 [n, channels, height, width] and i64 [n].");
  fail<ShapeError>("ByteImages", "images and labels do not fit: images are ", described(images),
                   ", labels are ", described(labels),
                   ". Pass u8 [n, channels, height, width] and i64 [n].");
}

void check_labels(const Tensor& labels, int64_t classes) {
  const int64_t* label = labels.data<int64_t>();
  for (int64_t i = 0; i < labels.size(0); ++i)
    if (label[i] < 0 || label[i] >= classes)
      fail<UsageError>("ByteImages", "label out of range: sample ", i, " has label ", label[i],
                       " of ", classes, " classes. Number classes from 0.");
}
}  // namespace

ByteImages::ByteImages(const Tensor& images, const Tensor& labels, ByteImagesOptions options)
    : class_names_(std::move(options.class_names)), transform_(std::move(options.transform)) {
  check_tensors(images, labels);
  const TensorDataset rows(images, labels);  // row-major, on the CPU
  images_ = rows.inputs(), labels_ = rows.targets();
  if (!class_names_.empty()) check_labels(labels_, int64_t(class_names_.size()));

  const int64_t channels = images_.size(1);
  const std::vector<double> mean =
      per_channel("ByteImages", "mean", std::move(options.mean), 0, channels);
  const std::vector<double> std =
      per_channel("ByteImages", "std", std::move(options.std), 1, channels);
  value_of_.resize(std::size_t(channels));
  for (std::size_t c = 0; c < value_of_.size(); ++c) {
    if (!(std[c] > 0) || !std::isfinite(std[c]) || !std::isfinite(mean[c]))
      fail<UsageError>("ByteImages", "cannot normalize channel ", c, ": mean is ", mean[c],
                       ", std is ", std[c], ". Give a finite mean and a finite std above 0.");
    for (int byte = 0; byte < 256; ++byte)
      value_of_[c][std::size_t(byte)] = (float(byte) / 255.0f - float(mean[c])) / float(std[c]);
  }
}

Tensor ByteImages::transformed(std::span<const int64_t> indices, const EpochKey& key) const {
  const Shape& shape = images_.shape();
  const int64_t channels = shape[1], plane = shape[2] * shape[3];
  std::vector<Tensor> results;
  for (const int64_t index : indices) {
    const Tensor image = empty({shape[2], shape[3], channels}, u8);
    const uint8_t* x = images_.data<uint8_t>() + index * channels * plane;
    for (int64_t c = 0; c < channels; ++c)
      for (int64_t i = 0; i < plane; ++i) image.data<uint8_t>()[i * channels + c] = *x++;
    Generator random = key.generator_for(index);
    results.push_back(transform_(image, random));
    const Tensor& result = results.back();
    check_image("ByteImages", result);
    if (result.size(2) != channels)
      fail<ShapeError>("ByteImages", "the transform changed the number of channels: sample ", index,
                       " became ", described(result), ", it had ", channels,
                       ". Normalizing comes after it; keep u8 and the channels.");
  }
  return stack_samples("ByteImages", results, indices);
}

Batch ByteImages::batch_in_epoch(std::span<const int64_t> indices, const EpochKey& key) const {
  const Tensor labels = take_rows(labels_, indices);  // also checks the indices
  if (!transform_ || indices.empty()) return {normalized(indices), labels};

  const Tensor bytes = transformed(indices, key);  // [k, height, width, channels]
  const int64_t channels = bytes.size(3), plane = bytes.size(1) * bytes.size(2);
  const Tensor images = empty({bytes.size(0), channels, bytes.size(1), bytes.size(2)}, f32);
  const uint8_t* x = bytes.data<uint8_t>();
  float* y = images.data<float>();
  for (int64_t sample = 0; sample < bytes.size(0); ++sample, x += channels * plane)
    for (int64_t c = 0; c < channels; ++c)
      for (int64_t i = 0; i < plane; ++i) *y++ = value_of_[std::size_t(c)][x[i * channels + c]];
  return {images, labels};
}

Tensor ByteImages::normalized(std::span<const int64_t> indices) const {
  Shape shape = images_.shape();
  shape[0] = int64_t(indices.size());
  Tensor images = empty(shape, f32);
  const int64_t plane = shape[2] * shape[3], image = shape[1] * plane;
  const uint8_t* bytes = images_.data<uint8_t>();
  float* y = images.data<float>();
  for (const int64_t index : indices) {
    const uint8_t* x = bytes + index * image;
    for (const std::array<float, 256>& value_of : value_of_)
      for (int64_t i = 0; i < plane; ++i) *y++ = value_of[*x++];
  }
  return images;
}

// JPEG: ITU-T T.81, annex B. PNG: RFC 2083. The walk over a JPEG finds the same segments at the
// same positions as stb_image's parser, so that no table reaches the decoder unchecked.

namespace {
/// Reads forward; beyond the end it returns zeros and sets `ended`.
struct Cursor {
  std::span<const uint8_t> bytes;
  std::size_t at = 0;
  bool ended = false;

  uint32_t byte() {
    if (at < bytes.size()) return bytes[at++];
    ended = true;
    return 0;
  }
  uint32_t big16() {
    const uint32_t high = byte();
    return high << 8 | byte();
  }
  uint32_t big32() {
    const uint32_t high = big16();
    return high << 16 | big16();
  }
  std::size_t left() const { return bytes.size() - at; }
};

std::string in_hex(uint32_t byte) {
  constexpr char digits[] = "0123456789abcdef";
  return {digits[byte >> 4 & 15], digits[byte & 15]};
}

// ---- JPEG

constexpr int most_scans = 100;       // a progressive file has about ten
constexpr int most_tables = 1 << 12;  // segments: each costs the decoder more than its bytes

/// Reads 0xff, any number of times, and a byte. Other bytes before the 0xff are padding.
uint32_t next_marker(Cursor& file, bool padding_allowed) {
  uint32_t byte = file.byte();
  while (padding_allowed && byte != 0xff && !file.ended) byte = file.byte();
  if (byte != 0xff) return 0;
  while (byte == 0xff && !file.ended) byte = file.byte();
  return byte;
}

/// Skips entropy-coded data, up to the marker that ends it: not a stuffed zero and not a restart.
uint32_t marker_after_scan(Cursor& file) {
  while (!file.ended) {
    const void* found =
        file.left() ? std::memchr(file.bytes.data() + file.at, 0xff, file.left()) : nullptr;
    file.at = found ? std::size_t(static_cast<const uint8_t*>(found) - file.bytes.data()) + 1
                    : file.bytes.size();
    uint32_t byte = file.byte();
    while (byte == 0xff) byte = file.byte();
    if (byte != 0 && (byte < 0xd0 || byte > 0xd7)) return byte;
  }
  return 0;
}

/// Checks the Huffman tables of one segment: a class, 16 counts, and as many values as the counts
/// add up to.
std::string huffman_problem(Cursor segment, int& tables) {
  while (segment.left() > 0) {
    segment.byte();
    uint32_t codes = 0;
    for (int length = 1; length <= 16; ++length) codes += segment.byte();
    if (segment.ended || codes > segment.left()) return "a Huffman table goes beyond its segment";
    if (codes > 256) return "a Huffman table has " + std::to_string(codes) + " codes";
    segment.at += codes;
    ++tables;
  }
  return {};
}

/// Reads precision, height, width, components.
std::string frame_problem(Cursor segment, ImageHeader& header) {
  segment.byte();
  header.height = segment.big16();
  header.width = segment.big16();
  header.bytes_per_pixel = segment.byte();
  if (segment.ended) return "its frame header is too short";
  if (header.height == 0 || header.width == 0) return "its frame header gives a size of 0";
  return {};
}

/// Reads how the colors of four channels are coded, where stb_image reads it.
void read_adobe(std::span<const uint8_t> segment, ImageHeader& header) {
  constexpr std::array<uint8_t, 6> name{'A', 'd', 'o', 'b', 'e', 0};
  if (segment.size() >= 12 && std::equal(name.begin(), name.end(), segment.begin()))
    header.adobe_transform = segment[11];
}

std::string jpeg_problem(Cursor& file, ImageHeader& header) {
  file.at = 2;
  int scans = 0, tables = 0;
  bool framed = false;
  uint32_t marker = next_marker(file, true);
  for (;;) {
    if (marker == 0xd9 && framed) return scans ? "" : "it has no scan";
    if (file.ended) return header.truncated = true, "it ends before its end marker";
    if (++tables > most_tables) return "it has more tables than any picture needs";
    const bool frame = marker >= 0xc0 && marker <= 0xc2;
    if (frame && framed) return "it has a second frame";
    const bool known = frame || marker == 0xc4 || marker == 0xda || marker == 0xdb ||
                       marker == 0xdc || marker == 0xdd || marker == 0xfe ||
                       (marker >= 0xe0 && marker <= 0xef);
    if (!known) return "marker 0xff" + in_hex(marker) + " has no place in it or is not supported";

    const std::size_t start = file.at, length = file.big16();
    if (length < 2) return "a segment has a length of " + std::to_string(length);
    if (file.ended || length > file.bytes.size() - start)
      return header.truncated = true, "it ends inside of a segment";
    const Cursor segment{file.bytes.subspan(start + 2, length - 2)};
    std::string problem;
    if (marker == 0xc4) problem = huffman_problem(segment, tables);
    if (frame) problem = frame_problem(segment, header), framed = true;
    if (marker == 0xee) read_adobe(segment.bytes, header);
    if (!problem.empty()) return problem;
    file.at = start + length;
    if (marker != 0xda) {
      marker = next_marker(file, !framed);
    } else {
      if (!framed) return "it has a scan before its frame header";
      if (++scans > most_scans) return "it has more than 100 scans";
      marker = marker_after_scan(file);
    }
  }
}

// ---- PNG

constexpr std::array<uint8_t, 8> png_signature{0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};

/// Reads width, height, bit depth, color type, compression, filter, interlacing.
std::string png_header_problem(Cursor data, ImageHeader& header) {
  if (data.left() != 13) return "its first chunk is not 13 bytes long";
  const uint32_t width = data.big32(), height = data.big32(), depth = data.byte(),
                 color = data.byte();
  if (width == 0 || height == 0) return "its header gives a size of 0";
  const bool depth_fits = depth == 8 || (depth == 16 && color != 3) ||
                          ((depth == 1 || depth == 2 || depth == 4) && color % 3 == 0);
  if (!depth_fits || color > 6 || color == 1 || color == 5)
    return "there is no color type " + std::to_string(color) + " with " + std::to_string(depth) +
           " bits";
  constexpr std::array<int, 7> samples{1, 0, 3, 1, 2, 0, 4};
  header.width = width, header.height = height;
  header.bytes_per_pixel = (samples[color] * int(depth) + 7) / 8;
  return {};
}

std::string png_problem(Cursor& file, ImageHeader& header) {
  file.at = png_signature.size();
  bool first = true, pixels = false;
  for (;;) {
    const uint32_t length = file.big32();
    const std::size_t start = file.at;
    const uint32_t type = file.big32();
    if (file.ended || file.left() < 4 || length > file.left() - 4)
      return header.truncated = true, "it ends before its last chunk";
    const Cursor data{file.bytes.subspan(file.at, length)};
    file.at += length;
    const uLong sum = crc32_z(0, file.bytes.data() + start, std::size_t(length) + 4);
    if (file.big32() != sum)
      return "the checksum of the chunk at byte " + std::to_string(start - 4) + " is wrong";
    constexpr uint32_t ihdr = 0x49484452, plte = 0x504c5445, idat = 0x49444154, iend = 0x49454e44;
    if (first != (type == ihdr)) return "its header is not its first chunk";
    // stb_image would put the type, any four bytes, into its message.
    const bool critical = (type & 1u << 29) == 0;
    if (critical && type != ihdr && type != plte && type != idat && type != iend)
      return "the chunk at byte " + std::to_string(start - 4) + " is of an unknown kind";
    if (first)
      if (std::string problem = png_header_problem(data, header); !problem.empty()) return problem;
    if (type == plte && header.palette_at == 0) header.palette_at = start - 4;
    if (type == idat) pixels = true;
    if (type == iend) return pixels ? "" : "it has no pixels";
    first = false;
  }
}
}  // namespace

ImageHeader walk_image(std::span<const uint8_t> bytes) {
  ImageHeader header;
  Cursor file{bytes};
  if (bytes.size() >= 3 && bytes[0] == 0xff && bytes[1] == 0xd8 && bytes[2] == 0xff) {
    header.format = ImageFormat::jpeg;
    header.problem = jpeg_problem(file, header);
  } else if (bytes.size() >= png_signature.size() &&
             std::equal(png_signature.begin(), png_signature.end(), bytes.begin())) {
    header.format = ImageFormat::png;
    header.problem = png_problem(file, header);
  } else {
    header.problem = "it is neither JPEG nor PNG";
  }
  return header;
}

// Decoding, the rule for broken files, and stacking. Everything runs in the thread that collates,
// without a team of threads.

struct ImageFiles::Broken {
  std::mutex mutex;
  std::set<std::string> paths;
};

ImageFiles::ImageFiles(std::vector<LabelledFile> files, std::vector<std::string> class_names,
                       ImageFilesOptions options)
    : files_(std::move(files)),
      class_names_(std::move(class_names)),
      options_(std::move(options)),
      broken_(std::make_shared<Broken>()) {
  for (const LabelledFile& file : files_)
    if (file.label < 0 || file.label >= int64_t(class_names_.size()))
      fail<UsageError>("ImageFiles", "label out of range: ", file.path, " has label ", file.label,
                       " of ", class_names_.size(), " classes. Number classes from 0.");
  if (!options_.transform) options_.transform = Normalize{};
}

ImageFiles::Sample ImageFiles::sample(int64_t index) const {
  if (index < 0 || index >= size())
    fail<UsageError>("Dataset", "there is no sample ", index, ": the dataset has ", size(),
                     ". Number samples from 0 to size() - 1.");
  for (int64_t tried = 0; tried < size(); ++tried) {
    const LabelledFile& file = files_[std::size_t((index + tried) % size())];
    try {
      return {read_image(file.path, options_.image), file.label};
    } catch (const FormatError&) {
      if (options_.broken == BrokenFiles::fail) throw;
      const std::lock_guard lock(broken_->mutex);
      broken_->paths.insert(file.path);
    }
  }
  fail<FormatError>("ImageFiles", "none of the ", size(), " files can be decoded, the first is ",
                    files_.front().path, ". Read one with read_image() to see why.");
}

Batch ImageFiles::batch_in_epoch(std::span<const int64_t> indices, const EpochKey& key) const {
  std::vector<Tensor> images;
  const Tensor labels = empty({int64_t(indices.size())}, i64);
  for (const int64_t index : indices) {
    const Sample drawn = sample(index);
    Generator random = key.generator_for(index);
    labels.data<int64_t>()[images.size()] = drawn.label;
    images.push_back(options_.transform(drawn.image, random));
  }
  return {stack_samples("ImageFiles", images, indices), labels};
}

std::vector<std::string> ImageFiles::broken_files() const {
  const std::lock_guard lock(broken_->mutex);
  return {broken_->paths.begin(), broken_->paths.end()};
}

std::vector<std::string> ImageFiles::find_broken_files() const {
  std::set<std::string> broken;
  for (const LabelledFile& file : files_) {
    try {
      read_image(file.path, options_.image);
    } catch (const FormatError&) { broken.insert(file.path); }
  }
  return {broken.begin(), broken.end()};
}

// The order is part of the interface: sorting makes it independent of the file system.

namespace {
namespace fs = std::filesystem;

[[noreturn]] void fail_walking(const fs::path& directory, const std::error_code& error) {
  fail<FormatError>("image_folder", "cannot list the directory: ", directory.string(), ": ",
                    error.message(), ". Check the path and its permissions.");
}

bool hidden(const fs::path& path) { return path.filename().string().starts_with('.'); }

std::string lower(std::string text) {
  for (char& c : text)
    if (c >= 'A' && c <= 'Z') c = char(c - 'A' + 'a');
  return text;
}

std::vector<std::string> class_directories(const fs::path& root) {
  files::require_path("image_folder", root);
  std::error_code error;
  if (!fs::is_directory(root, error))
    fail<FormatError>("image_folder", "no directory ", root.string(),
                      ". Pass the directory that has one sub-directory per class.");
  std::vector<std::string> names;
  fs::directory_iterator entry(root, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    std::error_code ignored;
    if (entry->is_directory(ignored) && !hidden(*entry))
      names.push_back(entry->path().filename().string());
  }
  if (error) fail_walking(root, error);
  if (names.empty())
    fail<FormatError>(
        "image_folder", "no classes in ", root.string(),
        ": it has no sub-directories. Put the images of each class into one of its own.");
  std::ranges::sort(names);
  return names;
}

std::vector<fs::path> images_below(const fs::path& directory,
                                   const std::vector<std::string>& extensions) {
  std::vector<fs::path> images;
  std::error_code error;
  fs::recursive_directory_iterator entry(directory, error);
  for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    std::error_code ignored;
    if (hidden(*entry)) entry.disable_recursion_pending();
    else if (!entry->is_directory(ignored) &&
             std::ranges::find(extensions, lower(entry->path().extension().string())) !=
                 extensions.end())
      images.push_back(entry->path());
  }
  if (error) fail_walking(directory, error);
  std::ranges::sort(images, {}, [](const fs::path& path) {
    return std::pair(path.parent_path().string(), path.filename().string());
  });
  return images;
}
}  // namespace

namespace {
/// Refuses a directory whose classes would all be parts of a dataset: it is one level too high.
void refuse_parts(const fs::path& directory, const std::vector<std::string>& classes) {
  constexpr std::array<std::string_view, 9> parts{
      "train", "training", "val", "valid", "validation", "test", "testing", "eval", "dev"};
  for (const std::string& name : classes) {
    if (std::ranges::find(parts, lower(name)) == parts.end()) return;
    std::error_code error;
    bool any_directory = false;
    for (fs::directory_iterator entry(directory / name, error);
         !error && entry != fs::directory_iterator(); entry.increment(error)) {
      std::error_code ignored;
      if (hidden(*entry)) continue;
      if (!entry->is_directory(ignored)) return;
      any_directory = true;
    }
    if (error || !any_directory) return;
  }
  fail<FormatError>("image_folder", "the classes in ", directory.string(), " would be ",
                    halftone::listed(classes),
                    ", which are parts of a dataset. Pass one of them, such as ",
                    printable((directory / classes.front()).string()), '.');
}
}  // namespace

ImageFiles image_folder(const fs::path& directory, const ImageFolderOptions& options) {
  std::vector<std::string> extensions;
  for (const std::string& extension : options.extensions) extensions.push_back(lower(extension));
  const std::vector<std::string> class_names = class_directories(directory);
  refuse_parts(directory, class_names);
  std::vector<LabelledFile> files;
  for (std::size_t label = 0; label < class_names.size(); ++label) {
    const fs::path of_class = directory / class_names[label];
    const std::vector<fs::path> images = images_below(of_class, extensions);
    if (images.empty())
      fail<FormatError>("image_folder", "a class without images: ", printable(of_class.string()),
                        " has no file with one of the extensions. Remove it, or name them in "
                        "ImageFolderOptions::extensions.");
    for (const fs::path& image : images) files.push_back({image.string(), int64_t(label)});
  }
  return {std::move(files),
          class_names,
          {.transform = options.transform, .image = options.image, .broken = options.broken}};
}

}  // namespace halftone::data
