// Identities of runs: hashes of data and states, differences between two, and results of finished
// runs that are read back.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include <halftone/core/tensor.h>
#include <halftone/lab/identity.h>
#include <halftone/lab/run.h>
#include <halftone/policy/policy_file.h>

#include "lab/runs.h"
#include "support.h"

namespace halftone::test::identity_test {
namespace {

using lab::differences;
using policy::Json;
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
  const Json place = lab::identity_of_place();
  for (const char* field :
       {"version", "commit", "compiler", "backend", "kernels", "threads", "processor"}) {
    CAPTURE(field);
    CHECK(place.contains(field));
    CHECK(std::ranges::find(lab::identity_fields(), field) != lab::identity_fields().end());
  }
  CHECK(place["threads"].get<int>() >= 1);
  CHECK(differences(place, lab::identity_of_place()).empty());
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
    return lab::identity_of_training(work, choices, *optimizer, loader, nullptr, steps);
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
      {"adamw", "AdamW"}, {"adam", "Adam"}, {"sgd", "Sgd"},  {"rmsprop", "Rmsprop"},
      {"lion", "Lion"},   {"lamb", "Lamb"}, {"muon", "Muon"}};
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
    return lab::identity_of_training(chosen, {}, *optimizer, chosen.train(), nullptr,
                                     steps)["schedule"]["hash"];
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
  CHECK(contains(refusal(R"({"milliseconds_per_step": 3})"), "has no number \"loss\""));
  CHECK(contains(refusal(R"({"loss": 1})"), "has no number \"milliseconds_per_step\""));
  CHECK(contains(refusal(R"({"loss": "1", "milliseconds_per_step": 3})"), "Remove the folder"));
  for (const char* text : {"", "[]", "{\"loss\": 1", "{\"loss\": 1e999}"})
    CHECK(contains(refusal(text), "summary.json: not "));
}

}  // namespace
}  // namespace halftone::test::identity_test
