// Applies a rulebook to one model: finds the site of each operation, determines its treatment, and
// stores the state of treatments. It fills the slot of amp/session.h.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include <halftone/amp/session.h>
#include <halftone/policy/rules.h>
#include <halftone/policy/session/observer.h>
#include <halftone/policy/session/tensor_scales.h>
#include <halftone/policy/session/weight_averages.h>

namespace halftone::amp {
class Training;
}

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

class PolicySession final : public amp::Session {
 public:
  struct Settings {
    uint64_t seed = 0;               // of random numbers
    distributed::WireFormat wire{};  // of gradients, for tables
    /// Identifies the policy in states. From a state of another policy only the position is loaded,
    /// not the scales.
    std::string hash{};
  };
  /// The model must outlive this. `where` names the policy in errors. Throws UsageError for rules
  /// that no model could satisfy.
  PolicySession(std::string_view where, nn::Module& model, std::shared_ptr<const Rulebook> rules,
                Settings settings);
  /// Returns a session without rules, for observers only, of a training that has taken `steps`
  /// steps. Between observed passes it costs nothing, and it adds nothing to checkpoints.
  static std::shared_ptr<PolicySession> for_observers(nn::Module& model, int64_t steps = 0);

  /// Sets the observer (null: none), starting with the next pass. Returns the previous
  /// one.
  std::shared_ptr<Observer> observe(std::shared_ptr<Observer> observer);
  /// Starts a second run of the last training pass: it draws the same random numbers, and histories
  /// record nothing. It ends when the returned object is destroyed.
  [[nodiscard]] std::shared_ptr<void> repeat_last_pass();

  PolicySession* of_policy() override { return this; }
  uint64_t begin_pass() override;
  void begin_batch(int64_t number) override;
  std::string seen() const override;
  void hear(std::span<const std::string> seen_by_all) override;
  Decision decide(const OpInfo& op, std::span<const Tensor> inputs, uint64_t pass) override;
  std::shared_ptr<OpTap> tap(std::span<const Tensor> before, std::span<const Tensor> after,
                             uint64_t pass) override;
  void before_step() override;
  void end_step(optim::Optimizer& optimizer, const Tensor& skip) override;
  NamedTensors state_dict() const override;
  void load_state_dict(const NamedTensors& state) override;

  /// Returns all sites met until now, in the order in which they were first met.
  std::vector<ResolvedSite> resolved() const;
  /// Throws UsageError for a rule that is not optional and matches none of the sites met until now.
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
  void require_possible(const Entry& entry) const;
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
  [[noreturn]] void fail_unmatched(std::size_t rule) const;
  std::vector<const Quantizer*> grids_from_history() const;
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
  Entry* current_ = nullptr;
  std::shared_ptr<Observer> observer_{};
  bool rules_used_ = false;  // whether it is known that each rule matches something
  /// By the sites of all ranks; empty: one process. For each rule: a place for the rule, and one
  /// for each role.
  std::vector<bool> used_by_any_{};
  std::vector<uint64_t> watched_{};  // passes since the last step that the observer requested
  bool lists_sites_ = true, repeats_ = false;
  /// This many passes have counters of their own.
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

/// Returns the session of a training whose strategy has rules or is watched(). Throws UsageError if
/// it has none.
PolicySession& session_of(const amp::Training& training);

}  // namespace halftone::policy
