// Engine, plan cache and execution.
#include <halftone/backends/cpu/onednn/adapter.h>

#include <memory>

#include <omp.h>

#include <halftone/backends/cpu/onednn/onednn.h>
#include <halftone/core/device.h>

namespace halftone::onednn {

namespace {
constexpr std::size_t most_plans = 4096;  // about 70 KB each
thread_local std::shared_ptr<const Plan> last_plan;

struct Plans {
  std::mutex mutex;
  std::unordered_map<PlanKey, std::shared_ptr<const Plan>, PlanKeyHash> built;  // null: declined
};
Plans& plans() {
  static Plans* instance = new Plans;  // never destroyed: oneDNN's own statics may be destroyed
                                       // first
  return *instance;
}

std::string version() {
  const dnnl_version_t* v = dnnl_version();
  return "oneDNN " + std::to_string(v->major) + '.' + std::to_string(v->minor) + '.' +
         std::to_string(v->patch);
}

/// Returns whether oneDNN, with or without a cap by ONEDNN_MAX_CPU_ISA, has instructions for bf16.
/// Without them it emulates bf16 on AVX-512 at a third of the speed of f32.
bool bf16_is_native() {
  static const bool native = [] {
    constexpr auto wanted = unsigned(dnnl::cpu_isa::avx512_core_bf16);  // a set of bits
    return (unsigned(dnnl::get_effective_cpu_isa()) & wanted) == wanted;
  }();
  return native;
}
}  // namespace

int team_size() { return omp_in_parallel() ? 1 : cpu_threads(); }

TeamScope::TeamScope()
    : threads_before_(omp_get_max_threads()), dynamic_before_(omp_get_dynamic()) {
  omp_set_num_threads(team_size());
  omp_set_dynamic(0);
}
TeamScope::~TeamScope() {
  omp_set_num_threads(threads_before_);
  omp_set_dynamic(dynamic_before_);
}

dnnl::engine& engine() {
  static dnnl::engine* instance = new dnnl::engine(dnnl::engine::kind::cpu, 0);
  return *instance;
}

dnnl::stream& stream() {
  thread_local dnnl::stream instance(engine());
  return instance;
}

std::optional<dnnl::memory::data_type> data_type(DType dtype) {
  if (dtype == f32) return dnnl::memory::data_type::f32;
  if (dtype == bf16 && bf16_is_native()) return dnnl::memory::data_type::bf16;
  return std::nullopt;
}

Layout input_layout(const dnnl::memory::desc& plain, const dnnl::memory::desc& wanted) {
  Layout layout{plain, wanted, {}};
  if (plain != wanted) layout.reorder = dnnl::reorder({engine(), plain, engine(), wanted});
  return layout;
}

Layout output_layout(const dnnl::memory::desc& plain, const dnnl::memory::desc& wanted) {
  Layout layout{plain, wanted, {}};
  if (plain != wanted) layout.reorder = dnnl::reorder({engine(), wanted, engine(), plain});
  return layout;
}

dnnl::primitive_attr user_scratchpad() {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attributes;
}

std::shared_ptr<const Plan> plan_for(std::string_view op, const PlanKey& key,
                                     const std::function<Plan()>& build) {
  const std::lock_guard lock(plans().mutex);
  if (plans().built.size() >= most_plans && !plans().built.contains(key)) plans().built.clear();
  const auto [place, is_new] = plans().built.try_emplace(key);
  if (is_new) {
    const TeamScope team;
    try {
      Plan plan = build();
      const bool scalar =
          plan.implementation.starts_with("ref") || plan.implementation.starts_with("simple");
      if (!scalar) place->second = std::make_shared<const Plan>(std::move(plan));
    } catch (const dnnl::error& error) {
      // A request that has no primitive, or that oneDNN calls invalid (for example a negative
      // padding after a dilated window), is declined and goes to the own kernels; only lack of
      // memory is an error.
      if (error.status == dnnl_out_of_memory) {
        plans().built.erase(place);
        fail<DeviceError>(running_operation(op), version(),
                          " cannot build the primitive: ", error.what(),
                          ". Set HALFTONE_CPU_BACKEND=reference to go on without it.");
      }
    } catch (...) {  // otherwise later calls would find a declined plan
      plans().built.erase(place);
      throw;
    }
  }
  return place->second;
}

void execute(std::string_view op, const std::shared_ptr<const Plan>& shared,
             std::span<const void* const> inputs, std::span<void* const> outputs) {
  const Plan& plan = *shared;
  using reference::Workspace;
  const TeamScope team;
  std::vector<std::unique_ptr<Workspace<std::byte>>> temporaries;
  std::unordered_map<int, dnnl::memory> arguments;
  std::vector<std::pair<dnnl::memory, dnnl::memory>> results;  // reordered outputs: wanted, plain
  const auto temporary = [&](const dnnl::memory::desc& desc) {
    temporaries.push_back(std::make_unique<Workspace<std::byte>>(int64_t(desc.get_size())));
    return dnnl::memory(desc, engine(), temporaries.back()->data());
  };
  try {
    for (std::size_t i = 0; i < plan.inputs.size(); ++i) {
      const auto& [name, layout] = plan.inputs[i];
      dnnl::memory plain(layout.plain, engine(), const_cast<void*>(inputs[i]));
      if (layout.reorder) {
        dnnl::memory wanted = temporary(layout.wanted);
        layout.reorder->execute(stream(), plain, wanted);
        plain = wanted;
      }
      arguments.emplace(name, plain);
    }
    for (std::size_t i = 0; i < plan.outputs.size(); ++i) {
      const auto& [name, layout] = plan.outputs[i];
      dnnl::memory plain(layout.plain, engine(), outputs[i]);
      if (layout.reorder) results.emplace_back(temporary(layout.wanted), plain);
      arguments.emplace(name, layout.reorder ? results.back().first : plain);
    }
    if (plan.scratchpad_bytes > 0)
      arguments.emplace(DNNL_ARG_SCRATCHPAD, temporary(plan.scratchpad));
    plan.primitive.execute(stream(), arguments);
    std::size_t next = 0;
    for (const auto& [name, layout] : plan.outputs)
      if (layout.reorder) {
        layout.reorder->execute(stream(), results[next].first, results[next].second);
        ++next;
      }
    stream().wait();
  } catch (const dnnl::error& error) {
    fail<DeviceError>(running_operation(op), version(), " failed in ", plan.implementation, ": ",
                      error.what(), ". Set HALFTONE_CPU_BACKEND=reference to go on without it.");
  }
  last_plan = shared;
}

std::string description() { return version(); }
std::string last_implementation() { return last_plan ? last_plan->implementation : std::string(); }

}  // namespace halftone::onednn
