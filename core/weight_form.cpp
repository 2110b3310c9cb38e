// Names of the weight forms, for tables and messages.
#include <halftone/core/weight_form.h>

namespace halftone {

std::string_view name(WeightForm form) {
  switch (form) {
    case WeightForm::plain: return "plain";
    case WeightForm::master: return "master";
    case WeightForm::split: return "split";
    case WeightForm::split_rounded: return "split_rounded";
    case WeightForm::kahan: return "kahan";
    default: return "stochastic";
  }
}

std::optional<WeightForm> weight_form_named(std::string_view wanted) {
  for (int form = 0; form <= int(WeightForm::stochastic); ++form)
    if (name(WeightForm(form)) == wanted) return WeightForm(form);
  return std::nullopt;
}

}  // namespace halftone
