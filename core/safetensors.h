// safetensors (https://github.com/huggingface/safetensors): u64 little-endian N, N bytes of JSON,
// the data. Each entry of the JSON maps a name to {"dtype", "shape", "data_offsets": [begin, end)};
// "__metadata__" maps strings to strings. Files cross between PyTorch and halftone, so the reader
// treats them as hostile: see safetensors_header.cpp.
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

/// Writes the tensors, row-major, in the very bytes that the official library writes. The file
/// appears complete or not at all: it is written beside its final place, synchronised and renamed.
/// Throws FormatError if the file cannot be written, UsageError for names that no file can hold.
void save_safetensors(const std::filesystem::path& path, const NamedTensors& tensors,
                      const std::map<std::string, std::string>& metadata = {});
/// The same bytes, of tensors that are asked for one after the other: each is in memory while it is
/// written.
void stream_safetensors(const std::filesystem::path& path, const TensorSource& tensors,
                        const std::map<std::string, std::string>& metadata = {});

/// Reads a whole file into row-major tensors on the CPU, charged to the current MemoryScope. Throws
/// FormatError for files that are missing or malformed, UnsupportedError for dtypes and ranks that
/// a Tensor cannot have.
SafetensorsFile load_safetensors(const std::filesystem::path& path);

}  // namespace halftone
