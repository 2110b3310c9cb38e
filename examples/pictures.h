// The helper of lesson 23: a dataset as directories of PNG files, and a grid of predictions.
#pragma once

#include <algorithm>
#include <array>
#include <filesystem>
#include <string>

#include <halftone/core/files.h>
#include <halftone/halftone.h>

#include "fashion.h"

inline void make_directory(const std::filesystem::path& directory) {
  halftone::files::make_directories("--work", directory);
}

/// Writes the first `per_class` images of classes first to first + 4 as directory/CLASS/NUMBER.png,
/// and replaces the files of an earlier run.
inline void write_folder(const halftone::data::ByteImages& images, int64_t first, int64_t per_class,
                         const std::filesystem::path& directory) {
  namespace ht = halftone;
  std::error_code ignored;  // a file that cannot be removed causes an error when it is written
  std::filesystem::remove_all(directory, ignored);
  std::array<int64_t, 10> written{};
  const auto labels = images.labels().to_vector<int64_t>();
  for (int64_t i = 0; i < images.size(); ++i) {
    const int64_t label = labels[std::size_t(i)];
    if (label < first || label >= first + 5 || written[std::size_t(label)] == per_class) continue;
    std::string name = images.class_names()[std::size_t(label)];
    std::ranges::replace(name, '/', '-');
    make_directory(directory / name);
    const ht::Tensor image = ht::views::slice(images.images(), 0, i, 1);
    const auto file = std::to_string(written[std::size_t(label)]++) + ".png";
    ht::data::write_png(directory / name / file, ht::views::reshaped(image, {28, 28}));
  }
}

/// Writes 64 images of a dataset, 8 by 8, with a green frame if the model is right and a red one if
/// not.
inline void write_grid(const halftone::data::ImageFiles& files, const halftone::nn::Layer& model,
                       const std::filesystem::path& png) {
  namespace ht = halftone;
  constexpr int64_t tile = 64, frame = 4, side = 8, pitch = tile + 2 * frame;
  ht::Tensor grid = ht::zeros({side * pitch, side * pitch, 3}, ht::u8);
  const ht::NoGrad no_grad;
  for (int64_t i = 0; i < side * side; ++i) {
    const std::array<int64_t, 1> which{i * files.size() / (side * side)};
    const auto [input, label] = files.batch(which);
    const bool right = ht::argmax(model(input)).item() == label.item();
    const auto part = [&](int64_t inset, int64_t size) {
      const int64_t top = i / side * pitch + inset, left = i % side * pitch + inset;
      return ht::views::slice(ht::views::slice(grid, 0, top, size), 1, left, size);
    };
    ht::Tensor square = part(0, pitch), inner = part(frame, tile);
    ht::Tensor color = ht::views::slice(square, 2, right ? 1 : 0, 1);
    ht::backend_for(grid).fill(255, color);
    const ht::Tensor image = ht::data::read_image(files.files()[std::size_t(which[0])].path);
    ht::backend_for(grid).copy(ht::data::resize_image(image, tile, tile), inner);
  }
  ht::data::write_png(png, grid);
}
