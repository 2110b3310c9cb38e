// A policy, as a value: everything that says how a training computes. The dtype of the weights, the
// tensors that store their lost bits, the dtype of autocast, the loss scaling, and rules for single
// tensors. training.h applies it; a file has the same content (docs/policy_files.md).
//
// The memory strategies of mixed precision are policies without rules:
//
//   name             weights         companion          gradients  autocast  loss scale   at rest
//   fp64             f64             -                  f64        -         -            2x
//   fp32             f32             -                  f32        -         -            1x
//   amp-bf16         f32             -                  f32        bf16      -            1x
//   amp-fp16         f32             -                  f32        f16       dynamic      1x
//   o1-fp16          f32             -                  f32        f16       dynamic      1x
//   o2-fp16/-bf16    short, BN f32   f32 master         short      -         dynamic/-    1.5x
//   o3-fp16          f16             -                  f16        -         static 1     0.5x
//   full-bf16        bf16            -                  bf16       -         -            0.5x
//   full-bf16-sr     bf16            random numbers     bf16       -         -            0.5x
//   full-bf16-kahan  bf16            bf16 compensation  bf16       -         -            1x
//   split-bf16       upper halves    lower halves       bf16       -         -            1x  (*)
//
// (*) Upper halves are the weights rounded to nearest, as TransformerEngine's. IPEX cuts them off:
// .form = WeightForm::split. docs/strategies_compared.md has measurements of both.
//
// Optimizer state is f32; f64 for fp64, bf16 for full-bf16*; state_dtype selects another. (f16
// state underflows: the square of a gradient below 2e-4 is 0 there.)
#pragma once

#include <cstdint>
#include <filesystem>
#include <iosfwd>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <halftone/amp/cast_policy.h>
#include <halftone/amp/rules.h>
#include <halftone/core/loss_scale.h>
#include <halftone/core/update_rules.h>
#include <halftone/distributed/wire.h>
#include <halftone/nn/module.h>
#include <halftone/optim/optimizer.h>

namespace halftone::amp {

using halftone::HysteresisRule, halftone::LossScale, halftone::LossScaleOptions, halftone::next;

struct Policy {
  std::string name;
  DType weights = f32;  // of the model's parameters
  /// Batch-norm modules (affine or not) stay f32.
  bool keep_batch_norm = false;
  WeightForm form = WeightForm::plain;
  std::optional<DType> autocast{};      // the dtype of regions, if there are any
  std::string policy = "pytorch-cuda";  // the preset of casts in these regions (CastPolicy)
  bool scales_loss = false;
  LossScaleOptions loss_scale{};
  /// Formats of the optimizer's state. `states` has formats by name ("exp_avg"), which override the
  /// optimizer's options. `state_dtype` is for states that neither sets.
  std::optional<optim::StateFormat> state_dtype{};
  std::map<std::string, optim::StateFormat> states{};

  // --- choices that do not depend on the name
  /// True: masters are updated from short gradients in one pass, if the optimizer updates through
  /// the backend. Otherwise the gradients are first copied to f32, as apex does.
  bool fused_master = true;
  /// Sums several micro-batches in f32, for any dtype of the parameters.
  bool accumulate_in_f32 = false;
  /// Restores buffers (running statistics of batch norm) after a skipped step: the forward pass
  /// changed them before the skip was known.
  bool hold_statistics = false;
  uint64_t seed = 0;      // of stochastic rounding, also by rules
  uint64_t run_seed = 0;  // added to `seed` for one run; not in files and hashes
  /// The wire format of gradients in a sum of several batches: Training::train_together().
  distributed::WireFormat wire{};

  /// Replaces the preset `policy` if not null; a subclass can decide by the input tensors.
  std::shared_ptr<const CastPolicy> own_policy{};

  // --- what only files and programs set
  std::string about{};
  std::vector<std::string> meant_for{};  // models ("for"): "gpt", "mlp"; none: all
  policy::Rulebook rules{};
  /// Makes a session even if no rule needs one, so that sites (operations of the model) are listed.
  bool watched = false;

  optim::StateFormats state_formats() const { return {state_dtype, states}; }
  bool has_session() const { return watched || !rules.empty(); }
  uint64_t random_seed() const { return seed + run_seed; }
  /// Returns a strategy of the table above. Throws UsageError for others, with the nearest name.
  static Policy named(std::string_view name);
  static std::span<const std::string_view> names();
};

/// Prints one line, as in the table above.
std::ostream& operator<<(std::ostream& out, const Policy& strategy);

// The cost of a strategy, before it is chosen: the bytes of weights and optimizer tensors.
// Predicted from shapes; the ledger counts the same bytes in training.

struct StrategyBytes {
  int64_t parameter = 0;
  int64_t companion = 0;  // masters, remainders, compensation
  int64_t gradient = 0;   // between backward and step
  int64_t optimizer_state = 0;

  int64_t total() const { return parameter + companion + gradient + optimizer_state; }
};

/// Returns the bytes that a model and its optimizer need under `strategy`; another one, or none,
/// may have been applied to them. Frozen parameters have no gradients and no state. If several
/// ranks share out the optimizer (distributed/collectives.h), returns the bytes of the rank with
/// the most; its gradients are then the f32 (f64) sums of its part.
StrategyBytes predicted_bytes(const Policy& strategy, nn::Module& model,
                              optim::Optimizer& optimizer, int ranks = 1);

}  // namespace halftone::amp

namespace halftone::policy {

// Policies as versioned files; docs/policy_files.md has the grammar.
//   amp::Policy policy = policy::read("amp/policies/mxfp8.json");
//   amp::Training training(policy, model, optimizer);

/// Returns how many files this process has read; read() also counts the files that a file extends.
int64_t files_read();
/// Reads a file and the files that it extends; their paths are relative to it. Throws FormatError,
/// with the position in the file, if it is not a policy or has unknown names.
amp::Policy read(const std::filesystem::path& path);
/// The same for text; errors use `where` as the file's name. The text can extend strategies and
/// shipped policies, but no files.
amp::Policy read_text(std::string_view text, std::string_view where = "text");
/// Returns the whole policy as text, without `extends`: read_text() restores it. Throws UsageError
/// for policies that no file can express: those with a subclass of CastPolicy, entries with a dtype
/// or for users' operations, or grids with a bias of their own, and all that reading refuses.
std::string write(const amp::Policy& policy);
/// Returns a hash of write(policy) and of the program's own quantizers in it: FNV-1a, 64 bits, as
/// 16 hexadecimal digits.
std::string hash(const amp::Policy& policy);

/// Returns the names that the entry "for" of a file can have: those of the models in nn/models.
std::span<const std::string_view> model_names();
/// Reads the file if `name` ends in ".json"; otherwise returns the strategy or the shipped policy
/// of that name ("mxfp8"). Throws what read() throws, and UsageError for unknown names.
amp::Policy named_or_read(std::string_view name);
/// Returns the policy with `watched` set: it gets a session even if no rule needs one.
inline amp::Policy watched(amp::Policy policy) {
  policy.watched = true;
  return policy;
}

// FNV-1a, 64 bits (Fowler, Noll, Vo 1991): a hash of names that determine seeds, and of policies
// that logs name.

class Fingerprint {
 public:
  Fingerprint& add(std::string_view text) {
    for (const char c : text) value_ = (value_ ^ uint8_t(c)) * 0x100000001b3u;
    return *this;
  }
  uint64_t value() const { return value_; }
  /// Returns the value as 16 hexadecimal digits.
  std::string text() const {
    std::string digits(16, '0');
    uint64_t rest = value_;
    for (std::size_t i = 16; i-- > 0; rest >>= 4) digits[i] = "0123456789abcdef"[rest & 15];
    return digits;
  }

 private:
  uint64_t value_ = 0xcbf29ce484222325u;
};

// Quantizers that a program adds to those that every policy file knows.

/// Makes a quantizer usable in policy files by its name, in this process. Files that use it can be
/// written and read again here; in other processes the name is unknown. Tables print the name with
/// the hash. Throws UsageError for what check_own_quantizer() refuses, and for a name that is a
/// format, a quantizer, or a word of rules.
void add_quantizer(OwnQuantizer quantizer);

/// Returns the added quantizer of that name; null if there is none.
std::shared_ptr<const OwnQuantizer> own_quantizer_named(std::string_view name);

/// Returns the names of all added quantizers, in alphabetical order.
std::vector<std::string> own_quantizer_names();

// The files of amp/policies/, built into the library.

struct ShippedPolicy {
  std::string_view name;  // "mxfp8", of amp/policies/mxfp8.json
  std::string_view text;  // the file's content
};

/// Returns all shipped policies, in the order of their names.
std::span<const ShippedPolicy> shipped_policies();

/// Returns the shipped policy with this name or file name ("mxfp8", "mxfp8.json"); null for none.
inline const ShippedPolicy* shipped_policy(std::string_view name) {
  if (name.ends_with(".json")) name.remove_suffix(5);
  for (const ShippedPolicy& policy : shipped_policies())
    if (policy.name == name) return &policy;
  return nullptr;
}

}  // namespace halftone::policy
