// Listing trusts the small files first (state.json, sizes), and verifies all bytes before anything
// depends on a checkpoint: before it is called the latest, or kept in place of another.
#include <halftone/train/checkpoints.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>

#include <halftone/core/error.h>
#include <halftone/train/manifest.h>

namespace halftone::train {

namespace fs = std::filesystem;

namespace {
[[noreturn]] void cannot_list(const fs::path& path, const std::error_code& error) {
  fail<FormatError>("checkpoint", "cannot list ", path.string(), ": ", error.message(),
                    ". Check the path and its permissions.");
}

/// What is directly in a directory. One that does not exist is empty.
std::vector<fs::path> entries_of(const fs::path& directory) {
  std::error_code error;
  std::vector<fs::path> entries;
  fs::directory_iterator at(directory, error);
  if (error == std::errc::no_such_file_or_directory) return entries;
  for (; !error && at != fs::directory_iterator(); at.increment(error))
    entries.push_back(at->path());
  if (error) cannot_list(directory, error);
  return entries;
}

bool verified(const fs::path& path) {
  try {
    verify_checkpoint(path);
    return true;
  } catch (const FormatError&) { return false; }
}

/// Those whose manifest, state and sizes agree, by step.
std::vector<FoundCheckpoint> likely_checkpoints(const fs::path& root) {
  std::vector<FoundCheckpoint> found;
  for (const fs::path& path : entries_of(root)) {
    if (path.filename().string().starts_with('.')) continue;
    try {
      found.push_back({path, read_checkpoint_state(path)});
    } catch (const FormatError&) {}  // something else, or damaged
  }
  std::ranges::sort(found, {}, [](const FoundCheckpoint& one) {
    return std::tuple(one.state.step, one.path.filename().string());
  });
  return found;
}

void remove_directory(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error)
    fail<FormatError>("checkpoint", "cannot remove ", path.string(), ": ", error.message(),
                      ". Check its permissions, and remove it by hand.");
}

/// Positions in `found` of the best, by the metric, the newer of equals.
std::set<std::size_t> best_of(const std::vector<FoundCheckpoint>& found,
                              const Retention& retention) {
  std::vector<std::pair<double, std::size_t>> ranked;
  for (std::size_t i = found.size(); i-- > 0;) {
    const auto& numbers = found[i].state.numbers;
    const auto metric = numbers.find(retention.metric);
    if (metric != numbers.end() && !std::isnan(metric->second))
      ranked.emplace_back(retention.larger_is_better ? -metric->second : metric->second, i);
  }
  std::ranges::stable_sort(ranked, {}, &std::pair<double, std::size_t>::first);
  std::set<std::size_t> best;
  for (const auto& [value, i] : ranked) {
    if (int64_t(best.size()) == retention.best) break;
    if (verified(found[i].path)) best.insert(i);
  }
  return best;
}
}  // namespace

std::vector<FoundCheckpoint> valid_checkpoints(const fs::path& root) {
  std::vector<FoundCheckpoint> found = likely_checkpoints(root);
  std::erase_if(found, [](const FoundCheckpoint& one) { return !verified(one.path); });
  return found;
}

std::optional<FoundCheckpoint> latest_checkpoint(const fs::path& root) {
  std::vector<FoundCheckpoint> found = likely_checkpoints(root);
  while (!found.empty() && !verified(found.back().path)) found.pop_back();
  if (found.empty()) return std::nullopt;
  return std::move(found.back());
}

void remove_checkpoint(const fs::path& given) {
  fs::path path = given.has_filename() ? given : given.parent_path();
  const std::string name = path.filename().string();
  std::error_code ignored;
  if (name.empty() || name[0] == '.' ||
      fs::symlink_status(path, ignored).type() != fs::file_type::directory)
    fail<UsageError>("checkpoint", "no directory of a checkpoint: \"", given.string(),
                     "\". Nothing was removed.");
  if (!path.has_parent_path()) path = fs::path(".") / path;
  bool any = false;
  for (const fs::path& entry : entries_of(path)) {
    const std::string file = entry.filename().string();
    if (file != manifest_file && std::ranges::find(listed_files, file) == listed_files.end())
      fail<UsageError>("checkpoint", path.string(), " holds \"", file,
                       "\", which is no file of a checkpoint. Nothing was removed.");
    any = true;
  }
  if (!any)
    fail<UsageError>("checkpoint", path.string(), " is empty: no checkpoint. Nothing was removed.");
  const fs::path aside = temporary_name(path, "removed-");
  if (!rename_to_new(path, aside))
    fail<FormatError>("checkpoint", "the path exists: ", aside.string(),
                      ". Call remove_abandoned() first.");
  try {
    sync_directory(path.parent_path());
  } catch (...) {
    std::error_code second;
    fs::remove_all(aside, second);
    throw;
  }
  remove_directory(aside);
}

std::vector<fs::path> keep(const fs::path& root, const Retention& retention) {
  if (retention.last < 1 || retention.best < 0)
    fail<UsageError>("checkpoint", "the last ", retention.last, " and the best ", retention.best,
                     " cannot be kept. Keep the last 1 or more, the best 0 or more.");
  if (retention.best > 0 && retention.metric.empty())
    fail<UsageError>("checkpoint", "the best ", retention.best,
                     " by no metric. Name one of CheckpointState::numbers.");
  const std::vector<FoundCheckpoint> found = likely_checkpoints(root);
  std::set<std::size_t> kept = best_of(found, retention), damaged;
  int64_t last = 0;
  for (std::size_t i = found.size(); i-- > 0 && last < retention.last;) {
    if (verified(found[i].path)) kept.insert(i), ++last;
    else damaged.insert(i);
  }
  std::vector<fs::path> removed;
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (kept.contains(i) || damaged.contains(i)) continue;
    try {
      remove_checkpoint(found[i].path);
    } catch (const UsageError&) { continue; }  // the user's own files are in it
    removed.push_back(found[i].path);
  }
  return removed;
}

std::vector<fs::path> remove_abandoned(const fs::path& root) {
  std::vector<fs::path> removed;
  for (const fs::path& path : entries_of(root)) {
    if (!is_temporary(path)) continue;
    const Descriptor lock = try_lock(path);
    if (!lock) continue;
    remove_directory(path);
    removed.push_back(path);
  }
  return removed;
}

}  // namespace halftone::train
