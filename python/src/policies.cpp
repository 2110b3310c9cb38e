// Policies of files at work on a model of another framework. The session, its table and its taps
// are those of every training here: a mirror of the model lends them paths and parameters, and each
// product is computed by the other framework.
#include "arrays.h"

#include <algorithm>
#include <functional>
#include <map>
#include <optional>

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <halftone/amp/cast_policy.h>
#include <halftone/amp/training.h>
#include <halftone/autograd/node.h>
#include <halftone/autograd/slots.h>
#include <halftone/core/error.h>
#include <halftone/core/factory.h>
#include <halftone/nn/module.h>
#include <halftone/amp/policy.h>
#include <halftone/amp/resolved.h>
#include <halftone/amp/session.h>

namespace halftone::python {

namespace {

/// A tensor as Python passes it: a numpy array, and "bf16" or "".
using Passed = std::optional<std::pair<Array, std::string>>;
using Name = std::pair<std::string, Array>;

nb::object passed(const Tensor& x) {
  if (!x.defined()) return nb::none();
  return nb::make_tuple(given(x), x.dtype() == bf16 ? "bf16" : "");
}

Tensor taken(const nb::handle& result) {
  if (result.is_none()) return {};
  const auto [array, dtype] = nb::cast<std::pair<Array, std::string>>(result);
  return borrowed(array, dtype);
}

/// A module of the other framework: its place in the tree, and its parameters over the same memory.
struct Mirror final : nn::Module {
  std::vector<std::pair<std::string, nn::Parameter>> own{};
  std::vector<std::pair<std::string, std::unique_ptr<Mirror>>> children{};
  std::string part_of_model{};
  std::string_view part() const override { return part_of_model; }
  void describe(nn::Fields& field) override {
    for (auto& [name, parameter] : own) field(name, parameter);
    for (auto& [name, child] : children) field(name, *child);
  }
};

/// The other framework has the optimizer.
struct NoOptimizer final : optim::Optimizer {
  void step(const optim::StepControl&) override {}
  int group_count() const override { return 0; }
  std::span<Tensor> group_parameters(int) override { return {}; }
  double lr(int) const override { return 0; }
  void set_lr(double, int) override {}
  NamedTensors state_dict() const override { return {}; }
  void load_state_dict(const NamedTensors&) override {}
};

/// Only rules and casts are emulated. Everything else that a policy may ask for is refused, so that
/// no result is of less than the policy says.
amp::Policy possible(amp::Policy file) {
  const std::string where = "policy " + file.name;
  if (file.weights != f32)
    fail<UnsupportedError>(where, "weights are ", file.weights,
                           ". Python emulates policies whose weights are f32.");
  if (file.rules.parameters || !file.rules.states.empty() || !file.states.empty())
    fail<UnsupportedError>(
        where,
        "\"optimizer\" rounds or stores parameters or states, which Python does not. "
        "Leave it out.");
  const auto learns = [](const auto& said) { return said.second.quantizer.scaling.learned; };
  for (const policy::Rule& rule : file.rules.rules)
    for (const auto& [entry, has] : {std::pair{"accumulate", rule.accumulate.has_value()},
                                     {"learned", std::ranges::any_of(rule.roles, learns)},
                                     {"saved", rule.saved.has_value()},
                                     {"when", rule.match.when.has_value()}})
      if (has)
        fail<UnsupportedError>(where, "a rule has \"", entry,
                               "\", which Python does not emulate. Leave it out.");
  return file;
}

/// The operation as the tap sees it: Python computes.
class PythonComputation final : public Computation {
 public:
  explicit PythonComputation(const nb::callable& run) : run_(run) {}
  Tensor run(std::span<const Tensor> inputs) override { return computed(inputs, true); }
  Tensor aside(std::span<const Tensor> inputs, std::shared_ptr<Node>*) override {
    return computed(inputs, false);
  }

 private:
  Tensor computed(std::span<const Tensor> inputs, bool keeps) {
    nb::list list;
    for (const Tensor& x : inputs) list.append(passed(x));
    return taken(run_(list, keeps));
  }
  const nb::callable& run_;
};

struct PythonNode final : Node {
  const nb::callable* differentiate = nullptr;  // (dy, mask of inputs) -> gradients
  std::vector<Tensor> backward(const Tensor& dy) override { return backward_for(dy, ~0u); }
  std::vector<Tensor> backward_for(const Tensor& dy, uint32_t inputs) override {
    std::vector<Tensor> gradients;
    for (const nb::handle gradient : (*differentiate)(passed(dy), inputs))
      gradients.push_back(taken(gradient));
    return gradients;
  }
  void release() override {}
  bool released() const override { return false; }
};

std::string dtype_text(const Tensor& x) {
  return x.defined() ? std::string(name(x.dtype())) : std::string();
}

/// One operation, from its forward to its backward.
struct Call {
  CastPlan plan;
  std::vector<Tensor> inputs;
  std::vector<std::string> before;  // dtypes before the casts
  bool changes() const {
    for (std::size_t i = 0; i < inputs.size(); ++i)
      if (dtype_text(inputs[i]) != before[i]) return true;
    return plan.tap || plan.f32_result || plan.result;
  }
  nb::object forward(const nb::callable& run) {
    PythonComputation computation(run);
    const std::vector<Tensor> used = std::move(inputs);
    return passed(plan.tap ? plan.tap->forward(used, computation) : computation.run(used));
  }
  nb::list backward(const Passed& dy, const std::vector<bool>& needs, const nb::callable& run) {
    PythonNode node;
    node.differentiate = &run;
    for (const bool needed : needs)
      node.edges.push_back({.input = needed ? std::make_shared<AutogradMeta>() : nullptr});
    const Tensor seen = borrowed(dy->first, dy->second);
    nb::list gradients;
    for (const Tensor& x : plan.tap ? plan.tap->backward(node, seen) : node.backward(seen))
      gradients.append(passed(x));
    return gradients;
  }
};

/// Where a segment began whose forward runs again in backward: the pass and the place in it.
struct Segment {
  std::shared_ptr<InputCaster> caster;
  CallScope::Place place;
};

/// The operations of the function that Emulation::unseen() notes: its OpFacts take no state.
thread_local double flops_of_unseen = 0;

/// The emulation of one model. One thread at a time may use it.
class Emulation {
 public:
  /// modules: paths and Module::part().
  Emulation(const amp::Policy& file,
            const std::vector<std::pair<std::string, std::string>>& modules,
            const std::vector<Name>& parameters)
      : file_(possible(file)) {
    std::map<std::string, Mirror*> known;
    for (const auto& [path, part] : modules) {
      const std::size_t dot = path.rfind('.');
      Mirror* here = &root_;
      if (!path.empty()) {
        Mirror& parent = *known.at(dot == path.npos ? "" : path.substr(0, dot));
        const std::string last = dot == path.npos ? path : path.substr(dot + 1);
        here = parent.children.emplace_back(last, std::make_unique<Mirror>()).second.get();
      }
      here->part_of_model = part;
      known[path] = here;
      modules_.push_back(here);
    }
    for (const auto& [name, array] : parameters) {
      const std::size_t dot = name.rfind('.');
      Mirror& owner = *known.at(dot == name.npos ? "" : name.substr(0, dot));
      const std::string last = dot == name.npos ? name : name.substr(dot + 1);
      owner.own.emplace_back(last, nn::Parameter(borrowed(array, "")));
      parameters_.push_back(owner.own.back().second);
    }
    training_.emplace(policy::watched(file_), root_, optimizer_);
  }
  Emulation(const Emulation&) = delete;

  /// Follows parameters whose memory was replaced.
  void follow(const std::vector<Name>& parameters) {
    for (std::size_t i = 0; i < parameters_.size(); ++i)
      parameters_[i].body()->storage = borrowed(parameters.at(i).second, "").storage();
  }
  void forward(const nb::callable& run, bool records) {
    std::optional<NoGrad> evaluates;
    if (!records) evaluates.emplace();
    records_ = records;
    const std::size_t depth = scopes_.size();
    try {
      training_->forward([&] {
        run();
        return zeros({});
      });
    } catch (...) {
      while (scopes_.size() > depth) scopes_.pop_back();
      throw;
    }
  }
  /// The place where the next operation runs.
  Segment segment() const {
    Segment segment{shared_active_caster(), {}};
    if (const CallScope* scope = CallScope::innermost()) segment.place = scope->place();
    return segment;
  }
  /// Runs a segment's function again: the same pass, sites and random words.
  void run_again(const Segment& segment, const nb::callable& run) {
    const EnableGrad recording;
    const CasterScope region(segment.caster);
    const CallScope scope(segment.place);
    const std::size_t depth = scopes_.size();
    try {
      run();
    } catch (...) {
      while (scopes_.size() > depth) scopes_.pop_back();
      throw;
    }
  }
  /// Adds the site of a function whose tensors cannot be rounded. Throws UnsupportedError if the
  /// policy rounds or casts them.
  void unseen(const std::string& function, double flops) {
    const auto [at, fresh] = unseen_.try_emplace(function, nullptr);
    if (fresh)
      at->second = std::make_unique<OpInfo>(
          at->first, CastClass::low_precision, "products",
          OpFacts{.sums = sums_over_last,
                  .flops = [](std::span<const Tensor>) { return flops_of_unseen; }});
    flops_of_unseen = flops;
    const amp::Region& region = training_->region();
    const amp::CastDecision listed =
        training_->strategy().autocast && region.policy
            ? region.policy->decide(*amp::CastPolicy::info("matmul"), {})
            : amp::CastDecision();
    const policy::Treatment* ruled = nullptr;
    bool rounds = false;
    if (records_ || session().rules().in_evaluation) {
      const std::vector<Tensor> inputs{zeros({1, 1}), zeros({1, 1})};
      ruled = session().treat(*at->second, inputs, 1);
      rounds = session().tap(inputs, inputs, 1) || (ruled && (ruled->result || ruled->accumulate));
    }
    const amp::CastDecision decided = (ruled ? ruled->decision() : std::nullopt).value_or(listed);
    if (!rounds && decided.cast_class != CastClass::low_precision) return;
    const CallScope* const scope = CallScope::innermost();
    fail<UnsupportedError>(
        "policy " + file_.name, "the policy rounds or casts ", function, ", which ",
        scope ? "module \"" + session().names().path_of(scope) + "\" calls" : "the model calls",
        ", and Python cannot. Except that module in the rules, or compute it with functions that "
        "docs/python.md lists.");
  }
  void enter(std::size_t module) {
    const nn::Module* const owner = modules_.at(module);
    scopes_.push_back(std::make_unique<CallScope>(owner));
  }
  void leave() {
    if (!scopes_.empty()) scopes_.pop_back();
  }
  Call begin(const std::string& op, const std::vector<Passed>& given_inputs, bool has_f32_result) {
    const OpInfo* const info = amp::CastPolicy::info(op);
    InputCaster* const caster = active_caster();
    if (!info) fail<UsageError>("emulate", "there is no operation named ", op, ".");
    if (!caster) fail<UsageError>("emulate", op, " runs outside of forward().");
    Call call;
    for (const Passed& x : given_inputs) {
      call.inputs.push_back(x ? known(borrowed(x->first, x->second)) : Tensor());
      call.before.push_back(dtype_text(call.inputs.back()));
    }
    call.plan = caster->plan(*info, call.inputs, has_f32_result);
    if (info->sums)
      for (const Tensor& x : call.inputs)
        if (x.defined() && is_floating(x.dtype()) && x.dtype() != call.inputs[0].dtype())
          fail<DTypeError>(op, "dtypes differ: ", described(call.inputs[0]), " and ", described(x),
                           ". Cast one of them, or run under autocast.");
    return call;
  }
  /// Returns the tensors that a resumed training needs, on the CPU: counts of steps and passes, and
  /// scales.
  std::map<std::string, nb::object> state() {
    std::map<std::string, nb::object> state;
    for (const auto& [name, x] : session().state_dict())
      state[name] = passed(x.to(Device::cpu()).clone());
    return state;
  }
  void load_state(const std::map<std::string, Passed>& state) {
    NamedTensors tensors;
    for (const auto& [name, x] : state) tensors[name] = borrowed(x->first, x->second).clone();
    session().load_state_dict(tensors);
  }
  void end_step() {
    session().before_step();
    session().end_step(optimizer_, {});
  }
  policy::Session& session() { return policy::session_of(*training_); }
  std::string table() {
    PlainText text;
    text << training_->strategy() << "\npolicy " << policy::hash(file_) << "\n\n"
         << policy::resolved_table(session());
    return text.str();
  }

 private:
  /// The mirror's parameter if x is in its memory: rules know weights by it.
  Tensor known(const Tensor& x) const {
    for (const Tensor& parameter : parameters_) {
      const std::ptrdiff_t bytes = x.raw_data() - parameter.storage()->data();
      if (bytes < 0 || bytes >= parameter.storage()->bytes() || x.dtype() != parameter.dtype())
        continue;
      if (x.shape() == parameter.shape() && x.strides() == parameter.strides() && bytes == 0)
        return parameter;
      return parameter.view_as(x.shape(), x.strides(), bytes / size_of(x.dtype()));
    }
    return x;
  }

  amp::Policy file_;
  std::map<std::string, std::unique_ptr<OpInfo>> unseen_;  // by name, which they point to
  Mirror root_;
  NoOptimizer optimizer_;
  std::vector<Mirror*> modules_;
  std::vector<Tensor> parameters_;
  std::optional<amp::Training> training_;
  std::vector<std::unique_ptr<CallScope>> scopes_;
  bool records_ = false;  // whether the last pass was one of training
};

}  // namespace

void add_policies(nb::module_& module) {
  using amp::Policy;
  nb::class_<Policy>(module, "Policy")
      .def_prop_ro("name", [](const Policy& file) { return file.name; })
      .def_ro("about", &Policy::about)
      .def_ro("meant_for", &Policy::meant_for, "models; none: all")
      .def_prop_ro("text", [](const Policy& file) { return policy::write(file); })
      .def_prop_ro("hash", [](const Policy& file) { return policy::hash(file); });
  module.def("read_policy", [](const std::string& path) { return policy::read(path); });
  module.def("parse_policy", [](const std::string& text, const std::string& where) {
    return policy::read_text(text, where);
  });
  module.def("named_policy", [](const std::string& name) { return policy::named_or_read(name); });
  module.def("operations", [] {
    std::vector<std::string> names;
    for (const std::string_view name : amp::CastPolicy::operations()) names.emplace_back(name);
    return names;
  });
  nb::class_<Call>(module, "Call")
      .def("changes", &Call::changes)
      .def_prop_ro("f32_result", [](const Call& call) { return call.plan.f32_result; })
      .def_prop_ro("result",
                   [](const Call& call) {
                     return call.plan.result ? std::string(name(*call.plan.result)) : std::string();
                   })
      .def("forward", &Call::forward)
      .def("backward", &Call::backward);
  nb::class_<Segment>(module, "Segment");
  nb::class_<Emulation>(module, "Emulation")
      .def(nb::init<const Policy&, const std::vector<std::pair<std::string, std::string>>&,
                    const std::vector<Name>&>())
      .def("follow", &Emulation::follow)
      .def("forward", &Emulation::forward)
      .def("segment", &Emulation::segment)
      .def("run_again", &Emulation::run_again)
      .def("unseen", &Emulation::unseen)
      .def("state", &Emulation::state)
      .def("load_state", &Emulation::load_state)
      .def("enter", &Emulation::enter)
      .def("leave", &Emulation::leave)
      .def("begin", &Emulation::begin)
      .def("end_step", &Emulation::end_step)
      .def("require_all_rules_used", [](Emulation& e) { e.session().require_all_rules_used(); })
      .def("table", &Emulation::table)
      .def("json", [](Emulation& e) { return policy::resolved_json(e.session()); });
}

}  // namespace halftone::python
