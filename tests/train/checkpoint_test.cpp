// One checkpoint: written and read back, damaged in every way, hostile, and written to a system
// that refuses.
#include <csignal>
#include <limits>
#include <optional>

#include <unistd.h>
#include <zlib.h>

#include <doctest/doctest.h>
#include <sys/resource.h>

#include <halftone/halftone.h>

#include "../amp/cases.h"
#include "../support.h"
#include "trainer_cases.h"

namespace halftone::test::checkpoint_test {

using train::Checkpoint, train::load_checkpoint, train::save_checkpoint;

namespace {
const std::array<std::string, 4> files{"manifest.json", "model.safetensors",
                                       "optimizer.safetensors", "state.json"};

void require_refused(const fs::path& root, const std::string& what) {
  CAPTURE(what);
  const std::string message = refusal(root / "second");
  CHECK(message.starts_with("[checkpoint] "));
  const auto latest = train::latest_checkpoint(root);
  REQUIRE(latest);
  CHECK(latest->path == root / "first");
  CHECK(latest->state.step == 1);
}

/// A checkpoint whose file was replaced, with a manifest that says so.
void replace_with_valid_sum(const fs::path& path, const std::string& file,
                            const std::string& bytes) {
  const auto sum_text = [](const std::string& text) {
    char hex[9];
    std::snprintf(hex, sizeof hex, "%08lx",
                  crc32(0, reinterpret_cast<const Bytef*>(text.data()), uInt(text.size())));
    return "\"bytes\": " + std::to_string(text.size()) + ",\n   \"crc32\": \"" + hex + '"';
  };
  std::string manifest = read_file(path / "manifest.json");
  const std::string before = sum_text(read_file(path / file));
  REQUIRE(contains(manifest, before));
  manifest.replace(manifest.find(before), before.size(), sum_text(bytes));
  write_file(path / file, bytes);
  write_file(path / "manifest.json", manifest);
}
}  // namespace

TEST_CASE("checkpoint: a round trip keeps everything, and the model's file is an ordinary one") {
  const TemporaryDirectory directory;
  Checkpoint saved = small_checkpoint(5);
  saved.state.numbers["tiny"] = std::numeric_limits<double>::denorm_min();
  saved.state.numbers["third"] = 1.0 / 3;
  saved.state.numbers["up"] = std::numeric_limits<double>::infinity();
  saved.state.numbers["down"] = -std::numeric_limits<double>::infinity();
  save_checkpoint(directory / "a", saved);
  const Checkpoint loaded = load_checkpoint(directory / "a");
  CHECK(same(saved, loaded));
  CHECK(std::signbit(loaded.state.numbers.at("best \"so\" far")));
  CHECK(names_in(directory.path()) == std::set<std::string>{"a"});
  CHECK(names_in(directory / "a") == std::set<std::string>(files.begin(), files.end()));
  const auto model = load_safetensors(directory / "a/model.safetensors").tensors;
  CHECK(model.size() == 2);
  CHECK(model.contains("weight"));

  saved.state.numbers = {{"loss", std::numeric_limits<double>::quiet_NaN()}};
  save_checkpoint(directory / "b/", saved);  // a slash at the end changes nothing
  CHECK(std::isnan(load_checkpoint(directory / "b").state.numbers.at("loss")));
  save_checkpoint(directory / "empty", {});
  CHECK(load_checkpoint(directory / "empty").tensors.empty());
  CHECK(train::checkpoint_name(1234) == "step-000001234");
  CHECK(train::checkpoint_name(12345678901) == "step-12345678901");
}

TEST_CASE("checkpoint: every byte of the manifest matters") {
  const TemporaryDirectory directory;
  save_checkpoint(directory / "first", small_checkpoint(1));
  save_checkpoint(directory / "second", small_checkpoint(2));
  const fs::path path = directory / "second/manifest.json";
  const std::string good = read_file(path);
  for (std::size_t at = 0; at < good.size(); ++at) {
    std::string bad = good;
    for (const int bit : {0, 5, 7}) {
      bad[at] = char(good[at] ^ (1 << bit));
      write_file(path, bad);
      require_refused(directory.path(), "byte " + std::to_string(at) + " flipped");
    }
    write_file(path, good.substr(0, at));
    require_refused(directory.path(), "cut off at " + std::to_string(at));
  }
  for (const char extra : {'\n', ' ', '\0', 'x'}) {
    write_file(path, good + extra);
    require_refused(directory.path(), "longer");
  }
  write_file(path, good);
  CHECK(train::latest_checkpoint(directory.path())->state.step == 2);
}

TEST_CASE("checkpoint: flipped, cut, longer and missing files are refused") {
  const TemporaryDirectory directory;
  save_checkpoint(directory / "first", small_checkpoint(1));
  save_checkpoint(directory / "second", small_checkpoint(2));
  for (const std::string& file : files) {
    const fs::path path = directory / "second" / file;
    const std::string good = read_file(path);
    for (std::size_t at = 0; at < good.size(); at += 5) {
      std::string bad = good;
      bad[at] = char(bad[at] ^ (1 << at % 8));
      write_file(path, bad);
      require_refused(directory.path(), file + " flipped at " + std::to_string(at));
      write_file(path, good.substr(0, at));
      require_refused(directory.path(), file + " cut at " + std::to_string(at));
    }
    write_file(path, good + '\0');
    require_refused(directory.path(), file + " longer");
    fs::remove(path);
    require_refused(directory.path(), file + " missing");
    fs::create_directory(path);
    require_refused(directory.path(), file + " a directory");
    fs::remove(path);
    write_file(directory / "elsewhere", good);
    fs::create_symlink(directory / "elsewhere", path);
    require_refused(directory.path(), file + " a link");
    fs::remove(path);
    write_file(path, good);
  }
  CHECK(train::latest_checkpoint(directory.path())->state.step == 2);
  CHECK(contains(refusal(directory / "nothing"), "cannot open"));
}

/// Returns a text in which `to` replaces the first `from`.
std::string with(std::string text, const std::string& from, const std::string& to) {
  REQUIRE(contains(text, from));
  return text.replace(text.find(from), from.size(), to);
}

TEST_CASE("checkpoint: hostile manifests") {
  const TemporaryDirectory directory;
  save_checkpoint(directory / "a", small_checkpoint(1));
  const fs::path path = directory / "a/manifest.json";
  const std::string good = read_file(path);
  const auto refused = [&](const std::string& text) {
    write_file(path, text);
    const std::string message = refusal(directory / "a");
    CAPTURE(text.substr(0, 60));
    CHECK(message.starts_with("[checkpoint] "));
    return message;
  };
  const auto replaced = [&](const char* from, const char* to) { return with(good, from, to); };
  CHECK(contains(refused(replaced("\"state.json\"", "\"../state.json\"")), "no manifest has"));
  CHECK(contains(refused(replaced("\"state.json\"", "\"/etc/passwd\"")), "no manifest has"));
  CHECK(contains(refused(replaced("\"version\": 1", "\"version\": 2")), "version 2"));
  CHECK(contains(refused(replaced("\"version\": 1", "\"version\": 1,\n \"version\": 1")),
                 "no manifest has"));
  CHECK(contains(refused(replaced("\"bytes\": ", "\"bytes\": 99999999999")), "99999999999"));
  CHECK(contains(refused(replaced("\"bytes\": ", "\"bytes\": -")), "no manifest has"));
  CHECK(contains(refused(replaced("\"bytes\": ", "\"bytes\": 1e3")), "in "));
  refused(replaced("\"bytes\": ", "\"bytes\": 99999999999999999999999999"));
  refused(replaced("\"files\"", "\"others\""));
  CHECK(contains(refused(std::string(2000, '[')), "nested too deeply"));
  CHECK(contains(refused(std::string(100000, '[')), "the limit is 4096"));
  for (const char* text : {"", "[]", "null", "{}", "3", "\"x\"", "{\"format\":[]}"}) refused(text);
}

TEST_CASE("checkpoint: hostile states and tensors with a valid manifest") {
  const TemporaryDirectory directory;
  save_checkpoint(directory / "a", small_checkpoint(1));
  const fs::path path = directory / "a";
  const std::string good = read_file(path / "state.json");
  const auto refused = [&](const std::string& text) {
    replace_with_valid_sum(path, "state.json", text);
    const std::string message = refusal(path);
    CAPTURE(text.substr(0, 60));
    CHECK(message.starts_with("[checkpoint] "));
    return message;
  };
  const auto replaced = [&](const char* from, const char* to) { return with(good, from, to); };
  CHECK(contains(refused(replaced("\"step\": 1", "\"step\": -1")), "negative"));
  refused(replaced("\"step\": 1", "\"step\": 1,\n \"step\": 1"));
  refused(replaced("\"step\": 1", "\"step\": 1.0"));
  refused(replaced("\"step\": 1", "\"step\": true"));
  refused(replaced("\"step\": 1", "\"step\": 9223372036854775808"));
  refused(replaced("\"loss\": 0.25", "\"loss\": 0.250"));
  refused(replaced("\"loss\": 0.25", "\"loss\": null"));
  refused(replaced("\"loss\": 0.25", "\"loss\": \"NaN\""));
  refused(replaced("\"loss\": 0.25", "\"loss\": [[[[[]]]]]"));
  refused(replaced("\"epoch\"", "\"other\""));
  CHECK(contains(refused("{\"step\":" + std::string(1000000, '[')), "nested too deeply"));
  CHECK(contains(refused(std::string(std::size_t(17) << 20, ' ')), "the limit is"));
  replace_with_valid_sum(path, "state.json", good);
  CHECK(refusal(path) == "");

  const std::string tensors = read_file(path / "optimizer.safetensors");
  replace_with_valid_sum(path, "optimizer.safetensors", "no tensors");
  CHECK(contains(refusal(path), "cannot read the tensors"));
  const std::string model = read_file(path / "model.safetensors");
  save_safetensors(directory / "x", {{"model.weight", zeros({1})}});
  replace_with_valid_sum(path, "optimizer.safetensors", read_file(directory / "x"));
  CHECK(contains(refusal(path), "a tensor of the model is in"));
}

TEST_CASE("checkpoint: targets that exist, and invalid names") {
  const TemporaryDirectory directory;
  save_checkpoint(directory / "a", small_checkpoint(1));
  write_file(directory / "file", "kept");
  fs::create_directory(directory / "empty");
  fs::create_symlink("nowhere", directory / "link");
  const std::set<std::string> before = names_in(directory.path());
  for (const char* name : {"a", "file", "empty", "link"}) {
    CAPTURE(name);
    CHECK(contains(
        message_of<UsageError>([&] { save_checkpoint(directory / name, small_checkpoint(2)); }),
        "[checkpoint] the path exists: "));
    CHECK(names_in(directory.path()) == before);
  }
  CHECK(same(load_checkpoint(directory / "a"), small_checkpoint(1)));
  CHECK(read_file(directory / "file") == "kept");
  for (const char* name : {"", ".", "..", ".hidden", "a/..", "/"})
    CHECK(contains(message_of<UsageError>([&] { save_checkpoint(name, small_checkpoint(2)); }),
                   "not a name for a checkpoint"));
  CHECK(contains(message_of<FormatError>(
                     [&] { save_checkpoint(directory / "no/such/place", small_checkpoint(2)); }),
                 "No such file or directory"));
  Checkpoint wrong = small_checkpoint(2);
  wrong.state.batches = -1;
  CHECK(contains(message_of<UsageError>([&] { save_checkpoint(directory / "b", wrong); }),
                 "Count from 0"));
  wrong = small_checkpoint(2);
  wrong.state.texts["note"] = "\xff";
  CHECK(contains(message_of<UsageError>([&] { save_checkpoint(directory / "b", wrong); }),
                 "not UTF-8"));
  wrong = small_checkpoint(2);
  wrong.tensors["undefined"] = Tensor();
  CHECK(contains(message_of<UsageError>([&] { save_checkpoint(directory / "b", wrong); }),
                 "is undefined"));
  CHECK(names_in(directory.path()) == before);
}

TEST_CASE("checkpoint: a file whose size is limited, at every size") {
  // RLIMIT_FSIZE refuses writes beyond a size, as a full disk does, after it wrote the bytes that
  // fit.
  const TemporaryDirectory directory;
  save_checkpoint(directory / "first", small_checkpoint(1));
  struct rlimit before {};
  REQUIRE(getrlimit(RLIMIT_FSIZE, &before) == 0);
  auto* const handler = std::signal(SIGXFSZ, SIG_IGN);
  int refused = 0;
  for (rlim_t limit = 0; limit < 700; limit += 25) {
    const struct rlimit low { .rlim_cur = limit, .rlim_max = before.rlim_max };
    REQUIRE(setrlimit(RLIMIT_FSIZE, &low) == 0);
    const std::string message = MESSAGE_OF(
        FormatError,
        save_checkpoint(directory / ("second" + std::to_string(limit)), small_checkpoint(2)));
    setrlimit(RLIMIT_FSIZE, &before);
    if (message.empty()) continue;
    ++refused;
    CHECK(message.starts_with("[checkpoint] cannot write "));
    CHECK(contains(message, "File too large"));
    CHECK(names_in(directory.path()) == std::set<std::string>{"first"});
    CHECK(same(load_checkpoint(directory / "first"), small_checkpoint(1)));
  }
  std::signal(SIGXFSZ, handler);
  CHECK(refused > 10);
  CHECK(refused < 28);
}

TEST_CASE("checkpoint: no permission") {
  if (geteuid() == 0) {
    MESSAGE("skipped: root may do everything");
    return;
  }
  const TemporaryDirectory directory;
  save_checkpoint(directory / "first", small_checkpoint(1));
  fs::permissions(directory.path(), fs::perms::owner_read | fs::perms::owner_exec);
  const std::string message =
      message_of<FormatError>([&] { save_checkpoint(directory / "second", small_checkpoint(2)); });
  CHECK(contains(message, "Permission denied"));
  CHECK(!message_of<FormatError>([&] { train::remove_checkpoint(directory / "first"); }).empty());
  fs::permissions(directory.path(), fs::perms::owner_all);
  CHECK(names_in(directory.path()) == std::set<std::string>{"first"});
  CHECK(same(load_checkpoint(directory / "first"), small_checkpoint(1)));
}

TEST_CASE("checkpoint: a name of up to 255 bytes") {
  const TemporaryDirectory directory;
  for (const std::size_t size : {std::size_t(240), std::size_t(255)}) {
    const fs::path path = directory / std::string(size, 'n');
    save_checkpoint(path, small_checkpoint(1));
    CHECK(same(load_checkpoint(path), small_checkpoint(1)));
    train::remove_checkpoint(path);
    CHECK(names_in(directory.path()).empty());
  }
}

}  // namespace halftone::test::checkpoint_test

// The two JSON files of a checkpoint alone: an entry that is not a whole number is named, never
// converted. The rest is above.

namespace halftone::test::manifest_test {

using train::CheckpointState, train::Manifest;

namespace {
const char* const no_whole_numbers[] = {
    "1.0", "1e3", "1e300", "-0.5", "true", "null", "\"1\"", "[]", "18446744073709551616"};

/// Returns the message of parsing `text` with another value after `field`.
template <class Parse>
std::string message_for(const Parse& parse, std::string text, const std::string& field,
                        const std::string& value) {
  const std::size_t at = text.find(field);
  REQUIRE(at != std::string::npos);
  const std::size_t begin = at + field.size();
  text.replace(begin, text.find_first_of(",\n", begin) - begin, value);
  return message_of<FormatError>([&] { parse(text, "the/file"); });
}
constexpr std::string_view refusal =
    "[checkpoint] something else where a whole number belongs, in the/file. The file is damaged or "
    "no checkpoint's: use another checkpoint.";
}  // namespace

TEST_CASE("a manifest has whole numbers only") {
  const std::string text = train::manifest_text(Manifest{});
  CHECK(train::manifest_text(train::parse_manifest(text, "x")) == text);
  for (const std::string field : {"\"version\": ", "\"bytes\": "})
    for (const char* value : no_whole_numbers) {
      CAPTURE(field + value);
      CHECK(message_for(train::parse_manifest, text, field, value) == refusal);
    }
}

TEST_CASE("a state's step, epoch and batches are whole numbers") {
  const CheckpointState state{.step = 5, .epoch = 1, .batches = 2};
  const std::string text = train::state_text(state);
  CHECK(train::state_text(train::parse_state(text, "x")) == text);
  for (const std::string field : {"\"step\": ", "\"epoch\": ", "\"batches\": "}) {
    for (const char* value : no_whole_numbers) {
      CAPTURE(field + value);
      CHECK(message_for(train::parse_state, text, field, value) == refusal);
    }
    CHECK(message_for(train::parse_state, text, field, "-1") ==
          "[checkpoint] a negative step, epoch or number of batches, in the/file. The file is "
          "damaged or no checkpoint's: use another checkpoint.");
  }
}

}  // namespace halftone::test::manifest_test

// A training that stopped in the middle of an epoch and resumed from its checkpoint ends with the
// bits of one that never stopped, under every strategy.

namespace halftone::test::resume_test {
namespace {
constexpr int64_t steps = 14, saved_after = 8;  // of epochs of 6 batches

/// A training with a schedule, dropout and a shuffled loader.
struct Run {
  std::unique_ptr<nn::Layer> model;
  optim::AdamW adamw;
  amp::Training training;
  optim::LrScheduler scheduler;
  data::DataLoader loader;
  train::CheckpointState at{};

  static std::unique_ptr<nn::Layer> network(uint64_t seed, int64_t width) {
    manual_seed(seed);
    return std::make_unique<nn::Sequential>(nn::Linear(12, width), nn::Relu(), nn::Dropout(0.2),
                                            nn::Linear(width, 4));
  }
  static data::DataLoader make_loader() {
    manual_seed(99);
    return data::DataLoader(data::TensorDataset(randn({46, 12}), randint(0, 4, {46})),
                            {.batch_size = 8, .shuffle = true, .seed = 3});
  }
  explicit Run(std::string_view strategy, uint64_t seed = 1, int64_t width = 20)
      : model(network(seed, width)),
        adamw(model->parameters(), {.lr = 1e-2}),
        training(amp::apply(amp::Policy::named(strategy), *model, adamw)),
        scheduler(training.optimizer(), optim::LrSchedule::cosine(steps)),
        loader(make_loader()) {
    manual_seed(seed + 7);
  }

  /// Continues up to a step; calls `done` after it, while the loader is within its epoch.
  void train_to(
      int64_t last, const std::function<void()>& done = [] {}) {
    while (at.step < last) {
      for (auto [inputs, targets] : loader) {
        training.zero_grad();
        training.backward(cross_entropy(training.forward(*model, inputs), targets));
        if (training.step()) scheduler.step();
        ++at.step, ++at.batches;
        if (at.step == last) return done();
      }
      ++at.epoch, at.batches = 0;
    }
  }
  void resume(const std::filesystem::path& path) {
    at = train::load_training(path, training, &scheduler);
    loader.resume(at.epoch, at.batches);
  }
};
}  // namespace

TEST_CASE("resume: the same bits as without a stop") {
  for (const std::string_view strategy : amp::Policy::names()) {
    CAPTURE(strategy);
    const TemporaryDirectory root;
    Run whole(strategy);
    whole.train_to(steps);
    const auto expected = copy_of(whole.training.state_dict());

    const std::filesystem::path path = root / "step";
    {
      Run first(strategy);
      first.train_to(saved_after,
                     [&] { save_training(path, first.training, first.at, &first.scheduler); });
    }
    Run second(strategy, 55);  // other weights, another generator: all must be restored
    second.resume(path);
    CHECK(second.at.step == saved_after);
    CHECK(second.at.epoch == 1);
    CHECK(second.at.batches == 2);
    second.train_to(steps);
    CHECK(second.scheduler.steps() == whole.scheduler.steps());
    CHECK(second.training.optimizer().lr(0) == whole.training.optimizer().lr(0));
    CHECK(same_state(copy_of(second.training.state_dict()), expected));
  }
}

TEST_CASE("resume: another model, strategy or schedule is refused, and nothing has changed") {
  const TemporaryDirectory root;
  {
    Run run("o2-bf16");
    run.train_to(3);
    save_training(root / "o2", run.training, run.at, &run.scheduler);
    save_training(root / "bare", run.training, run.at);
  }
  const auto refused = [&](Run& run, const std::filesystem::path& path,
                           optim::LrScheduler* scheduler) {
    run.train_to(2);
    const auto before = copy_of(run.training.state_dict());
    const double lr = run.training.optimizer().lr(0);
    const auto steps_before = run.scheduler.steps();
    const std::string message =
        MESSAGE_OF(Error, train::load_training(path, run.training, scheduler));
    CHECK(message != "");
    CHECK(same_state(copy_of(run.training.state_dict()), before));
    CHECK(run.training.optimizer().lr(0) == lr);
    CHECK(run.scheduler.steps() == steps_before);
    return message;
  };
  Run wider("o2-bf16", 1, 24), plain("fp32"), split("split-bf16"), same("o2-bf16", 4);
  refused(wider, root / "o2", &wider.scheduler);
  refused(plain, root / "o2", &plain.scheduler);
  refused(split, root / "o2", &split.scheduler);
  CHECK(test::contains(refused(same, root / "o2", nullptr), "a schedule without a scheduler"));
  CHECK(test::contains(refused(same, root / "bare", &same.scheduler), "no schedule"));
  CHECK(test::contains(refused(same, root / "missing", &same.scheduler), "cannot open"));
  train::load_training(root / "bare", same.training);
  CHECK(train::load_training(root / "o2", plain.training, &plain.scheduler, amp::Convert::lossless)
            .step == 3);
}

}  // namespace halftone::test::resume_test
