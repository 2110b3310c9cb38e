// kill_resume STRATEGY ROOT STEPS: a training that saves a checkpoint after every step, keeps the
// last two, and goes on from the latest when it is started again. At the end it prints a checksum
// of everything that the training is made of. kill_resume.sh kills it; every_call.sh makes its
// system calls fail.
#include <cstdio>
#include <cstdlib>
#include <string>

#include <zlib.h>

#include <halftone/halftone.h>
#include <halftone/train/train.h>

using namespace halftone;

namespace {
constexpr int64_t samples = 56, batch_size = 8;

uint32_t sum_of(const optim::NamedTensors& state) {
  uLong sum = crc32(0, nullptr, 0);
  for (const auto& [name, x] : state) {
    const Tensor copy = x.clone();
    sum = crc32(sum, reinterpret_cast<const Bytef*>(name.data()), uInt(name.size()));
    sum = crc32(sum, reinterpret_cast<const Bytef*>(copy.raw_data()), uInt(copy.bytes()));
  }
  return uint32_t(sum);
}

int train_all(const std::string& strategy, const std::filesystem::path& root, int64_t steps) {
  manual_seed(1);
  data::DataLoader loader(data::TensorDataset(randn({samples, 16}), randint(0, 5, {samples})),
                          {.batch_size = batch_size, .shuffle = true, .seed = 2});
  nn::Sequential model(nn::Linear(16, 48), nn::Gelu(), nn::Dropout(0.1), nn::Linear(48, 5));
  optim::AdamW adamw(model.parameters(), {.lr = 1e-2});
  amp::Training training = amp::apply(amp::Strategy::named(strategy), model, adamw);
  optim::LrScheduler scheduler(training.optimizer(), optim::LrSchedule::cosine(steps));

  std::filesystem::create_directories(root);
  train::remove_abandoned(root);
  train::keep_last(root, 2);  // a kill may have come between saving and removing
  train::CheckpointState at;
  if (const auto found = train::latest_checkpoint(root)) {
    at = train::load_training(found->path, training, &scheduler);
    loader.resume(at.epoch, at.batches);
    std::fprintf(stderr, "resumed after step %lld\n", static_cast<long long>(at.step));
  }
  while (at.step < steps) {
    for (auto [inputs, targets] : loader) {
      if (at.step == steps) break;
      training.zero_grad();
      const Tensor loss = cross_entropy(training.forward(model, inputs), targets);
      training.backward(loss);
      if (training.step()) scheduler.step();
      ++at.step, ++at.batches;
      at.numbers["loss"] = loss.item();
      train::save_training(root / train::checkpoint_name(at.step), training, at, &scheduler);
      train::keep_last(root, 2);
    }
    ++at.epoch, at.batches = 0;
  }
  std::printf("%08x loss %.9g\n", sum_of(training.state_dict()), at.numbers["loss"]);
  return 0;
}
}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  try {
    return train_all(argv[1], argv[2], std::atoll(argv[3]));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
