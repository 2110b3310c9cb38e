// The slot of a policy file: what its rules do in regions and steps. amp/ calls it, policy/ fills
// it; without one everything here is as it is. A session belongs to one model and to the thread of
// its regions.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include <halftone/autograd/op_tap.h>
#include <halftone/core/accumulator.h>
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
  RandomKey random{};  // where the default generator stood when it began
  Tensor scale{};      // the loss scale that its backward had; undefined: none
};

class Session {
 public:
  /// What it wants of an operation; what is absent is as the region's policy says.
  struct Decision {
    std::optional<CastClass> cast_class{};
    std::optional<DType> dtype{};   // of low_precision, in place of the region's
    std::optional<DType> result{};  // in which the result is handed on
    std::optional<Accumulator> accumulate{};
    std::optional<bool> tf32{};  // whether f32 products may be of TF32 factors
  };

  virtual ~Session() = default;
  /// Itself, if rules of a policy made it.
  virtual policy::PolicySession* of_policy() { return nullptr; }
  /// A forward pass with its backward begins: a region of this session was entered, inside none of
  /// its own. Its number, which the region keeps: segments that run again in backward belong to it.
  virtual uint64_t begin_pass() = 0;
  /// The passes to come are of that batch of a training whose steps have several: what is drawn in
  /// them depends on its number, whoever computes it.
  virtual void begin_batch(int64_t number) = 0;
  /// Where several processes train together, before before_step(): what the step's batches have
  /// shown to this one; and then, on each, what they have shown to all, by rank.
  virtual std::string seen() const = 0;
  virtual void hear(std::span<const std::string> seen_by_all) = 0;
  /// For an operation of a pass that is about to run, at the place that CallScope says.
  virtual Decision decide(const OpInfo& op, std::span<const Tensor> inputs, uint64_t pass) = 0;
  /// After the casts: who stands around this operation; null: nobody. `before`: the inputs as they
  /// were.
  virtual std::shared_ptr<OpTap> tap(std::span<const Tensor> before, std::span<const Tensor> after,
                                     uint64_t pass) = 0;
  /// Before a step of the optimizer, when nothing has changed yet. Throws UsageError for what could
  /// not be seen before the model had run: a rule that matches nothing.
  virtual void before_step() = 0;
  /// After a step of the optimizer, skipped ones included: scales move, parameters and states go
  /// onto their grids, unless `skip` (undefined, or an f32 scalar on any device) is not 0.
  virtual void end_step(optim::Optimizer& optimizer, const Tensor& skip) = 0;
  /// Everything that a resumed training needs, handles and not copies. load_state_dict() throws
  /// UsageError for a state that is not its own; then nothing has changed.
  virtual NamedTensors state_dict() const = 0;
  virtual void load_state_dict(const NamedTensors& state) = 0;
};

/// Makes the sessions of a strategy that has rules.
class SessionSource {
 public:
  virtual ~SessionSource() = default;
  virtual std::shared_ptr<Session> session_for(nn::Module& model,
                                               const Strategy& strategy) const = 0;
  /// The policy file that the strategy came from; null: none.
  virtual const policy::PolicyFile* file() const { return nullptr; }
};

}  // namespace halftone::amp
