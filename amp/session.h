// The slot of a policy file: the effect of its rules in regions and steps. amp/ calls it, policy/
// fills it; without a session everything here works unchanged. A session belongs to one model and
// to the thread of its regions.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include <halftone/autograd/slots.h>
#include <halftone/core/formats/number_format.h>
#include <halftone/core/named_tensors.h>
#include <halftone/core/op_info.h>
#include <halftone/core/random.h>
#include <halftone/optim/optimizer.h>

namespace halftone::nn {
struct Module;
}
namespace halftone::policy {
class PolicySession;
struct PolicyFile;
}  // namespace halftone::policy

namespace halftone::amp {

struct Strategy;

/// Two values with which the last forward pass of a training can be run again.
struct LastPass {
  RandomKey random{};  // the state of the default generator at its start
  Tensor scale{};      // the loss scale of its backward; undefined: none
};

class Session {
 public:
  /// The session's decision for an operation; absent fields: as the region's policy says.
  struct Decision {
    std::optional<CastClass> cast_class{};
    std::optional<DType> dtype{};   // for low_precision, instead of the region's
    std::optional<DType> result{};  // the dtype of the result
    std::optional<Accumulator> accumulate{};
    std::optional<bool> tf32{};  // whether f32 products may use TF32 factors
  };

  virtual ~Session() = default;
  /// Returns the session itself, if rules of a policy made it.
  virtual policy::PolicySession* of_policy() { return nullptr; }
  /// Called when a forward pass with its backward begins: a region of this session was entered
  /// outside its other regions. Returns the pass's number; segments rerun in backward use it.
  virtual uint64_t begin_pass() = 0;
  /// Assigns the next passes to batch `number` of a training whose steps have several batches.
  /// Their random numbers depend on `number`, not on the rank that computes it.
  virtual void begin_batch(int64_t number) = 0;
  /// For several processes, before before_step(). seen() returns this process's observations of the
  /// step's batches; hear() takes those of all processes, by rank, on each of them.
  virtual std::string seen() const = 0;
  virtual void hear(std::span<const std::string> seen_by_all) = 0;
  /// Returns the decision for an operation of a pass, before it runs, at the site of CallScope.
  virtual Decision decide(const OpInfo& op, std::span<const Tensor> inputs, uint64_t pass) = 0;
  /// Called after the casts: returns the tap of this operation; null: none. `before`: the inputs
  /// before the casts.
  virtual std::shared_ptr<OpTap> tap(std::span<const Tensor> before, std::span<const Tensor> after,
                                     uint64_t pass) = 0;
  /// Called before a step of the optimizer, when nothing has changed yet. Throws UsageError for
  /// problems that show only after the model has run: a rule that matches nothing.
  virtual void before_step() = 0;
  /// Called after a step of the optimizer, also a skipped one: updates scales and rounds parameters
  /// and states to their grids, unless `skip` (undefined, or an f32 scalar on any device) is not 0.
  virtual void end_step(optim::Optimizer& optimizer, const Tensor& skip) = 0;
  /// Returns everything that a resumed training needs, as handles, not copies. load_state_dict()
  /// throws UsageError for a state that is not its own; then nothing has changed.
  virtual NamedTensors state_dict() const = 0;
  virtual void load_state_dict(const NamedTensors& state) = 0;
};

/// Makes the sessions of a strategy that has rules.
class SessionSource {
 public:
  virtual ~SessionSource() = default;
  virtual std::shared_ptr<Session> session_for(nn::Module& model,
                                               const Strategy& strategy) const = 0;
  /// Returns the policy file that the strategy came from; null: none.
  virtual const policy::PolicyFile* file() const { return nullptr; }
};

}  // namespace halftone::amp
