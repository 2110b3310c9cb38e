// safetensors (https://github.com/huggingface/safetensors): u64 little-endian N, N bytes of JSON,
// the data. Each entry of the JSON maps a name to {"dtype", "shape", "data_offsets": [begin, end)};
// "__metadata__" maps strings to strings. Files are exchanged between PyTorch and halftone, so the
// reader treats them as hostile: see safetensors_header.cpp.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include <halftone/core/named_tensors.h>
#include <halftone/core/tensor_source.h>

namespace halftone {

struct SafetensorsFile {
  NamedTensors tensors{};
  std::map<std::string, std::string> metadata{};
  /// The file's tensors that no Tensor can be, which were not read: names, with what they are, such
  /// as "[3, 4] F4", printable. Their dtype is none of ours (I8, U16, U32, U64, F4, F8_E8M0, C64,
  /// ...), or they have more than 8 dimensions.
  std::map<std::string, std::string> unsupported{};

  /// Returns a tensor. Throws UnsupportedError, with its dtype, for one of `unsupported`, and
  /// UsageError, with the file's names, if there is none.
  const Tensor& at(const std::string& name) const;
  /// Throws as at() for the first of `unsupported`, if there is one.
  void require_all() const;
};

/// Writes the tensors, row-major, with exactly the bytes that the official library writes. The file
/// appears complete or not at all: it is written next to its final path, synchronized and renamed.
/// Throws FormatError if the file cannot be written, UsageError for names that no file can hold.
void save_safetensors(const std::filesystem::path& path, const NamedTensors& tensors,
                      const std::map<std::string, std::string>& metadata = {});
/// Writes the same bytes, but asks for the tensors one after the other: each is in memory only
/// while it is written.
void stream_safetensors(const std::filesystem::path& path, const TensorSource& tensors,
                        const std::map<std::string, std::string>& metadata = {});

/// Reads a whole file into row-major tensors on the CPU, charged to the current MemoryScope. Throws
/// FormatError for files that are missing or malformed, UnsupportedError for a tensor of more than
/// 64 dimensions. Other tensors that no Tensor can be are in `unsupported`.
SafetensorsFile load_safetensors(const std::filesystem::path& path);

}  // namespace halftone
