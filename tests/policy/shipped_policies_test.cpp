// The policies in policies/: each matches its description, survives writing, and trains the models
// that it is for, with every rule in use.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include <halftone/amp/training.h>
#include <halftone/autograd/ops.h>
#include <halftone/core/factory.h>
#include <halftone/nn/models/gpt.h>
#include <halftone/nn/models/models.h>
#include <halftone/optim/optimizers.h>
#include <halftone/policy/policy_file.h>
#include <halftone/policy/session.h>

#include "../policies_directory.h"
#include "../support.h"

namespace halftone::test::shipped_policies_test {
namespace {

namespace fs = std::filesystem;
using policy::PolicyFile;

std::vector<fs::path> shipped() {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(policies_directory()))
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  std::ranges::sort(files);
  return files;
}

struct Case {
  std::unique_ptr<nn::Layer> model;
  Tensor inputs, targets;  // classes of the model's last dimension
};

/// The models that files are for, small.
Case make_case(const std::string& name) {
  manual_seed(1);
  if (name == "gpt")
    return {std::make_unique<nn::models::Gpt>(nn::models::GptOptions{
                .vocabulary = 32, .context = 16, .layers = 3, .heads = 2, .width = 32}),
            randint(0, 32, {2, 16}), randint(0, 32, {32})};
  if (name == "lenet")
    return {std::make_unique<nn::models::LeNet>(), randn({4, 1, 28, 28}), randint(0, 10, {4})};
  REQUIRE(name == "mlp");
  return {std::make_unique<nn::Sequential>(nn::models::mlp({48, 64, 64, 10})), randn({8, 48}),
          randint(0, 10, {8})};
}

std::vector<std::string> models_of(const PolicyFile& file) {
  return file.meant_for.empty() ? std::vector<std::string>{"gpt", "mlp", "lenet"} : file.meant_for;
}

double step(amp::Training& training, const Case& c) {
  training.zero_grad();
  Tensor logits = training.forward(*c.model, c.inputs);
  logits = reshape(logits, {c.targets.numel(), logits.size(-1)});
  const Tensor loss = cross_entropy(logits, c.targets);
  training.backward(loss);
  training.step();
  return loss.item();
}

const policy::PolicySession* session_of(const amp::Training& training) {
  amp::Session* session = training.region().session.get();
  return session ? session->of_policy() : nullptr;
}

TEST_CASE("the twelve strategies as files are the strategies") {
  for (const std::string_view name : amp::Strategy::names()) {
    CAPTURE(name);
    PolicyFile file = policy::read(policies_directory() / (std::string(name) + ".json"));
    CHECK(file.base.name == name);
    CHECK_FALSE(file.about.empty());
    CHECK(file.rules.empty());
    CHECK_FALSE(policy::strategy_of(file).session);
    file.about.clear();
    CHECK(policy::write(file) == policy::write({.base = amp::Strategy::named(name)}));
  }
}

TEST_CASE("the published recipes exist") {
  for (const std::string_view name : {"deepseek_v3",
                                      "deepseek_v3_accumulator",
                                      "te_delayed_hybrid",
                                      "te_current",
                                      "mxfp8",
                                      "mxfp6",
                                      "mxfp4",
                                      "mxfp4_backward",
                                      "nvfp4",
                                      "nvfp4_four_over_six",
                                      "quartet2",
                                      "ue5m3",
                                      "quartet",
                                      "fp4_all_the_way",
                                      "jetfire_int8",
                                      "coat",
                                      "tetrajet",
                                      "ms_amp_o2",
                                      "qpytorch_low8",
                                      "bf16_sr_everywhere",
                                      "fp24_master",
                                      "tf32"}) {
    CAPTURE(name);
    const PolicyFile file = policy::read(policies_directory() / (std::string(name) + ".json"));
    std::string as_file = file.base.name;
    std::ranges::replace(as_file, '-', '_');
    CHECK(as_file == name);
    CHECK_FALSE(file.about.empty());
    CHECK_FALSE(file.meant_for.empty());
    CHECK(bool(policy::strategy_of(file).session));
  }
}

TEST_CASE("every installed policy survives writing") {
  CHECK(shipped().size() == 34);
  for (const fs::path& path : shipped()) {
    CAPTURE(path);
    const PolicyFile file = policy::read(path);
    const std::string written = policy::write(file);
    const PolicyFile again = policy::read_text(written, "again");
    CHECK(policy::write(again) == written);
    CHECK(policy::hash(again) == policy::hash(file));
    CHECK(again.rules == file.rules);
    CHECK(policy::write(policy::file_of(policy::strategy_of(file))).size() > 100);
  }
}

TEST_CASE(
    "every installed policy trains the models that it is for, and all of its rules are used") {
  for (const fs::path& path : shipped()) {
    const PolicyFile file = policy::read(path);
    for (const std::string& name : models_of(file)) {
      CAPTURE(path);
      CAPTURE(name);
      Case c = make_case(name);
      optim::AdamW optimizer(c.model->parameters(), {.lr = 1e-3});
      amp::Training training(policy::load(path), *c.model, optimizer);
      CHECK(std::isfinite(step(training, c)));
      CHECK(std::isfinite(step(training, c)));
      CHECK(training.skipped_steps() == 0);
      if (!session_of(training)) continue;
      CHECK_NOTHROW(session_of(training)->require_all_rules_used());
    }
  }
}

TEST_CASE("recipes come near the training that they extend") {
  const auto last_loss = [](const amp::Strategy& strategy) {
    Case c = make_case("gpt");
    optim::AdamW optimizer(c.model->parameters(), {.lr = 3e-3});
    amp::Training training(strategy, *c.model, optimizer);
    double loss = 0;
    for (int i = 0; i < 30; ++i) loss = step(training, c);
    return loss;
  };
  const double reference = last_loss(amp::Strategy::named("amp-bf16"));
  CHECK(reference < 1.2);  // of ln 32 = 3.47
  for (const std::string_view name :
       {"deepseek_v3", "te_delayed_hybrid", "te_current", "mxfp8", "mxfp6", "mxfp4",
        "mxfp4_backward", "nvfp4", "nvfp4_four_over_six", "quartet2", "ue5m3", "fp24_master",
        "quartet", "fp4_all_the_way", "jetfire_int8", "tetrajet", "tf32"}) {
    CAPTURE(name);
    const double loss =
        last_loss(policy::load(policies_directory() / (std::string(name) + ".json")));
    CAPTURE(loss);
    CAPTURE(reference);
    CHECK(std::abs(loss - reference) < 0.1);
  }
}

TEST_CASE("states and weights are on their grids after a step") {
  const auto on_grid = [](const Tensor& x, const NumberFormat& grid) {
    return std::ranges::all_of(x.to(f32).to_vector<float>(), [&](float v) {
      return round_to(grid, v, Rounding::nearest_even) == v;
    });
  };
  Case c = make_case("mlp");
  optim::Sgd optimizer(c.model->parameters(), {.lr = 0.1, .momentum = 0.9});
  amp::Training training(policy::load(policies_directory() / "qpytorch_low8.json"), *c.model,
                         optimizer);
  step(training, c), step(training, c);
  const NumberFormat high = NumberFormat::ieee_like(6, 9), low = NumberFormat::ieee_like(5, 2);
  for (const Tensor& p : optimizer.parameters()) {
    CHECK(on_grid(p, high));
    CHECK_FALSE(on_grid(p, low));
    CHECK(on_grid(p.grad(), low));
  }
  int momenta = 0;
  for (const auto& [name, x] : optimizer.state_dict())
    if (name.ends_with("momentum_buffer")) {
      ++momenta;
      CHECK(on_grid(x, high));
    }
  CHECK(momenta == 6);
}

TEST_CASE("policies in the documents are valid") {
  const TemporaryDirectory folder;
  fs::copy_file(policies_directory() / "mxfp8.json", folder / "mxfp8.json");
  std::vector<PolicyFile> found;
  for (const char* page : {"policy_files.md", "adding_a_policy.md"}) {
    const std::string text = read_file(policies_directory().parent_path() / "docs" / page);
    const std::string begins = "```json\n";
    for (std::size_t at = 0; (at = text.find(begins, at)) != std::string::npos;) {
      at += begins.size();
      write_file(folder / "example.json", text.substr(at, text.find("```", at) - at));
      found.push_back(policy::read(folder / "example.json"));
    }
  }
  REQUIRE(found.size() == 2);
  CHECK(found[0].rules == policy::read(policies_directory() / "te_current.json").rules);
  CHECK(found[1].rules.rules.size() == 2);
}

TEST_CASE("every rule of nvfp4 excludes the last block and the head") {
  Case c = make_case("gpt");
  optim::AdamW optimizer(c.model->parameters());
  amp::Training training(policy::load(policies_directory() / "nvfp4.json"), *c.model, optimizer);
  step(training, c);
  int treated = 0, left = 0;
  for (const policy::ResolvedSite& site : session_of(training)->resolved()) {
    if (site.site.op != "linear") continue;
    const bool inside = site.site.path.starts_with("transformer.h.0.") ||
                        site.site.path.starts_with("transformer.h.1.");
    CAPTURE(site.site.path);
    CHECK(site.treatment->quantizes() == inside);
    ++(inside ? treated : left);
  }
  CHECK(treated == 8);
  CHECK(left == 5);  // four of the last block, and the head
}

TEST_CASE("a rule that matches nothing names the nearest path") {
  Case c = make_case("gpt");
  optim::AdamW optimizer(c.model->parameters());
  const auto message_for = [&](const std::string& rule) {
    amp::Training training(
        policy::parse(R"({"halftone_policy": 1, "name": "p", "rules": [{"name": "head",
        "input": "bf16", )" +
                      rule + "}]}"),
        *c.model, optimizer);
    try {
      step(training, c);
    } catch (const UsageError& error) { return std::string(error.what()); }
    return std::string();
  };
  CHECK(
      message_for(R"("match": {"path": "head.*"})") ==
      "[policy p] rule 0 (\"head\") matches nothing in this model: no operation that it is for has "
      "a path like \"head.*\". The nearest is \"lm_head\". Mark it \"optional\" if that is meant.");
  CHECK(message_for(R"("match": {"path": "lm_head"})").empty());
  CHECK(message_for(R"("match": {"path": "head.*"}, "optional": true)").empty());
  CHECK_FALSE(message_for(R"("match": {"path": "lm_head", "op": "matmul"})").empty());
}

}  // namespace
}  // namespace halftone::test::shipped_policies_test
