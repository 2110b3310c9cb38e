// kill_resume STRATEGY DIRECTORY STEPS: a Trainer that saves a checkpoint after every step, keeps
// the last two, and resumes from the latest when it is started again. At the end it prints a
// checksum of the whole state of the training. kill_resume.sh kills it; every_call.sh makes its
// system calls fail.
#include <cstdio>
#include <cstdlib>
#include <string>

#include <zlib.h>

#include <halftone/halftone.h>

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

/// Prints where it resumes.
struct Announcement final : train::Callback {
  void on_fit_start(train::Trainer& trainer) override {
    if (const int64_t step = trainer.position().step; step > 0)
      std::fprintf(stderr, "resumed after step %lld\n", static_cast<long long>(step));
  }
};

int train_all(const std::string& strategy, const std::filesystem::path& directory, int64_t steps) {
  manual_seed(1);
  const data::DataLoader loader(data::TensorDataset(randn({samples, 16}), randint(0, 5, {samples})),
                                {.batch_size = batch_size, .shuffle = true, .seed = 2});
  nn::Sequential model(nn::Linear(16, 48), nn::Gelu(), nn::Dropout(0.1), nn::Linear(48, 5));
  optim::AdamW adamw(model.parameters(), {.lr = 1e-2});
  train::Trainer trainer(train::classification(model), adamw,
                         {.precision = strategy,
                          .max_steps = steps,
                          .schedule = [](int64_t n) { return optim::LrSchedule::cosine(n); },
                          .deterministic = true,
                          .directory = directory,
                          .checkpoints = {.every_steps = 1, .keep_last = 2},
                          .resume = true,
                          .json_lines = true,
                          .log_every_steps = 1,
                          .progress_bar = false,
                          .model_summary = false,
                          .callbacks = {std::make_shared<Announcement>()}});
  trainer.fit(loader);
  std::printf("%08x loss %.9g\n", sum_of(trainer.training().state_dict()),
              trainer.metric("train/loss"));
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
