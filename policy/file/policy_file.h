// A policy as a versioned file: a strategy written down, plus rules. docs/policy_files.md has the
// grammar.
//   amp::Strategy strategy = policy::load("policies/mxfp8.json");
//   amp::Training training(strategy, model, optimizer);
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <halftone/amp/strategy.h>
#include <halftone/policy/rules/rulebook.h>

namespace halftone::policy {

/// Everything that a file says.
struct PolicyFile {
  std::string about{};
  std::vector<std::string> meant_for{};  // models ("for"): "gpt", "mlp"; none: all
  amp::Strategy base{};                  // with the file's name; without a session
  Rulebook rules{};
};

/// How many files this process has read: read() counts those that it extends.
int64_t files_read();
/// Reads a file, and those that it extends, whose paths are relative to it. Throws FormatError,
/// with the place in the file, for what is not a policy; UsageError for names that do not exist.
PolicyFile read(const std::filesystem::path& path);
/// The same from text; `where` stands for the file's name in errors. It cannot extend files.
PolicyFile read_text(std::string_view text, std::string_view where);
/// Everything written out, without `extends`: read_text() gives it back. Throws UsageError for what
/// no file can say: a policy that is a class of its own, entries of operations that are a user's,
/// grids with a bias of their own, what reading refuses.
std::string write(const PolicyFile& file);
/// FNV-1a 64 of write(), in 16 hexadecimal digits.
std::string hash(const PolicyFile& file);

/// The strategy of a file: one for Training, Trainer, TrainerOptions.
amp::Strategy strategy_of(PolicyFile file);
inline amp::Strategy load(const std::filesystem::path& path) { return strategy_of(read(path)); }
inline amp::Strategy parse(std::string_view text, std::string_view where = "text") {
  return strategy_of(read_text(text, where));
}
/// Words of "for": the models of nn/models.
std::span<const std::string_view> model_names();
/// A strategy's name, or a path that ends in ".json". Throws what named() and read() throw.
PolicyFile named_or_read(std::string_view name);
inline amp::Strategy named_or_loaded(std::string_view name) {
  return strategy_of(named_or_read(name));
}
/// The strategy with a session also where no rule asks for one, so that its sites can be seen.
amp::Strategy watched(const amp::Strategy& strategy);
amp::Strategy watched_strategy_of(PolicyFile file);
/// The file that a strategy would be as it is now: with the rules that it was loaded with, if any.
/// Throws UsageError for a session that no file made.
PolicyFile file_of(const amp::Strategy& strategy);

}  // namespace halftone::policy
