// Each picture is a small training, what is read off it, and a drawing.
#include <halftone/lab/picture_command.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iostream>

#include <halftone/core/files.h>
#include <halftone/core/memory_ledger.h>
#include <halftone/core/names.h>
#include <halftone/lab/experiments/small_gradients.h>
#include <halftone/lab/svg.h>
#include <halftone/policy/policy_file.h>
#include <halftone/policy/probe.h>

namespace halftone::lab {

namespace {
constexpr const char* command = "halftone-lab picture";
using Own = std::vector<NamedWorkload>;

/// A workload under a strategy, and what happens behind each step.
struct Course {
  Workload workload;
  std::unique_ptr<optim::Optimizer> optimizer;
  amp::Training training;
  Course(const std::string& name, const amp::Strategy& strategy, const Own& own)
      : workload(make_workload(name, 0, own)),
        optimizer(optimizer_of(workload)),
        training(strategy, *workload.model, *optimizer) {}

  /// Of rates as a training has them in the end; in the beginning few updates are lost.
  void slow_down() { optimizer->set_lr(0.1 * optimizer->lr()); }

  void run(int64_t steps, const std::function<void(int64_t step)>& after = {}) {
    data::DataLoader loader = workload.train();
    for (int64_t step = 0; step < steps;) {
      const int64_t before = step;
      for (const data::Batch& batch : loader) {
        training.zero_grad();
        training.backward(loss_of(workload, training, batch));
        if (workload.clip_norm > 0) training.clip_grad_norm(workload.clip_norm);
        training.step();
        if (after) after(step);
        if (++step == steps) return;
      }
      if (step == before) fail<UsageError>(command, "the workload has no batch. Give it data.");
    }
  }
};

// --- exponents

std::string exponents(const std::string& workload, const Own& own) {
  Course course(workload, policy::watched(amp::Strategy::named("amp-bf16")), own);
  constexpr int64_t steps = 100;
  policy::Probe probe(course.training, {.every = 10, .updates = false});
  course.run(steps);
  const std::array<std::pair<const char*, policy::Role>, 3> kinds{
      {{"weights", policy::Role::weight},
       {"activations", policy::Role::input},
       {"gradients of activations", policy::Role::grad_output}}};
  svg::Plot plot{.title = "sizes of numbers: " + workload + ", amp-bf16, 100 steps"};
  plot.x.label = "log2 |x|", plot.y.label = "percent of the numbers";
  double low = -26, high = 17;
  for (std::size_t kind = 0; kind < kinds.size(); ++kind) {
    Survey all;
    for (const policy::ProbeRow& row : probe.rows())
      if (row.role == kinds[kind].second) all.merge(row.survey);
    double total = 0;
    for (const double count : all.binade) total += count;
    if (!(total > 0)) continue;
    svg::Curve curve{.name = kinds[kind].first,
                     .points = {},
                     .style = int(kind),
                     .staircase = true,
                     .shapes = false};
    int first = 0, last = Survey::binades - 1;
    // Bins that no eye can see do not stretch the axis.
    const double visible = 1e-4 * total;
    while (all.binade[std::size_t(first)] < visible) ++first;
    while (all.binade[std::size_t(last)] < visible) --last;
    for (int i = first; i <= last + 1; ++i)
      curve.points.push_back({double(Survey::lowest_exponent + i),
                              i <= last ? 100 * all.binade[std::size_t(i)] / total : 0.0});
    low = std::min(low, curve.points.front().x), high = std::max(high, curve.points.back().x);
    plot.curves.push_back(std::move(curve));
  }
  plot.x.low = low, plot.x.high = high;
  for (const std::string_view name : {"f16", "bf16", "e4m3", "e5m2"}) {
    const NumberFormat format = *number_format_named(name);
    plot.ranges.push_back({std::string(name), double(format.min_exponent),
                           std::log2(double(format.max)),
                           double(format.min_exponent - format.significand_bits + 1)});
  }
  plot.width = 640;
  return svg::draw(plot, svg::Place::file);
}

// --- loss scale

std::string loss_scale() {
  constexpr double loss_weight = 1e-6;
  const Survey gradients =
      train_small_gradients(amp::Strategy::named("fp32"), loss_weight).output_gradients;
  svg::Plot plot{.title = "a loss scale for f16, where the loss is multiplied by 1e-6"};
  plot.x.label = "log2 of the loss scale", plot.y = {.label = "percent", .low = 0, .high = 100};
  svg::Curve lost{.name = "of the gradients become 0", .points = {}, .style = 0},
      beyond{.name = "become infinite", .points = {}, .style = 1},
      accuracy{.name = "accuracy after 300 steps", .points = {}, .style = 2};
  for (int lift = 0; lift <= 48; lift += 3) {
    lost.points.push_back({double(lift), 100 * gradients.would_underflow(formats::f16, lift)});
    beyond.points.push_back({double(lift), 100 * gradients.would_overflow(formats::f16, lift)});
    const std::string scale = std::to_string(int64_t{1} << lift);
    accuracy.points.push_back(
        {double(lift), 100 * train_small_gradients(f16_with(scale), loss_weight).accuracy});
  }
  plot.curves = {std::move(lost), std::move(beyond), std::move(accuracy)};
  plot.width = 640;
  return svg::draw(plot, svg::Place::file);
}

// --- bytes

struct Part {
  const char *name, *label;
  std::vector<MemoryUse> uses;
};

std::vector<double> mib_at_peak(const std::vector<Part>& parts) {
  const MemoryReport report = memory_report();
  reset_peak_memory();
  std::vector<double> mib;
  for (const Part& part : parts) {
    int64_t bytes = 0;
    for (const MemoryUse use : part.uses) bytes += report.at_peak_of(use);
    mib.push_back(double(bytes) / (1 << 20));
  }
  return mib;
}

std::string bytes(const std::string& workload, const Own& own) {
  const std::vector<Part> parts{
      {"weights", "w", {MemoryUse::parameter}},
      {"masters", "m", {MemoryUse::master_weight, MemoryUse::compensation}},
      {"state of AdamW", "s", {MemoryUse::optimizer_state}},
      {"gradients", "g", {MemoryUse::gradient, MemoryUse::master_gradient}},
      {"casts of weights", "c", {MemoryUse::cast_cache}},
      {"activations", "a", {MemoryUse::activation}},
      {"inputs, workspace", "i", {MemoryUse::input, MemoryUse::workspace}}};
  svg::Bars bars{.title = "MiB at the peak of each event of a step: " + workload,
                 .unit = "MiB",
                 .parts = {},
                 .labels = {},
                 .bars = {}};
  for (const Part& part : parts) bars.parts.push_back(part.name), bars.labels.push_back(part.label);
  for (const char* strategy : {"fp32", "amp-bf16", "o2-bf16", "full-bf16"}) {
    Course course(workload, amp::Strategy::named(strategy), own);
    course.run(2);  // states and workspaces are there
    const data::Batch batch = example_of(course.workload);
    const auto note = [&](const char* event) {
      bars.bars.push_back({std::string(strategy) + ", " + event, mib_at_peak(parts)});
    };
    course.training.zero_grad();
    reset_peak_memory();
    Tensor loss = loss_of(course.workload, course.training, batch);
    note("forward");
    course.training.backward(loss);
    loss = {};
    note("backward");
    course.training.step();
    note("update");
  }
  bars.width = 640;
  return svg::draw(bars, svg::Place::file);
}

// --- updates

constexpr std::array<const char*, 3> ways{"fp32", "full-bf16", "split-bf16"};

std::string updates(const std::string& workload, const Own& own) {
  svg::Plot plot{.title = "updates beside the spacing: " + workload + ", a tenth of its rate"};
  plot.x.label = "log2(|u| / ulp(w))", plot.y.label = "percent of the updates";
  plot.rules.push_back({"to the left: lost", -1, true});
  for (std::size_t way = 1; way < ways.size(); ++way) {
    Course course(workload, amp::Strategy::named(ways[way]), own);
    course.slow_down();
    policy::Probe probe(course.training, {.every = 10, .path = "updates_alone"});
    course.run(100);
    std::array<double, policy::UpdateRow::bins> sums{};
    policy::UpdateSums seen;
    for (const policy::UpdateRow& row : probe.updates()) {
      for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += row.by_ulp[i];
      seen.add(row.stored);
    }
    svg::Curve curve{.name = std::string(ways[way]) + ": " +
                             std::to_string(int(std::lround(100 * seen.lost_share()))) + " % lost",
                     .points = {},
                     .style = int(way),
                     .staircase = true,
                     .shapes = false};
    for (int i = 0; i < policy::UpdateRow::bins; ++i)
      if (const double share = 100 * sums[std::size_t(i)] / seen.count;
          share > 0.01 || !curve.points.empty())
        curve.points.push_back({double(policy::UpdateRow::lowest_bin + i), share});
    while (!curve.points.empty() && curve.points.back().y <= 0.01) curve.points.pop_back();
    if (!curve.points.empty()) curve.points.push_back({curve.points.back().x + 1, 0});
    plot.curves.push_back(std::move(curve));
  }
  plot.width = 640;
  return svg::draw(plot, svg::Place::file);
}

std::string staircase(const std::string& workload, const Own& own) {
  constexpr int64_t steps = 100;
  svg::Plot plot{.title = "one weight over the steps: " + workload + ", a tenth of its rate"};
  plot.x.label = "step", plot.y.label = "change";
  // Of the first parameter the largest weight that has somewhere to go: by four places and more.
  std::size_t chosen = 0;
  double begin = 0;
  for (std::size_t way = 0; way < ways.size(); ++way) {
    Course course(workload, amp::Strategy::named(ways[way]), own);
    course.slow_down();
    const Tensor weight = course.workload.model->parameters().front();
    const std::vector<double> first = weight.to_vector<double>();
    std::vector<std::vector<double>> values;
    course.run(steps, [&](int64_t) { values.push_back(weight.to_vector<double>()); });
    if (way == 0) {
      for (std::size_t i = 0; i < first.size(); ++i) {
        const double place = std::ldexp(1.0, std::ilogb(first[i]) - 7);  // of bf16
        if (std::abs(values.back()[i] - first[i]) >= 4 * place &&
            std::abs(first[i]) > std::abs(first[chosen]))
          chosen = i;
      }
      begin = first[chosen];
    }
    svg::Curve curve{.name = ways[way],
                     .points = {{0, first[chosen] - begin}},
                     .style = int(way),
                     .staircase = true,
                     .shapes = false};
    for (std::size_t step = 0; step < values.size(); ++step)
      curve.points.push_back({double(step + 1), values[step][chosen] - begin});
    plot.curves.push_back(std::move(curve));
  }
  plot.width = 640;
  return svg::draw(plot, svg::Place::file);
}
}  // namespace

std::span<const std::string_view> picture_names() {
  static constexpr std::array<std::string_view, 5> names{"exponents", "loss-scale", "bytes",
                                                         "updates", "staircase"};
  return names;
}

int run_picture(const PictureOptions& options, const Own& own) {
  files::require_replaceable(command, options.output);
  std::string drawing;
  if (options.name == "exponents") drawing = exponents(options.workload, own);
  else if (options.name == "loss-scale") drawing = loss_scale();
  else if (options.name == "bytes") drawing = bytes(options.workload, own);
  else if (options.name == "updates") drawing = updates(options.workload, own);
  else if (options.name == "staircase") drawing = staircase(options.workload, own);
  else
    fail_unknown_name(command, "picture", options.name,
                      {picture_names().begin(), picture_names().end()});
  files::replace(command, options.output, drawing);
  std::cout << "wrote " << options.output.string() << '\n';
  return 0;
}

}  // namespace halftone::lab
