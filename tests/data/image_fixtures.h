// The images that tests/fixtures/pytorch/image_fixtures.py made, and Pillow's results for them.
#pragma once

#include <fstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <halftone/core/factory.h>

#include "../support.h"

namespace halftone::test {

inline std::filesystem::path image_fixture(std::string_view name) {
  return std::filesystem::path(fixtures_directory()) / "images" / name;
}

inline const nlohmann::json& expected_images() {
  static const nlohmann::json expected =
      nlohmann::json::parse(read_file(image_fixture("expected.json")));
  return expected;
}

/// {"shape": [h, w, c], "bytes": "00ff..."} as u8 [h, w, c].
inline Tensor image_of(const nlohmann::json& described) {
  const auto shape = described.at("shape").get<std::vector<int64_t>>();
  const auto text = described.at("bytes").get<std::string>();
  std::vector<int64_t> bytes;
  for (std::size_t i = 0; i < text.size(); i += 2)
    bytes.push_back(std::stoi(text.substr(i, 2), nullptr, 16));
  return from_vector(bytes, {shape[0], shape[1], shape[2]}, u8);
}

/// The largest difference of two images of the same shape; 256 if the shapes differ.
inline int largest_difference(const Tensor& a, const Tensor& b) {
  if (a.shape() != b.shape()) return 256;
  int largest = 0;
  for (int64_t i = 0; i < a.numel(); ++i)
    largest = std::max(largest, std::abs(int(a.data<uint8_t>()[i]) - int(b.data<uint8_t>()[i])));
  return largest;
}

}  // namespace halftone::test
