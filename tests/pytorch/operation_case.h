// One case of an operation against PyTorch, with the dtypes of its results: tensors a, b, c and
// whole numbers n in; y, y2, ... out; da, db, dc from dy. The fixtures' scripts have `Cases` for
// them.
#pragma once

#include "fixture.h"

namespace halftone::test {

struct Arguments {
  Tensor a, b, c;
  std::vector<int64_t> n;
  int dim(std::size_t i) const { return int(n[i]); }
};
using Results = std::vector<Tensor>;
using Operation = std::function<Results(const Arguments&)>;

/// Returns "" if equal up to a few roundings; zeros must have equal signs if results are exact.
inline std::string compared(const Tensor& got, const Tensor& wanted) {
  if (got.dtype() != wanted.dtype() || got.shape() != wanted.shape()) {
    std::ostringstream text;
    text << described(got) << " where PyTorch has " << described(wanted);
    return text.str();
  }
  const double eps = epsilon(wanted.dtype());
  return difference(got, wanted, eps == 0 ? 0 : 4 * eps * std::max(1.0, largest_magnitude(wanted)));
}

inline void check_case(const NamedTensors& stored, const Operation& operation) {
  Arguments in{find(stored, "a"), find(stored, "b"), find(stored, "c"), {}};
  if (const Tensor n = find(stored, "n"); n.defined()) in.n = n.to_vector<int64_t>();
  for (const auto& [name, leaf] : {std::pair{"da", &in.a}, {"db", &in.b}, {"dc", &in.c}})
    if (stored.contains(name)) leaf->set_requires_grad();
  const Results results = operation(in);
  CHECK(compared(results[0], stored.at("y")) == "");
  for (std::size_t i = 1; stored.contains("y" + std::to_string(i + 1)); ++i) {
    REQUIRE(i < results.size());
    CHECK(compared(results[i], stored.at("y" + std::to_string(i + 1))) == "");
  }
  CHECK(!stored.contains("y" + std::to_string(results.size() + 1)));
  if (!stored.contains("dy")) return;
  results[0].backward(stored.at("dy"));
  for (const auto& [name, leaf] : {std::pair{"da", &in.a}, {"db", &in.b}, {"dc", &in.c}}) {
    CAPTURE(name);
    if (stored.contains(name)) CHECK(compared(leaf->grad(), stored.at(name)) == "");
  }
}

}  // namespace halftone::test
