// A rulebook at work on one model: finds the site of each operation, gives it its treatment, and
// keeps what treatments remember. Fills the slot of amp/session.h.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include <halftone/amp/session.h>
#include <halftone/policy/session/observer.h>
#include <halftone/policy/rules/rulebook.h>
#include <halftone/policy/session/tensor_scales.h>

namespace halftone::amp {
class Training;
}

namespace halftone::policy {

/// A site with what it gets in the present step.
struct ResolvedSite {
  Site site;
  CastClass asks = CastClass::as_is;
  std::vector<Role> roles{};  // of its inputs
  /// Their dtypes as the operation gets them, after native casts; none: there is no such input.
  std::vector<std::optional<DType>> operands{};
  double flops = 0;  // of linear and matmul; of a convolution, as if its stride were 1
  std::shared_ptr<const Treatment> treatment{};
};

class PolicySession final : public amp::Session {
 public:
  struct Settings {
    uint64_t seed = 0;               // of what is drawn
    distributed::WireFormat wire{};  // of gradients, for tables
    /// Names the policy in states: of one that another policy left the position is taken, not the
    /// scales.
    std::string hash{};
  };
  /// The model must outlive this. `where` names the policy in errors. Throws UsageError for rules
  /// that no model could satisfy.
  PolicySession(std::string_view where, nn::Module& model, std::shared_ptr<const Rulebook> rules,
                Settings settings);
  /// One without rules, that only lets somebody observe: between the passes that they want to see
  /// it costs nothing, and it leaves nothing in checkpoints.
  static std::shared_ptr<PolicySession> for_observers(nn::Module& model);

  /// Who is told of the passes that it asks for, from the next one on; null: nobody. Returns who
  /// was before.
  std::shared_ptr<Observer> observe(std::shared_ptr<Observer> observer);
  /// A second run of the last pass of training: the numbers that were drawn are drawn again, and
  /// histories note nothing. Ends with what it returns.
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

  /// All sites met so far, in the order in which they were first met.
  std::vector<ResolvedSite> resolved() const;
  /// Throws UsageError for a rule that is not optional and matches none of the sites met so far.
  void require_all_rules_used() const;
  const Rulebook& rules() const { return matcher_.book(); }
  const Settings& settings() const { return settings_; }
  const ModelNames& names() const { return names_; }

 private:
  struct Key {
    const void* module;  // of the model, that is being called
    const void* owner;   // the same, or something in it that the model does not name
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
  bool is_used(std::size_t rule) const;
  std::vector<const Quantizer*> grids_from_history() const;
  void put_on_grid(const Quantizer& quantizer, const std::string& tensor, const Tensor& x,
                   const Tensor& skip = {}) const;

  std::string where_;
  Settings settings_;
  int64_t hash_;  // of the policy's hash
  ModelNames names_;
  RuleMatcher matcher_;
  std::unordered_map<Key, Entry, HashKey> entries_;
  std::vector<Key> order_;
  std::shared_ptr<TensorScales> scales_;
  Entry* current_ = nullptr;
  std::shared_ptr<Observer> observer_{};
  bool rules_used_ = false;          // that each matches something is known
  std::vector<bool> used_by_any_{};  // rules, by the sites of all ranks; none: of one process
  std::vector<uint64_t> watched_{};  // passes since the last step that the observer asked for
  bool lists_sites_ = true, repeats_ = false;
  /// So many passes have counters of their own.
  static constexpr uint64_t passes_of_keys = uint64_t(1) << 30;
  /// Shared with captured steps, which count on when they are replayed.
  struct Position {
    int64_t step = 0;
    uint64_t pass = 0;       // the last one's number, or what a batch's first one follows
    uint64_t last_pass = 0;  // of training
  };
  std::shared_ptr<Position> at_;
  uint64_t next_pass_ = 1;  // how far numbers of passes are apart
  int64_t changes_at_;
};

/// The session of a training whose strategy has rules or is watched(). Throws UsageError if it has
/// none.
PolicySession& session_of(const amp::Training& training);

}  // namespace halftone::policy
