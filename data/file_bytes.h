// Reads the bytes of a whole file, for the readers of this folder: with a limit before anything is
// read, and one set of messages for files that are missing, of another kind or too large.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace halftone::data {

/// Returns all bytes of a regular file. Throws FormatError, in the name of `op`, for a missing
/// path, for a directory, pipe or the like, for more than max_bytes and for a failing read.
std::string file_bytes(std::string_view op, const std::filesystem::path& path, int64_t max_bytes);

}  // namespace halftone::data
