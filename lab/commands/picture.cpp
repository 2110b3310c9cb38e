// halftone-lab picture and graph.
#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <iostream>
#include <numeric>
#include <optional>
#include <system_error>

#include <fcntl.h>
#include <spawn.h>
#include <unistd.h>

#include <sys/mman.h>
#include <sys/wait.h>

#include <halftone/autograd/inspect.h>
#include <halftone/autograd/ops.h>
#include <halftone/autograd/slots.h>
#include <halftone/core/error.h>
#include <halftone/core/files.h>
#include <halftone/core/memory.h>
#include <halftone/lab/commands/commands.h>
#include <halftone/lab/draw.h>
#include <halftone/lab/experiments/experiments.h>
#include <halftone/lab/table.h>
#include <halftone/amp/policy.h>
#include <halftone/amp/probe.h>
#include <halftone/amp/rules.h>

namespace halftone::lab {

// Each picture runs a small training, reads numbers from it, and draws them.

namespace {
constexpr const char* picture_command = "halftone-lab picture";
using Own = std::vector<NamedWorkload>;

/// A workload under a strategy; run() calls a function after each step.
struct Course {
  Workload workload;
  std::unique_ptr<optim::Optimizer> optimizer;
  amp::Training training;
  Course(const std::string& name, const amp::Policy& strategy, const Own& own)
      : workload(make_workload(name, 0, own)),
        optimizer(optimizer_of(workload)),
        training(training_of(strategy, workload, *optimizer)) {}

  /// Sets the learning rate of a training's end; at the initial rate few updates are lost.
  void slow_down() { optimizer->set_lr(0.1 * optimizer->lr()); }

  void run(int64_t steps, const std::function<void(int64_t, const Tensor&)>& after = {}) {
    train_steps(workload, training, steps, after);
  }
};

// --- exponents

std::string exponents(const std::string& workload, const Own& own) {
  Course course(workload, policy::watched(amp::Policy::named("amp-bf16")), own);
  constexpr int64_t steps = 100;
  policy::Probe probe(course.training, {.every = 10, .updates = false});
  course.run(steps);
  const std::array<std::pair<const char*, policy::Role>, 3> kinds{
      {{"weights", policy::Role::weight},
       {"activations", policy::Role::input},
       {"gradients of activations", policy::Role::grad_output}}};
  svg::Plot plot{.title = workload + " under amp-bf16: without a scale, f16 would lose"};
  plot.x.label = "log2 |x|", plot.y.label = "percent of the numbers";
  double low = -26, high = 17;
  for (std::size_t kind = 0; kind < kinds.size(); ++kind) {
    Survey all;
    for (const policy::ProbeRow& row : probe.rows())
      if (row.role == kinds[kind].second) all.merge(row.survey);
    // Bins that are too small to be visible do not extend the axis.
    svg::Curve curve =
        distribution(kinds[kind].first, all.binade, Survey::lowest_exponent, int(kind), 1e-4);
    if (curve.points.empty()) continue;
    plot.title += std::string(kind == 0 ? " " : ", ") +
                  fixed(100 * all.would_underflow(formats::f16), 1) + " % of the " +
                  kinds[kind].first;
    curve.shapes = false;
    low = std::min(low, curve.points.front().x), high = std::max(high, curve.points.back().x);
    plot.curves.push_back(std::move(curve));
  }
  plot.x.low = low, plot.x.high = high;
  plot.ranges = ranges_of_formats();
  plot.width = 640;
  return svg::draw(plot, svg::Place::file);
}

// --- loss scale

std::string loss_scale() {
  constexpr double loss_weight = 1e-6;
  const Survey gradients =
      train_small_gradients(amp::Policy::named("fp32"), loss_weight).output_gradients;
  svg::Plot plot;
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
  // The scales within 5 points of the best.
  const double best = std::ranges::max(accuracy.points, {}, &svg::Point::y).y;
  const auto learns = [&](const svg::Point& p) { return p.y > best - 5; };
  const auto first = std::ranges::find_if(accuracy.points, learns);
  const auto last = std::find_if(accuracy.points.rbegin(), accuracy.points.rend(), learns);
  plot.title = "A loss multiplied by 1e-6 trains in f16 with loss scales from 2^" +
               number(first->x) + " to 2^" + number(last->x);
  plot.curves = {std::move(lost), std::move(beyond), std::move(accuracy)};
  plot.width = 640;
  return svg::draw(plot, svg::Place::file);
}

// --- bytes

std::vector<double> mib_at_peak() {
  const MemoryReport report = memory_report();
  reset_peak_memory();
  std::vector<double> mib;
  for (const MemoryPart& part : memory_parts()) {
    mib.push_back(0);
    for (int use = 0; use < memory_use_count; ++use)
      if (std::ranges::find(part.uses, name(MemoryUse(use))) != part.uses.end())
        mib.back() += double(report.at_peak_of(MemoryUse(use))) / (1 << 20);
  }
  return mib;
}

std::string bytes(const std::string& workload, const Own& own) {
  svg::Bars bars{.title = {}, .unit = "MiB", .parts = {}, .labels = {}, .bars = {}};
  for (const MemoryPart& part : memory_parts())
    bars.parts.push_back(part.name), bars.labels.push_back(part.label);
  const svg::Bar* most = nullptr;
  for (const char* strategy : {"fp32", "amp-bf16", "o2-bf16", "full-bf16"}) {
    Course course(workload, amp::Policy::named(strategy), own);
    course.run(2);  // allocates states and workspaces
    const data::Batch batch = example_of(course.workload);
    const auto note = [&](const char* event) {
      bars.bars.push_back({std::string(strategy) + ", " + event, mib_at_peak()});
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
  const auto sum = [](const svg::Bar& bar) {
    return std::accumulate(bar.parts.begin(), bar.parts.end(), 0.0);
  };
  most = &*std::ranges::max_element(bars.bars, {}, sum);
  const auto part = std::ranges::max_element(most->parts) - most->parts.begin();
  bars.title = workload + ": " + bars.parts[std::size_t(part)] + " are " +
               fixed(100 * most->parts[std::size_t(part)] / sum(*most), 0) +
               " % of the largest peak (" + most->name + ")";
  bars.width = 640;
  return svg::draw(bars, svg::Place::file);
}

// --- updates

constexpr std::array<const char*, 3> ways{"fp32", "full-bf16", "split-bf16"};

std::string updates(const std::string& workload, const Own& own) {
  svg::Plot plot{.title = workload + " at a tenth of its rate"};
  plot.x.label = "log2(|u| / ulp(w))", plot.y.label = "percent of the updates";
  plot.rules.push_back({"to the left: lost", -1, true});
  for (std::size_t way = 1; way < ways.size(); ++way) {
    Course course(workload, amp::Policy::named(ways[way]), own);
    course.slow_down();
    policy::Probe probe(course.training, {.every = 10, .path = "updates_alone"});
    course.run(100);
    std::array<double, policy::UpdateRow::bins> sums{};
    policy::UpdateSums seen;
    for (const policy::UpdateRow& row : probe.updates()) {
      for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += row.by_ulp[i];
      seen.add(row.stored);
    }
    plot.title += std::string(way == 1 ? ": " : ", ") + ways[way] + " loses " +
                  fixed(100 * seen.lost_share(), 0) + " % of the updates";
    svg::Curve curve = distribution(ways[way], sums, policy::UpdateRow::lowest_bin, int(way), 1e-4);
    curve.shapes = false;
    // The updates are nearly the same: one as an area, the other as a line on it.
    if (way == 1) curve.filled = true, curve.style = 5;
    plot.curves.push_back(std::move(curve));
  }
  plot.width = 640;
  return svg::draw(plot, svg::Place::file);
}

/// Returns the index of the first parameter's largest element that moves in f32 by at least four
/// spacings of bf16.
int64_t traveling_element(const std::string& workload, int64_t steps, const Own& own) {
  Course course(workload, amp::Policy::named("fp32"), own);
  course.slow_down();
  const Tensor weight = course.workload.model->parameters().front();
  const std::vector<double> first = weight.to_vector<double>();
  course.run(steps);
  const std::vector<double> last = weight.to_vector<double>();
  std::size_t chosen = 0;
  for (std::size_t i = 0; i < first.size(); ++i) {
    const double place = std::ldexp(1.0, std::ilogb(first[i]) - 7);
    if (std::abs(last[i] - first[i]) >= 4 * place && std::abs(first[i]) > std::abs(first[chosen]))
      chosen = i;
  }
  return int64_t(chosen);
}

std::string staircase(const std::string& workload, const Own& own) {
  constexpr int64_t steps = 100;
  const int64_t chosen = traveling_element(workload, steps, own);
  const auto model = make_workload(workload, 0, own).model;
  svg::Plot plot{.title =
                     "One weight: bf16 moves by whole units or not at all, split-bf16 follows "
                     "f32 (" +
                     model->named_parameters().front().first + "[" + std::to_string(chosen) +
                     "] of " + workload + ", a tenth of its rate)"};
  plot.x.label = "step", plot.y.label = "change since the first step";
  std::optional<double> begin;
  for (std::size_t way = 0; way < ways.size(); ++way) {
    Course course(workload, amp::Policy::named(ways[way]), own);
    course.slow_down();
    const Tensor weight = course.workload.model->parameters().front();
    const auto now = [&] {
      const NoGrad no_grad;
      return slice(reshape(weight, Shape{weight.numel()}), 0, chosen, chosen + 1).item();
    };
    if (!begin) begin = now();
    svg::Curve curve{.name = ways[way],
                     .points = {{0, now() - *begin}},
                     .style = int(way),
                     .staircase = true,
                     .shapes = false,
                     .wide = way == 0};
    course.run(steps, [&](int64_t step, const Tensor&) {
      curve.points.push_back({double(step + 1), now() - *begin});
    });
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

namespace {
struct PictureOptions {
  std::string name;      // one of picture_names()
  std::string workload;  // the workload to train; "loss-scale" has its own
  std::filesystem::path output{};
};

/// Writes the drawing as SVG. Returns the exit code. Throws Error if the file cannot be written or
/// a name is unknown.
int run_picture(const PictureOptions& options, const Own& own) {
  if (options.output.extension() != ".svg")
    fail<UsageError>(picture_command, options.output.string(),
                     ": the drawing is SVG. Name a file that ends in .svg.");
  files::require_replaceable(picture_command, options.output);
  std::string drawing;
  if (options.name == "exponents") drawing = exponents(options.workload, own);
  else if (options.name == "loss-scale") drawing = loss_scale();
  else if (options.name == "bytes") drawing = bytes(options.workload, own);
  else if (options.name == "updates") drawing = updates(options.workload, own);
  else if (options.name == "staircase") drawing = staircase(options.workload, own);
  else
    fail_unknown_name(picture_command, "picture", options.name,
                      {picture_names().begin(), picture_names().end()});
  files::replace(picture_command, options.output, drawing);
  std::cout << "wrote " << options.output.string() << '\n';
  return 0;
}
}  // namespace

Work add_picture(CLI::App& app, const Context& context) {
  auto options = std::make_shared<PictureOptions>();
  options->workload = context.own.empty() ? "gpt_tiny" : context.workload;
  app.add_option("name", options->name, list_of(picture_names()))->required();
  add_workload(app, options->workload, context);
  app.add_option("-o,--output", options->output, "the drawing: x.svg")->required();
  return [options, &context] { return run_picture(*options, context.own); };
}

// Records one forward pass and writes its graph; nothing is trained. Nodes do not know their place
// in the model. A caster that wraps the policy's notes the place of each operation, under the
// creation number that its node will get.

namespace {

// halftone-lab graph: the recorded graph of one step of a workload under a policy, as a picture.

struct GraphOptions {
  std::string policy, workload;
  /// The ending decides: .dot is written directly; Graphviz makes .svg, .png and .pdf. Empty:
  /// prints .dot to standard output.
  std::filesystem::path output{};
};
constexpr const char* graph_command = "halftone-lab graph";

/// Maps the nodes of one forward pass to the places of their operations.
class Places {
 public:
  explicit Places(nn::Module& model) : names_(model) {}

  void note(const OpInfo& op, uint64_t before) {
    const CallScope* const scope = CallScope::innermost();
    if (!scope) return;
    // The session has already counted this operation.
    const auto begun = std::ranges::count(scope->place().begun, &op);
    const policy::Site site{.path = names_.path_of(scope),
                            .op = op.name,
                            .ordinal = int(std::max<std::ptrdiff_t>(begun - 1, 0)),
                            .parameter = {}};
    notes_.push_back({before, &op, name(site)});
  }
  /// Returns "" for casts, and for operations outside of every module.
  std::string of(const Node& node) const {
    const auto after = std::ranges::lower_bound(notes_, node.order, {}, &Note::before);
    if (after == notes_.begin()) return {};
    const Note& last = *std::prev(after);
    return last.op == node.info ? last.place : "";
  }

 private:
  struct Note {
    uint64_t before;  // later nodes have this creation number or a higher one
    const OpInfo* op;
    std::string place;
  };
  policy::ModelNames names_;
  std::vector<Note> notes_;
};

/// Forwards to another caster, and notes the place of each operation.
class NotingCaster final : public InputCaster {
 public:
  NotingCaster(std::shared_ptr<InputCaster> asked, Places& places)
      : asked_(std::move(asked)), places_(places) {}
  CastPlan plan(const OpInfo& op, std::span<Tensor> inputs, bool has_f32) override {
    CastPlan plan = asked_ ? asked_->plan(op, inputs, has_f32) : CastPlan{};
    if (op.name != "cast") places_.note(op, next_node_order());
    return plan;
  }
  void cast_inputs(const OpInfo& op, std::span<Tensor> inputs) override {
    if (asked_) asked_->cast_inputs(op, inputs);
  }

 private:
  std::shared_ptr<InputCaster> asked_;
  Places& places_;
};

std::string dot_of(const GraphOptions& options, const std::vector<NamedWorkload>& own) {
  const amp::Policy strategy = policy::watched(policy::named_or_read(options.policy));
  Workload work = make_workload(options.workload, 0, own);
  const std::unique_ptr<optim::Optimizer> optimizer = optimizer_of(work);
  amp::Training training(strategy, *work.model, *optimizer);
  Places places(*work.model);
  const auto noted = [&places](auto function) {
    return [&places, function](const auto& input) {
      const CasterScope scope(std::make_shared<NotingCaster>(shared_active_caster(), places));
      return function(input);
    };
  };
  if (work.task.forward) work.task.forward = noted(work.task.forward);
  else work.task.forward_batch = noted(work.task.forward_batch);
  const data::Batch batch = example_of(work);
  const Tensor loss = loss_of(work, training, batch);
  DotOptions dot{.names = work.model->named_parameters(),
                 .place_of = [&](const Node& node) { return places.of(node); }};
  for (auto& buffer : work.model->named_buffers()) dot.names.push_back(std::move(buffer));
  dot.names.emplace_back("inputs", batch.inputs), dot.names.emplace_back("targets", batch.targets);
  PlainText text;
  write_dot(training.scaler().scale(loss), text, dot);
  return text.str();
}

/// Returns an unnamed file whose descriptor is not a standard stream's.
files::Descriptor nameless_file() {
  const files::Descriptor any(memfd_create("graph", MFD_CLOEXEC));
  files::Descriptor file(any ? fcntl(any.get(), F_DUPFD_CLOEXEC, 3) : -1);
  if (!file)
    fail<FormatError>(graph_command,
                      "cannot make a temporary file: ", std::generic_category().message(errno),
                      ". Free some memory.");
  return file;
}

/// Returns the output of Graphviz's `dot` for a text. Its messages go to our standard error.
std::string laid_out(std::string_view text, const std::string& format) {
  const files::Descriptor from = nameless_file(), to = nameless_file();
  const bool written = files::write_all(from, text) && lseek(from.get(), 0, SEEK_SET) == 0;
  posix_spawn_file_actions_t streams;
  posix_spawn_file_actions_init(&streams);
  posix_spawn_file_actions_adddup2(&streams, from.get(), STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&streams, to.get(), STDOUT_FILENO);
  std::string program = "dot", option = "-T" + format;
  const std::array<char*, 3> arguments{program.data(), option.data(), nullptr};
  pid_t child = 0;
  const int error = !written ? errno
                             : posix_spawnp(&child, program.c_str(), &streams, nullptr,
                                            arguments.data(), environ);
  posix_spawn_file_actions_destroy(&streams);
  if (error != 0)
    fail<UnsupportedError>(graph_command, "a .", format,
                           " is made by Graphviz's program dot, which cannot be started: ",
                           std::generic_category().message(error),
                           ". Install the Debian package graphviz, or name a .dot file.");
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {}
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
    fail<UnsupportedError>(graph_command, "Graphviz's program dot could not make a .", format,
                           ": wait status ", status,
                           ". Name a .dot file, and see what it says of that.");
  lseek(to.get(), 0, SEEK_SET);
  std::string picture;
  std::array<char, 1 << 16> part;
  for (std::ptrdiff_t n; (n = files::read_some(to, part.data(), part.size())) > 0;)
    picture.append(part.data(), std::size_t(n));
  return picture;
}

/// Writes the graph. Returns the exit code. Throws Error if a file cannot be read or written, if a
/// name is unknown, if the workload cannot run, or if Graphviz is needed and not installed.
int run_graph(const GraphOptions& options, const std::vector<NamedWorkload>& own) {
  const std::string extension = options.output.extension().string();
  constexpr std::array<std::string_view, 4> known{".dot", ".svg", ".png", ".pdf"};
  if (!options.output.empty()) {
    if (std::ranges::find(known, extension) == known.end())
      fail<UsageError>(graph_command, "cannot write ", options.output.string(),
                       ": its ending says no kind of picture. Use .dot, .svg, .png or .pdf.");
    files::require_replaceable(graph_command, options.output);
  }
  std::string text = dot_of(options, own);
  if (options.output.empty()) {
    std::cout << text;
    return 0;
  }
  if (extension != ".dot") text = laid_out(text, extension.substr(1));
  files::replace(graph_command, options.output, text, files::Durable::no);
  return 0;
}
}  // namespace

Work add_graph(CLI::App& app, const Context& context) {
  auto options = std::make_shared<GraphOptions>();
  options->workload = context.workload;
  add_policy(app, options->policy);
  add_workload(app, options->workload, context);
  app.add_option("-o,--output", options->output,
                 "x.dot, or x.svg, x.png, x.pdf (needs Graphviz); default: prints .dot");
  return [options, &context] { return run_graph(*options, context.own); };
}

}  // namespace halftone::lab
