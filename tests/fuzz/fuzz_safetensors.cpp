// safetensors files. An accepted file has no unused byte; saving and loading it again changes
// nothing, and saving it twice gives the same. The mutator keeps the length of the header correct;
// otherwise nearly every mutation would fail at the first check.
#include "fuzz.h"

#include <algorithm>
#include <cstring>

#include <halftone/core/named_tensors.h>

namespace halftone::fuzz {

// A header of 4,096 bytes has at most about a hundred entries.
const Limits limits{.longest_input = 4096, .allocation_mib = 1, .resident_mib = 256};

namespace {
constexpr std::size_t length_bytes = sizeof(uint64_t);

void require_same(const SafetensorsFile& a, const SafetensorsFile& b) {
  require(a.metadata == b.metadata, "saving keeps the metadata");
  require(std::ranges::equal(a.tensors, b.tensors,
                             [](const auto& x, const auto& y) {
                               return x.first == y.first && same(x.second, y.second);
                             }),
          "saving keeps the tensors");
}
}  // namespace

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

}  // namespace halftone::fuzz

extern "C" std::size_t LLVMFuzzerMutate(uint8_t* data, std::size_t size, std::size_t longest);

extern "C" std::size_t LLVMFuzzerCustomMutator(uint8_t* data, std::size_t size, std::size_t longest,
                                               unsigned seed) {
  size = LLVMFuzzerMutate(data, size, longest);
  if (seed % 8 == 0 || size <= halftone::fuzz::length_bytes) return size;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const std::size_t end = text.rfind('}');
  if (end == std::string_view::npos || end < halftone::fuzz::length_bytes) return size;
  const uint64_t header = end + 1 - halftone::fuzz::length_bytes;
  std::memcpy(data, &header, sizeof header);
  return size;
}
