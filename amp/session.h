// An observer of the tensors of a pass, which changes none: probes, the search for an overflow,
// comparisons. A session reports every operation, in the order of computation, forward and
// backward. It passes the tensors themselves, so the host waits only if the observer does.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <halftone/amp/rules.h>
#include <halftone/amp/switches.h>
#include <halftone/autograd/slots.h>
#include <halftone/core/formats/quantizer.h>
#include <halftone/core/named_tensors.h>
#include <halftone/core/op_info.h>

namespace halftone::policy {

/// Identifies a tensor that an observer sees.
struct Seen {
  const std::string& site;  // "transformer.h.0.attn.c_attn/linear.0"
  std::string_view op;
  Role role;
  std::size_t input;           // its number among the operation's inputs; otherwise 0
  const Quantizer* quantizer;  // the quantizer that a rule gives it; null: none
};

class Observer {
 public:
  virtual ~Observer() = default;
  /// Called when a pass with gradients begins, after `step` steps. Returns whether to report it.
  virtual bool begin_pass(int64_t step) = 0;
  /// Returns the row of numbers (core/formats/survey.h) to which statistics of a quantizer's
  /// rounding are added; undefined: none are needed.
  virtual Tensor row_for(const Seen&, Device) { return {}; }
  /// Reports the scale of a tensor, an f32 scalar, if it was computed from earlier steps.
  virtual void scale_used(const Seen&, const Tensor& /*scale*/) {}
  /// Reports a tensor before and after its treatment, which is the region's cast or a quantizer.
  /// The operation or its successor gets `after`. Without a treatment, both are the same tensor.
  virtual void tensor(const Seen&, const Tensor& /*before*/, const Tensor& /*after*/) {}
  /// Reports that an operation ran: its inputs before casts, a way to run it again, and its result
  /// before the result's own rounding.
  virtual void ran(std::string_view /*site*/, std::span<const Tensor> /*inputs*/, Computation&,
                   const Tensor& /*y*/) {}
  /// Reports that a step of the optimizer has ended, skipped or not.
  virtual void end_step() {}
  /// Reports that an operation was differentiated: its incoming gradient, and those of its inputs.
  virtual void differentiated(std::string_view /*site*/, const Tensor& /*dy*/,
                              std::span<const Tensor> /*gradients*/) {}
};

// Delayed scaling: a history for each tensor whose scale is computed from earlier steps. As
// TransformerEngine's DelayedScaling. It is on the tensor's device, so the host does not wait.

class TensorScales {
 public:
  /// Returns the scale with which to round x now. If `notes`, also records x's largest magnitude
  /// for end_step(). `name` is the tensor's name.
  Tensor scale_for(const std::string& name, const Quantizer& quantizer, const Tensor& x,
                   bool notes);
  /// The largest magnitude of a tensor. noted() returns those recorded since the last end_step(),
  /// and waits for a GPU; note() records one of another process.
  struct Noted {
    std::string name;
    Quantizer quantizer;
    float amax;
  };
  std::vector<Noted> noted() const;
  void note(const Noted& seen);
  /// Adds the recorded magnitudes to the histories and updates the scales; magnitudes that are not
  /// finite change nothing. A history counts the steps in which its tensor was seen.
  void end_step();

  /// Adds "amax.<name>", "history.<name>", "position.<name>" and "scale.<name>" to a state.
  void add_to(NamedTensors& state) const;
  /// Loads what add_to() added to a state; each entry is used when its tensor is first met. Throws
  /// UsageError for malformed entries.
  void load(const NamedTensors& state);

 private:
  struct Memory {
    Quantizer quantizer{};
    Tensor amax{}, history{}, position{}, scale{};
    bool noted = false;  // something was recorded since the last step
  };
  Memory& memory_for(const std::string& name, const Quantizer& quantizer, Device device);
  std::map<std::string, Memory> memories_;
  NamedTensors waiting_;
};

// Exponential averages of weights over the steps, for quantizers that choose between two neighbors
// on the grid by them (Quantizer::average). As ema_weight of TetraJet (arXiv 2502.20853).

class WeightAverages {
 public:
  /// Returns the average of weight x in a step: f32, of x's shape and device. The first call for a
  /// `name`, which says what the weight is used for, sets the average to x. In each later step, the
  /// first call with `updates` sets it to share * average + (1 - share) * x.
  Tensor average_for(const std::string& name, double share, const Tensor& x, int64_t step,
                     bool updates);

  /// Adds "average.<name>" to a state.
  void add_to(NamedTensors& state) const;
  /// Loads what add_to() added to a state; each entry is used when its weight is first met. Throws
  /// UsageError for an entry that is not f32.
  void load(const NamedTensors& state);

 private:
  struct Memory {
    Tensor average{};
    int64_t step = -1;  // of the last update
  };
  std::map<std::string, Memory> memories_;
  NamedTensors waiting_;
};

// Rounded weights, for the passes that read the same version of a weight: evaluations, and the
// batches of a step that has several. As is_first_microbatch of TransformerEngine.

class RoundedWeights {
 public:
  /// Returns round(), the rounding of x, a cast of `weight`; or what it returned for this `use`
  /// before, if the weight was not written since and all else is the same. Keeps nothing if the
  /// quantizer draws or depends on earlier steps, or if the weight's memory is another program's.
  Tensor tensor_for(const std::string& use, const Tensor& weight, const Tensor& x,
                    const Quantizer& quantizer, const std::function<Tensor()>& round);
  void clear() { kept_.clear(); }

 private:
  struct Kept {
    std::weak_ptr<TensorBody> weight{};
    std::weak_ptr<Storage> storage{};
    uint64_t version = 0;  // of the storage
    DType dtype{};         // of x
    Strides strides{};     // of x
    Quantizer quantizer{};
    Tensor result{};
    bool waits = false;  // the result is an f8_operand()
  };
  std::map<std::string, Kept> kept_;
};

// Scales that are learned (Scaling::learned): y = on(x / s) s. As LSQ (Esser et al., arXiv
// 1902.08153), with v = x / s and the grid's largest number max, q times its smallest positive one:
//   dL/dx = dL/dy where |v| < max, else 0
//   dL/ds = sum(dL/dy t) / sqrt(n q), t = on(v) - v where |v| < max, else on(v)
// s begins at first_scale(x). Adam steps s / (its first value), without weight decay, at the rate
// of the optimizer's first group; a step halves s at most.

class LearnedScales {
 public:
  LearnedScales();
  ~LearnedScales();
  /// Returns a tensor's scale: f32, for QuantizeCall::amax. The first call for a name makes it.
  Tensor scale_for(const std::string& name, const Quantizer& quantizer, const Tensor& x);
  /// Returns dL/dx. dy: dL/dy, f32; count: n. If `adds`, also adds dL/ds to the sum of the step.
  Tensor gradient(const std::string& name, const Quantizer& quantizer, const Tensor& x,
                  const Tensor& scale, const Tensor& dy, int64_t count, bool adds);
  /// Says that the gradients of this step are those of the loss times `loss_scale` (undefined: 1).
  void set_loss_scale(const Tensor& loss_scale);
  /// Steps the scales that have gradients, unless `skip` (undefined, or an f32 scalar) is not 0. A
  /// scale whose gradient is not finite stays as it is.
  void end_step(double lr, const Tensor& skip);

  /// Adds "learned.<name>.<first, ratio or a state of Adam>" to a state.
  void add_to(NamedTensors& state) const;
  /// Loads what add_to() added to a state; each entry is used when its tensor is first met. Throws
  /// UsageError for entries that no scale has.
  void load(const NamedTensors& state);

 private:
  struct Memory;
  Memory& memory_for(const std::string& name, const Quantizer& quantizer, const Tensor& x);
  std::map<std::string, Memory> memories_;
  std::map<std::string, NamedTensors> waiting_;
  Tensor loss_scale_{};
};

}  // namespace halftone::policy

// Applies a rulebook to one model: finds the site of each operation, determines its treatment, and
// stores the state of treatments.

namespace halftone::optim {
class Optimizer;
}

namespace halftone::amp {
class Training;
struct Policy;

/// Two values with which the last forward pass of a training can be run again.
struct LastPass {
  RandomKey random{};  // the state of the default generator at its start
  Tensor scale{};      // the loss scale of its backward; undefined: none
};
}  // namespace halftone::amp

namespace halftone::policy {

/// A site with its treatment in the present step.
struct ResolvedSite {
  Site site;
  CastClass asks = CastClass::as_is;
  std::vector<Role> roles{};  // of its inputs
  /// Dtypes of the inputs after native casts; an empty entry: that input is absent.
  std::vector<std::optional<DType>> operands{};
  double flops = 0;  // of linear and matmul; of a convolution, as if its stride were 1
  std::shared_ptr<const Treatment> treatment{};
};

class Session final {
 public:
  struct Settings {
    uint64_t seed = 0;                            // of random numbers
    distributed::WireFormat wire{};               // of gradients, for tables
    std::map<std::string, std::string> stored{};  // formats of states by name, for tables
    /// Identifies the policy in saved states. From a state of another policy, only the numbers of
    /// the step and the pass are loaded, not scales, averages and switches.
    std::string hash{};
  };
  /// Rounds the model's parameters to their grid if the rules have one. The model must outlive
  /// this. `where` names the policy in errors. Throws UsageError for invalid patterns, and for a
  /// grid that the parameters' dtype does not hold.
  Session(std::string_view where, nn::Module& model, std::shared_ptr<const Rulebook> rules,
          Settings settings);
  /// Returns a session without rules, for observers only, of a training that has taken `steps`
  /// steps. Between observed passes it costs nothing, and it adds nothing to checkpoints.
  static std::shared_ptr<Session> for_observers(nn::Module& model, int64_t steps = 0);

  /// Sets the observer (null: none), starting with the next pass. Returns the previous one.
  std::shared_ptr<Observer> observe(std::shared_ptr<Observer> observer);
  /// Starts a second run of the last training pass: it draws the same random numbers, and histories
  /// record nothing. It ends when the returned object is destroyed.
  [[nodiscard]] std::shared_ptr<void> repeat_last_pass();

  /// Begins a pass (a forward pass with its backward). Called on entering an outermost region of
  /// this session. Returns the pass's number; checkpointed segments use it when rerun in backward.
  uint64_t begin_pass();
  /// Assigns the next passes to batch `number` of a training whose steps have several batches.
  /// Their random numbers depend on `number`, not on the rank that computes it.
  void begin_batch(int64_t number);
  /// For several processes: call both before before_step(). seen() returns this process's
  /// observations of the step's batches; then each process calls hear() with those of all
  /// processes, by rank.
  std::string seen() const;
  void hear(std::span<const std::string> seen_by_all);
  /// Returns every change of a rule with `when` to on or off at a site, since the start or since a
  /// state was loaded.
  const std::vector<Switched>& switched() const { return switches_->log(); }
  /// Called for attention. If rules treat tensors inside of it, returns its treatment, and
  /// attention runs as the operations that it is made of; otherwise returns null.
  const Treatment* open(const OpInfo& op, std::span<const Tensor> inputs, uint64_t pass);
  /// Returns the treatment of `op`, about to run in pass `pass` at the site that CallScope names;
  /// null if no rule or observer can apply. Throws UsageError if a rule refuses the operation or
  /// asks for what it cannot do.
  const Treatment* treat(const OpInfo& op, std::span<const Tensor> inputs, uint64_t pass);
  /// Returns which of the first 32 inputs, before casts, are parameters: bit i is set if input i is
  /// one.
  uint32_t parameters_among(std::span<const Tensor> inputs) const;
  /// Called after the casts. Returns the tap, which quantizes and reports the tensors of this
  /// operation; null: there is nothing to do. `before`: the inputs before the casts.
  std::shared_ptr<OpTap> tap(std::span<const Tensor> before, std::span<const Tensor> after,
                             uint64_t pass);
  /// Called before a step of the optimizer, when nothing has changed yet. Throws UsageError for
  /// problems that show only after the model has run: no operation ran under the rules, or a rule
  /// matches nothing. loss_scale: of the gradients; undefined: none.
  void before_step(const Tensor& loss_scale = {});
  /// Called after a step of the optimizer, also a skipped one: updates scales and rounds parameters
  /// and states to their grids, unless `skip` (undefined, or an f32 scalar on any device) is not 0.
  void end_step(optim::Optimizer& optimizer, const Tensor& skip);
  /// Returns everything that a resumed training needs, as handles, not copies. load_state_dict()
  /// throws UsageError for a state that no session saved; then nothing has changed.
  NamedTensors state_dict() const;
  void load_state_dict(const NamedTensors& state);

  /// Returns all sites met until now, in the order in which they were first met.
  std::vector<ResolvedSite> resolved() const;
  /// Throws UsageError for a rule that is not optional and matches none of the sites met until now,
  /// or sets a role that no tensor of these has.
  void require_all_rules_used() const;
  const Rulebook& rules() const { return matcher_.book(); }
  const Settings& settings() const { return settings_; }
  const ModelNames& names() const { return names_; }

 private:
  struct Key {
    const void* module;  // the module of the model that is being called
    const void* owner;   // the same, or a part of it that the model does not name
    const char* label;
    const OpInfo* op;
    int ordinal;
    bool operator==(const Key&) const = default;
  };
  struct HashKey {
    std::size_t operator()(const Key& key) const;
  };
  struct Entry {
    ResolvedSite resolved;
    const OpInfo* op;
    uint64_t seed;
    std::string name;
  };
  Entry& entry_for(const OpInfo& op, std::span<const Tensor> inputs);
  Entry made(const OpInfo& op, std::span<const Tensor> inputs, const CallScope* scope,
             int ordinal) const;
  std::vector<Role> roles_of(std::span<const Tensor> inputs) const;
  std::shared_ptr<const Treatment> treatment_of(const Entry& entry, int64_t step) const;
  std::vector<Measured> measured_at(const Entry& entry) const;
  void require_measurable(const Entry& entry) const;
  void require_possible(const Entry& entry) const;
  void require_possible(const Entry& entry, const Treatment& treatment) const;
  void require_scales(const Entry& entry, const Treatment& treatment) const;
  void require_f8(const Entry& entry, const Treatment& treatment) const;
  void require_hardware(const Entry& entry, std::span<const Tensor> inputs) const;
  void require_tf32(const Entry& entry, std::span<const Tensor> inputs) const;
  void require_exact(const Entry& entry, std::span<const Tensor> operands) const;
  bool rests(uint64_t pass) const;
  bool watches(uint64_t pass) const;
  std::string name_of(const std::vector<Tensor>& parameters, std::size_t i) const;
  void follow_rules();
  bool is_met(std::size_t rule, std::optional<Role> role = {}) const;
  static std::size_t place_of(std::size_t rule, std::optional<Role> role) {
    return (1 + rule_role_count) * rule + (role ? 1 + std::size_t(*role) : 0);
  }
  bool is_met_here(std::size_t rule, std::optional<Role> role) const;
  void require_operands(const Entry& entry) const;
  /// Returns whether the site is attention and a rule treats tensors inside of it.
  bool opens(const Entry& entry) const;
  void require_inner_roles(const Entry& entry) const;
  [[noreturn]] void fail_unmatched(std::size_t rule) const;
  std::vector<const Quantizer*> grids_from_history() const;
  bool learns_scales() const;
  void put_on_grid(const Quantizer& quantizer, const std::string& tensor, const Tensor& x,
                   const Tensor& skip = {}) const;

  std::string where_;
  Settings settings_;
  int64_t hash_;  // a hash of Settings::hash
  ModelNames names_;
  RuleMatcher matcher_;
  std::unordered_map<Key, Entry, HashKey> entries_;
  std::vector<Key> order_;
  std::shared_ptr<TensorScales> scales_;
  std::shared_ptr<WeightAverages> averages_;
  std::shared_ptr<LearnedScales> learned_ = std::make_shared<LearnedScales>();
  std::shared_ptr<RoundedWeights> rounded_ = std::make_shared<RoundedWeights>();
  std::shared_ptr<RuleSwitches> switches_ = std::make_shared<RuleSwitches>();
  Entry* current_ = nullptr;
  std::shared_ptr<Observer> observer_{};
  bool rules_used_ = false;  // whether it is known that each rule matches something
  /// Whether sites of any rank use a rule, or one of its roles: place_of() has the positions.
  /// Empty: one process.
  std::vector<bool> used_by_any_{};
  std::vector<uint64_t> watched_{};  // passes since the last step that the observer requested
  bool lists_sites_ = true, repeats_ = false;
  int passes_ = 0;               // of training since the last step
  bool several_passes_ = false;  // whether the step before had more than one
  /// The number of passes for which random keys have separate counters.
  static constexpr uint64_t passes_of_keys = uint64_t(1) << 30;
  /// Shared with captured steps, which continue the counts in replays.
  struct Position {
    int64_t step = 0;
    uint64_t pass = 0;       // the last pass's number, or the number before a batch's first one
    uint64_t last_pass = 0;  // of training
  };
  std::shared_ptr<Position> at_;
  uint64_t next_pass_ = 1;  // the distance between pass numbers
  int64_t changes_at_;
};

/// Returns the session of a policy for a model; null if the policy needs none. The model must
/// outlive it.
std::shared_ptr<Session> session_for(nn::Module& model, const amp::Policy& policy);
/// Returns the session of a training whose policy has rules or is watched(). Throws UsageError if
/// it has none.
Session& session_of(const amp::Training& training);

// The policy's tap: treated_op.cpp applies a treatment to the tensors of one operation.

/// Everything that a tap knows of its operation when it begins.
struct TreatedCall {
  std::shared_ptr<const Treatment> treatment;
  std::string where;  // the policy, for messages
  std::string site;   // its name
  const OpInfo* op;
  std::vector<Role> roles;               // of the inputs: input, weight or bias
  std::shared_ptr<TensorScales> scales;  // those of the session
  std::shared_ptr<WeightAverages> averages;
  std::shared_ptr<LearnedScales> learned;
  std::shared_ptr<RoundedWeights> rounded{};  // null: this pass keeps none
  uint64_t seed = 0;                          // of the site
  uint64_t offset = 0;                        // of the pass
  int64_t step = 0;
  bool records = true;  // whether backward may follow; otherwise its operands are not rounded
  bool notes = true;  // histories record largest magnitudes, and averages take this step's weights
  std::vector<Measured> measured{};  // for rules with `when`, in the steps that measure
  std::shared_ptr<RuleSwitches> switches;
  std::pair<uint64_t, uint64_t> pass{};  // as RuleSwitches::row_for
  std::shared_ptr<Observer> observer{};  // null: no observer
  /// The inputs without the region's casts, for the observer and for rounded weights that are kept.
  std::vector<Tensor> before{};
};
std::shared_ptr<OpTap> make_treated_op(TreatedCall call);

/// Throws UsageError, which says that `dtype` does not hold the grid of a role exactly.
[[noreturn]] void fail_inexact(std::string_view where, std::string_view site, Role role,
                               const Quantizer& quantizer, DType dtype);

/// Returns the random key of one tensor: operand `input` of a site in a role. site_seed: of
/// site_seed(); offset: that of the pass. Element i takes its number from the key, so a random
/// number depends only on the seed of the rules, site, role, operand, pass and element.
RandomKey key_of(uint64_t site_seed, uint64_t offset, Role role, std::size_t input);
uint64_t site_seed(uint64_t seed, std::string_view site);

// The view of a tensor for quantization: a matrix whose columns run along the dimension that a
// product sums over, because blocks of scales and rotations run along it.

/// Returns x quantized with blocks and rotations along `sums`, with x's shape, dtype and device.
Tensor quantized_along(const Tensor& x, Sums sums, const QuantizeCall& call);
/// Returns the same, rounded to `dtype`, as an operand whose product reads numbers and scales:
/// those of quantized_f8 or quantized_apart.
Tensor waiting_along(const Tensor& x, Sums sums, const QuantizeCall& call, DType dtype,
                     F8Operand (*quantize)(const Tensor&, const QuantizeCall&));

}  // namespace halftone::policy
