// The helper of the lessons that draw: the flag --pictures, and a plot as an SVG file.
#pragma once

#include <filesystem>
#include <iostream>
#include <string>

#include <halftone/core/files.h>
#include <halftone/lab/draw.h>

#include "program.h"

namespace svg = halftone::lab::svg;

inline void add_pictures(Program& program, std::string& directory) {
  program.flag("--pictures", directory, "writes the lesson's picture there, as SVG");
}

/// Writes a plot to directory/name.svg; does nothing if `directory` is empty.
inline void write_picture(const std::string& directory, const std::string& name,
                          const svg::Plot& plot) {
  if (directory.empty()) return;
  halftone::files::make_directories("--pictures", directory);
  const std::filesystem::path path = std::filesystem::path(directory) / (name + ".svg");
  halftone::files::replace("--pictures", path, svg::draw(plot, svg::Place::file));
  std::cout << "\npicture: " << path.string() << '\n';
}
