// A user's program that has all commands of halftone-lab, with another model.
#include <halftone/halftone.h>
#include <halftone/lab/lab.h>

namespace ht = halftone;

int main(int argc, char** argv) {
  return ht::lab::main(
      argc, argv,
      {.name = "mine", .about = "four numbers to one of three classes", .make = [](uint64_t seed) {
         auto model = std::make_unique<ht::nn::Sequential>(ht::nn::models::mlp({4, 16, 3}));
         const ht::data::TensorDataset data(ht::randn({256, 4}), ht::randint(0, 3, {256}));
         return ht::lab::Workload{
             .task = ht::train::classification(*model),
             .model = std::move(model),
             .train =
                 [=] {
                   return ht::data::DataLoader(data,
                                               {.batch_size = 32, .shuffle = true, .seed = seed});
                 },
             .validation = [=] { return ht::data::DataLoader(data, {.batch_size = 64}); }};
       }});
}
