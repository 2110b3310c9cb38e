// image_folder and ImageFiles: order and classes, transforms that do not depend on workers, broken
// files, messages.
#include <doctest/doctest.h>

#include <halftone/core/memory.h>
#include <halftone/data/data_loader.h>
#include <halftone/data/images.h>

#include "image_fixtures.h"

namespace halftone::test::image_folder_test {

using namespace halftone::data;
namespace fs = std::filesystem;

namespace {
/// An image of one color.
void write_image(const fs::path& path, int level, int64_t height = 4, int64_t width = 4) {
  fs::create_directories(path.parent_path());
  write_png(path, full({height, width, 3}, level, u8));
}

Tensor bytes_as_they_are(const Tensor& image, Generator&) { return image; }

/// The first byte of each image of an epoch, and the labels.
std::vector<std::pair<int64_t, int64_t>> epoch_of(DataLoader& loader) {
  std::vector<std::pair<int64_t, int64_t>> samples;
  for (const auto& [images, labels] : loader)
    for (int64_t i = 0; i < labels.size(0); ++i)
      samples.emplace_back(int64_t(images.at({i, 0, 0, 0})), labels.data<int64_t>()[i]);
  return samples;
}

std::vector<int64_t> all_of(const Dataset& dataset) {
  std::vector<int64_t> indices;
  for (int64_t i = 0; i < dataset.size(); ++i) indices.push_back(i);
  return indices;
}
}  // namespace

TEST_CASE("image_folder numbers classes by name and finds images at any depth") {
  const TemporaryDirectory root;
  write_image(root / "dog" / "b.png", 1);
  write_image(root / "dog" / "a.PNG", 2);
  write_image(root / "dog" / "more" / "0.png", 3);
  write_image(root / "Cat" / "z.png", 4);
  write_image(root / ".cache" / "x.png", 5);
  write_image(root / "dog" / ".thumbnails" / "x.png", 6);
  write_image(root / "dog" / "._a.png", 7);
  write_image(root / "top.png", 8);
  write_file(root / "dog" / "notes.txt", "not an image");
  fs::create_directories(root / "dog" / "folder.png");

  const ImageFiles dataset = image_folder(root.path(), {.transform = bytes_as_they_are});
  CHECK(dataset.class_names() == std::vector<std::string>{"Cat", "dog"});
  CHECK(dataset.size() == 4);
  const auto [images, labels] = dataset.batch(all_of(dataset));
  CHECK(images.shape() == Shape{4, 4, 4, 3});
  CHECK(labels.to_vector<int64_t>() == std::vector<int64_t>{0, 1, 1, 1});
  std::vector<int64_t> levels;
  for (int64_t i = 0; i < 4; ++i) levels.push_back(int64_t(images.at({i, 0, 0, 0})));
  CHECK(levels == std::vector<int64_t>{4, 2, 1, 3});

  fs::remove(root / "dog" / "folder.png");
  write_image(root / "dog" / "more" / "upper.PNG", 9);
  const ImageFiles some = image_folder(root.path() / "dog", {.extensions = {".PNG"}});
  CHECK(some.class_names() == std::vector<std::string>{"more"});
  CHECK(some.size() == 2);  // extensions in either case
}

TEST_CASE("without a transform image_folder gives floats on [0, 1]") {
  const TemporaryDirectory root;
  write_image(root / "a" / "x.png", 51, 2, 3);
  const ImageFiles dataset = image_folder(root.path());
  const Tensor images = dataset.batch(all_of(dataset)).inputs;
  CHECK(images.shape() == Shape{1, 3, 2, 3});
  CHECK(images.to_vector<float>() == std::vector<float>(18, 51.0f / 255.0f));
  CHECK(dataset.batch({}).targets.shape() == Shape{0});
}

TEST_CASE("random transforms give the same epoch with any number of workers") {
  const TemporaryDirectory root;
  for (int i = 0; i < 12; ++i) {
    const fs::path path = root / (i % 2 ? "a" : "b") / (std::to_string(i) + ".png");
    fs::create_directories(path.parent_path());
    write_file(path, read_file(image_fixture("rgb.png")));
  }
  const ImageFiles dataset = image_folder(
      root.path(),
      {.transform = Compose{{RandomResizedCrop{6}, RandomHorizontalFlip{},
                             ColorJitter{.brightness = 0.5, .contrast = 0.5, .saturation = 0.5},
                             Normalize{}}}});
  std::vector<std::vector<float>> epochs[3];
  const int workers[] = {0, 1, 4};
  for (int i = 0; i < 3; ++i) {
    DataLoader loader(dataset,
                      {.batch_size = 5, .shuffle = true, .workers = workers[i], .seed = 3});
    for (int epoch = 0; epoch < 2; ++epoch)
      for (const auto& [images, labels] : loader) epochs[i].push_back(images.to_vector<float>());
  }
  CHECK(epochs[0].size() == 6);
  CHECK(epochs[0] == epochs[1]);
  CHECK(epochs[0] == epochs[2]);
  CHECK(epochs[0][0] != epochs[0][3]);
}

TEST_CASE("a broken file is an error that names it, or is replaced") {
  const TemporaryDirectory root;
  for (int i = 0; i < 8; ++i)
    write_image(root / ("class" + std::to_string(i / 4)) / (std::to_string(i) + ".png"), i);
  write_file(root / "class0" / "3.png", "not an image");
  write_file(root / "class1" / "7.png", "");
  ImageFolderOptions options{.transform = bytes_as_they_are};
  {
    DataLoader loader(image_folder(root.path(), options), {.batch_size = 2});
    int64_t seen = 0;
    const std::string message = message_of<FormatError>([&] {
      for (const Batch& batch : loader) seen += batch.targets.size(0);
    });
    CHECK(contains(message, "[read_image] not an image: " + (root / "class0" / "3.png").string()));
    CHECK(seen == 2);
  }
  options.broken = BrokenFiles::replace;
  for (const int workers : {0, 1, 4}) {
    const auto dataset = std::make_shared<const ImageFiles>(image_folder(root.path(), options));
    CHECK(dataset->broken_files().empty());
    DataLoader loader(dataset, {.batch_size = 2, .workers = workers});
    CHECK(epoch_of(loader) == std::vector<std::pair<int64_t, int64_t>>{
                                  {0, 0}, {1, 0}, {2, 0}, {4, 1}, {4, 1}, {5, 1}, {6, 1}, {0, 0}});
    const std::vector<std::string> broken{(root / "class0" / "3.png").string(),
                                          (root / "class1" / "7.png").string()};
    CHECK(dataset->broken_files() == broken);
    CHECK(dataset->find_broken_files() == broken);
  }
  for (int i = 0; i < 8; ++i)
    write_file(root / ("class" + std::to_string(i / 4)) / (std::to_string(i) + ".png"), "");
  const ImageFiles none = image_folder(root.path(), options);
  CHECK(message_of<FormatError>([&] { none.batch(all_of(none)); }) ==
        "[ImageFiles] none of the 8 files can be decoded, the first is " +
            (root / "class0" / "0.png").string() + ". Read one with read_image() to see why.");
}

TEST_CASE("images of a batch must agree in size") {
  const TemporaryDirectory root;
  write_image(root / "a" / "1.png", 1, 4, 4);
  write_image(root / "a" / "2.png", 2, 4, 5);
  const ImageFiles dataset = image_folder(root.path());
  CHECK(message_of<ShapeError>([&] { dataset.batch(all_of(dataset)); }) ==
        "[ImageFiles] samples of a batch differ: sample 0 is [3, 4, 4] f32, sample 1 is [3, 4, 5] "
        "f32. End the transform with one size for all, such as Resize and CenterCrop.");
  const ImageFiles nothing =
      image_folder(root.path(), {.transform = [](const Tensor&, Generator&) { return Tensor(); }});
  CHECK(contains(message_of<ShapeError>([&] { nothing.batch(all_of(nothing)); }),
                 "the transform gives nothing, or not on the CPU: sample 0"));
  CHECK(contains(message_of<UsageError>([&] {
                   const int64_t index = 2;
                   dataset.batch({&index, 1});
                 }),
                 "[Dataset] there is no sample 2: the dataset has 2"));
}

TEST_CASE("image_folder explains what is missing") {
  const TemporaryDirectory root;
  const std::string name = root.path().string();
  CHECK(message_of<FormatError>([&] { image_folder(root / "none"); }) ==
        "[image_folder] no directory " + name +
            "/none. Pass the directory that has one sub-directory per class.");
  CHECK(message_of<FormatError>([&] { image_folder(root.path()); }) ==
        "[image_folder] no classes in " + name +
            ": it has no sub-directories. Put the images of each class into one of its own.");
  fs::create_directories(root / "empty");
  CHECK(message_of<FormatError>([&] { image_folder(root.path()); }) ==
        "[image_folder] a class without images: " + name +
            "/empty has no file with one of the extensions. Remove it, or name them in "
            "ImageFolderOptions::extensions.");
  CHECK(message_of<UsageError>([] {
          ImageFiles({{"x.png", 2}}, {"a", "b"});
        }) ==
        "[ImageFiles] label out of range: x.png has label 2 of 2 classes. Number classes from 0.");
}

TEST_CASE("image_folder refuses a directory that is one level too high") {
  const TemporaryDirectory root;
  for (const char* part : {"train", "Test"})
    for (const char* shape : {"circle", "square"}) write_image(root / part / shape / "1.png", 1);
  CHECK(message_of<FormatError>([&] { image_folder(root.path()); }) ==
        "[image_folder] the classes in " + root.path().string() +
            " would be Test, train, which are parts of a dataset. Pass one of them, such as " +
            (root / "Test").string() + ".");
  CHECK(image_folder(root / "train").class_names() == std::vector<std::string>{"circle", "square"});
  write_image(root / "train" / "2.png", 1);  // images of a class that is called so
  CHECK(image_folder(root.path()).class_names() == std::vector<std::string>{"Test", "train"});
}

TEST_CASE("ImageFiles frees all memory") {
  const TemporaryDirectory root;
  write_image(root / "a" / "1.png", 1);
  const MemoryReport before = memory_report();
  {
    const ImageFiles dataset = image_folder(root.path());
    DataLoader loader(dataset, {.workers = 2});
    for (const Batch& batch : loader) CHECK(batch.inputs.storage()->use() == MemoryUse::input);
  }
  CHECK(memory_report().now == before.now);
}

}  // namespace halftone::test::image_folder_test
