// A policy as a versioned file: a strategy and rules. docs/policy_files.md has the
// grammar.
//   amp::Strategy strategy = policy::load("policies/mxfp8.json");
//   amp::Training training(strategy, model, optimizer);
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <halftone/amp/strategy.h>
#include <halftone/policy/rules.h>

namespace halftone::policy {

/// The content of a policy file.
struct PolicyFile {
  std::string about{};
  std::vector<std::string> meant_for{};  // models ("for"): "gpt", "mlp"; none: all
  amp::Strategy base{};                  // with the file's name; without a session
  Rulebook rules{};
};

/// Returns how many files this process has read; read() also counts the files that a file extends.
int64_t files_read();
/// Reads a file and the files that it extends; their paths are relative to it. Throws FormatError,
/// with the position in the file, if it is not a policy; UsageError for unknown names.
PolicyFile read(const std::filesystem::path& path);
/// The same for text; errors use `where` as the file's name. It can extend strategies and shipped
/// policies, but no files.
PolicyFile read_text(std::string_view text, std::string_view where);
/// Returns the whole policy as text, without `extends`: read_text() restores it. Throws UsageError
/// for policies that no file can express: a policy that is a class of its own, entries for users'
/// operations, grids with a bias of their own, and everything that reading refuses.
std::string write(const PolicyFile& file);
/// Returns FNV-1a 64 of write() and of the hashes of the program's own quantizers in it, in 16
/// hexadecimal digits.
std::string hash(const PolicyFile& file);

/// Returns the strategy of a file, for Training, Trainer and TrainerOptions.
amp::Strategy strategy_of(PolicyFile file);
inline amp::Strategy load(const std::filesystem::path& path) { return strategy_of(read(path)); }
inline amp::Strategy parse(std::string_view text, std::string_view where = "text") {
  return strategy_of(read_text(text, where));
}
/// Returns the words of "for": the models of nn/models.
std::span<const std::string_view> model_names();
/// Reads a path that ends in ".json"; returns a strategy or a shipped policy ("mxfp8") for its
/// name. Throws what read() throws, and UsageError for unknown names.
PolicyFile named_or_read(std::string_view name);
inline amp::Strategy named_or_loaded(std::string_view name) {
  return strategy_of(named_or_read(name));
}
/// Returns the strategy with a session even if no rule needs one, so that sites can be seen.
amp::Strategy watched(const amp::Strategy& strategy);
amp::Strategy watched_strategy_of(PolicyFile file);
/// Returns the file of a strategy in its present state: with the rules that it was loaded with, if
/// any. Throws UsageError for a session that no file made.
PolicyFile file_of(const amp::Strategy& strategy);

// FNV-1a, 64 bits (Fowler, Noll, Vo 1991): a hash of names that determine seeds, and of policies
// that logs name.

class Fingerprint {
 public:
  Fingerprint& add(std::string_view text) {
    for (const char c : text) value_ = (value_ ^ uint8_t(c)) * 0x100000001b3u;
    return *this;
  }
  uint64_t value() const { return value_; }
  /// Returns 16 hexadecimal digits.
  std::string text() const {
    std::string digits(16, '0');
    uint64_t rest = value_;
    for (std::size_t i = 16; i-- > 0; rest >>= 4) digits[i] = "0123456789abcdef"[rest & 15];
    return digits;
  }

 private:
  uint64_t value_ = 0xcbf29ce484222325u;
};

// Quantizers that a program adds to those that every policy file knows.

/// Makes a quantizer usable in policy files by its name, in this process. Files that use it can be
/// written and read again here; in other processes the name is unknown. Tables print the name with
/// the hash. Throws UsageError for what check_own_quantizer() refuses, and for a name that is a
/// format, a quantizer, or a word of rules.
void add_quantizer(OwnQuantizer quantizer);

/// Returns the added quantizer of that name; null if there is none.
std::shared_ptr<const OwnQuantizer> own_quantizer_named(std::string_view name);

/// Returns the names of all added quantizers, in alphabetical order.
std::vector<std::string> own_quantizer_names();

// The files of policies/, built into the library.

struct ShippedPolicy {
  std::string_view name;  // "mxfp8", of policies/mxfp8.json
  std::string_view text;  // the file's content
};

/// Returns all of them, by name.
std::span<const ShippedPolicy> shipped_policies();

/// Returns the one with this name or file name ("mxfp8", "mxfp8.json"); null if there is none.
inline const ShippedPolicy* shipped_policy(std::string_view name) {
  if (name.ends_with(".json")) name.remove_suffix(5);
  for (const ShippedPolicy& policy : shipped_policies())
    if (policy.name == name) return &policy;
  return nullptr;
}

}  // namespace halftone::policy
