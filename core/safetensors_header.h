// The header of a safetensors file as data, private to named_tensors.cpp: the facts of the format
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
inline constexpr std::size_t rank_limit = 64;          // dimensions of a tensor in a file
inline constexpr std::string_view metadata_key = "__metadata__";

/// The dtypes of the format by increasing alignment; the official writer sorts tensors by this
/// order, descending.
struct FileDType {
  std::string_view name;
  uint64_t bits;
  std::optional<DType> dtype;
};
inline constexpr std::array<FileDType, 22> file_dtypes{{
    {"BOOL", 8, boolean}, {"F4", 4, {}},          {"F6_E2M3", 6, {}},      {"F6_E3M2", 6, {}},
    {"U8", 8, u8},        {"I8", 8, {}},          {"F8_E5M2", 8, f8_e5m2}, {"F8_E4M3", 8, f8_e4m3},
    {"F8_E8M0", 8, {}},   {"F8_E4M3FNUZ", 8, {}}, {"F8_E5M2FNUZ", 8, {}},  {"I16", 16, i16},
    {"U16", 16, {}},      {"F16", 16, f16},       {"BF16", 16, bf16},      {"I32", 32, i32},
    {"U32", 32, {}},      {"F32", 32, f32},       {"C64", 64, {}},         {"F64", 64, f64},
    {"I64", 64, i64},     {"U64", 64, {}},
}};

/// One tensor as described by the header: complete, but not yet compared with the size of the file.
struct Entry {
  std::string name;
  const FileDType* dtype = nullptr;  // null: of a later version of the format, or of none
  std::string dtype_name;
  std::vector<uint64_t> shape, offsets;
  bool has_dtype = false, has_shape = false, has_offsets = false;
};

struct Header {
  std::vector<Entry> entries;
  std::map<std::string, std::string> metadata;
};

/// Parses the header without its length. Throws FormatError (and UnsupportedError for more than
/// rank_limit dimensions), naming `path`.
Header parse_header(const std::string& text, const std::string& path);

template <class... Parts>
[[noreturn]] void malformed(const std::string& path, const Parts&... parts) {
  fail<FormatError>("load_safetensors", parts..., ", in ", path,
                    ". The file is damaged or not safetensors: save it again.");
}

}  // namespace halftone::safetensors
