// Policy files. An accepted file is written, read again, and then is the same policy with the same
// hash; a refusal gives the position. Files that extend files are not tested here: an input is one
// text.
#include "fuzz.h"

#include <halftone/amp/policy.h>
#include <halftone/amp/rules.h>

namespace halftone::fuzz {

// The installed policies have at most 2,500 bytes; a tree of JSON is about ten times its text.
const Limits limits{.longest_input = 4096, .allocation_mib = 1, .resident_mib = 256};

void check(std::string_view bytes) {
  const std::optional<amp::Policy> file =
      accepted<FormatError>("policy fuzz", [&] { return policy::read_text(bytes, "fuzz"); });
  if (!file) return;
  const std::string written = policy::write(*file);
  const amp::Policy again = policy::read_text(written, "again");
  require(policy::write(again) == written, "there is one way to write a policy");
  require(again.rules == file->rules, "writing keeps the rules");
  require(again.about == file->about && again.meant_for == file->meant_for, "and what is said");
  require(policy::hash(again) == policy::hash(*file), "and the hash");
  for (const policy::Rule& rule : file->rules.rules) {
    const policy::PathPattern pattern("policy fuzz", rule.match.path);
    for (const char* path : {"", "transformer.h.1.attn.c_attn", "2", "lm_head"})
      pattern.matches(path, {{"transformer.h", 3}, {"", 5}});
  }
}

}  // namespace halftone::fuzz
