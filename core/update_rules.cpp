// The weight forms' facts, for tables, messages and code that makes companions.
#include <halftone/core/update_rules.h>

#include <array>

namespace halftone {

namespace {
template <class... F> constexpr auto table_of(TypeList<F...>) {
  return std::array<WeightFormFacts, sizeof...(F)>{
      WeightFormFacts{F::name, F::companion, F::lies, F::only_bf16, F::uses_random, F::uses_rounded,
                      F::companion_dtype}...};
}
constexpr auto form_facts = table_of(WeightForms{});
}  // namespace

const WeightFormFacts& facts(WeightForm form) { return form_facts[std::size_t(form)]; }

std::string_view name(WeightForm form) { return facts(form).name; }

std::optional<WeightForm> weight_form_named(std::string_view wanted) {
  for (int form = 0; form < int(WeightForms::size); ++form)
    if (name(WeightForm(form)) == wanted) return WeightForm(form);
  return std::nullopt;
}

}  // namespace halftone
