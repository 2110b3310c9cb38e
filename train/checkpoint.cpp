// Manifests, checkpoints, and what a resumed training takes from them.
#include <halftone/train/checkpoint.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <limits>

#include <nlohmann/json.hpp>

#include <halftone/core/error.h>
#include <halftone/core/files.h>
#include <halftone/core/memory.h>
#include <halftone/core/named_tensors.h>
#include <halftone/distributed/collectives.h>
#include <halftone/train/metrics.h>
#include <halftone/train/trainer.h>

namespace halftone::train {

// Numbers print in the shortest form that reads back to the same bits. JSON has no NaN and
// infinities, so these three are strings. The parser limits nesting.

namespace {
using Json = nlohmann::ordered_json;
constexpr int64_t format_version = 1;
constexpr std::string_view format_name = "halftone checkpoint";
constexpr int depth_limit = 3;

[[noreturn]] void malformed(const std::string& path, std::string_view what) {
  fail<FormatError>("checkpoint", what, ", in ", path,
                    ". The file is damaged or no checkpoint's: use another checkpoint.");
}

Json parse(const std::string& text, const std::string& path) {
  try {
    return Json::parse(text, [&](int depth, Json::parse_event_t, Json&) {
      if (depth > depth_limit) malformed(path, "JSON nested too deeply");
      return true;
    });
  } catch (const Json::exception&) { malformed(path, "not valid JSON"); }
}

std::string hexadecimal(uint32_t value) {
  std::string text = "00000000";
  for (std::size_t i = 8; i-- > 0; value >>= 4) text[i] = "0123456789abcdef"[value & 15];
  return text;
}

uint32_t from_hexadecimal(const std::string& text) {
  uint32_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value, 16);
  return value;  // any value is accepted here: the spelling is compared afterwards
}

/// Accepts only numbers without a fraction or an exponent, because converting a float that does not
/// fit is undefined.
template <class Integer> Integer whole(const Json& value, const std::string& path) {
  if (!value.is_number_integer()) malformed(path, "something else where a whole number belongs");
  return value.get<Integer>();
}

Json number_json(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  return value;
}

double number_of(const Json& value) {
  if (!value.is_string()) return value.get<double>();
  const auto& text = value.get_ref<const std::string&>();
  constexpr double infinity = std::numeric_limits<double>::infinity();
  if (text == "inf") return infinity;
  return text == "-inf" ? -infinity : std::numeric_limits<double>::quiet_NaN();
}

std::string printed(const Json& json) { return json.dump(1) + '\n'; }
}  // namespace

std::string manifest_text(const Manifest& manifest) {
  Json files = Json::array();
  for (std::size_t i = 0; i < listed_files.size(); ++i)
    files.push_back({{"name", listed_files[i]},
                     {"bytes", manifest.files[i].bytes},
                     {"crc32", hexadecimal(manifest.files[i].crc32)}});
  return printed({{"format", format_name}, {"version", format_version}, {"files", files}});
}

Manifest parse_manifest(const std::string& text, const std::string& path) {
  const Json json = parse(text, path);
  Manifest manifest;
  try {
    if (json.at("format") != format_name) malformed(path, "no manifest of a checkpoint");
    if (const auto version = whole<int64_t>(json.at("version"), path); version != format_version)
      fail<FormatError>("checkpoint", "version ", version, " of the format, in ", path,
                        ". This build reads version ", format_version, ".");
    for (std::size_t i = 0; i < listed_files.size(); ++i) {
      const Json& entry = json.at("files").at(i);
      manifest.files[i] = {.bytes = whole<uint64_t>(entry.at("bytes"), path),
                           .crc32 = from_hexadecimal(entry.at("crc32").get<std::string>())};
    }
    if (manifest_text(manifest) != text)
      malformed(path, "entries, names or spellings that no manifest has");
  } catch (const Json::exception&) { malformed(path, "missing entries, or of other types"); }
  return manifest;
}

std::string state_text(const CheckpointState& state) {
  Json numbers = Json::object(), texts = Json::object();
  for (const auto& [name, value] : state.numbers) numbers[name] = number_json(value);
  for (const auto& [name, value] : state.texts) texts[name] = value;
  try {
    return printed({{"step", state.step},
                    {"epoch", state.epoch},
                    {"batches", state.batches},
                    {"numbers", numbers},
                    {"texts", texts}});
  } catch (const Json::exception&) {
    fail<UsageError>("checkpoint",
                     "a name or a text of the state is not UTF-8. Convert it, or "
                     "write it in another file.");
  }
}

CheckpointState parse_state(const std::string& text, const std::string& path) {
  const Json json = parse(text, path);
  CheckpointState state;
  try {
    state.step = whole<int64_t>(json.at("step"), path);
    state.epoch = whole<int64_t>(json.at("epoch"), path);
    state.batches = whole<int64_t>(json.at("batches"), path);
    for (const auto& [name, value] : json.at("numbers").items())
      state.numbers[name] = number_of(value);
    for (const auto& [name, value] : json.at("texts").items())
      state.texts[name] = value.get<std::string>();
    if (state.step < 0 || state.epoch < 0 || state.batches < 0)
      malformed(path, "a negative step, epoch or number of batches");
    if (state_text(state) != text) malformed(path, "entries or spellings that no state has");
  } catch (const Json::exception&) { malformed(path, "missing entries, or of other types"); }
  return state;
}

// Writes everything under a temporary name, syncs, renames, and syncs the parent. At every moment
// the final name does not exist, or all of its bytes are on the disk.

namespace fs = std::filesystem;

namespace {
constexpr std::string_view model_prefix = "model.";

/// Removes a temporary directory unless it got its final name.
class Unfinished {
 public:
  explicit Unfinished(fs::path path) : path_(std::move(path)) {}
  ~Unfinished() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }
  Unfinished(const Unfinished&) = delete;
  Unfinished& operator=(const Unfinished&) = delete;
  void finished() { path_.clear(); }

 private:
  fs::path path_;
};

/// Returns the path without a slash at its end, and with a parent. Throws for a bad name.
fs::path checked_path(fs::path path) {
  if (!path.has_filename()) path = path.parent_path();
  files::require_path("checkpoint", path);
  const std::string name = path.filename().string();
  if (name.empty() || name[0] == '.')
    fail<UsageError>("checkpoint", "not a name for a checkpoint: \"", path.string(),
                     "\". Give a name that does not start with a dot.");
  return path.has_parent_path() ? path : fs::path(".") / path;
}

void require_free(bool free, const fs::path& path) {
  if (!free)
    fail<UsageError>("checkpoint", "the path exists: ", path.string(),
                     ". Use another name, or remove what is there.");
}

void write_tensors(const fs::path& path, const TensorSource& tensors) {
  try {
    stream_safetensors(path, tensors, {{"format", "pt"}});
  } catch (const FormatError& error) {
    fail<FormatError>("checkpoint", "cannot write the tensors: ", error.what());
  }
}

optim::NamedTensors read_tensors(const fs::path& path) {
  try {
    SafetensorsFile file = load_safetensors(path);
    file.require_all();
    return std::move(file.tensors);
  } catch (const Error& error) {
    fail<FormatError>("checkpoint", "cannot read the tensors: ", error.what());
  }
}

Manifest read_manifest(const fs::path& path) {
  const fs::path file = path / manifest_file;
  const Manifest manifest = parse_manifest(read_text(file, manifest_limit), file.string());
  for (std::size_t i = 0; i < listed_files.size(); ++i)
    if (const uint64_t bytes = size_of(path / listed_files[i]); bytes != manifest.files[i].bytes)
      fail<FormatError>("checkpoint", (path / listed_files[i]).string(), " has ", bytes,
                        " bytes, its manifest says ", manifest.files[i].bytes,
                        ". Use another checkpoint.");
  return manifest;
}

void verify_sum(const fs::path& file, const FileSum& expected) {
  if (sum_of(file) != expected)
    fail<FormatError>("checkpoint", "the checksum of ", file.string(),
                      " is not that of its manifest. Use another checkpoint.");
}

CheckpointState read_state(const fs::path& path, const Manifest& manifest) {
  const fs::path file = path / state_file;
  verify_sum(file, manifest.files.back());
  return parse_state(read_text(file, state_limit), file.string());
}
}  // namespace

void save_checkpoint(const fs::path& given, const Checkpoint& checkpoint) {
  save_checkpoint(given, checkpoint.state, source_of(checkpoint.tensors));
}

void save_checkpoint(const fs::path& given, const CheckpointState& at,
                     const TensorSource& tensors) {
  if (!tensors.tensor && !tensors.infos.empty())
    fail<UsageError>("checkpoint", "the source of ", tensors.infos.size(),
                     " tensors has no function `tensor`. Give it one.");
  const fs::path path = checked_path(given);
  if (at.step < 0 || at.epoch < 0 || at.batches < 0)
    fail<UsageError>("checkpoint", "step ", at.step, ", epoch ", at.epoch, ", batch ", at.batches,
                     ". Count from 0.");
  const std::string state = state_text(at);
  if (state.size() > state_limit)
    fail<UsageError>("checkpoint", "the numbers and texts need ", state.size(),
                     " bytes, the limit is ", state_limit, ". Write some of it elsewhere.");
  std::error_code ignored;
  require_free(fs::symlink_status(path, ignored).type() == fs::file_type::not_found, path);

  TensorSource model, others{.tensor = tensors.tensor};
  model.tensor = [&](const std::string& name) {
    return tensors.tensor(std::string(model_prefix) + name);
  };
  for (TensorInfo info : tensors.infos)
    if (info.name.starts_with(model_prefix)) {
      info.name = info.name.substr(model_prefix.size());
      model.infos.push_back(std::move(info));
    } else {
      others.infos.push_back(std::move(info));
    }

  const TemporaryName temporary = make_temporary(path);
  Unfinished unfinished(temporary.path);
  write_tensors(temporary.path / model_file, model);
  write_tensors(temporary.path / optimizer_file, others);
  write_durably(temporary.path / state_file, state);
  Manifest manifest;
  std::ranges::transform(listed_files, manifest.files.begin(),
                         [&](std::string_view name) { return sum_of(temporary.path / name); });
  write_durably(temporary.path / manifest_file, manifest_text(manifest));
  sync_directory(temporary.path);
  require_free(rename_to_new(temporary.path, path), path);
  unfinished.finished();
  sync_directory(path.parent_path());
}

CheckpointState read_checkpoint_state(const fs::path& path) {
  return read_state(path, read_manifest(path));
}

CheckpointState verify_checkpoint(const fs::path& path) {
  const Manifest manifest = read_manifest(path);
  CheckpointState state = read_state(path, manifest);
  for (std::size_t i = 0; i < listed_files.size(); ++i)
    verify_sum(path / listed_files[i], manifest.files[i]);
  return state;
}

Checkpoint load_checkpoint(const fs::path& path) {
  Checkpoint checkpoint{.state = verify_checkpoint(path), .tensors = {}};
  for (const auto& [name, x] : read_tensors(path / model_file))
    checkpoint.tensors[std::string(model_prefix) + name] = x;
  for (const auto& [name, x] : read_tensors(path / optimizer_file)) {
    if (name.starts_with(model_prefix))
      fail<FormatError>("checkpoint", "a tensor of the model is in ",
                        (path / optimizer_file).string(), ". Use another checkpoint.");
    checkpoint.tensors[name] = x;
  }
  return checkpoint;
}

std::string checkpoint_name(int64_t step) {
  const std::string digits = std::to_string(step);
  return "step-" + std::string(9 - std::min<std::size_t>(9, digits.size()), '0') + digits;
}

// The schedule's state has names "scheduler.*" next to the training's own. Loading sets the
// schedule first, because loading a training cannot be undone.

namespace {
constexpr std::string_view scheduler_prefix = "scheduler.", others_prefix = "others.";

/// Writes the fewest digits that read back to the same numbers: 16, 0.1.
std::string shown(const std::vector<double>& values) {
  std::string text;
  for (const double value : values) {
    char digits[32];
    text += text.empty() ? "" : ", ";
    text.append(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
  }
  return text;
}
}  // namespace

void save_training(const std::filesystem::path& path, const amp::Training& training,
                   const CheckpointState& state, const optim::LrScheduler* scheduler,
                   const optim::NamedTensors& others) {
  optim::NamedTensors more;
  if (scheduler) add_part(more, scheduler_prefix, scheduler->state_dict());
  add_part(more, others_prefix, others);
  training.write_state([&](const TensorSource& own) {
    TensorSource all = own;
    for (const auto& [name, x] : more) all.infos.push_back(info_of(name, x));
    all.tensor = [&](const std::string& name) {
      const auto found = more.find(name);
      return found == more.end() ? own.tensor(name) : found->second;
    };
    save_checkpoint(path, state, all);
  });
}

namespace {
/// Returns rank 0's checkpoint. The other ranks do not read it themselves: they get only its state.
Checkpoint of_rank_0(Communicator* group, const std::function<Checkpoint()>& read) {
  if (!group || group->size() == 1) return read();
  Checkpoint checkpoint;
  constexpr std::string_view what = "a checkpoint to go on from";
  distributed::on_rank_0(*group, what, [&] { checkpoint = read(); });
  const std::string state = distributed::broadcast_text(
      *group, what, group->rank() == 0 ? state_text(checkpoint.state) : "");
  if (group->rank() != 0) checkpoint.state = parse_state(state, "rank 0's checkpoint");
  return checkpoint;
}

/// Returns rank 0's tensors on all ranks.
optim::NamedTensors told_to_all(Communicator* group, const optim::NamedTensors& tensors) {
  return group ? distributed::broadcast(*group, "tensors next to a training's", tensors) : tensors;
}
}  // namespace

CheckpointState load_training(const std::filesystem::path& path, amp::Training& training,
                              optim::LrScheduler* scheduler, amp::Convert convert,
                              optim::NamedTensors* others) {
  const MemoryScope scope(MemoryUse::workspace);  // the tensors read live until they have been
                                                  // copied
  return load_training(of_rank_0(training.group(), [&] { return load_checkpoint(path); }),
                       path.string(), training, scheduler, convert, others);
}

CheckpointState load_training(Checkpoint checkpoint, std::string_view from, amp::Training& training,
                              optim::LrScheduler* scheduler, amp::Convert convert,
                              optim::NamedTensors* others) {
  const optim::NamedTensors schedule =
      told_to_all(training.group(), take_part(checkpoint.tensors, scheduler_prefix));
  optim::NamedTensors kept =
      told_to_all(training.group(), take_part(checkpoint.tensors, others_prefix));
  if (schedule.empty() != !scheduler)
    fail<UsageError>("checkpoint", scheduler ? "no schedule" : "a schedule without a scheduler",
                     " is in ", from, ". Resume with what was saved.");

  optim::Optimizer& optimizer = training.optimizer();
  const std::vector<double> rates = rates_of(optimizer);
  optim::NamedTensors before;
  if (scheduler) before = scheduler->state_dict();
  try {
    if (scheduler) scheduler->load_state_dict(schedule);
    training.load_state_dict(checkpoint.tensors, convert);
  } catch (...) {
    if (scheduler) scheduler->load_state_dict(before);
    set_rates(optimizer, rates);
    throw;
  }
  if (others) *others = std::move(kept);
  return std::move(checkpoint.state);
}

// --- other conditions of an exact resume

std::map<std::string, double> loader_numbers(const data::DataLoader& loader) {
  const data::DataLoaderOptions& o = loader.options();
  return {{"state.loader.samples", double(loader.dataset().size())},
          {"state.loader.batch_size", double(o.batch_size)},
          {"state.loader.shuffle", double(o.shuffle)},
          {"state.loader.drop_last", double(o.drop_last)},
          {"state.loader.seed", double(*o.seed)}};
}

data::DataLoader with_seed_of(const std::map<std::string, double>& before,
                              const data::DataLoader& now) {
  const auto seed = before.find("state.loader.seed");
  if (!now.drew_seed() || seed == before.end()) return now;
  data::DataLoaderOptions options = now.options();
  options.seed = uint64_t(count_in(before, "state.loader.seed"));
  return now.with_options(options);
}

void require_same_loader(const std::map<std::string, double>& before, const data::DataLoader& now) {
  for (const auto& [name, here] : loader_numbers(now)) {
    const auto there = before.find(name);
    if (there == before.end() || there->second != here)
      fail<UsageError>("Trainer", "the training is in the middle of an epoch whose ",
                       name.substr(name.rfind('.') + 1), " is ",
                       there == before.end() ? "unknown" : shown({there->second}),
                       "; that of this loader is ", shown({here}),
                       ". Go on with the loader that it had.");
  }
}

void require_same_environment(const CheckpointState& state, Device device) {
  const auto text = state.texts.find("environment");
  const std::string there = text == state.texts.end() ? "unknown" : text->second,
                    here = environment_of(device);
  if (there != here)
    fail<UsageError>("Trainer",
                     "this is another environment, whose bits may differ: the checkpoint is "
                     "of \"",
                     shortened(there, 300), "\", here is \"", here,
                     "\". Resume there, or turn deterministic off.");
}

OptionValues option_values(const optim::Optimizer& optimizer, const optim::LrScheduler* scheduler) {
  constexpr std::string_view beginning = "param_groups.";
  OptionValues values;
  const bool several = optimizer.group_count() > 1;
  for (const auto& [name, x] : optimizer.state_dict()) {
    if (!name.starts_with(beginning) || name.ends_with(".params")) continue;
    const std::size_t dot = name.find('.', beginning.size());
    const std::string group = name.substr(beginning.size(), dot - beginning.size());
    values[name.substr(dot + 1) + (several ? " of group " + group : "")] = x.to_vector<double>();
  }
  if (scheduler) {
    const std::vector<double> rates = scheduler->state_dict().at("base_lrs").to_vector<double>();
    for (std::size_t group = 0; group < rates.size(); ++group)
      values[several ? "lr of group " + std::to_string(group) : "lr"] = {rates[group]};
  }
  return values;
}

std::vector<std::string> changes(const OptionValues& program, const OptionValues& checkpoint,
                                 const CheckpointState& at, const data::DataLoader& loader) {
  std::vector<std::string> lines;
  for (const auto& [name, now] : checkpoint)
    if (const auto before = program.find(name); before != program.end() && before->second != now)
      lines.push_back(name + " is " + shown(now) + " in the checkpoint, which counts, and " +
                      shown(before->second) +
                      " in the program: to change it, do so in on_fit_start()");
  if (at.batches > 0) return lines;  // the loaders are the same in this case
  for (const auto& [name, now] : loader_numbers(loader))
    if (const auto before = at.numbers.find(name);
        before != at.numbers.end() && before->second != now)
      lines.push_back("the loader's " + name.substr(name.rfind('.') + 1) + " is " + shown({now}) +
                      " from now on; it was " + shown({before->second}));
  return lines;
}

}  // namespace halftone::train
