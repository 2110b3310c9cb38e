// Images: in memory, in files, and in folders named after classes.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <halftone/core/tensor.h>
#include <halftone/data/data_loader.h>
#include <halftone/data/transforms.h>

namespace halftone::data {

// Images as tensors of bytes, u8 [height, width, channels]: reads JPEG and PNG, writes PNG. Files
// are not trusted: read_image() checks the structure before stb_image, which decodes, sees a
// byte, and the header limits the memory that decoding may allocate.

enum class Channels : uint8_t { gray = 1, rgb = 3 };

struct ImageOptions {
  Channels channels = Channels::rgb;  // gray is copied to RGB, alpha is dropped
  int64_t max_file_bytes = int64_t(64) << 20;
  int64_t max_pixels = int64_t(1) << 26;  // height * width, taken from the header
  /// A JPEG without its end marker was cut off. By default that is an error; true decodes the
  /// present part and leaves the rest gray. A PNG that was cut off is always an error.
  bool accept_truncated = false;
};

/// Returns the image of a JPEG or PNG file, recognized by content, as u8 [height, width, channels].
/// EXIF orientation is not applied. Throws FormatError, which names the file, for a file that is
/// missing, of another format, damaged, truncated, above a limit, or whose color space is unknown.
Tensor read_image(const std::filesystem::path& path, const ImageOptions& options = {});

/// The same for bytes in memory; messages use `name` for the file.
Tensor decode_image(std::span<const uint8_t> bytes, std::string_view name,
                    const ImageOptions& options = {});

/// Writes u8 [height, width, channels] with 1 (gray), 3 (RGB) or 4 (RGB and alpha) channels, or u8
/// [height, width]. Throws what check_image() throws, ShapeError for other numbers of channels, and
/// FormatError if the file cannot be written.
void write_png(const std::filesystem::path& path, const Tensor& image);

/// Throws ShapeError, DTypeError or DeviceError in the name of `op` unless `image` is u8 [height,
/// width, channels] on the CPU with no size 0.
void check_image(std::string_view op, const Tensor& image);

// Labeled images stored as bytes. The thread that collates a batch turns them into normalized
// floats. A dataset of bytes takes a quarter of the memory of a dataset of floats.

struct ByteImagesOptions {
  std::vector<double> mean{}, std{};  // per channel, for values scaled to [0, 1]; empty: 0 and 1
  std::vector<std::string> class_names{};
  /// Applied before normalization: from u8 [height, width, channels] to u8 of any size, with the
  /// same number of channels.
  ImageTransform transform{};
};

class ByteImages final : public Dataset {
 public:
  /// images: u8 [n, channels, height, width]; labels: i64 [n], below the number of class names if
  /// there are any.
  ByteImages(const Tensor& images, const Tensor& labels, ByteImagesOptions options = {});

  int64_t size() const override { return images_.size(0); }
  /// inputs: f32 [k, channels, height, width], (byte / 255 - mean) / std, of the transformed
  /// images; targets: i64 [k]. Throws what check_image() throws for the transform's results, and
  /// ShapeError if they differ in size.
  Batch batch_in_epoch(std::span<const int64_t> indices, const EpochKey& key) const override;
  Batch batch(std::span<const int64_t> indices) const override {
    return batch_in_epoch(indices, {});
  }

  const Tensor& images() const { return images_; }
  const Tensor& labels() const { return labels_; }
  const std::vector<std::string>& class_names() const { return class_names_; }

 private:
  Tensor normalized(std::span<const int64_t> indices) const;
  Tensor transformed(std::span<const int64_t> indices, const EpochKey& key) const;

  Tensor images_, labels_;
  std::vector<std::string> class_names_;
  ImageTransform transform_;
  std::vector<std::array<float, 256>> value_of_;  // [channel][byte]
};

// Walks over the structure of a JPEG or PNG file from start to end without decoding. It finds sizes
// before anything is allocated, and damage that stb_image 2.27 does not detect. For JPEG: Huffman
// tables with more than 256 codes (written beyond their array), a missing end marker and endless
// scans. For PNG: chunk checksums, palettes that lack entries and unknown kinds of chunks.

enum class ImageFormat : uint8_t { unknown, jpeg, png };

struct ImageHeader {
  ImageFormat format = ImageFormat::unknown;
  int64_t height = 0, width = 0;  // 0 until the header is reached
  int64_t bytes_per_pixel = 0;    // for the samples in the file, rounded up
  bool truncated = false;         // the file ends before its end marker
  std::size_t palette_at = 0;     // start of the first palette's chunk of a PNG; 0: none
  int adobe_transform = -1;       // of a JPEG, from Adobe's marker; -1: there is none
  std::string problem{};          // the problem of the structure; empty: none
};

/// Returns the header, with damage in `problem`. Never throws and never reads outside `bytes`.
ImageHeader walk_image(std::span<const uint8_t> bytes);

// Wraps stb_image and stb_image_write in two functions; no other file uses these libraries.

struct DecodedBytes {
  int64_t height = 0, width = 0;
  std::vector<uint8_t> pixels{};  // [height, width, channels]
  std::string problem{};          // the reason for missing pixels; empty: success
};

/// Decodes JPEG or PNG bytes in which walk_image() found no problem. `memory_limit` bounds, in
/// bytes, all that the decoder holds at once.
DecodedBytes decode_with_stb(std::span<const uint8_t> bytes, int channels, int64_t memory_limit);

/// Returns a PNG file of [height, width, channels], below 2^30 bytes. Empty if memory ran out.
std::vector<uint8_t> encode_png_with_stb(const uint8_t* pixels, int height, int width,
                                         int channels);

// Labeled image files. The thread that collates decodes and transforms them when a batch asks for
// them: a dataset of any size in the memory of a few batches. image_folder() and oxford_pets()
// return these; you can also pass a list of your own.

/// How to treat a sample whose file is missing or cannot be decoded.
enum class BrokenFiles : uint8_t {
  fail,     // FormatError, which names the file
  replace,  // uses the next sample that can be decoded, with its label; see broken_files()
};

struct ImageFilesOptions {
  ImageTransform transform{};  // empty: f32 [channels, height, width] on [0, 1]
  ImageOptions image{};
  BrokenFiles broken = BrokenFiles::fail;
};

struct LabelledFile {
  std::string path;
  int64_t label = 0;
};

class ImageFiles final : public Dataset {
 public:
  /// Opens no file yet. Throws UsageError for a label that is not below the number of class names.
  ImageFiles(std::vector<LabelledFile> files, std::vector<std::string> class_names,
             ImageFilesOptions options = {});

  int64_t size() const override { return int64_t(files_.size()); }
  /// inputs: the transformed images, stacked as [k, ...]; targets: i64 [k]. Throws ShapeError if
  /// the images differ in shape or dtype. The result depends only on the files, the indices and the
  /// key, even if broken files are replaced.
  Batch batch_in_epoch(std::span<const int64_t> indices, const EpochKey& key) const override;
  Batch batch(std::span<const int64_t> indices) const override {
    return batch_in_epoch(indices, {});
  }

  const std::vector<LabelledFile>& files() const { return files_; }
  const std::vector<std::string>& class_names() const { return class_names_; }
  /// Returns the paths replaced until now, by any thread, sorted.
  std::vector<std::string> broken_files() const;
  /// Decodes every file and returns the sorted paths of the broken ones: a check before a long run.
  std::vector<std::string> find_broken_files() const;

 private:
  struct Broken;
  struct Sample {
    Tensor image;
    int64_t label;
  };
  Sample sample(int64_t index) const;

  std::vector<LabelledFile> files_;
  std::vector<std::string> class_names_;
  ImageFilesOptions options_;
  std::shared_ptr<Broken> broken_;  // shared by copies
};

// A directory with one sub-directory of images per class, as torchvision's ImageFolder reads it:
//   root/cat/1.jpg, root/cat/more/2.png, root/dog/3.jpeg

struct ImageFolderOptions {
  ImageTransform transform{};  // empty: f32 [channels, height, width] on [0, 1]
  ImageOptions image{};
  BrokenFiles broken = BrokenFiles::fail;
  std::vector<std::string> extensions{".jpg", ".jpeg", ".png"};  // in any case of letters
};

/// Returns the images. Classes are the sub-directories, sorted by byte, numbered from 0; samples
/// are ordered by class, directory and name. Directories below a class count, links to directories
/// there are not followed, and names that begin with a dot are ignored (torchvision takes them).
/// Throws FormatError for a missing directory, one without classes, a class without images, and a
/// directory that is one level too high: all classes are called "train", "test" or the like and
/// hold only directories.
ImageFiles image_folder(const std::filesystem::path& directory,
                        const ImageFolderOptions& options = {});

}  // namespace halftone::data
