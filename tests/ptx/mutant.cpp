#include "mutant.h"

#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <halftone/core/files.h>

#include "operations.h"

namespace halftone::ptx {

namespace {

void nothing(Machine&, const Instruction&, const Lanes&) {}

void swap_values(Kernel& kernel, Instruction& i) {
  std::vector<Operand> operands(i.operands, i.operands + i.operand_count);
  // The predicate of a selection is not a value.
  const std::size_t last = operands.size() - (i.operation->name.starts_with("selp") ? 2 : 1);
  if (last < i.results + 1u || operands[last].width != operands[last - 1].width)
    throw Fault("[ptx] there are no two values to swap: " + std::string(kernel.text_of(i)));
  std::swap(operands[last - 1], operands[last]);
  kernel.operands.push_back(std::move(operands));
  i.operands = kernel.operands.back().data();
}

}  // namespace

void mutate(Kernel& kernel, std::size_t place, std::string_view kind) {
  Instruction& i = kernel.code.at(place);
  kernel.mutated = true;
  if (kind == "drop") i.run = nothing, i.flow = Flow::next;
  else if (kind == "swap") swap_values(kernel, i);
  else if (kind == "invert" && i.guarded) i.guard_inverted = !i.guard_inverted;
  else
    throw Fault("[ptx] " + std::string(kind) + " is not a change of " +
                std::string(kernel.text_of(i)));
}

void mutate(Kernel& kernel) {
  static const char* const wanted = environment_variable("HALFTONE_PTX_MUTANT");
  if (!wanted) return;
  std::istringstream words(wanted);
  std::string name, kind;
  std::size_t place = 0;
  words >> name >> place >> kind;
  if (name == kernel.name) mutate(kernel, place, kind);
}

}  // namespace halftone::ptx
