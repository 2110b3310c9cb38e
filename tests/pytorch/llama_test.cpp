// Decoders against Hugging Face's transformers on PyTorch: the folders that the library saved,
// their logits, gradients and greedy texts (tests/fixtures/pytorch/llama_fixtures.py).
#include <fstream>

#include <nlohmann/json.hpp>

#include "fixture.h"

namespace halftone::test::llama_test {
namespace {

using namespace halftone::nn::models;

constexpr const char* names[] = {"llama", "llama_bias", "qwen2", "qwen3", "mixtral", "qwen3_moe"};

std::filesystem::path folder(const std::string& name) {
  return std::filesystem::path(fixtures_directory()) / "llama" / name;
}
Llama loaded(const std::string& name) {
  Llama model = load_llama(folder(name));
  model.to(f32);
  return model;
}
double allowed(const Tensor& expected) { return 1e-5 * std::max(1.0, largest_magnitude(expected)); }

/// The first five tokens of each text.
TokenTexts prompts_of(const Tensor& tokens) {
  TokenTexts prompts;
  for (int64_t i = 0; i < tokens.size(0); ++i)
    prompts.push_back(slice(select(tokens, 0, i), 0, 0, 5).to_vector<int64_t>());
  return prompts;
}

nlohmann::json read_json(const std::filesystem::path& path) {
  std::ifstream file(path);
  return nlohmann::json::parse(file);
}
void write_json(const std::filesystem::path& path, const nlohmann::json& json) {
  std::ofstream(path) << json.dump();
}

/// The tensors of all .safetensors files of a folder.
NamedTensors tensors_in(const std::filesystem::path& path) {
  NamedTensors all;
  for (const auto& entry : std::filesystem::directory_iterator(path))
    if (entry.path().extension() == ".safetensors")
      all.merge(nn::load_safetensors(entry.path()).tensors);
  return all;
}

}  // namespace

TEST_CASE("pytorch: logits and gradients of decoders") {
  const auto cases = load_cases("llama");
  for (const std::string name : names)
    for (const std::string backend : {"reference", "cpu"}) {
      CAPTURE(name);
      CAPTURE(backend);
      const CpuBackendScope scope(backend);
      const NamedTensors& stored = cases.at(name);
      const Llama model = loaded(name);
      const Tensor tokens = stored.at("tokens");
      Tensor logits, loss;
      if (stored.contains("balance")) {
        const Llama::Balanced out = model.with_balance(tokens);
        CHECK(std::abs(out.balance.item() - stored.at("balance").item()) <= 1e-5);
        logits = out.logits, loss = out.balance * 0.1;
      } else {
        logits = model(tokens);
      }
      CHECK(difference(logits, stored.at("logits"), allowed(stored.at("logits"))) == "");
      const Tensor own =
          cross_entropy(flatten(slice(logits, 1, 0, 19), 0, 1), flatten(slice(tokens, 1, 1, 20)));
      (loss.defined() ? own + loss : own).backward();
      std::size_t compared = 0;
      for (const auto& [parameter, x] : model.named_parameters()) {
        CAPTURE(parameter);
        const Tensor expected = stored.at("d." + parameter);
        CHECK(difference(x.grad(), expected, allowed(expected)) == "");
        ++compared;
      }
      CHECK(compared > 15);
    }
}

TEST_CASE("pytorch: greedy texts of decoders") {
  const auto cases = load_cases("llama");
  for (const std::string name : names) {
    CAPTURE(name);
    const NamedTensors& stored = cases.at(name);
    const TokenTexts prompts = prompts_of(stored.at("tokens"));
    const TokenTexts texts = generate(loaded(name), prompts, {.max_tokens = 12});
    REQUIRE(texts.size() == 2);
    for (std::size_t i = 0; i < 2; ++i)
      CHECK(texts[i] == select(stored.at("greedy"), 0, int64_t(i)).to_vector<int64_t>());
  }
}

TEST_CASE("decoders: the files that halftone writes are those that it read") {
  for (const std::string name : names) {
    CAPTURE(name);
    const Llama model = load_llama(folder(name));
    const NamedTensors theirs = tensors_in(folder(name));
    const TemporaryDirectory directory;
    for (const int64_t largest : {int64_t(10'000), int64_t(1) << 30}) {  // several files, one
      save_llama(model, directory / "saved", largest);
      const bool several = largest == 10'000;
      CHECK(std::filesystem::exists(directory / "saved/model.safetensors.index.json") == several);
      if (!several)
        for (const auto& entry : std::filesystem::directory_iterator(directory / "saved"))
          if (entry.path().filename().string().starts_with("model-")) remove(entry.path());
      const NamedTensors ours = tensors_in(directory / "saved");
      REQUIRE(ours.size() == theirs.size());
      for (const auto& [key, x] : theirs) {
        CAPTURE(key);
        REQUIRE(ours.contains(key));
        CHECK(ours.at(key).dtype() == x.dtype());
        CHECK(ours.at(key).shape() == x.shape());
        CHECK(same_values(ours.at(key), x));
      }
      const Llama again = load_llama(directory / "saved");
      const Tensor tokens = randint(0, 40, {1, 9});
      CHECK(again(tokens).to_vector<float>() == model(tokens).to_vector<float>());
      CHECK(again.options.window == model.options.window);
    }
    if (const char* to = std::getenv("HALFTONE_SAVE_MODELS")) {  // for check_saved_models.py
      const std::filesystem::path saved = std::filesystem::path(to) / name;
      const NoGrad no_grad;
      const Tensor tokens = randint(0, 40, {2, 20});
      save_llama(model, saved, 30'000);
      const Llama wide = loaded(name);
      nn::save_safetensors(saved / "logits.st", {{"tokens", tokens}, {"logits", wide(tokens)}});
    }
  }
}

TEST_CASE("decoders: the random numbers of a program do not depend on a load") {
  manual_seed(4);
  const double expected = rand({1}).item();
  manual_seed(4);
  load_llama(folder("llama"));
  CHECK(rand({1}).item() == expected);
}

namespace {
/// A copy of a folder whose config.json has other entries.
struct Changed {
  TemporaryDirectory directory{};
  nlohmann::json config;

  explicit Changed(const char* name) : config(read_json(folder(name) / "config.json")) {
    std::filesystem::copy(folder(name), directory / "model");
  }
  std::filesystem::path path() const { return directory / "model"; }
  template <class Kind> std::string message(const nlohmann::json& with) const {
    nlohmann::json changed = config;
    changed.update(with);
    write_json(path() / "config.json", changed);
    return message_of<Kind>([&] { load_llama(path()); });
  }
};
}  // namespace

TEST_CASE("decoders: older names of entries, and configurations that are refused by name") {
  const Changed llama("llama");
  const auto refused = [&](const nlohmann::json& with) {
    return llama.message<UnsupportedError>(with);
  };
  CHECK(refused({{"rope_parameters", nullptr}}) == "");
  const nlohmann::json older{{"rope_parameters", nullptr},
                             {"rope_theta", 500},
                             {"rope_scaling", llama.config.at("rope_parameters")}};
  CHECK(refused(older) == "");
  CHECK(load_llama(llama.path()).options.rope.scaling.factor == 4);
  CHECK(refused({{"model_type", "gemma3"}}) ==
        "[load_llama] config.json, /model_type: \"gemma3\" is a configuration that this model "
        "cannot be. It can be llama, mistral, qwen2, qwen3, mixtral or qwen3_moe.");
  for (const nlohmann::json& with : std::vector<nlohmann::json>{
           {{"hidden_act", "gelu"}},
           {{"mlp_bias", true}},
           {{"attention_dropout", 0.1}},
           {{"quantization_config", {{"bits", 4}}}},
           {{"partial_rotary_factor", 0.5}},
           {{"rope_parameters", {{"rope_type", "yarn"}, {"factor", 4.0}}}}}) {
    const std::string entry = with.begin().key();
    CAPTURE(entry);
    CHECK(contains(refused(with), "/" + entry));
  }
  CHECK(contains(Changed("qwen3_moe").message<UnsupportedError>({{"decoder_sparse_step", 2}}),
                 "/decoder_sparse_step: 2"));
  CHECK(contains(Changed("qwen2").message<UnsupportedError>(
                     {{"layer_types", {"sliding_attention", "sliding_attention"}}}),
                 "/layer_types"));
}

TEST_CASE("decoders: files that do not fit their configuration") {
  const Changed llama("llama");
  CHECK(contains(llama.message<FormatError>({{"vocab_size", "many"}}), "/vocab_size"));
  CHECK(contains(llama.message<FormatError>({{"hidden_size", nullptr}}),
                 "the entry \"hidden_size\" is missing"));
  CHECK(contains(llama.message<ShapeError>({{"vocab_size", 41}}), "[40, 24]"));
  CHECK(contains(llama.message<UsageError>({{"num_hidden_layers", 3}}),
                 "Missing: model.layers.2.input_layernorm.weight"));
  CHECK(contains(llama.message<UsageError>({{"num_hidden_layers", 1}}),
                 "Unexpected: model.layers.1.input_layernorm.weight"));
  CHECK(contains(llama.message<UsageError>({{"tie_word_embeddings", true}}),
                 "has an lm_head.weight that is not the embedding"));
  const Changed shards("qwen2");
  nlohmann::json index = read_json(shards.path() / "model.safetensors.index.json");
  for (const char* file : {"../model.safetensors", "", "a/b"}) {
    index["weight_map"]["lm_head.weight"] = file;
    write_json(shards.path() / "model.safetensors.index.json", index);
    CHECK_THROWS_AS(load_llama(shards.path()), FormatError);
  }
  std::ofstream(shards.path() / "model.safetensors.index.json") << "{\"weight_map\": [";
  CHECK_THROWS_AS(load_llama(shards.path()), FormatError);
  CHECK_THROWS_AS(load_llama(shards.path() / "nowhere"), FormatError);
  CHECK_THROWS_WITH_AS(
      save_llama(Llama({.vocabulary = 8,
                        .layers = 1,
                        .width = 8,
                        .heads = 2,
                        .key_heads = 1,
                        .hidden = 8,
                        .rope = {.interleaved = true}}),
                 shards.path()),
      "[save_llama] Hugging Face's transformers has no model type with these options. The nearest "
      "one is llama. Use nn::save(), or change the options.",
      UnsupportedError);
}

}  // namespace halftone::test::llama_test
