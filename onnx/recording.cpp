// The caster wraps that of the region, so that casts and roundings of policies happen as in
// training. A rounding by a rule has no operation; it is recorded as one: `quantize`.
#include <halftone/onnx/recording.h>

#include <algorithm>

#include <halftone/autograd/ops/cast.h>
#include <halftone/onnx/conversions.h>
#include <halftone/policy/session.h>

namespace halftone::onnx {

namespace {
constexpr std::string_view command = "save_onnx";

/// Notes the operands of the run whose result is used.
class NotingComputation final : public Computation {
 public:
  explicit NotingComputation(Computation& inner) : inner_(inner) {}
  Tensor run(std::span<const Tensor> inputs) override {
    if (!is_noted_) note(inputs);
    const Tensor y = inner_.run(inputs);
    if (!result.defined()) result = y;
    return y;
  }
  Tensor aside(std::span<const Tensor> inputs, std::shared_ptr<Node>* kept) override {
    if (!is_noted_) note(inputs);
    const Tensor y = inner_.aside(inputs, kept);
    if (!result.defined()) result = y;
    return y;
  }
  std::vector<Tensor> operands{};
  Tensor result{};

 private:
  void note(std::span<const Tensor> inputs) {
    operands.assign(inputs.begin(), inputs.end()), is_noted_ = true;
  }
  Computation& inner_;
  bool is_noted_ = false;
};

/// The rules of a policy at one site.
struct Rules {
  std::shared_ptr<const policy::Treatment> treatment{};
  std::vector<policy::Role> roles{};
  const Quantizer* of_input(std::size_t i) const {
    const policy::Role role = i < roles.size() ? roles[i] : policy::Role::input;
    return treatment ? treatment->quantizer(role, i) : nullptr;
  }
  const Quantizer* of_output() const {
    return treatment ? treatment->quantizer(policy::Role::output) : nullptr;
  }
};

class RecordingTap final : public OpTap {
 public:
  RecordingTap(Recording& recording, Call call, std::shared_ptr<OpTap> inner, Rules rules)
      : recording_(recording),
        call_(std::move(call)),
        inner_(std::move(inner)),
        rules_(std::move(rules)) {}

  Tensor forward(std::span<const Tensor> inputs, Computation& operation) override {
    if (const Conversion* conversion = conversion_of(*call_.info))
      call_.op = conversion->copy(operation);
    if (!inner_) return recorded(call_, inputs, operation.run(inputs));
    NotingComputation noting(operation);
    const Tensor handed_on = inner_->forward(inputs, noting);
    for (std::size_t i = 0; i < inputs.size(); ++i)
      if (inputs[i].body() != noting.operands[i].body())
        rounded(rules_.of_input(i), inputs[i], noting.operands[i]);
    recorded(call_, noting.operands, noting.result);
    if (handed_on.body() != noting.result.body())
      rounded(rules_.of_output(), noting.result, handed_on);
    return handed_on;
  }
  std::vector<Tensor> backward(Node&, const Tensor&) override {
    fail<UsageError>(command, "a recorded pass has no backward. Call forward() alone.");
  }

 private:
  Tensor recorded(Call call, std::span<const Tensor> inputs, const Tensor& output) {
    call.inputs.assign(inputs.begin(), inputs.end());
    call.output = output, call.version = output.storage()->version();
    recording_.calls.push_back(std::move(call));
    return output;
  }
  void rounded(const Quantizer* quantizer, const Tensor& from, const Tensor& to) {
    if (!quantizer)
      fail<UnsupportedError>(command, "a tap changes values of ", described(call_),
                             ", and no rule says how. Export without it.");
    Call call{.info = &Quantize::info, .place = call_.place};
    call.op = std::make_shared<const Quantize>(Quantize{.quantizer = *quantizer});
    recorded(std::move(call), std::span(&from, 1), to);
  }

  Recording& recording_;
  Call call_;
  std::shared_ptr<OpTap> inner_;
  Rules rules_;
};

class RecordingCaster final : public InputCaster {
 public:
  RecordingCaster(const policy::ModelNames& names, Recording& recording,
                  std::shared_ptr<InputCaster> inner, std::shared_ptr<amp::Session> session)
      : names_(names),
        recording_(recording),
        inner_(std::move(inner)),
        session_(std::move(session)) {}

  CastPlan plan(const OpInfo& op, std::span<Tensor> inputs, bool has_f32_result) override {
    CastPlan plan = inner_ ? inner_->plan(op, inputs, has_f32_result) : CastPlan{};
    Call call{.info = &op, .place = names_.path_of(CallScope::innermost())};
    if (plan.accumulate)
      fail<UnsupportedError>(command, "a policy gives ", described(call),
                             " an emulated accumulator, which ONNX does not have. Export without "
                             "that rule.");
    Rules rules = plan.tap ? rules_at(call) : Rules{};
    plan.tap = std::make_shared<RecordingTap>(recording_, std::move(call), std::move(plan.tap),
                                              std::move(rules));
    return plan;
  }
  bool treats() const override { return inner_ && inner_->treats(); }
  void cast_inputs(const OpInfo& op, std::span<Tensor> inputs) override {
    if (inner_) inner_->cast_inputs(op, inputs);
  }

 private:
  /// Finds the site that the session met last under this name.
  Rules rules_at(const Call& call) const {
    policy::PolicySession* const session = session_ ? session_->of_policy() : nullptr;
    if (!session) return {};
    const CallScope* const scope = CallScope::innermost();
    const auto begun = scope ? std::ranges::count(scope->place().begun, call.info) : 0;
    for (const policy::ResolvedSite& each : session->resolved())
      if (each.site.path == call.place && each.site.op == call.info->name &&
          each.site.ordinal == int(std::max<std::ptrdiff_t>(begun - 1, 0)))
        return {each.treatment, each.roles};
    return {};
  }

  const policy::ModelNames& names_;
  Recording& recording_;
  std::shared_ptr<InputCaster> inner_;
  std::shared_ptr<amp::Session> session_;
};

void refuse_written(const Recording& recording) {
  for (const Call& call : recording.calls)
    if (call.output.storage()->version() != call.version)
      fail<UnsupportedError>(command, "the result of ", described(call),
                             " was written in place later, and ONNX has no writes in place. "
                             "Compute a new tensor instead.");
}
}  // namespace

std::string described(const Call& call) {
  return '"' + std::string(call.info->name) + '"' +
         (call.place.empty() ? std::string() : " in \"" + call.place + '"');
}

Recording record(const policy::ModelNames& names, const Forward& forward,
                 const std::vector<Tensor>& inputs, const std::optional<amp::Region>& region) {
  Recording recording{.inputs = inputs};
  const NoGrad no_grad;
  std::optional<amp::Autocast> autocast;
  if (region) autocast.emplace(*region);
  const CasterScope scope(std::make_shared<RecordingCaster>(
      names, recording, shared_active_caster(), region ? region->session : nullptr));
  recording.outputs = forward(inputs);
  refuse_written(recording);
  return recording;
}

}  // namespace halftone::onnx
