// The caster that a region puts into autograd's slot, and the nesting of regions in this thread.
#include <halftone/amp/autocast.h>

#include <algorithm>
#include <cstdio>
#include <iomanip>
#include <ostream>
#include <sstream>

#include <halftone/amp/session.h>
#include <halftone/autograd/ops.h>
#include <halftone/autograd/ops/cast.h>
#include <halftone/autograd/slots.h>
#include <halftone/core/language.h>

namespace halftone::amp {

namespace {

/// The nested regions of this thread.
struct Nesting {
  int depth = 0;
  std::shared_ptr<CastCache> cache;          // of the outermost
  std::shared_ptr<policy::Session> session;  // of the innermost that has one
  uint64_t pass = 0;                         // of that session
  uint64_t innermost = 0, begun = 0;         // numbers of regions
  bool disordered = false;                   // one ended before a region inside it
  bool reported = false;                     // by an error
  std::shared_ptr<InputCaster> outside;      // the caster around the outermost
};
thread_local Nesting nesting;
thread_local int64_t made_casts = 0;

[[noreturn]] void refuse_disorder() {
  fail<UsageError>("autocast",
                   "a region ended before a region that had begun inside it. End the inner one "
                   "first, as scopes do.");
}

/// In a region's place after one has ended too early, until all have ended.
class RefusingCaster final : public InputCaster {
 public:
  CastPlan plan(const OpInfo& /*op*/, std::span<Tensor> /*inputs*/, bool /*f32*/) override {
    nesting.reported = true;
    refuse_disorder();
  }
  void cast_inputs(const OpInfo& /*op*/, std::span<Tensor> /*inputs*/) override {
    nesting.reported = true;
    refuse_disorder();
  }
};
const std::shared_ptr<InputCaster>& refusing_caster() {
  static const std::shared_ptr<InputCaster> caster = std::make_shared<RefusingCaster>();
  return caster;
}

class RegionCaster final : public InputCaster {
 public:
  RegionCaster(const Region& region, std::shared_ptr<CastCache> cache, uint64_t pass)
      : region_(region), cache_(std::move(cache)), pass_(pass) {}

  CastPlan plan(const OpInfo& op, std::span<Tensor> inputs, bool has_f32_result) override {
    if (&op == &Cast::info) return {};
    if (!region_.session) return {.f32_result = cast(op, inputs, has_f32_result, {})};
    const std::vector<Tensor> before(inputs.begin(), inputs.end());
    const policy::Treatment* const treated = region_.session->treat(op, inputs, pass_);
    const std::optional<CastDecision> ruled = treated ? treated->decision() : std::nullopt;
    CastPlan plan;
    if (treated) plan.result = treated->result, plan.accumulate = treated->accumulate;
    if (treated && treated->compute == policy::Compute::tf32) plan.tf32 = true;
    if (treated && treated->saved) {
      plan.saved = *treated->saved;
      plan.parameters = region_.session->parameters_among(before);
    }
    // Where a rule says f32, operands are cast to f32: its quantizers must not see short floats. A
    // weight of a product in hardware gets its f8 numbers from its f32 ones.
    const bool hardware = treated && treated->compute == policy::Compute::hardware;
    Tensor weight = hardware ? std::exchange(inputs[1], Tensor{}) : Tensor{};
    plan.f32_result = cast(op, inputs, has_f32_result && !ruled, ruled);
    if (hardware) inputs[1] = std::move(weight);
    plan.tap = region_.session->tap(before, inputs, pass_);
    return plan;
  }
  void cast_inputs(const OpInfo& op, std::span<Tensor> inputs) override {
    cast(op, inputs, false, {});
  }
  std::optional<CastPlan> open(const OpInfo& op, std::span<Tensor> inputs) override {
    const policy::Treatment* const treated =
        region_.session ? region_.session->open(op, inputs, pass_) : nullptr;
    if (!treated) return {};
    cast(op, inputs, false, treated->decision());
    return CastPlan{.result = treated->result};
  }

  bool treats() const override { return region_.session != nullptr; }

  bool casts() const { return region_.enabled; }
  std::optional<DType> dtype_on(Device device) const {
    return device == Device::cpu() ? region_.dtype
                                   : (region_.cuda_dtype ? region_.cuda_dtype : region_.dtype);
  }

 private:
  /// Follows the policy and informs the log; returns whether to write f32 from short floats.
  bool cast(const OpInfo& op, std::span<Tensor> inputs, bool has_f32_result,
            const std::optional<CastDecision>& ruled) {
    const CastDecision decision = ruled ? *ruled : region_.policy->decide(op, inputs);
    decision.check(op.name);
    PrecisionLog* log = PrecisionLog::active();
    const std::vector<Tensor> before =
        log ? std::vector(inputs.begin(), inputs.end()) : std::vector<Tensor>{};
    const CacheCounters counted = cache_->counters();
    uncached_bytes_ = 0;
    const bool f32_result = follow(decision, op, inputs, has_f32_result);
    const CacheCounters& now = cache_->counters();
    if (log)
      log->record({.op = &op,
                   .decided = decision,
                   .before = before,
                   .after = inputs,
                   .f32_result = f32_result,
                   .cache_hits = now.hits - counted.hits,
                   .bytes = uncached_bytes_ + now.bytes - counted.bytes});
    return f32_result;
  }

  bool eligible(const Tensor& x) const {
    return x.defined() && is_floating(x.dtype()) && x.dtype() != f64 && dtype_on(x.device());
  }

  /// channels_last: the memory order of the cast, if the cache stores it.
  Tensor converted(const Tensor& x, DType dtype, bool channels_last = false) {
    if (x.dtype() == dtype) return x;
    ++made_casts;
    if (CastWatcher* watcher = CastWatcherSlot::current()) watcher->casting(x, dtype);
    if (region_.cache && CastCache::serves(x)) return cache_->cast(x, dtype, channels_last);
    Tensor result = halftone::cast(x, dtype);
    uncached_bytes_ += result.bytes();
    return result;
  }

  bool follow(const CastDecision& decision, const OpInfo& op, std::span<Tensor> inputs,
              bool has_f32_result) {
    switch (decision.cast_class) {
      case CastClass::low_precision:
        for (Tensor& x : inputs)
          if (eligible(x))
            x = converted(x, decision.dtype_on(x.device()).value_or(*dtype_on(x.device())),
                          op.convolves && &x == &inputs[1] && x.device() == Device::cpu());
        return false;
      case CastClass::full_precision:
        // The kernel reads the short floats directly: the same numbers, without an f32 copy.
        if (has_f32_result && eligible(inputs[0])) return inputs[0].dtype() != f32;
        for (Tensor& x : inputs)
          if (eligible(x)) x = converted(x, f32);
        return false;
      case CastClass::widest_input: {
        std::optional<DType> widest;
        for (const Tensor& x : inputs)
          if (eligible(x)) widest = widest ? promote(*widest, x.dtype()) : x.dtype();
        for (Tensor& x : inputs)
          if (eligible(x)) x = converted(x, *widest);
        return false;
      }
      case CastClass::as_is: return false;
      case CastClass::banned: break;
    }
    fail<UsageError>(
        op.name, "is refused under autocast. ",
        op.instead.empty() ? "Run it in a disabled region, or change the policy." : op.instead);
  }

  Region region_;
  std::shared_ptr<CastCache> cache_;
  uint64_t pass_;
  int64_t uncached_bytes_ = 0;  // of the casts of one operation, for the log
};

void require_region_dtype(std::optional<DType> dtype) {
  if (dtype && *dtype != bf16 && *dtype != f16)
    fail<DTypeError>("autocast", "cannot run operations in ", *dtype, ". Use bf16 or f16.");
}

std::shared_ptr<InputCaster> caster_for(Region region) {
  require_region_dtype(region.dtype);
  require_region_dtype(region.cuda_dtype);
  refusing_caster();  // made here, because a destructor cannot throw
  if (nesting.disordered) {
    if (nesting.depth == 0) nesting.disordered = false;
    if (nesting.depth > 0 || !std::exchange(nesting.reported, false)) refuse_disorder();
  }
  const bool begins = region.session && region.session != nesting.session;
  const uint64_t pass = begins ? region.session->begin_pass() : nesting.pass;
  const std::shared_ptr<CastCache> cache =
      nesting.depth == 0 ? std::make_shared<CastCache>() : nesting.cache;
  std::shared_ptr<InputCaster> caster;
  static const auto standard = std::make_shared<const CastPolicy>(),
                    nothing = std::make_shared<const CastPolicy>(CastPolicy::preset("none"));
  if (!region.enabled) region.policy = nothing;
  else if (!region.policy) region.policy = standard;
  if (region.enabled || region.session)
    caster = std::make_shared<RegionCaster>(region, cache, pass);
  if (nesting.depth++ == 0) nesting.cache = cache, nesting.outside = shared_active_caster();
  if (begins) nesting.session = region.session, nesting.pass = pass;
  nesting.innermost = ++nesting.begun;
  return caster;
}

const RegionCaster* active_region() { return dynamic_cast<RegionCaster*>(active_caster()); }

}  // namespace

Autocast::Autocast(const Region& region)
    : outer_session_(nesting.session),
      outer_pass_(nesting.pass),
      outer_(nesting.innermost),
      root_(region.session && !CallScope::innermost() ? std::make_unique<CallScope>(nullptr)
                                                      : nullptr),
      scope_(caster_for(region)),
      number_(nesting.innermost) {}

// Checkpointed segments recorded here keep the cache object, but its entries are dropped now.
Autocast::~Autocast() {
  if (thread_ != std::this_thread::get_id()) {
    std::fputs(
        "[autocast] a region ends in another thread than the one it began in, where it goes on. "
        "Make it in the thread that ends it.\n",
        stderr);
    scope_->stay();
    static_cast<void>(root_.release());  // the other thread has a pointer to it
    return;
  }
  nesting.disordered |= nesting.innermost != number_;
  const bool last = --nesting.depth == 0;
  if (nesting.disordered) {
    scope_->stay();
    CasterScope(last ? nesting.outside : refusing_caster()).stay();
    if (last) nesting.session.reset(), nesting.pass = 0, nesting.innermost = 0;
  } else {
    nesting.session = std::move(outer_session_), nesting.pass = outer_pass_;
    nesting.innermost = outer_;
  }
  if (!last) return;
  nesting.outside.reset();
  nesting.cache->clear();
  nesting.cache.reset();
}

bool autocast_enabled() { return active_region() && active_region()->casts(); }
std::optional<DType> autocast_dtype(Device device) {
  const RegionCaster* region = active_region();
  return region && region->casts() ? region->dtype_on(device) : std::nullopt;
}
int64_t casts_made() { return made_casts; }
const CastCache* active_cast_cache() { return nesting.cache.get(); }

// One entry per leaf and dtype; an entry whose storage or version has changed is replaced.

bool CastCache::serves(const Tensor& x) {
  return x.dtype() == f32 && x.requires_grad() && x.is_leaf() && x.offset() == 0 &&
         x.bytes() == x.storage()->bytes();
}

Tensor CastCache::cast(const Tensor& x, DType dtype, bool channels_last) {
  Entry& entry = entries_[{x.meta().get(), dtype}];
  const std::shared_ptr<Storage>& storage = x.storage();
  if (entry.storage == storage && entry.version == storage->version()) {
    ++counters_.hits;
    return entry.result;
  }
  const EnableGrad recorded;
  const MemoryScope scope(MemoryUse::cast_cache);
  entry = {x, storage, storage->version(),
           apply(Cast{.to = dtype, .channels_last = channels_last}, x)};
  ++counters_.misses;
  counters_.bytes += entry.result.bytes();
  return entry.result;
}

// Counts by ordinary operations, so that it works on every device; unrecorded and uncast.

namespace {
thread_local PrecisionLog* active_log = nullptr;
constinit thread_local ScopeOrder<PrecisionLog*> scopes;

int64_t count(const Tensor& condition) { return int64_t(sum(cast(condition, f64)).item()); }
int64_t count_zeros(const Tensor& x) { return count(equal(x, zeros({}, x.dtype(), x.device()))); }
int64_t count_nonfinite(const Tensor& x) {
  // x - x is 0 if x is finite, else NaN.
  return x.numel() - count_zeros(x - x);
}

/// Returns "bf16", or "f32, i64" if the inputs differ.
std::string dtypes_of(std::span<const Tensor> inputs) {
  std::vector<std::string> names;
  for (const Tensor& x : inputs) {
    if (!x.defined()) continue;
    const std::string dtype(name(x.dtype()));
    if (std::ranges::find(names, dtype) == names.end()) names.push_back(dtype);
  }
  std::string text;
  for (const std::string& dtype : names) text += (text.empty() ? "" : ", ") + dtype;
  return text;
}
}  // namespace

PrecisionLog::PrecisionLog() : number_(scopes.begin()), before_(std::exchange(active_log, this)) {}
PrecisionLog::~PrecisionLog() { scopes.end(number_, before_, active_log); }
PrecisionLog* PrecisionLog::active() { return active_log; }

void PrecisionLog::record(const Event& event) {
  const std::string runs_in = dtypes_of(event.after) + (event.f32_result ? " -> f32" : "");
  const std::size_t position = entries_.size();
  auto& [first, entry] =
      entries_.try_emplace({std::string(event.op->name), event.decided, runs_in}, position, Entry{})
          .first->second;
  entry.op = event.op->name, entry.decided = event.decided, entry.runs_in = runs_in;
  ++entry.calls;
  entry.cache_hits += event.cache_hits, entry.bytes += event.bytes;
  const NoGrad unrecorded;
  const CasterScope uncast(nullptr);
  for (std::size_t i = 0; i < event.before.size(); ++i) {
    const Tensor &from = event.before[i], &to = event.after[i];
    if (!from.defined() || from.body() == to.body()) continue;
    ++entry.casts;
    entry.to_zero += count_zeros(to) - count_zeros(from);
    entry.to_infinity += count_nonfinite(to) - count_nonfinite(from);
  }
}

void PrecisionLog::clear() { entries_.clear(); }

std::vector<PrecisionLog::Entry> PrecisionLog::entries() const {
  std::vector<Entry> list(entries_.size());
  for (const auto& [key, numbered] : entries_) list[numbered.first] = numbered.second;
  return list;
}

PrecisionLog::Entry PrecisionLog::total() const {
  Entry sum{.op = "total", .decided = CastClass::as_is, .runs_in = ""};
  for (const Entry& e : entries()) {
    sum.calls += e.calls, sum.casts += e.casts, sum.cache_hits += e.cache_hits;
    sum.bytes += e.bytes, sum.to_zero += e.to_zero, sum.to_infinity += e.to_infinity;
  }
  return sum;
}

std::ostream& operator<<(std::ostream& out, const PrecisionLog& log) {
  PlainText text;
  int width = 16;
  for (const PrecisionLog::Entry& e : log.entries())
    width = std::max(width, int(described(e.decided).size()) + 1);
  const auto line = [&](const auto& op, const auto& decided, const auto& runs_in,
                        const auto&... numbers) {
    text << std::left << std::setw(18) << op << std::setw(width) << decided << std::setw(19)
         << runs_in << std::right;
    ((text << std::setw(10) << numbers), ...);
    text << '\n';
  };
  line("operation", "policy", "runs in", "calls", "casts", "cached", "KiB cast", "to zero",
       "to inf");
  const auto print = [&](const PrecisionLog::Entry& e, std::string_view decided) {
    line(e.op, decided, e.runs_in, e.calls, e.casts, e.cache_hits, (e.bytes + 512) / 1024,
         e.to_zero, e.to_infinity);
  };
  for (const PrecisionLog::Entry& entry : log.entries()) print(entry, described(entry.decided));
  print(log.total(), "");
  return out << text.str();
}

}  // namespace halftone::amp
