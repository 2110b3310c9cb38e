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
  NamedTensors tensors;
  std::map<std::string, std::string> metadata;
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
/// FormatError for files that are missing or malformed, UnsupportedError for dtypes and ranks that
/// a Tensor cannot have.
SafetensorsFile load_safetensors(const std::filesystem::path& path);

}  // namespace halftone
