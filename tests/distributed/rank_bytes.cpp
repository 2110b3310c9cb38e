// rank_bytes [--measure]: prints the bytes that a rank keeps and sends for each parameter under
// every strategy, with Adam, predicted for 1, 2, 4, 8 and 64 ranks. With --measure the processes
// that mpirun started do a step under each strategy. They compare the ledger with the prediction,
// and the traffic with the table of shards, to the byte. Exit status 1 if one differs.
#include <cstdio>
#include <cstring>
#include <iostream>

#include <halftone/halftone.h>

using namespace halftone;

namespace {
/// width x width weights, and a bias or none.
struct Run {
  nn::Linear model;
  optim::Adam adam;
  explicit Run(int64_t width, bool bias = false)
      : model(width, width, nn::LinearOptions{.bias = bias}),
        adam(model.parameters(), {.lr = 1e-3}) {}
};

double of_parameter(int64_t bytes, nn::Module& model) {
  return double(bytes) / double(model.parameter_count());
}

void print_predictions() {
  constexpr std::array ranks{1, 2, 4, 8, 64};
  std::printf("%-16s", "bytes");
  for (const int n : ranks) std::printf("%10d", n);
  std::printf("   a batch's gradient + weights\n");
  for (const std::string_view name : amp::Policy::names()) {
    const amp::Policy strategy = amp::Policy::named(name);
    Run run(2048);  // 256 cuts of 16384, so that each of 64 ranks has a 64th
    std::printf("%-16s", std::string(name).c_str());
    for (const int n : ranks)
      std::printf(
          "%10.2f",
          of_parameter(amp::predicted_bytes(strategy, run.model, run.adam, n).total(), run.model));
    const auto wire = static_cast<long long>(size_of(strategy.weights));
    std::printf("   %lld + %lld\n", wire, wire);
  }
}

int64_t grown(const MemoryReport& before, const MemoryReport& now,
              std::initializer_list<MemoryUse> uses) {
  int64_t sum = 0;
  for (const MemoryUse use : uses) sum += now.now_of(use) - before.now_of(use);
  return sum;
}

/// The bytes of this rank by the formulas. predicted_bytes() is that of the rank with most.
amp::StrategyBytes expected_of(const amp::Policy& strategy, int64_t elements, int64_t own) {
  const auto& form = facts(strategy.form);
  const int64_t weight = size_of(strategy.weights);
  return {
      .parameter = elements * weight,
      .companion = form.has_companion() ? own * size_of(form.companion_dtype(strategy.weights)) : 0,
      .gradient = own * std::max<int64_t>(weight, 4),
      .optimizer_state = own * 2 * size_of(strategy.state_dtype.value_or(f32).dtype)};
}

bool equal(const std::string& what, int64_t counted, int64_t expected) {
  if (counted == expected) return true;
  std::fprintf(stderr, "rank %d: %s is %lld, and not %lld\n", world().rank(), what.c_str(),
               static_cast<long long>(counted), static_cast<long long>(expected));
  return false;
}

/// For a writer of the state: rank 0 holds the largest sharded tensor whole.
bool measure_writing(const std::string& at, const amp::Training& training) {
  reset_peak_memory();
  int64_t largest = 0;
  training.write_state([&](const TensorSource& source) {
    for (const TensorInfo& info : source.infos) {
      static_cast<void>(source.tensor(info.name));
      if (info.name.starts_with("optimizer.") && !info.name.starts_with("optimizer.param_groups"))
        largest = std::max(largest, info.bytes());
    }
  });
  return equal(at + " while it is written", memory_report().peak_of(MemoryUse::communication),
               largest);
}

/// At the start a rank has the model as it was, or the longer one that it becomes; also at most its
/// own masters, their source, and a few of the largest tensors.
bool measure_start(std::string_view name) {
  constexpr int64_t layers = 24, width = 256, largest = width * width * 4;
  const amp::Policy strategy = amp::Policy::named(name);
  manual_seed(1);
  nn::Sequential model;
  for (int64_t i = 0; i < layers; ++i) model.add(nn::Linear(width, width));
  optim::Adam adam(model.parameters(), {.lr = 1e-3});
  const distributed::Shards shards(model.parameters(), world().size());
  const int64_t elements = model.parameter_count(), own = shards.elements(world().rank());
  const MemoryReport before = memory_report();
  reset_peak_memory();
  const amp::Training training(strategy, model, adam, world(), {});
  const MemoryReport now = memory_report();
  const auto& form = facts(strategy.form);
  const int64_t companion =
                    form.has_companion() ? size_of(form.companion_dtype(strategy.weights)) : 0,
                made_of = companion == 0 || strategy.form == WeightForm::master ? 0 : 4,
                grows = std::max<int64_t>(0, size_of(strategy.weights) - 4),
                most = elements * grows + own * (companion + made_of) + 4 * largest,
                more = now.total_peak - before.total_now;
  if (more <= most) return true;
  std::fprintf(stderr, "rank %d: %s starts with %lld bytes more, and not %lld\n", world().rank(),
               std::string(name).c_str(), static_cast<long long>(more),
               static_cast<long long>(most));
  return false;
}

bool measure(std::string_view name) {
  using Use = MemoryUse;
  const amp::Policy strategy = amp::Policy::named(name);
  const int ranks = world().size(), rank = world().rank();
  const MemoryReport before = memory_report();
  manual_seed(1);
  Run run(1003, true);  // which has no divisor
  const amp::StrategyBytes most = amp::predicted_bytes(strategy, run.model, run.adam, ranks);
  amp::Training training(strategy, run.model, run.adam);
  training.train_together();
  const distributed::Shards shards(training.parameters(), ranks);
  const TrafficReport sent_before = world().traffic();
  constexpr int rounds = 3;
  {
    const Tensor inputs = ones({2, run.model.weight.size(1)});
    training.zero_grad();
    for (int round = 0; round < rounds; ++round)
      training.backward(mean(training.forward(run.model, inputs)) * (1.0 / (rounds * ranks)));
    training.step();
  }
  const MemoryReport now = memory_report();
  const TrafficReport sent = world().traffic();
  const auto sent_of = [&](TrafficUse use) { return sent.sent_of(use) - sent_before.sent_of(use); };
  const int64_t elements = run.model.parameter_count(), own = shards.elements(rank),
                size = size_of(strategy.weights);
  const amp::StrategyBytes expected = expected_of(strategy, elements, own);
  const std::string at(name);
  bool right =
      equal(at + " parameter", grown(before, now, {Use::parameter}), expected.parameter) &
      equal(at + " companion", grown(before, now, {Use::master_weight, Use::compensation}),
            expected.companion) &
      equal(at + " gradient", grown(before, now, {Use::gradient, Use::master_gradient}),
            expected.gradient) &
      equal(at + " optimizer state", grown(before, now, {Use::optimizer_state}),
            expected.optimizer_state) &
      equal(at + " communication", grown(before, now, {Use::communication}), 0) &
      equal(at + " gradients sent", sent_of(TrafficUse::gradient),
            rounds * (elements - own) * size) &
      equal(at + " parameters sent", sent_of(TrafficUse::parameter), own * (ranks - 1) * size);
  right &= measure_writing(at, training);
  int64_t largest = 0;
  for (int r = 0; r < ranks; ++r) largest = std::max(largest, shards.elements(r));
  right &=
      equal(at + " prediction", most.total(), expected_of(strategy, elements, largest).total());
  if (rank == 0)
    std::printf("%-16s%10.4f%10.4f%10.4f%10.4f%10.4f\n", at.c_str(),
                of_parameter(expected.parameter, run.model),
                of_parameter(expected.companion, run.model),
                of_parameter(expected.gradient, run.model),
                of_parameter(expected.optimizer_state, run.model),
                of_parameter(expected.total(), run.model));
  return right;
}
}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc < 2) {
      print_predictions();
      return 0;
    }
    if (std::strcmp(argv[1], "--measure") != 0 || world().size() < 2) {
      std::fprintf(stderr, "mpirun -n 2 rank_bytes --measure\n");
      return 2;
    }
    if (world().rank() == 0)
      std::printf("%-16s%10s%10s%10s%10s%10s\n", "rank 0, measured", "weights", "companion", "sums",
                  "optimizer", "sum");
    bool right = true;
    for (const std::string_view name : amp::Policy::names())
      right &= measure(name) & measure_start(name);
    return distributed::largest(world(), "whether all are right", right ? 0 : 1) == 0 ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
