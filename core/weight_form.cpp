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

}  // namespace halftone
