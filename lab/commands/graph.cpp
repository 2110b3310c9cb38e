// Records one forward pass and writes its graph; nothing is trained. Nodes do not know their place
// in the model. A caster that wraps the policy's notes the place of each operation, under the
// creation number that its node will get.
#include <halftone/lab/commands/graph.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <iostream>
#include <system_error>

#include <fcntl.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <halftone/autograd/write_dot.h>
#include <halftone/core/error.h>
#include <halftone/core/files.h>
#include <halftone/lab/commands/flags.h>
#include <halftone/policy/policy_file.h>
#include <halftone/policy/rules.h>

namespace halftone::lab {

namespace {
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
  const amp::Strategy strategy = policy::watched_strategy_of(policy::named_or_read(options.policy));
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
}  // namespace

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
