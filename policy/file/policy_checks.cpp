// Entries that exclude each other, from a file itself or from its base.
#include <halftone/policy/file/policy_checks.h>

namespace halftone::policy {

namespace {

/// Returns the entry of the file with this key, or the file if it has none.
JsonValue place_of(const JsonValue& top, std::string_view key, std::string_view inner = {}) {
  const auto outer = top.find(key);
  if (!outer || inner.empty()) return outer.value_or(top);
  return outer->find(inner).value_or(*outer);
}

/// "low" is the dtype of autocast; rules of the base come before those of this file.
void require_low_dtype(const JsonValue& top, const PolicyFile& file) {
  if (file.base.autocast) return;
  const auto own = top.find("rules");
  const std::size_t count = own ? own->elements().size() : 0,
                    inherited = file.rules.rules.size() - count;
  for (std::size_t i = 0; i < file.rules.rules.size(); ++i) {
    if (file.rules.rules[i].compute != Compute::low) continue;
    const std::string_view wanted =
        "computes in \"low\", the dtype of autocast, and there is "
        "none. Say \"bf16\" or \"f16\", or add \"autocast\".";
    if (i >= inherited) own->elements()[i - inherited].find("compute")->refuse("the rule ", wanted);
    place_of(top, "autocast").refuse("rule ", i, " of the base ", wanted);
  }
}

}  // namespace

void require_sensible(const JsonValue& top, const PolicyFile& file) {
  const amp::Strategy& base = file.base;
  const bool is_short = base.weights == bf16 || base.weights == f16;
  if (base.form != WeightForm::plain && !is_short)
    place_of(top, "weights")
        .refuse("weights are ", base.weights, " and their form is ", name(base.form),
                ", which keeps what a short dtype loses. Use \"form\": \"plain\", or \"dtype\": "
                "\"bf16\".");
  if (base.weights == f64 && base.autocast)
    place_of(top, top.find("autocast") ? "autocast" : "weights")
        .refuse("weights are f64 and autocast is ", *base.autocast,
                ": f64 is never cast. Use f32 weights, or \"autocast\": null.");
  const bool has_companion = base.form == WeightForm::split ||
                             base.form == WeightForm::split_rounded ||
                             base.form == WeightForm::kahan;
  if (file.rules.parameters && has_companion)
    place_of(top, "optimizer", "parameters")
        .refuse("parameters go onto a grid, and the form ", name(base.form),
                " stores what they lost, which would bring it back. Use \"form\": "
                "\"plain\", or \"parameters\": \"none\".");
  if (base.weights == f64 && file.base.wire.dtype)
    place_of(top, "communication", "gradients")
        .refuse(
            "weights are f64, and their gradients travel as they are. Use f32 weights, or "
            "\"own\".");
  require_low_dtype(top, file);
}

std::span<const std::string_view> model_names() {
  static constexpr std::array<std::string_view, 6> names{"gpt", "lenet",  "lstm_classifier",
                                                         "mlp", "resnet", "unet"};
  return names;
}

}  // namespace halftone::policy
