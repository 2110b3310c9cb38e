// Decoding, the rule for broken files, and stacking. Everything runs in the thread that collates,
// without a team of threads.
#include <halftone/data/images.h>

#include <mutex>
#include <set>
#include <utility>

#include <halftone/core/factory.h>
#include <halftone/data/tensor_dataset.h>

namespace halftone::data {

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

}  // namespace halftone::data
