#include "operations.h"

#include <utility>

namespace halftone::ptx {

Operation& Operations::add(Operation operation) {
  std::string name = operation.name;
  return all_.insert_or_assign(std::move(name), std::move(operation)).first->second;
}

Operation& Operations::add(std::string name, Run run, std::initializer_list<uint8_t> widths) {
  Operation operation;
  operation.name = std::move(name), operation.run = run, operation.widths = widths;
  return add(std::move(operation));
}

const Operation* Operations::find(std::string_view name) const {
  const auto found = all_.find(name);
  return found == all_.end() ? nullptr : &found->second;
}

const Operations& operations() {
  static const Operations* const instance = [] {
    auto* const all = new Operations;
    for (const auto add :
         {add_arithmetic, add_rounded, add_approximations, add_comparisons, add_integers,
          add_conversions, add_moves, add_memory, add_exchanges, add_matrices, add_control})
      add(*all);
    return all;
  }();
  return *instance;
}

namespace {
void nothing(Machine&, const Instruction&, const Lanes&) {}
}  // namespace

void add_control(Operations& all) {
  const auto control = [&](const char* name, Form form, Flow flow) {
    Operation& operation = all.add(name, nothing, {4});
    operation.form = form, operation.flow = flow, operation.results = 0;
  };
  control("bra", Form::branch, Flow::branch);
  control("bra.uni", Form::branch, Flow::branch);
  control("call.uni", Form::call, Flow::next);
  control("ret", Form::leave, Flow::leave);
  control("exit", Form::leave, Flow::leave);
  control("bar.sync", Form::barrier, Flow::barrier);
  control("bar.warp.sync", Form::plain, Flow::exchange);
}

}  // namespace halftone::ptx
