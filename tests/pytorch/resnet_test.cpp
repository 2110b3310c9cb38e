// Residual networks: names, dtypes and shapes are torchvision's (fixtures/resnet_names.json, which
// tests/fixtures/pytorch/resnet_names.py writes), the numbers PyTorch's.
#include <cstdlib>
#include <fstream>

#include <nlohmann/json.hpp>

#include <halftone/nn/models/models.h>

#include "whole_model.h"

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
