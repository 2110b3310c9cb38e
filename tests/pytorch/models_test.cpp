// Whole models against PyTorch: weights loaded by name, the logits of one batch, and the losses and
// gradient norms of ten training steps with AdamW on the same batches, in f32, on every CPU
// backend.
#include <cstdlib>
#include <fstream>

#include <nlohmann/json.hpp>

#include <halftone/halftone.h>

#include "../support.h"
#include "fixture.h"

namespace halftone::test::models_test {
namespace {

// Two f32 trainings diverge slowly: each step adds to the last one's rounding errors.
constexpr double relative_tolerance = 1e-4;

/// Images are stored as bytes.
Tensor batch(const NamedTensors& stored, int64_t step) {
  return cast(select(stored.at("x"), 0, step), f32) / 256;
}

void compare_training(const std::map<std::string, NamedTensors>& cases, const std::string& name,
                      nn::Layer& model, double lr) {
  const NamedTensors& stored = cases.at(name);
  const nn::LoadReport report = nn::load_state_dict(model, cases.at(name + "/state"));
  CHECK(report.missing.empty());
  CHECK(report.unexpected.empty());

  const Tensor logits = stored.at("logits"), logits_after = stored.at("logits_after");
  CHECK(difference(model(batch(stored, 0)), logits,
                   relative_tolerance * largest_magnitude(logits)) == "");
  const std::vector<double> losses = stored.at("losses").to_vector<double>(),
                            norms = stored.at("norms").to_vector<double>();
  optim::AdamW optimizer(model.parameters(), {.lr = lr});
  for (std::size_t step = 0; step < losses.size(); ++step) {
    CAPTURE(step);
    const Tensor targets = select(stored.at("t"), 0, int64_t(step));
    const Tensor loss = cross_entropy(model(batch(stored, int64_t(step))), targets);
    optimizer.zero_grad();
    loss.backward();
    const Tensor total = optim::clip_grad_norm(model.parameters(), facts(f32).max);
    optimizer.step();
    CHECK(std::abs(loss.item() - losses[step]) <= relative_tolerance * losses[step]);
    CHECK(std::abs(total.item() - norms[step]) <= relative_tolerance * norms[step]);
  }
  // Adam divides by the root of a gradient's square: if a gradient is only rounding error, its step
  // is as well.
  CHECK(difference(model(batch(stored, 0)), logits_after,
                   10 * relative_tolerance * largest_magnitude(logits_after)) == "");
}

}  // namespace

TEST_CASE("pytorch: training of models") {
  const auto cases = load_cases("model");
  for (const std::string_view backend : {"reference", "cpu"}) {
    const CpuBackendScope scope(backend);
    CAPTURE(backend);
    nn::Sequential mlp = nn::models::mlp({20, 64, 32, 10});
    compare_training(cases, "mlp", mlp, 1e-2);
    nn::models::LeNet lenet;
    compare_training(cases, "lenet", lenet, 1e-3);
  }
}

}  // namespace halftone::test::models_test

// GPT-2 against Hugging Face's transformers on PyTorch: the file that the library saved, its logits
// in f32 and bf16, and the losses of 20 steps of AdamW in f32 and under autocast
// (tests/fixtures/pytorch/gpt_fixtures.py).

namespace halftone::test::gpt_test {
namespace {
std::filesystem::path fixture(const char* name) {
  return std::filesystem::path(fixtures_directory()) / name;
}
nn::models::Gpt loaded() {
  nn::models::Gpt model({.vocabulary = 65, .context = 32, .layers = 2, .heads = 4, .width = 32});
  const nn::LoadReport report = nn::models::load_gpt2(model, fixture("gpt2_weights.safetensors"));
  CHECK(report.missing.empty());
  return model;
}
/// tokens [batch, length + 1] without the last, and without the first.
std::pair<Tensor, Tensor> inputs_and_targets(const Tensor& tokens) {
  const int64_t length = tokens.size(1);
  return {slice(tokens, 1, 0, length - 1), slice(tokens, 1, 1, length)};
}
}  // namespace

TEST_CASE("pytorch: logits of a GPT-2") {
  const NamedTensors stored = nn::load_safetensors(fixture("gpt2.safetensors")).tensors;
  const auto [inputs, targets] = inputs_and_targets(select(stored.at("tokens"), 0, 0));
  for (const std::string_view backend : {"reference", "cpu"}) {
    const CpuBackendScope scope(backend);
    CAPTURE(backend);
    nn::models::Gpt model = loaded();
    const NoGrad no_grad;
    const Tensor logits = stored.at("logits");
    CHECK(difference(model(inputs), logits, 1e-4 * largest_magnitude(logits)) == "");
    model.to(bf16);
    // PyTorch's bf16 logits have one rounding history, halftone's another: both are near the f32
    // ones.
    const double allowed = tolerance(bf16, 4, largest_magnitude(logits));
    CHECK(difference(model(inputs), stored.at("logits_bf16"), allowed) == "");
  }
}

TEST_CASE("pytorch: training of a GPT-2") {
  const NamedTensors stored = nn::load_safetensors(fixture("gpt2.safetensors")).tensors;
  struct Mode {
    const char *strategy, *losses;
    double allowed;
  };
  for (const Mode& mode :
       {Mode{"fp32", "losses", 1e-3}, Mode{"amp-bf16", "losses_autocast", 2e-2}}) {
    CAPTURE(mode.strategy);
    nn::models::Gpt model = loaded();
    optim::AdamW optimizer(model.parameters(), {.lr = 1e-3});
    auto training = amp::apply(amp::Policy::named(mode.strategy), model, optimizer);
    const std::vector<double> losses = stored.at(mode.losses).to_vector<double>();
    for (std::size_t step = 0; step < losses.size(); ++step) {
      CAPTURE(step);
      const auto [inputs, targets] =
          inputs_and_targets(select(stored.at("tokens"), 0, int64_t(step)));
      const Tensor logits = training.forward(model, inputs);
      const Tensor loss = cross_entropy(flatten(logits, 0, 1), flatten(targets));
      training.zero_grad();
      training.backward(loss);
      training.step();
      CHECK(std::abs(loss.item() - losses[step]) <= mode.allowed * losses[step]);
    }
  }
}

TEST_CASE("GPT: files that Hugging Face's transformers loads") {
  nn::models::Gpt model = loaded();
  const TemporaryDirectory directory;
  nn::models::save_gpt2(model, directory / "folder");
  const nn::SafetensorsFile ours = nn::load_safetensors(directory / "folder/model.safetensors");
  const nn::SafetensorsFile theirs = nn::load_safetensors(fixture("gpt2_weights.safetensors"));
  CHECK(ours.metadata == theirs.metadata);
  REQUIRE(ours.tensors.size() == theirs.tensors.size());
  for (const auto& [name, x] : theirs.tensors) {
    CAPTURE(name);
    REQUIRE(ours.tensors.contains(name));
    CHECK(ours.tensors.at(name).shape() == x.shape());
    CHECK(ours.tensors.at(name).to_vector<float>() == x.to_vector<float>());
  }
  const auto config_in = [&](const char* folder) {
    std::ifstream config(directory / folder / "config.json");
    return nlohmann::json::parse(config);
  };
  const nlohmann::json read = config_in("folder");
  CHECK(read.at("n_embd") == 32);
  CHECK(read.at("vocab_size") == 65);
  // The end of a text is a token of GPT-2's vocabulary; a smaller one has none.
  const nn::models::Gpt whole(
      {.vocabulary = 50257, .context = 2, .layers = 1, .heads = 1, .width = 2});
  nn::models::save_gpt2(whole, directory / "whole");
  for (const char* end : {"bos_token_id", "eos_token_id"}) {
    CHECK(read.at(end).is_null());
    CHECK(config_in("whole").at(end) == 50256);
  }
  nn::models::save_gpt2(model, directory / "alone.safetensors");
  nn::models::Gpt other({.vocabulary = 65, .context = 32, .layers = 2, .heads = 4, .width = 32});
  CHECK(nn::models::load_gpt2(other, directory / "alone.safetensors").missing.empty());
  const Tensor tokens = randint(0, 65, {2, 7});
  CHECK(model(tokens).to_vector<float>() == other(tokens).to_vector<float>());
  if (const char* folder = std::getenv("HALFTONE_SAVE_MODELS")) {  // for check_saved_models.py
    const std::filesystem::path to = std::filesystem::path(folder) / "gpt2";
    const NoGrad no_grad;
    nn::models::save_gpt2(model, to);
    nn::save_safetensors(to / "logits.safetensors",
                         {{"tokens", tokens}, {"logits", model(tokens)}});
  }
}

TEST_CASE("an output layer of its own is refused: this model ties it to the embedding") {
  const TemporaryDirectory directory;
  NamedTensors file = nn::load_safetensors(fixture("gpt2_weights.safetensors")).tensors;
  const std::string embedding =
      file.contains("wte.weight") ? "wte.weight" : "transformer.wte.weight";
  const auto load = [&] {
    nn::save_safetensors(directory / "gpt2.safetensors", file);
    nn::models::Gpt model({.vocabulary = 65, .context = 32, .layers = 2, .heads = 4, .width = 32});
    nn::models::load_gpt2(model, directory / "gpt2.safetensors");
  };
  file["lm_head.weight"] = file.at(embedding).clone();
  load();
  file["lm_head.weight"] = randn(file.at(embedding).shape());
  CHECK(contains(message_of<UsageError>(load), "lm_head.weight (transformer.wte.weight)"));
  file.erase("lm_head.weight");
  const std::string other =
      embedding.starts_with("transformer.") ? embedding.substr(12) : "transformer." + embedding;
  file[other] = file.at(embedding).clone();
  CHECK(contains(message_of<FormatError>(load), "Remove one of the two"));
}

TEST_CASE("GPT: errors have the file's path and names") {
  const TemporaryDirectory directory;
  const std::filesystem::path path = directory / "gpt2.safetensors";
  NamedTensors file;
  for (const auto& [name, x] : nn::load_safetensors(fixture("gpt2_weights.safetensors")).tensors)
    file[name.starts_with("transformer.") ? name.substr(12) : name] = x;
  nn::models::Gpt model({.vocabulary = 65, .context = 32, .layers = 2, .heads = 4, .width = 32});
  const auto message = [&](const NamedTensors& tensors, nn::LoadOptions options = {}) {
    nn::save_safetensors(path, tensors);
    return message_of<UsageError>([&] { nn::models::load_gpt2(model, path, options); });
  };
  CHECK(message(file).empty());
  NamedTensors less = file, prefixed;
  less.erase("h.0.ln_1.bias"), less["h.0.ln_1.extra"] = ones({1});
  CHECK(contains(message(less), path.string() + " does not fit the module: Missing: h.0.ln_1.bias. "
                                                "Unexpected: h.0.ln_1.extra."));
  for (const auto& [name, x] : file) prefixed["model.transformer." + name] = x;
  CHECK(contains(message(prefixed), "pass .strip_prefix = \"model.transformer.\""));
  CHECK(message(prefixed, {.strip_prefix = "model.transformer."}).empty());
  CHECK(message(prefixed, {.strip_prefix = "model."}).empty());
}

TEST_CASE("GPT: sizes, ties and files") {
  const nn::models::Gpt character(
      {.vocabulary = 65, .context = 256, .layers = 6, .heads = 6, .width = 384});
  CHECK(character.parameter_count() == 10770816);
  nn::models::Gpt model = loaded();
  const NamedTensors state = nn::state_dict(model);
  CHECK(state.at("lm_head.weight").body() == state.at("transformer.wte.weight").body());
  CHECK(state.contains("transformer.h.1.mlp.c_proj.bias"));
  // Files that halftone saves have linear weights and all names, and load the same way.
  const TemporaryDirectory directory;
  nn::save(model, directory / "saved.safetensors");
  nn::models::Gpt other({.vocabulary = 65, .context = 32, .layers = 2, .heads = 4, .width = 32});
  nn::models::load_gpt2(other, directory / "saved.safetensors");
  const Tensor tokens = randint(0, 65, {2, 7});
  CHECK(model(tokens).to_vector<float>() == other(tokens).to_vector<float>());
  // Weights of another size are refused, and nothing changes.
  nn::models::Gpt wider({.vocabulary = 65, .context = 32, .layers = 2, .heads = 4, .width = 64});
  CHECK_THROWS_AS(nn::models::load_gpt2(wider, directory / "saved.safetensors"), ShapeError);
  CHECK_THROWS_WITH_AS(model(randint(0, 65, {1, 33})),
                       "[Gpt] the tokens are [1, 33]. They must be [n, l], l at most the context "
                       "32.",
                       ShapeError);
  CHECK_THROWS_WITH_AS(nn::models::Gpt({.layers = 0}), "[Gpt] layers is 0. Use 1 or more.",
                       UsageError);
  CHECK_THROWS_AS(nn::models::Gpt({.heads = 5, .width = 768}), ShapeError);
}

}  // namespace halftone::test::gpt_test

// Residual networks: names, dtypes and shapes are torchvision's (fixtures/resnet_names.json, which
// tests/fixtures/pytorch/resnet_names.py writes), the numbers PyTorch's.

namespace halftone::test::resnet_test {

using namespace halftone::nn::models;

namespace {

struct Named {
  const char* name;
  ResNet (*make)(ResNetOptions);
};
const Named networks[]{{"resnet18", resnet18}, {"resnet34", resnet34}, {"resnet50", resnet50}};

nlohmann::json names_and_shapes(const nn::Module& module) {
  nlohmann::json table = nlohmann::json::object();
  for (const auto& [name, x] : nn::state_dict(module)) {
    std::ostringstream text;
    text << facts(x.dtype()).name << ' ' << x.shape();
    table[name] = text.str();
  }
  return table;
}

/// Writes the weights and their logits, which resnet_names.py loads with strict=True.
void save_with_logits(const std::filesystem::path& folder, const std::string& name, ResNet& model) {
  const Tensor x = rand({2, 3, 64, 64});
  model(x);  // changes the running statistics
  model.eval();
  const NoGrad no_grad;
  nn::save(model, folder / (name + ".safetensors"));
  nn::save_safetensors(folder / (name + "_logits.safetensors"), {{"x", x}, {"logits", model(x)}});
}

}  // namespace

TEST_CASE("pytorch: residual networks have torchvision's names, shapes and dtypes") {
  std::ifstream file(fixtures_directory() + "/resnet_names.json");
  const nlohmann::json wanted = nlohmann::json::parse(file);
  for (const Named& network : networks) {
    CAPTURE(network.name);
    ResNet model = network.make({});
    CHECK(names_and_shapes(model) == wanted.at(network.name));
    if (const char* folder = std::getenv("HALFTONE_SAVE_MODELS"))
      save_with_logits(folder, network.name, model);
  }
}

TEST_CASE("pytorch: residual networks, logits and training") {
  const auto cases = load_cases("resnet");
  for (const std::string_view backend : {"reference", "cpu"}) {
    const CpuBackendScope scope(backend);
    CAPTURE(backend);
    ResNet small = resnet18({.classes = 10, .width = 8, .cifar_stem = true});
    compare_whole_model(cases, "resnet18", small, {.lr = 2e-4, .depth = 18});
    ResNet deep = resnet50({.classes = 7, .width = 4});
    compare_whole_model(cases, "resnet50", deep, {.lr = 1e-4, .depth = 50});
  }
}

}  // namespace halftone::test::resnet_test

// U-Net, the LSTM classifier and the vision transformer against the same models in PyTorch
// (tests/fixtures/pytorch/model_layers.py).

namespace halftone::test::small_models_test {

using namespace halftone::nn::models;

TEST_CASE("pytorch: U-Net, logits and training") {
  const auto cases = load_cases("unet");
  for (const std::string_view backend : {"reference", "cpu"}) {
    const CpuBackendScope scope(backend);
    CAPTURE(backend);
    for (const bool transposed : {true, false}) {
      UNet model({.classes = 3, .width = 8, .depth = 2, .transposed = transposed});
      compare_whole_model(cases, transposed ? "transposed" : "bilinear", model,
                          {.lr = 1e-3, .depth = 13});
    }
  }
}

TEST_CASE("pytorch: the LSTM classifier, logits and training") {
  const auto cases = load_cases("lstm_classifier");
  for (const std::string_view backend : {"reference", "cpu"}) {
    const CpuBackendScope scope(backend);
    CAPTURE(backend);
    LstmClassifier plain(20, {.classes = 4, .width = 16, .hidden = 24});
    compare_whole_model(cases, "plain", plain, {.lr = 1e-2, .depth = 12});  // steps in time
    LstmClassifier deep(
        20, {.classes = 4, .width = 16, .hidden = 24, .layers = 2, .bidirectional = true});
    compare_whole_model(cases, "deep", deep, {.lr = 1e-2, .depth = 24});
  }
}

TEST_CASE("pytorch: the vision transformer, logits and training") {
  const auto cases = load_cases("vit");
  for (const std::string_view backend : {"reference", "cpu"}) {
    const CpuBackendScope scope(backend);
    CAPTURE(backend);
    Vit model({.classes = 4, .image = 16, .patch = 4, .layers = 2, .heads = 2, .width = 16});
    compare_whole_model(cases, "vit", model, {.lr = 1e-3, .depth = 11});
  }
}

}  // namespace halftone::test::small_models_test
