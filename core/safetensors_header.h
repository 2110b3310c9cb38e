// The header of a safetensors file as data, private to safetensors.cpp: the facts of the format
// (dtypes, limits) and the parser that turns untrusted JSON into a list of entries.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <halftone/core/dtype.h>
#include <halftone/core/quoted.h>

namespace halftone::safetensors {

inline constexpr uint64_t header_limit = 100'000'000;  // bytes, as in the official reader
inline constexpr std::size_t entry_limit = 100'000;    // tensors and metadata keys together
inline constexpr std::size_t name_limit = 1024;        // bytes
inline constexpr std::string_view metadata_key = "__metadata__";

/// The dtypes of the format by increasing alignment; the official writer sorts tensors by this
/// order, descending.
struct FileDType {
  std::string_view name;
  uint64_t bytes;
  std::optional<DType> dtype;
};
inline constexpr std::array<FileDType, 15> file_dtypes{{
    {"BOOL", 1, boolean},
    {"U8", 1, u8},
    {"I8", 1, {}},
    {"F8_E5M2", 1, f8_e5m2},
    {"F8_E4M3", 1, f8_e4m3},
    {"I16", 2, i16},
    {"U16", 2, {}},
    {"F16", 2, f16},
    {"BF16", 2, bf16},
    {"I32", 4, i32},
    {"U32", 4, {}},
    {"F32", 4, f32},
    {"F64", 8, f64},
    {"I64", 8, i64},
    {"U64", 8, {}},
}};

/// One tensor as described by the header: complete, but not yet compared with the size of the file.
struct Entry {
  std::string name;
  const FileDType* dtype = nullptr;
  std::vector<uint64_t> shape, offsets;
  bool has_shape = false, has_offsets = false;
};

struct Header {
  std::vector<Entry> entries;
  std::map<std::string, std::string> metadata;
};

/// Parses the header without its length. Throws FormatError (and UnsupportedError for more
/// dimensions than a Tensor can have), naming `path`.
Header parse_header(const std::string& text, const std::string& path);

template <class... Parts>
[[noreturn]] void malformed(const std::string& path, const Parts&... parts) {
  fail<FormatError>("load_safetensors", parts..., ", in ", path,
                    ". The file is damaged or not safetensors: save it again.");
}

}  // namespace halftone::safetensors
