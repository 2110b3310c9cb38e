// Identities of runs: hashes of data and states, differences between two, and results of finished
// runs that are read back.
#include <algorithm>
#include <cmath>
#include <set>
#include <sstream>

#include <doctest/doctest.h>

#include <halftone/halftone.h>
#include <halftone/lab/commands/commands.h>
#include <halftone/lab/identity.h>
#include <halftone/lab/run.h>
#include <halftone/lab/workload.h>

#include "lab/runs.h"
#include "support.h"

namespace halftone::test::identity_test {
namespace {

using lab::differences;
using Lines = std::vector<std::string>;

// --- differences

TEST_CASE("equal identities differ nowhere, and fields that are no identity do not count") {
  const Json one{{"seed", 1}, {"data", {{"hash", "x"}}}, {"loss", 1}, {"policy", "a"}};
  CHECK(differences(one, one).empty());
  CHECK(differences(Json::object(), Json::object()).empty());
  Json other = one;
  other["loss"] = 2, other["policy"] = "b", other["environment"] = "x";
  CHECK(differences(one, other).empty());
}

TEST_CASE("differences have the order of the fields, and both values") {
  const Json there{{"threads", 2}, {"seed", 1}, {"workload", "a"}, {"lr", 0.5}};
  const Json here{{"lr", 0.25}, {"workload", "b"}, {"seed", 1}, {"threads", 1}};
  CHECK(differences(there, here) ==
        Lines{"workload: a there, b here", "lr: 0.5 there, 0.25 here", "threads: 2 there, 1 here"});
}

TEST_CASE("what one side lacks is unknown there, or here, also inside of objects") {
  CHECK(differences({{"seed", 1}}, Json::object()) == Lines{"seed: 1 there, unknown here"});
  CHECK(differences(Json::object(), {{"seed", 1}}) == Lines{"seed: unknown there, 1 here"});
  const Json without{{"data", {{"hash", "x"}}}};
  const Json with{{"data", {{"hash", "x"}, {"validation_hash", "y"}}}};
  CHECK(differences(without, with) == Lines{"data.validation_hash: unknown there, y here"});
  CHECK(differences(with, without) == Lines{"data.validation_hash: y there, unknown here"});
  CHECK(differences({{"data", nullptr}}, {{"data", {{"a", 1}}}}).size() == 1);
}

TEST_CASE("objects are compared member by member, lists as a whole") {
  const Json there{{"optimizer", {{"class", "Adam"}, {"options", {{"lr", 1}, {"betas", {1, 2}}}}}}};
  Json here = there;
  here["optimizer"]["options"]["betas"] = {1, 3}, here["optimizer"]["class"] = "Sgd";
  CHECK(differences(there, here) == Lines{"optimizer.class: Adam there, Sgd here",
                                          "optimizer.options.betas: [1,2] there, [1,3] here"});
}

TEST_CASE("states that a run began with differ by their hash, not by their place") {
  const auto from = [](const char* path, const char* hash) {
    return Json{{"from", {{"path", path}, {"hash", hash}}}};
  };
  CHECK(differences(from("a", "1"), from("b", "1")).empty());
  CHECK(differences(from("a", "1"), from("a", "2")) == Lines{"from: 1 there, 2 here"});
  CHECK(differences({{"from", nullptr}}, from("a", "2")) == Lines{"from: unknown there, 2 here"});
  CHECK(differences({{"from", "odd"}}, {{"from", nullptr}}).empty());
}

TEST_CASE("long and hostile values are shortened and printable") {
  const Lines lines =
      differences({{"compiler", std::string(500, 'x')}, {"version", "\x1b[2J"}}, Json::object());
  REQUIRE(lines.size() == 2);
  CHECK(lines[1].size() < 120);
  CHECK(lines[0] == "version: \\x1b[2J there, unknown here");
}

TEST_CASE("every field of an identity is compared") {
  for (const std::string_view field : lab::identity_fields()) {
    CAPTURE(field);
    const std::string key(field);
    if (key == "policy") continue;
    const Json one = key == "from" ? Json{{"hash", "1"}} : Json(1);
    const Json other = key == "from" ? Json{{"hash", "2"}} : Json(2);
    CHECK(differences({{key, one}}, {{key, other}}) == Lines{key + ": 1 there, 2 here"});
  }
  const auto fields = lab::identity_fields();
  CHECK(std::set(fields.begin(), fields.end()).size() == fields.size());
}

TEST_CASE("a place knows its own fields, and differs from itself nowhere") {
  const auto here = [] {
    lab::Summary summary;
    lab::identify_place(summary);
    return Record::write(summary);
  };
  const Json place = here();
  for (const char* field :
       {"version", "commit", "compiler", "backend", "kernels", "threads", "processor"}) {
    CAPTURE(field);
    CHECK(place.contains(field));
    CHECK(std::ranges::find(lab::identity_fields(), field) != lab::identity_fields().end());
  }
  CHECK(place["threads"].get<int>() >= 1);
  CHECK(differences(place, here()).empty());
}

// --- hashes

TEST_CASE("a state's hash sees names and tensors") {
  const Tensor x = from_vector<float>({1, 2}, {2}), y = from_vector<float>({3, 4}, {2});
  const auto hash = [](const optim::NamedTensors& state) { return lab::hash_of(state); };
  const std::string whole = hash({{"a", x}, {"b", y}});
  CHECK(hash({{"b", y.clone()}, {"a", x}}) == whole);
  CHECK(hash({{"a", y}, {"b", x}}) != whole);
  CHECK(hash({{"a", x}, {"c", y}}) != whole);
  CHECK(hash({{"a", x}}) != whole);
  CHECK(hash({}) != hash({{"", x}}));
}

TEST_CASE("a hash of data sees inputs, targets and the order, in one batch or in many") {
  manual_seed(2);
  const Tensor x = randn({2050, 3}), y = randn({2050});
  const std::string whole = lab::hash_of(data::TensorDataset(x, y));
  CHECK(whole.size() == 16);
  for (const int64_t at : {int64_t(0), int64_t(1023), int64_t(1024), int64_t(2049)}) {
    CAPTURE(at);
    const Tensor other = y.clone();
    other.data<float>()[at] += 1;
    CHECK(lab::hash_of(data::TensorDataset(x, other)) != whole);
  }
  CHECK(lab::hash_of(data::TensorDataset(views::slice(x, 0, 0, 2049),
                                         views::slice(y, 0, 0, 2049))) != whole);
}

TEST_CASE("the identity of a training has its own choices, and what they became") {
  const auto identity = [](const lab::Choices& choices, int64_t steps = 10) {
    lab::Workload work = linear_workload({4, 2});
    lab::choose(work, choices);
    work.clip_norm = 2;
    const auto optimizer = lab::optimizer_of(work);
    data::DataLoader loader(data::TensorDataset(randn({32, 4}), randn({32, 2})),
                            {.batch_size = 8, .seed = 5});
    manual_seed(1);
    lab::Summary summary;
    lab::identify_training(summary, work, choices, *optimizer, loader, nullptr, steps);
    return Record::write(summary);
  };
  const Json plain = identity({});
  CHECK(plain["optimizer"]["named"].is_null());
  CHECK(plain["optimizer"]["class"] == "AdamW");
  CHECK(plain["schedule"]["named"].is_null());
  CHECK(plain["clip_norm"] == 2);
  CHECK(plain["batch"] == 8);
  CHECK(plain["data"]["samples"] == 32);
  CHECK(plain["data"]["seed"] == 5);
  CHECK_FALSE(plain["data"].contains("validation_hash"));
  const std::pair<const char*, const char*> classes[] = {
      {"adamw", "AdamW"},     {"adam", "Adam"},   {"sgd", "Sgd"},
      {"rmsprop", "Rmsprop"}, {"lion", "Lion"},   {"adagrad", "Adagrad"},
      {"nadam", "NAdam"},     {"radam", "RAdam"}, {"adafactor", "Adafactor"},
      {"lamb", "Lamb"},       {"muon", "Muon"}};
  for (const auto& [named, name] : classes) {
    const Json chosen = identity({.lr = 0.125, .optimizer = named});
    CHECK(chosen["optimizer"]["named"] == named);
    CHECK(chosen["optimizer"]["class"] == name);
    CHECK(chosen["optimizer"]["options"]["lr"] == 0.125);
  }
  // A constant schedule is the default of workloads; others depend on the steps.
  const auto schedule = [&](const char* name, int64_t steps) {
    return identity({.schedule = name}, steps)["schedule"]["hash"];
  };
  CHECK(schedule("constant", 10) == plain["schedule"]["hash"]);
  CHECK(schedule("linear", 10) != plain["schedule"]["hash"]);
  CHECK(schedule("linear", 10) != schedule("linear", 11));
  CHECK(schedule("cosine", 10) != schedule("linear", 10));
}

TEST_CASE("the hash of a schedule has every factor of 2^22 steps, and a part of more") {
  const auto hash = [](int64_t steps, const char* schedule = "cosine") {
    lab::Workload chosen = linear_workload({4, 2});
    lab::choose(chosen, {.schedule = schedule});
    const auto optimizer = lab::optimizer_of(chosen);
    lab::Summary summary;
    lab::identify_training(summary, chosen, {}, *optimizer, chosen.train(), nullptr, steps);
    return summary.schedule.hash;
  };
  for (const int64_t steps : {int64_t(10), int64_t(1) << 22}) {
    const optim::LrSchedule schedule = optim::LrSchedule::cosine(steps);
    policy::Fingerprint all;
    for (int64_t step = 0; step < steps; ++step) {
      const double factor = schedule.at(step);
      all.add({reinterpret_cast<const char*>(&factor), sizeof factor});
    }
    CHECK(hash(steps) == all.text());
  }
  CHECK(hash(lab::most_steps) != hash(lab::most_steps, "linear"));  // within a second
}

// --- finished runs

TEST_CASE("a finished run is its numbers, and one without a summary is none") {
  const TemporaryDirectory directory;
  const auto read = [&] { return lab::finished_run("test", directory.path(), "p", 7); };
  CHECK_FALSE(read());
  write_file(directory / "summary.json",
             R"({"loss": 0.5, "milliseconds_per_step": 3, "skipped_steps": 2, "more": "x"})");
  const lab::RunResult run = read().value();
  CHECK(run.policy == "p");
  CHECK(run.seed == 7);
  CHECK(run.loss == 0.5);
  CHECK(run.milliseconds == 3);
  CHECK(run.skipped == 2);
  CHECK(run.was_there);
  CHECK(std::isinf(run.least_sqnr));
  CHECK(Json::parse(run.summary)["more"] == "x");
  write_file(directory / "summary.json", R"({"loss": null, "milliseconds_per_step": 3})");
  CHECK(std::isnan(read().value().loss));  // it diverged
  CHECK(read().value().skipped == 0);
}

TEST_CASE("a finished run without its numbers is an error that says what to do") {
  const TemporaryDirectory directory;
  const auto refusal = [&](std::string_view text) {
    write_file(directory / "summary.json", text);
    return message_of<FormatError>([&] { lab::finished_run("test", directory.path(), "p", 0); });
  };
  CHECK(contains(refusal(R"({"milliseconds_per_step": 3})"), "the entry \"loss\" is missing"));
  CHECK(contains(refusal(R"({"loss": 1})"), "the entry \"milliseconds_per_step\" is missing"));
  CHECK(contains(refusal(R"({"loss": "1", "milliseconds_per_step": 3})"), "remove its folder"));
  for (const char* text : {"", "[]", "{\"loss\": 1", "{\"loss\": 1e999}"})
    CHECK(contains(refusal(text), "summary.json: not "));
}

}  // namespace
}  // namespace halftone::test::identity_test

// Folders of runs: the recorded identity, a repetition with the same weights, differences by name;
// and folders that no run has written, refused field by field.

namespace halftone::test::rerun_test {
namespace {

/// A run of five steps in its own folder.
struct Folder {
  TemporaryDirectory directory;
  std::filesystem::path path;
  Json summary;
  explicit Folder(lab::Setup setup = {}) {
    setup.workload = "small", setup.steps = 5;
    std::ostringstream progress;
    lab::run({.cells = lab::read_cells({"amp-bf16"}, setup), .seeds = {3}, .out = directory.path()},
             small(), progress);
    path = directory.path() / "small-amp-bf16-3";
    summary = Json::parse(read_file(path / "summary.json"));
  }
  /// The message for a summary with one changed entry; its beginning is checked.
  std::string refusal(const std::string& pointer, const Json& value) const {
    Json changed = summary;
    if (value.is_discarded()) changed = changed.patch({{{"op", "remove"}, {"path", pointer}}});
    else changed[Json::json_pointer(pointer)] = value;
    write_file(path / "summary.json", changed.dump());
    const std::string message = message_of<FormatError>([&] { lab::read_run("rerun", path); });
    const std::string where = "[rerun] " + (path / "summary.json").string() + ": ";
    CHECK(message.starts_with(where));
    CHECK(message.ends_with("remove its folder, and run it again."));
    return message.size() < where.size() ? "accepted" : message.substr(where.size());
  }
};

TEST_CASE("a run does not write after the log of one that was killed") {
  const TemporaryDirectory directory;
  const std::filesystem::path path = directory / "small-amp-bf16-3", log = path / "metrics.jsonl";
  lab::Study study{.cells = lab::read_cells({"amp-bf16"}, {.workload = "small", .steps = 5}),
                   .seeds = {3},
                   .out = directory.path()};
  std::ostringstream progress;
  std::filesystem::create_directories(path / "checkpoints");
  write_file(log, "{\"step\":1,\"train/loss\":2}\n");
  const std::string message = message_of<UsageError>([&] { lab::run(study, small(), progress); });
  CHECK(contains(message, "[run] an unfinished run has left metrics.jsonl in " + path.string()));
  CHECK(contains(message, "Set .set_aside"));
  CHECK(read_file(log) == "{\"step\":1,\"train/loss\":2}\n");
  study.set_aside = true;
  lab::run(study, small(), progress);
  CHECK(read_file(path / "old-1/metrics.jsonl") == "{\"step\":1,\"train/loss\":2}\n");
  CHECK_FALSE(read_file(log).starts_with("{\"step\":1,\"train/loss\":2}\n"));
  CHECK(std::filesystem::exists(path / "summary.json"));
}

TEST_CASE("a process refuses a job that is damaged, and says where") {
  const TemporaryDirectory directory;
  const std::filesystem::path file = directory / "job.json";
  const auto refusal = [&](std::string_view text) {
    write_file(file, text);
    const std::string message = message_of<FormatError>([&] { lab::run_job(file, small()); });
    CHECK(message.starts_with("[run " + file.string() + "]"));
    return message;
  };
  const std::string setup = R"({"workload": "small", "steps": 5, "lr": 0.1, "optimizer": "sgd",
    "schedule": "constant", "from": "", "probe": 0, "probe_from": 0})";
  const auto job = [&](std::string_view seed, std::string_view threads) {
    return R"({"name": "a", "policy": {}, "setup": )" + setup + R"(, "seed": )" +
           std::string(seed) + R"(, "folder": "f", "threads": )" + std::string(threads) + "}";
  };
  refusal("");
  refusal("[]");
  CHECK(contains(refusal("{}"), "a job has a folder and a policy. Start the command again."));
  CHECK(contains(refusal(job("-1", "1")), "/seed: a seed is a whole number. Write one."));
  CHECK(contains(refusal(job("1", "0")), "/threads"));
  CHECK(contains(refusal(job("1", "1").substr(0, 60)), "JSON"));
}

TEST_CASE("a run's telemetry begins at a step, and an earlier run must have begun there") {
  const TemporaryDirectory directory;
  const lab::Setup setup{.workload = "small", .steps = 6, .probe = 2, .probe_from = 1};
  lab::Study study{
      .cells = lab::read_cells({"amp-bf16"}, setup), .seeds = {3}, .out = directory.path()};
  std::ostringstream progress;
  lab::run(study, small(), progress);
  const std::string lines = read_file(directory / "small-amp-bf16-3/probe.jsonl");
  for (int step = 0; step < 6; ++step)
    CHECK(contains(lines, "\"step\":" + std::to_string(step) + ",") == (step % 2 == 1));
  lab::run(study, small(), progress);
  study.cells[0].setup.probe_from = 0;
  CHECK(contains(message_of<UsageError>([&] { lab::run(study, small(), progress); }),
                 "probe_from: 1 there, 0 here"));
}

TEST_CASE("a run says what it was, and its folder repeats it") {
  const Folder run({.choices = {.lr = 0.03, .optimizer = "sgd", .schedule = "cosine"}, .probe = 2});
  for (const std::string_view field : lab::identity_fields()) {
    CAPTURE(field);
    CHECK(run.summary.contains(std::string(field)));
  }
  CHECK(run.summary["optimizer"]["class"] == "Sgd");
  CHECK(run.summary["optimizer"]["options"]["momentum"] == 0.9);
  CHECK(run.summary["data"]["samples"] == 24);
  CHECK(run.summary["from"].is_null());
  const lab::RecordedRun read = lab::read_run("rerun", run.path);
  CHECK(read.study.cells[0].setup.choices.lr == 0.03);
  CHECK(read.study.seeds == std::vector<uint64_t>{3});
  std::ostringstream progress;
  const lab::RunResult again = lab::run(read.study, small(), progress).at(0);
  CHECK(again.weights_hash == read.said.weights_hash);
  CHECK(lab::differences(read.summary, Json::parse(again.summary)).empty());
}

TEST_CASE("a run reads its policy once, whatever the number of seeds") {
  const TemporaryDirectory directory;
  const std::filesystem::path mine = directory.path() / "mine.json";
  write_file(mine, R"({"halftone_policy": 1, "name": "mine", "extends": "amp-bf16",
                       "rules": [{"match": {"op": "linear"}, "input": "e4m3"}]})");
  std::ostringstream progress;
  const int64_t before = policy::files_read();
  const lab::Study study{
      .cells = lab::read_cells({mine.string()}, {.workload = "small", .steps = 2}),
      .seeds = {3, 4},
      .out = directory / "runs"};
  CHECK(lab::run(study, small(), progress).size() == 2);
  CHECK(policy::files_read() - before == 1);
}

TEST_CASE("a run from an earlier one's state ends elsewhere, and says where it began") {
  const Folder first({.choices = {.optimizer = "sgd"}});
  const Folder later({.choices = {.optimizer = "sgd", .from = first.path}});
  CHECK(later.summary["from"]["hash"].get<std::string>().size() == 16);
  CHECK(later.summary["weights_hash"] != first.summary["weights_hash"]);
  const lab::RecordedRun read = lab::read_run("rerun", later.path);
  CHECK(read.study.cells[0].setup.choices.from == first.path);
  std::ostringstream progress;
  CHECK(lab::run(read.study, small(), progress).at(0).weights_hash == read.said.weights_hash);
}

TEST_CASE("what differs is named, field by field") {
  const Folder run;
  Json other = run.summary;
  other["threads"] = 77, other["processor"] = nullptr, other["data"]["hash"] = "x";
  other["policy"] = "of another name";
  const std::string threads = run.summary["threads"].dump();
  CHECK(lab::differences(other, run.summary) ==
        std::vector<std::string>{
            "data.hash: x there, " + run.summary["data"]["hash"].get<std::string>() + " here",
            "threads: 77 there, " + threads + " here",
            "processor: unknown there, " + run.summary["processor"].get<std::string>() + " here"});
}

TEST_CASE("a hash of data sees every sample, and not how they are batched") {
  manual_seed(1);
  const Tensor x = randn({3000, 2}), y = randn({3000});
  const std::string whole = lab::hash_of(data::TensorDataset(x, y));
  CHECK(whole == lab::hash_of(data::TensorDataset(x.clone(), y.clone())));
  const Tensor other = x.clone();
  other.data<float>()[5999] += 1;
  CHECK(whole != lab::hash_of(data::TensorDataset(other, y)));
}

TEST_CASE("every field of a summary is checked") {
  const Folder run;
  const Json gone(Json::value_t::discarded);
  const auto begins = [&](const char* pointer, const Json& value, const char* message) {
    CAPTURE(pointer);
    CHECK(run.refusal(pointer, value).find(message) == 0);
  };
  begins("/format", 2, "/format: the format is 2, and this program reads 1.");
  begins("/format", gone, "/: the entry \"format\" is missing.");
  begins("/workload", 3, "/workload: expected a text, got a number.");
  begins("/seed", -1, "/seed: expected a whole number from 0");
  begins("/seed", 1.5, "/seed: expected a whole number from 0");
  begins("/steps", 0, "/steps: expected a whole number from 1 to");
  begins("/steps", 1e300, "/steps: expected a whole number from 1 to");
  begins("/lr", 0, "/lr: expected a number above 0, got 0.");
  begins("/lr", "much", "/lr: expected a number, got a text.");
  begins("/optimizer", nullptr, "/optimizer: expected an object.");
  begins("/optimizer/named", "adamx", "/optimizer/named: there is no choice named \"adamx\". Did");
  begins("/schedule/named", Json::array(), "/schedule/named: expected a text, got a list.");
  begins("/from", Json::object(), "/from: the entry \"path\" is missing.");
  begins("/from", Json{{"path", ""}, {"hash", "0"}}, "/from/path: expected a path");
  begins("/from", Json{{"path", "x"}, {"hash", "0"}}, "/from/hash: expected 16 hexadecimal digits");
  begins("/weights_hash", "\x1b[2J",
         "/weights_hash: expected 16 hexadecimal digits, got \"\\x1b[2J\"");
  begins("/policy_hash", true, "/policy_hash: expected a text, got true or false.");
  const auto refusal_of_text = [&](const std::string& text) {
    write_file(run.path / "summary.json", text);
    return message_of<FormatError>([&] { lab::read_run("rerun", run.path); });
  };
  CHECK(refusal_of_text("{\"format\": 1").find("it is not JSON.") != std::string::npos);
  CHECK(refusal_of_text("[]").find("expected an object.") != std::string::npos);
  CHECK(refusal_of_text("{\"seed\": 1, \"seed\": 1}").find("twice") != std::string::npos);
}

TEST_CASE("a damaged folder is refused with a FormatError or read, nothing else") {
  const Folder run;
  std::mt19937 random(5);
  for (const char* name : {"summary.json", "policy.json"}) {
    const std::string whole = read_file(run.path / name);
    int refused = 0;
    for (int i = 0; i < 300; ++i) {
      write_file(run.path / name, mutated(whole, random));
      refused += message_of<FormatError>([&] { lab::read_run("rerun", run.path); }).empty() ? 0 : 1;
    }
    CHECK(refused > 100);
    write_file(run.path / name, whole);
  }
}

TEST_CASE("a folder without a summary, and one with another policy, are errors") {
  const Folder run;
  CHECK(message_of<FormatError>([&] {
          lab::read_run("rerun", run.directory.path());
        }).find("summary.json: the file is missing. Give the folder of a run") !=
        std::string::npos);
  write_file(run.path / "policy.json", R"({"halftone_policy": 1, "name": "p", "extends": "fp32"})");
  CHECK(message_of<FormatError>([&] {
          lab::read_run("rerun", run.path);
        }).find("policy.json: its hash is ") != std::string::npos);
  write_file(run.path / "policy.json", "{");
  CHECK(message_of<FormatError>([&] { lab::read_run("rerun", run.path); }).find("policy.json: ") !=
        std::string::npos);
}

TEST_CASE("choices that do not exist are refused, with the nearest") {
  const auto refusal = [](const lab::Choices& choices) {
    lab::Workload work = lab::make_workload("small", 0, small());
    return message_of<UsageError>([&] { lab::choose(work, choices); });
  };
  CHECK(refusal({.optimizer = "adamv"}).find("Did you mean \"adamw\"?") != std::string::npos);
  CHECK(refusal({.schedule = "cosin"}).find("Did you mean \"cosine\"?") != std::string::npos);
  CHECK(refusal({.lr = -1}).find("[run] the learning rate is -1.") == 0);
  CHECK(refusal({.lr = NAN}).find("[run] the learning rate is nan.") == 0);
  const Folder run;
  CHECK(message_of<UsageError>([&] {
          lab::trained_state(run.path.string() + "x");
        }).find("Did you mean \"small-amp-bf16-3\"?") != std::string::npos);
}

TEST_CASE("every optimizer and schedule of the lists trains") {
  for (const std::string_view name : lab::optimizer_names()) {
    CAPTURE(name);
    std::ostringstream progress;
    const lab::RunResult result =
        lab::run({.cells = lab::read_cells({"fp32"}, {.workload = "small",
                                                      .steps = 2,
                                                      .choices = {.optimizer = std::string(name),
                                                                  .schedule = "warm_up_cosine"}})},
                 small(), progress)
            .at(0);
    CHECK(std::isfinite(result.loss));
  }
  for (const std::string_view name : lab::schedule_names())
    for (const int64_t steps : {1, 2, 50}) {
      lab::Workload work = lab::make_workload("small", 0, small());
      lab::choose(work, {.schedule = std::string(name)});
      const optim::LrSchedule schedule = work.schedule(steps);
      for (int64_t step = 0; step < steps; ++step) {
        CHECK(schedule.at(step) >= 0);
        CHECK(schedule.at(step) <= 1);
      }
    }
}

}  // namespace
}  // namespace halftone::test::rerun_test
