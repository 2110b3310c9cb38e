// The implementation of stb_image 2.27 (Debian 12) or later, JPEG and PNG only, compiled without
// warnings and with -fwrapv, because its decoders shift and add values from hostile files (see
// CMakeLists.txt). Its configuration macros harden it from outside:
// - Every allocation belongs to an arena, zeroed and counted. Tables that a file never defined are
//   zeros, a compression bomb meets a limit, and a failed allocation is an exception, so stb's own
//   clean-up after one is never needed.
// - Its assertions throw as well.
// The macros are stb's interface; it has no other way of configuration.
#include <cstdlib>
#include <cstring>
#include <new>
#include <unordered_map>

#include <halftone/data/images.h>

namespace {
struct Refused {
  const char* why;
};

/// The memory of one call of the decoder, on one thread.
class Arena {
 public:
  explicit Arena(int64_t limit) : left_(limit), before_(current) { current = this; }
  ~Arena() {
    for (const auto& [block, size] : blocks_) std::free(block);
    current = before_;
  }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  void* allocate(std::size_t size) {
    if (int64_t(size) > left_) throw Refused{"it needs more memory than an image of its size does"};
    void* block = std::calloc(1, size ? size : 1);
    if (!block) throw std::bad_alloc();
    blocks_.emplace(block, size);
    left_ -= int64_t(size);
    return block;
  }
  void release(void* block) {
    const auto found = blocks_.find(block);
    if (found == blocks_.end()) return;
    left_ += int64_t(found->second);
    blocks_.erase(found);
    std::free(block);
  }
  void* resize(void* block, std::size_t old_size, std::size_t size) {
    void* larger = allocate(size);
    if (block) std::memcpy(larger, block, old_size < size ? old_size : size);
    release(block);
    return larger;
  }

  static thread_local Arena* current;

 private:
  std::unordered_map<void*, std::size_t> blocks_;
  int64_t left_;
  Arena* before_;
};
thread_local Arena* Arena::current = nullptr;

[[noreturn]] void refuse() { throw Refused{"its data contradict each other"}; }
}  // namespace

#define STBI_MALLOC(size) Arena::current->allocate(size)
#define STBI_FREE(block) Arena::current->release(block)
#define STBI_REALLOC_SIZED(block, old_size, size) Arena::current->resize(block, old_size, size)
#define STBI_ASSERT(condition) ((condition) ? void() : refuse())
#define STBI_ONLY_JPEG
#define STBI_ONLY_PNG
#define STBI_NO_STDIO
#define STBI_NO_LINEAR
#define STBI_NO_HDR
#define STB_IMAGE_STATIC
#define STB_IMAGE_IMPLEMENTATION
#include <stb_image.h>

#define STBI_WRITE_NO_STDIO
#define STB_IMAGE_WRITE_STATIC
#define STB_IMAGE_WRITE_IMPLEMENTATION
#include <stb_image_write.h>

namespace halftone::data {

DecodedBytes decode_with_stb(std::span<const uint8_t> bytes, int channels, int64_t memory_limit) {
  DecodedBytes result;
  try {
    const Arena arena(memory_limit);
    int width = 0, height = 0, in_file = 0;
    const uint8_t* pixels =
        stbi_load_from_memory(bytes.data(), int(bytes.size()), &width, &height, &in_file, channels);
    if (!pixels) {
      const char* reason = stbi_failure_reason();
      result.problem = reason ? reason : "stb_image does not say why";
      return result;
    }
    result.height = height, result.width = width;
    result.pixels.assign(pixels, pixels + int64_t(height) * width * channels);
  } catch (const Refused& refused) { result.problem = refused.why; }
  return result;
}

std::vector<uint8_t> encode_png_with_stb(const uint8_t* pixels, int height, int width,
                                         int channels) {
  std::vector<uint8_t> file;
  const auto append = [](void* to, void* data, int size) {
    const auto* start = static_cast<const uint8_t*>(data);
    static_cast<std::vector<uint8_t>*>(to)->assign(start, start + size);
  };
  if (!stbi_write_png_to_func(append, &file, width, height, channels, pixels, width * channels))
    file.clear();
  return file;
}

}  // namespace halftone::data
