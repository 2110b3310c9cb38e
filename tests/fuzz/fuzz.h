// Shared code of the fuzz targets: a claim that must hold, a reader that may only succeed or refuse
// with the project's own errors, files to read from, and the bounds of each target. One program has
// all targets; the name by which it is started says which one runs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <halftone/core/error.h>
#include <halftone/core/tensor.h>

extern "C" std::size_t LLVMFuzzerMutate(uint8_t* data, std::size_t size, std::size_t longest);

namespace halftone::fuzz {

/// Flags of libFuzzer that a target sets; the command line overrides them.
struct Limits {
  int longest_input;   // bytes
  int allocation_mib;  // an allocation of this size or more is a finding
  int resident_mib;    // a process that grows to this is a finding as well
};

struct Target {
  std::string_view name;
  Limits limits;
  void (*check)(std::string_view bytes);
  /// Changes an input in place and returns its new size.
  std::size_t (*mutate)(uint8_t* data, std::size_t size, std::size_t longest, unsigned seed) =
      [](uint8_t* data, std::size_t size, std::size_t longest, unsigned) {
        return LLVMFuzzerMutate(data, size, longest);
      };
};
/// Throws UsageError if there is none.
const Target& target_named(std::string_view name);

/// Ends the process unless the claim holds, so that libFuzzer keeps the input.
void require(bool holds, std::string_view claim);

/// The most bytes that tensors have had at once since this input began.
int64_t peak_tensor_bytes();

/// A directory of this process, in memory if the system has such a file system.
const std::filesystem::path& scratch_directory();
void write_file(const std::filesystem::path& path, std::string_view bytes);
std::string read_file(const std::filesystem::path& path);

/// Splits the input into exactly `count` parts; the last one has the rest. The separator is 0xff,
/// which never occurs in UTF-8.
std::vector<std::string> parts_of(std::string_view bytes, std::size_t count);

/// Same dtype, shape and bytes.
bool same(const Tensor& a, const Tensor& b);

/// Requires the form of core/error.h, without control characters.
void require_message_form(std::string_view op, std::string_view message);

/// Returns the result of `read`, or nothing if it refuses with an error of one of the Kinds. Every
/// other exception is a finding, because it is not caught.
template <class... Kinds, class Read> auto accepted(std::string_view op, Read&& read) {
  std::optional<decltype(read())> result;
  try {
    result.emplace(std::forward<Read>(read)());
  } catch (const Error& error) {
    require((... || (dynamic_cast<const Kinds*>(&error) != nullptr)), error.what());
    require_message_form(op, error.what());
  }
  return result;
}

}  // namespace halftone::fuzz
