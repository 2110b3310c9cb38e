// The format is that of NVIDIA's fatbinary tool (nvcc 12 and 13): a header, then entries. Each
// entry has a header and a payload: PTX or machine code, compressed with zstd or not.
#include "fat_binary.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include <halftone/backends/opened_library.h>

#include "machine.h"

namespace halftone::ptx {

namespace {

struct Wrapper {
  uint32_t magic, version;
  const char* data;
  const void* more;
};
struct Header {
  uint32_t magic;
  uint16_t version, header_bytes;
  uint64_t bytes;  // without the header
};
struct Entry {
  uint16_t kind, version;
  uint32_t header_bytes;
  uint64_t payload_bytes;
  uint32_t compressed_bytes, options;
  uint16_t minor, major;
  uint32_t architecture, name_offset, name_bytes;
  uint64_t flags, reserved, bytes;  // `bytes`: after decompression
};
static_assert(sizeof(Entry) == 64);
constexpr uint32_t wrapper_magic = 0x466243b1, data_magic = 0xba55ed50;
constexpr uint16_t kind_ptx = 1;
constexpr uint64_t compressed_by_zstd = 0x8000, compressed_by_lz4 = 0x2000;

std::string decompressed(const char* data, std::size_t bytes, std::size_t wanted) {
  using Decompress = std::size_t (*)(void*, std::size_t, const void*, std::size_t);
  static Decompress decompress = nullptr;
  static OpenedLibrary library({"libzstd.so.1"});
  if (!library.is_open())
    throw Fault("[ptx] the PTX is compressed: " + library.error() + ". Install libzstd1.");
  library.find("ZSTD_decompress", decompress);
  std::string text(wanted, '\0');
  if (decompress(text.data(), wanted, data, bytes) != wanted)
    throw Fault("[ptx] the PTX of a fat binary cannot be decompressed");
  return text;
}

std::string text_of(const Entry& entry, const char* payload) {
  if (entry.flags & compressed_by_lz4)
    throw Fault("[ptx] the PTX is compressed with LZ4. Compile it with --compress-mode=size.");
  std::string text = entry.flags & compressed_by_zstd
                         ? decompressed(payload, entry.compressed_bytes, entry.bytes)
                         : std::string(payload, entry.payload_bytes);
  text.resize(std::strlen(text.c_str()));
  return text;
}

}  // namespace

std::string text_of_fat_binary(const void* wrapper) {
  Wrapper w;
  std::memcpy(&w, wrapper, sizeof w);
  Header header;
  std::memcpy(&header, w.data, sizeof header);
  if (w.magic != wrapper_magic || header.magic != data_magic) throw Fault("[ptx] not a fat binary");
  const char *at = w.data + header.header_bytes, *const end = at + header.bytes;
  while (at < end) {
    Entry entry;
    std::memcpy(&entry, at, sizeof entry);
    const char* const payload = at + entry.header_bytes;
    if (entry.kind == kind_ptx) return text_of(entry, payload);
    at = payload + entry.payload_bytes;
  }
  throw Fault("[ptx] a fat binary without PTX. Compile it for a virtual architecture as well.");
}

}  // namespace halftone::ptx
