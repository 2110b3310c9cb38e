// Writes the training loop by hand, because it ends in the middle of a training.
#include <halftone/lab/commands/explain.h>

#include <cmath>
#include <iostream>
#include <optional>

#include <halftone/core/error.h>
#include <halftone/lab/commands/flags.h>
#include <halftone/lab/policy_note.h>
#include <halftone/policy/json_value.h>
#include <halftone/policy/policy_file.h>
#include <halftone/policy/probe.h>

namespace halftone::lab {

namespace {
/// step: of the skipped step, or the number of steps if none was skipped.
std::string json_of(int64_t step, bool skipped, const std::string& why) {
  policy::Json json{{"format", 1}, {"step", step}, {"skipped", skipped}};
  json["why"] = why.empty() ? policy::Json() : policy::Json(why);
  return json.dump(1) + "\n";
}
}  // namespace

int run_explain(const ExplainOptions& options, const std::vector<NamedWorkload>& own) {
  const policy::PolicyFile file = policy::named_or_read(options.policy);
  require_json(options.json);
  std::ostream& words = words_next_to(options.json);
  name_workload(words, options.workload, own, false);
  note_other_model(std::cerr, file, options.workload, own);
  amp::Strategy strategy = policy::strategy_of(file);
  if (options.scale > 0) strategy.loss_scale.init_scale = options.scale;
  const Workload work = make_workload(options.workload, options.seed, own);
  const std::unique_ptr<optim::Optimizer> optimizer = optimizer_of(work);
  amp::Training training = training_of(strategy, work, *optimizer);
  std::optional<optim::LrScheduler> rates;
  if (work.schedule) rates.emplace(training.optimizer(), work.schedule(options.steps));
  data::DataLoader loader = work.train();
  if (loader.size() == 0)
    fail<UsageError>("explain", options.workload,
                     " has training data without a batch. Give it more, or a smaller batch_size.");
  int64_t step = 0;
  while (step < options.steps)
    for (const data::Batch& batch : loader) {
      training.zero_grad();
      begin_step(training, step);
      const Tensor loss = loss_of(work, training, batch);
      training.backward(loss);
      if (work.clip_norm > 0) training.clip_grad_norm(work.clip_norm);
      const bool stepped = bool(training.step());
      ++step;
      if (rates && stepped) rates->step();
      if (!stepped || !std::isfinite(loss.item())) {
        const auto found =
            policy::explain_overflow(training, [&] { return loss_of(work, training, batch); });
        PlainText text;
        if (found) text << *found;
        else text << "a second run of it is finite everywhere";
        words << "step " << step << (stepped ? ": " : " skipped: ") << text.str() << '\n';
        write_json(options.json, json_of(step, !stepped, text.str()));
        return exit_yes;
      }
      if (step == options.steps) break;
    }
  words << "no step of " << step << " was skipped";
  if (training.scaler().enabled())
    words << "; the loss scale is " << training.scaler().scale_value();
  words << '\n';
  write_json(options.json, json_of(step, false, ""));
  return exit_yes;
}

Work add_explain(CLI::App& app, const Context& context) {
  auto options = std::make_shared<ExplainOptions>();
  options->workload = context.workload;
  add_policy(app, options->policy);
  add_workload(app, options->workload, context);
  app.add_option("--steps", options->steps, "the most steps")
      ->capture_default_str()
      ->check(whole_number(1, most_steps));
  app.add_option("--scale", options->scale, "initial loss scale; default: the policy's")
      ->check(positive_number());
  add_seed(app, options->seed);
  add_json(app, options->json);
  return [options, &context] { return run_explain(*options, context.own); };
}

}  // namespace halftone::lab
