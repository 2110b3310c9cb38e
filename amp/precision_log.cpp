// Counts by ordinary operations, so that it works on every device; unrecorded and uncast.
#include <halftone/amp/precision_log.h>

#include <algorithm>
#include <iomanip>
#include <ostream>
#include <sstream>

#include <halftone/autograd/ops.h>
#include <halftone/core/language.h>

namespace halftone::amp {

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
