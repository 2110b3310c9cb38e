// Labeled image files. The thread that collates decodes and transforms them when a batch asks for
// them: a dataset of any size in the memory of a few batches. image_folder() and oxford_pets()
// return these; you can also pass a list of your own.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <halftone/data/dataset.h>
#include <halftone/data/images/image.h>
#include <halftone/data/transforms.h>

namespace halftone::data {

/// The treatment of a sample whose file is missing or cannot be decoded.
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
  /// inputs: the transformed images, stacked: [k, ...], which must agree in shape and dtype, else
  /// ShapeError; targets: i64 [k]. Depends only on the files, the indices and the key, even if
  /// broken files are replaced.
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

}  // namespace halftone::data
