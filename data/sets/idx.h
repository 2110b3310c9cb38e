// IDX, the file format of MNIST and similar datasets (http://yann.lecun.com/exdb/mnist, "the IDX
// file format"):
//   00 00 type rank, then rank sizes as big-endian u32, then the elements, row-major.
#pragma once

#include <filesystem>

#include <halftone/core/tensor.h>

namespace halftone::data {

/// Returns a u8 tensor of rank 1 to 4 from an IDX file of unsigned bytes (type 08), gzip-compressed
/// or plain. At most 2 GiB of elements, which are in memory only once. Throws FormatError for files
/// that are missing, truncated, overlong, damaged or of another kind.
Tensor read_idx(const std::filesystem::path& path);

}  // namespace halftone::data
