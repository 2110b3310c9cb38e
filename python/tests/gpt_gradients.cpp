// gpt_gradients WEIGHTS.safetensors POLICY.json HEADS OUT.safetensors: the gradients of a GPT under
// a policy, for test_gpt.py. WEIGHTS has the parameters, "tokens" and "targets". Prints the
// resolved policy as JSON.
#include <algorithm>
#include <iostream>

#include <halftone/halftone.h>
#include <halftone/nn/models/gpt.h>
#include <halftone/amp/resolved.h>

namespace ht = halftone;

int main(int argc, char** argv) try {
  if (argc != 5) return 2;
  ht::NamedTensors state = ht::load_safetensors(argv[1]).tensors;
  const ht::Tensor tokens = state.extract("tokens").mapped(),
                   targets = state.extract("targets").mapped();
  const ht::Tensor& words = state.at("transformer.wte.weight");
  int64_t layers = 0;
  while (state.contains("transformer.h." + std::to_string(layers) + ".ln_1.weight")) ++layers;
  ht::nn::models::Gpt model({.vocabulary = words.size(0),
                             .context = state.at("transformer.wpe.weight").size(0),
                             .layers = layers,
                             .heads = std::stoll(argv[3]),
                             .width = words.size(1),
                             .dropout = 0});
  ht::nn::load_state_dict(model, state);
  ht::optim::Sgd sgd(model.parameters(), {.lr = 0.1});
  ht::amp::Training training(ht::policy::watched(ht::policy::read(argv[2])), model, sgd);
  const ht::Tensor logits = training.forward(model, tokens);
  const ht::Tensor loss = ht::cross_entropy(logits.reshape({tokens.numel(), words.size(0)}),
                                            targets.reshape({tokens.numel()}));
  training.backward(loss);
  ht::NamedTensors result{{"logits", logits.detach()}, {"loss", loss.detach()}};
  for (const auto& [name, x] : model.named_parameters()) result["grad." + name] = x.grad();
  ht::save_safetensors(argv[4], result);
  std::cout << ht::policy::resolved_json(ht::policy::session_of(training));
  return 0;
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
