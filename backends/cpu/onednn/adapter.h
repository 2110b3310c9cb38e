// All differences between oneDNN 2.6 and 3.x, and the shared parts of the wrappers: engine, stream,
// descriptors, the plan cache, and the execution of a plan. No other file mentions a version.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <dnnl.hpp>

#include <halftone/backends/reference/loops.h>
#include <halftone/core/tensor.h>

namespace halftone::onednn {

dnnl::engine& engine();
dnnl::stream& stream();
/// Returns the oneDNN dtype, if this backend uses oneDNN for it: f32, and bf16 if there are
/// instructions for it.
std::optional<dnnl::memory::data_type> data_type(DType dtype);

/// Builds a primitive description. oneDNN 2 first needs an operation descriptor, 3 takes its
/// arguments directly. `hint` is the forward description if a backward one needs it.
template <class Primitive, class Hint, class... Arguments>
typename Primitive::primitive_desc describe(const dnnl::primitive_attr& attributes,
                                            const Hint& hint, const Arguments&... arguments) {
  using Description = typename Primitive::primitive_desc;
  constexpr bool hinted = !std::is_same_v<Hint, std::nullopt_t>;
  if constexpr (requires { typename Primitive::desc; }) {
    const typename Primitive::desc operation(arguments...);
    if constexpr (hinted) return Description(operation, attributes, engine(), hint);
    else return Description(operation, attributes, engine());
  } else {
    if constexpr (hinted) return Description(engine(), arguments..., hint, attributes);
    else return Description(engine(), arguments..., attributes);
  }
}

/// Returns the number of threads for oneDNN: one inside another region, else cpu_threads(), which a
/// parallel region does get. omp_get_max_threads(), which oneDNN calls, may return more.
int team_size();
/// While it exists, omp_get_max_threads() is team_size(), and OpenMP does not take threads away.
/// oneDNN cuts its work into that many parts, and its kernels wait for that many threads.
class TeamScope {
 public:
  TeamScope();
  ~TeamScope();
  TeamScope(const TeamScope&) = delete;
  TeamScope& operator=(const TeamScope&) = delete;

 private:
  int threads_before_, dynamic_before_;
};

/// The identity of a plan as numbers: the operation, team_size(), shapes, strides, dtypes and
/// attributes.
using PlanKey = std::vector<int64_t>;
struct PlanKeyHash {
  std::size_t operator()(const PlanKey& key) const {
    std::size_t h = 1469598103934665603ull;
    for (int64_t v : key) h = (h ^ std::size_t(v)) * 1099511628211ull;
    return h;
  }
};

/// An argument for which the primitive may need another layout than the tensor's.
struct Layout {
  dnnl::memory::desc plain, wanted;
  std::optional<dnnl::reorder> reorder;  // plain -> wanted for inputs, wanted -> plain for outputs
};
Layout input_layout(const dnnl::memory::desc& plain, const dnnl::memory::desc& wanted);
Layout output_layout(const dnnl::memory::desc& plain, const dnnl::memory::desc& wanted);

/// A built primitive with the layouts of its arguments, by oneDNN argument number.
struct Plan {
  dnnl::primitive primitive;
  std::vector<std::pair<int, Layout>> inputs{}, outputs{};
  int64_t scratchpad_bytes = 0;
  dnnl::memory::desc scratchpad{};
  std::string implementation{};
};

/// Returns the plan for a key, built by `build` the first time. Returns null if oneDNN refuses, or
/// would use its scalar reference implementation. Forgets all plans when there are 4,096, so that a
/// program whose shapes always change does not grow. Thread-safe.
std::shared_ptr<const Plan> plan_for(std::string_view op, const PlanKey& key,
                                     const std::function<Plan()>& build);

/// Fills in the values that every plan takes from its primitive description.
template <class Description> void finish(Plan& plan, const Description& description) {
  plan.scratchpad = description.scratchpad_desc();
  plan.scratchpad_bytes = int64_t(plan.scratchpad.get_size());
  plan.implementation = description.impl_info_str();
}
/// Returns the attributes of all plans: scratch memory comes from halftone, so that the ledger
/// counts it.
dnnl::primitive_attr user_scratchpad();

/// Runs a plan on raw pointers, given in the order of its inputs and outputs. Converts library
/// errors to DeviceError.
void execute(std::string_view op, const std::shared_ptr<const Plan>& plan,
             std::span<const void* const> inputs, std::span<void* const> outputs);

}  // namespace halftone::onednn
