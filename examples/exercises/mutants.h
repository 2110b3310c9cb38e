// The grader of tasks 13 to 15, where the student writes the test. Correct implementations must be
// accepted, and mutants (implementations with one bug each) must be rejected.
#pragma once

#include "grade.h"

namespace grade {

template <class Implementation> struct Named {
  const char* name;
  Implementation implementation;
};

/// Fails with the names of those for which accepts() returns something other than `wanted`.
template <class Implementation>
void judge(bool (*accepts)(Implementation), const std::vector<Named<Implementation>>& all,
           bool wanted) {
  std::string names;
  int count = 0;
  for (const auto& [name, implementation] : all) {
    input("accepts() of the implementation \"%s\"", name);
    if (accepts(implementation) != wanted) names += std::string("\n- ") + name, ++count;
  }
  input("%d %s", int(all.size()), wanted ? "correct implementations" : "mutants");
  if (count > 0)
    fail(wanted ? "accepts() is true for all of them" : "accepts() is false for all of them",
         (wanted ? "rejected: " : "survivors: ") + std::to_string(count) + names +
             (wanted ? "\nPrint the input at which accepts() returns false, with std::printf."
                     : ""));
}

}  // namespace grade
