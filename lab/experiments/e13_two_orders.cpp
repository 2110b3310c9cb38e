// E13. gpt_tiny (lab/workload.h) after 200 steps in f32, asked twice for its predictions: with the
// sums of products as they are, and with sums that start anew every 32 terms. Both are f32; they
// differ as two kernels of two programs do, one of which draws samples and the other one trains.
#include <cmath>

#include <halftone/lab/experiments/experiments.h>
#include <halftone/lab/setting.h>
#include <halftone/lab/table.h>
#include <halftone/lab/workload.h>
#include <halftone/train/task_steps.h>

namespace halftone::lab {
namespace {

constexpr int64_t steps = 200;

Workload trained() {
  Workload workload = make_workload("gpt_tiny", 13);
  const std::unique_ptr<optim::Optimizer> optimizer = optimizer_of(workload);
  amp::Training training(policy_of("f32", "fp32", ""), *workload.model, *optimizer);
  const optim::LrSchedule schedule = workload.schedule(steps);
  data::DataLoader loader = workload.train();
  int64_t step = 0;
  for (const data::Batch& batch : loader) {
    optimizer->set_lr(workload.lr * schedule.at(step));
    training.zero_grad();
    training.backward(loss_of(workload, training, batch));
    training.clip_grad_norm(workload.clip_norm);
    training.step();
    if (++step == steps) break;
  }
  return workload;
}

/// Logarithms of probabilities, f64 [tokens, characters].
Tensor predictions(const Workload& workload, const data::Batch& batch, const char* extends,
                   const std::string& rules) {
  optim::Sgd sgd(workload.model->parameters(), {.lr = 0});
  amp::Training training(policy_of("evaluation", extends, rules), *workload.model, sgd);
  const NoGrad no_grad;
  const Tensor logits = train::outputs_of(workload.task, training, batch);
  return log_softmax(cast(flatten(logits, 0, 1), f64), -1);
}

struct Mismatch {
  double divergence = 0;  // KL, mean over tokens
  double largest = 0;     // difference of a logarithm
  double top = 0;         // share of tokens whose most probable successor differs
};

Mismatch mismatch(const Tensor& a, const Tensor& b) {
  const int64_t tokens = a.size(0);
  return {.divergence = (sum(exp(a) * (a - b)) / double(tokens)).item(),
          .largest = max(abs(a - b)).item(),
          .top = mean(cast(argmax(a, 1) != argmax(b, 1), f64)).item()};
}

void run(Findings& found) {
  const Workload workload = trained();
  data::DataLoader loader = workload.validation();
  const data::Batch batch = *loader.begin();
  const auto chunks = [](int terms) {
    return R"("rules": [{"match": {"op": "linear"}, "accumulate": {"format": "f32", "chunk": )" +
           std::to_string(terms) + "}}]";
  };
  Table table({"", "KL", "largest difference of a logarithm", "most probable differs"});
  std::vector<Mismatch> seen;
  for (const auto& [name, extends] :
       {std::pair{"f32", "fp32"}, {"f16", "amp-fp16"}, {"bf16", "amp-bf16"}}) {
    const Tensor one = predictions(workload, batch, extends, ""),
                 other = predictions(workload, batch, extends, chunks(32));
    const Mismatch& m = seen.emplace_back(mismatch(one, other));
    table.row({name, number(m.divergence, 3), number(m.largest, 3), percent(m.top)});
  }
  found.out() << table;
  found.within("KL, bf16 over f16", seen[2].divergence / seen[1].divergence, 16, 256);
}

}  // namespace

const Experiment found::e13{
    "E13",
    "Two programs that sum in different orders predict differently, in bf16 much more than in f16: "
    "64 times as much in KL, by the square of their precisions (Qi et al. 2025, arXiv 2510.26788).",
    run};

}  // namespace halftone::lab
