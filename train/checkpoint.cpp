// POSIX calls. A file's bytes and its name are separate: fsync on the file makes the bytes durable,
// fsync on its directory the name (Pillai et al. 2014, "All File Systems Are Not Created Equal").
#include <halftone/core/json_value.h>
#include <halftone/train/checkpoint.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <ctime>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>
#include <zlib.h>

#include <sys/file.h>
#include <sys/stat.h>

#include <halftone/core/error.h>
#include <halftone/core/files.h>
#include <halftone/core/memory.h>
#include <halftone/core/named_tensors.h>
#include <halftone/distributed/collectives.h>
#include <halftone/train/metrics.h>
#include <halftone/train/trainer.h>

namespace halftone::train {

namespace fs = std::filesystem;

namespace {
constexpr std::string_view temporary_prefix = ".tmp-";

[[noreturn]] void fail_to_write(const fs::path& path, int error) {
  fail<FormatError>("checkpoint", "cannot write ", path.string(), ": ", std::strerror(error),
                    ". Check the directory, its permissions and the free space.");
}

/// Opens a regular file read-only. Does not follow links or wait for pipes.
Descriptor open_regular(const fs::path& path, uint64_t& bytes) {
  Descriptor file = files::open(path, O_RDONLY | O_NONBLOCK | O_NOFOLLOW);
  struct stat status {};
  if (!file || fstat(file.get(), &status) != 0)
    fail<FormatError>("checkpoint", "cannot open ", path.string(), ": ", std::strerror(errno),
                      ". Use another checkpoint.");
  if (!S_ISREG(status.st_mode))
    fail<FormatError>("checkpoint", "not a regular file: ", path.string(),
                      ". Use another checkpoint.");
  bytes = uint64_t(status.st_size);
  return file;
}

Descriptor open_directory(const fs::path& path) {
  return files::open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
}

/// Some file systems of clusters have no locks.
enum class Locked { here, elsewhere, unsupported };
Locked lock(const Descriptor& held) {
  if (flock(held.get(), LOCK_EX | LOCK_NB) == 0) return Locked::here;
  return errno == EWOULDBLOCK ? Locked::elsewhere : Locked::unsupported;
}

/// Reads up to `bytes` bytes; fewer at the end of the file.
std::size_t read_some(const Descriptor& file, void* to, std::size_t bytes, const fs::path& path) {
  const std::ptrdiff_t got = files::read_some(file, to, bytes);
  if (got >= 0) return std::size_t(got);
  fail<FormatError>("checkpoint", "cannot read ", path.string(), ": ", std::strerror(errno),
                    ". Use another checkpoint.");
}
}  // namespace

void write_durably(const fs::path& path, std::string_view bytes) {
  const Descriptor file = files::open(path, O_WRONLY | O_CREAT | O_EXCL);
  if (!file || !files::write_all(file, bytes) || fsync(file.get()) != 0) fail_to_write(path, errno);
}

void sync_directory(const fs::path& path) {
  const Descriptor directory = files::open(path, O_RDONLY | O_DIRECTORY);
  if (!directory) fail_to_write(path, errno);
  if (fsync(directory.get()) != 0 && errno != EINVAL && errno != ENOTSUP && errno != ENOSYS)
    fail_to_write(path, errno);
}

bool rename_to_new(const fs::path& from, const fs::path& to) {
  if (renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return true;
  if (errno == EEXIST || errno == ENOTEMPTY) return false;
  if (errno != EINVAL && errno != ENOSYS) fail_to_write(to, errno);
  // This file system lacks that flag. rename() replaces at most an empty directory, which loses
  // nothing; the check before it refuses even that, except in a race.
  struct stat status {};
  if (lstat(to.c_str(), &status) == 0) return false;
  if (rename(from.c_str(), to.c_str()) == 0) return true;
  if (errno == EEXIST || errno == ENOTEMPTY || errno == ENOTDIR) return false;
  fail_to_write(to, errno);
}

fs::path temporary_name(const fs::path& path, std::string_view word) {
  static std::atomic<uint64_t> counter{0};
  std::string name(temporary_prefix);
  name.append(word).append(files::beginning_of_name(path));
  name += '-' + std::to_string(getpid()) + '-' + std::to_string(++counter);
  return path.parent_path() / name;
}

bool is_temporary(const fs::path& path) {
  return path.filename().string().starts_with(temporary_prefix);
}

TemporaryName make_temporary(const fs::path& path) {
  while (true) {
    const fs::path name = temporary_name(path, "");
    if (mkdir(name.c_str(), 0777) != 0) {
      if (errno == EEXIST) continue;  // a crashed process with our number left it
      fail_to_write(path, errno);
    }
    Descriptor held = open_directory(name);
    if (!held && errno != ENOENT) {
      const int error = errno;
      rmdir(name.c_str());
      fail_to_write(path, error);
    }
    // Another process may have removed it as abandoned before the lock: then try again.
    struct stat opened {
    }, named{};
    if (held && lock(held) != Locked::elsewhere && fstat(held.get(), &opened) == 0 &&
        lstat(name.c_str(), &named) == 0 && opened.st_ino == named.st_ino)
      return {name, std::move(held)};
  }
}

Descriptor try_lock(const fs::path& directory) {
  Descriptor held = open_directory(directory);
  if (held && lock(held) == Locked::here) return held;
  return Descriptor();
}

std::string read_text(const fs::path& path, uint64_t limit) {
  uint64_t bytes = 0;
  const Descriptor file = open_regular(path, bytes);
  if (bytes > limit)
    fail<FormatError>("checkpoint", path.string(), " has ", bytes, " bytes, the limit is ", limit,
                      ". Use another checkpoint.");
  std::string text(bytes + 1, '\0');
  std::size_t have = 0;
  while (have < text.size()) {
    const std::size_t got = read_some(file, text.data() + have, text.size() - have, path);
    if (got == 0) break;
    have += got;
  }
  if (have > bytes)
    fail<FormatError>("checkpoint", path.string(), " grew while it was read. Wait for its writer.");
  text.resize(have);
  return text;
}

FileSum sum_of(const fs::path& path) {
  uint64_t bytes = 0;
  const Descriptor file = open_regular(path, bytes);
  FileSum sum{.bytes = 0, .crc32 = uint32_t(crc32(0, nullptr, 0))};
  std::vector<Bytef> buffer(std::size_t(std::clamp<uint64_t>(bytes, 1, uint64_t(1) << 20)));
  while (const std::size_t got = read_some(file, buffer.data(), buffer.size(), path)) {
    sum.crc32 = uint32_t(crc32(sum.crc32, buffer.data(), uInt(got)));
    sum.bytes += got;
  }
  return sum;
}

uint64_t size_of(const fs::path& path) {
  uint64_t bytes = 0;
  open_regular(path, bytes);
  return bytes;
}

// The file is never removed: if one process removed it while another waits to open it, the other
// would lock a file without a name.

namespace {
/// Returns "process 4711 on atlas, since 2026-01-31 12:00:00 UTC".
std::string who_and_when() {
  char host[256] = "", date[32] = "";
  gethostname(host, sizeof host - 1);
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  std::strftime(date, sizeof date, "%Y-%m-%d %H:%M:%S", &utc);
  return "process " + std::to_string(getpid()) + " on " + host + ", since " + date + " UTC";
}

/// Returns the printable text that another process has written.
std::string holder_in(const files::Descriptor& file) {
  char text[400];
  const std::ptrdiff_t got = files::read_some(file, text, sizeof text);
  std::string holder(text, std::size_t(got > 0 ? got : 0));
  holder.resize(std::min(holder.find('\n'), holder.size()));
  return holder.empty() ? "another process" : printable(holder);
}
}  // namespace

DirectoryLock::DirectoryLock(const std::filesystem::path& directory, std::string_view op,
                             int (*system_lock)(int file, int operation)) {
  const std::filesystem::path path = directory / ".lock";
  file_ = files::open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK);
  struct stat status {};
  if (!file_ || fstat(file_.get(), &status) != 0)
    fail<FormatError>(op, "cannot write ", path.string(), ": ", std::strerror(errno),
                      ". Check the directory, its permissions and the free space.");
  if (!S_ISREG(status.st_mode))
    fail<FormatError>(op, "not a regular file: ", path.string(), ". Remove it.");
  if (status.st_nlink > 1)
    fail<FormatError>(op, path.string(), " is a file of ", status.st_nlink,
                      " names (hard links), another of which may be no lock. Remove this one.");

  int result = 0;
  do result = (system_lock ? system_lock : flock)(file_.get(), LOCK_EX | LOCK_NB);
  while (result != 0 && errno == EINTR);
  if (result != 0 && errno == EWOULDBLOCK)
    fail<UsageError>(op, "another process is at work in ", directory.string(), ": ",
                     holder_in(file_), ". Wait for its end, stop it, or name another directory.");
  holds_ = result == 0;  // other errors: the file system does not support locks
  if (!holds_) return;
  // The text only informs people: a full disk must not stop the training.
  const std::string holder = who_and_when() + '\n';
  std::string_view bytes = holder;
  if (ftruncate(file_.get(), 0) == 0) files::write_all(file_, bytes);
}

// Manifests, checkpoints, and what a resumed training takes from them.

// Numbers print in the shortest form that reads back to the same bits. JSON has no NaN and
// infinities, so these three are strings. The parser limits nesting.

namespace {
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
