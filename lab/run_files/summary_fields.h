// Checks summary.json and policy.json of a run folder, for every command that reads run folders.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include <halftone/policy/json_value.h>

namespace halftone::lab {

/// Throws FormatError "[op] FILE: problem".
[[noreturn]] void refuse_file(std::string_view op, const std::filesystem::path& file,
                              std::string_view problem);

/// Calls `read`. Throws each Error of it as a FormatError "[op] FILE: message. Remedy."
template <class Read>
auto of_file(std::string_view op, const std::filesystem::path& file, const Read& read) {
  try {
    return read();
  } catch (const Error& error) {
    std::string_view message = error.what();
    if (const std::size_t end = message.find("] "); message.starts_with('[') && end < message.npos)
      message.remove_prefix(end + 2);
    refuse_file(op, file,
                std::string(message) +
                    " It is damaged, or of another program: make it anew with halftone-lab run.");
  }
}

/// Returns an entry of an object. Throws FormatError if it is missing.
policy::JsonValue wanted(const policy::JsonValue& object, std::string_view key);

/// Checks the content of summary.json: the fields that identify a run and its results must exist,
/// and every field that docs/telemetry.md describes must have its type and range. Fields that
/// later versions added may be missing. Throws FormatError of `summary`'s place.
void require_fields(const policy::JsonValue& summary);

/// Checks that the hash of policy.json in `folder` is `policy_hash`, which summary.json has. Throws
/// FormatError in the name of `op` if it differs, or if the file is not a policy.
void require_policy(std::string_view op, const std::filesystem::path& folder,
                    std::string_view policy_hash);

}  // namespace halftone::lab
