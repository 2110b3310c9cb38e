// What the fuzz targets share: a claim that must hold, a reader that may only succeed or refuse in
// the project's own words, files to read from, and the bounds of each target. A target is one
// function, check(), which support.cpp calls with every input of libFuzzer.
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

namespace halftone::fuzz {

/// Flags of libFuzzer that a target sets for itself; the command line may say otherwise.
struct Limits {
  int longest_input;   // bytes
  int allocation_mib;  // an allocation of this size or more is a finding
  int resident_mib;    // and so is a process that grows to this
};
extern const Limits limits;

void check(std::string_view bytes);

/// Ends the process, for libFuzzer to keep the input, unless the claim holds.
void require(bool holds, std::string_view claim);

/// The most that tensors have held at once since this input began, in bytes.
int64_t peak_tensor_bytes();

/// A directory of this process, in memory where the system has such a place.
const std::filesystem::path& scratch_directory();
void write_file(const std::filesystem::path& path, std::string_view bytes);
std::string read_file(const std::filesystem::path& path);

/// Exactly `count` parts: what separators leave, the last one with all of the rest. The separator
/// is 0xff, which no UTF-8 has.
std::vector<std::string> parts_of(std::string_view bytes, std::size_t count);

/// Same dtype, shape and bytes.
bool same(const Tensor& a, const Tensor& b);

/// "[op] what is wrong: the values. What to do.", and nothing that a terminal would obey.
void require_message_form(std::string_view op, std::string_view message);

/// What `read` returns, or nothing if it refuses with an error of one of the Kinds. Another kind is
/// a finding, and so is any other exception, which nobody catches.
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
