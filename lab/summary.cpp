#include <halftone/lab/summary.h>

#include <cmath>

#include <halftone/lab/run.h>
#include <halftone/lab/run_folder.h>

namespace halftone::lab {

namespace {

constexpr int64_t most_counts = int64_t(1) << 53;

// --- entries of summary.json

/// A text; null: unknown.
void fact(Record& r, std::string_view name, std::string& x) {
  r.entry(
      name, x, {}, [](const JsonValue& v) { return v.is_null() ? "" : v.text(); },
      [](const std::string& text) { return text.empty() ? Json() : Json(text); });
}

template <class Text> void hash(Record& r, std::string_view name, Text& x) {
  r.entry(name, x, {}, [](const JsonValue& v) {
    const std::string text = v.text();
    if (text.size() != 16 || text.find_first_not_of("0123456789abcdef") != std::string::npos)
      v.refuse("expected 16 hexadecimal digits, got \"", text.substr(0, 40), "\".");
    return text;
  });
}

void seed(Record& r, std::string_view name, uint64_t& x) {
  r.entry(name, x, {}, [](const JsonValue& v) {
    if (!v.json().is_number_unsigned()) v.refuse("expected a whole number from 0 to 2^64 - 1.");
    return v.json().get<uint64_t>();
  });
}

double size_in(const JsonValue& v) {
  const double x = v.number();
  if (!(x >= 0)) v.refuse("expected a number from 0, got ", x, '.');
  return x;
}

/// A number of the results; null: the run diverged, or had no validation data.
void result(Record& r, std::string_view name, double& x, double (*read)(const JsonValue&)) {
  r.entry(
      name, x, {}, [=](const JsonValue& v) { return v.is_null() ? std::nan("") : read(v); },
      [](double value) { return std::isnan(value) ? Json() : Json(value); });
}

template <class T>
void named(Record& r, std::string_view name, Named<T>& x, T (*read)(const JsonValue&)) {
  r.entry(
      name, x, {},
      [=](const JsonValue& v) {
        if (!v.is_object()) v.refuse("expected an object.");
        Named<T> numbers;
        for (const JsonValue& member : v.members())
          numbers.emplace_back(member.key(), read(member));
        return numbers;
      },
      [](const Named<T>& numbers) {
        Json object = Json::object();
        for (const auto& [key, value] : numbers) object[key] = value;
        return object;
      });
}

void origin(Record& r, Summary::Origin& x) {
  r.entry(
      "from", x, {},
      [](const JsonValue& v) {
        Summary::Origin from;
        if (v.is_null()) return from;
        if (from.path = wanted(v, "path").text(); from.path.empty())
          wanted(v, "path").refuse("expected a path, got \"\".");
        static_cast<void>(wanted(v, "hash"));
        from = Record::read_known(v, from);
        return from;
      },
      [](const Summary::Origin& from) { return from.path.empty() ? Json() : Record::write(from); });
}

void describe_settings(Record& r, Summary& s) {
  hash(r, "policy_hash", s.policy_hash);
  r.text("workload", s.workload);
  seed(r, "seed", s.seed);
  r.integer("steps", s.steps, 1, most_steps);
  r.entry("lr", s.lr, {}, [](const JsonValue& v) {
    if (const double lr = v.number(); lr > 0) return lr;
    v.refuse("expected a number above 0, got ", v.number(), '.');
  });
  r.group("optimizer", "an optimizer", [&](Record& inner) {
    fact(inner, "named", s.optimizer.named);
    fact(inner, "class", s.optimizer.type);
    inner.entry("options", s.optimizer.options, {}, [](const JsonValue& v) { return v.json(); });
  });
  r.group("schedule", "a schedule", [&](Record& inner) {
    fact(inner, "named", s.schedule.named);
    fact(inner, "hash", s.schedule.hash);
  });
  r.entry("clip_norm", s.clip_norm, {}, size_in);
  r.integer("batch", s.batch, 0, most_counts);
  r.group("data", "data", [&](Record& inner) {
    fact(inner, "hash", s.data.hash);
    inner.integer("samples", s.data.samples, 0, most_counts);
    inner.flag("shuffle", s.data.shuffle);
    inner.flag("drop_last", s.data.drop_last);
    seed(inner, "seed", s.data.seed);
    hash(inner, "validation_hash", s.data.validation_hash);
    inner.integer("validation_samples", s.data.validation_samples, 0, most_counts);
  });
  origin(r, s.from);
}

void describe_identity(Record& r, Summary& s) {
  r.text("policy", s.policy);
  hash(r, "resolved_hash", s.resolved_hash);
  describe_settings(r, s);
  fact(r, "version", s.version);
  fact(r, "commit", s.commit);
  fact(r, "compiler", s.compiler);
  fact(r, "backend", s.backend);
  fact(r, "kernels", s.kernels);
  r.integer("threads", s.threads, 0, most_counts);
  fact(r, "processor", s.processor);
  r.entry("portable_bits", s.portable_bits, {},
          [](const JsonValue& v) { return !v.is_null() && v.boolean(); });
}

template <auto body> std::span<const std::string_view> names_of() {
  static const auto list = Record::names([](Record& r) {
    Summary scratch;
    body(r, scratch);
  });
  return list;
}

/// Every version wrote these fields.
constexpr std::string_view required_fields[] = {
    "format", "policy",    "policy_hash",           "workload",      "seed",        "steps", "lr",
    "loss",   "late_loss", "milliseconds_per_step", "skipped_steps", "weights_hash"};
}  // namespace

void describe(Record& r, Summary::Origin& from) {
  r.text("path", from.path);
  hash(r, "hash", from.hash);
}

void describe(Record& r, Summary& s) {
  int64_t format = 1;
  r.entry("format", format, {}, [](const JsonValue& v) {
    if (const int64_t there = v.integer(0, 1'000'000); there != 1)
      v.refuse("the format is ", there, ", and this program reads 1.");
    return int64_t(1);
  });
  describe_identity(r, s);
  result(r, "loss", s.loss, [](const JsonValue& v) { return v.number(); });
  result(r, "late_loss", s.late_loss, [](const JsonValue& v) { return v.number(); });
  result(r, "validation_loss", s.validation_loss, [](const JsonValue& v) { return v.number(); });
  result(r, "validation_accuracy", s.validation_accuracy,
         [](const JsonValue& v) { return v.number(); });
  r.integer("parameters", s.parameters, 0, most_counts);
  r.integer("tokens", s.tokens, 0, most_counts);
  named(r, "operands", s.operands, size_in);
  result(r, "milliseconds_per_step", s.milliseconds_per_step, size_in);
  r.integer("skipped_steps", s.skipped_steps, 0, most_counts);
  hash(r, "weights_hash", s.weights_hash);
  r.integer("probe", s.probe, 0, most_counts);
  r.integer("probe_from", s.probe_from, 0, most_counts);
  fact(r, "environment", s.environment);
  named<int64_t>(r, "bytes_at_peak", s.bytes_at_peak,
                 [](const JsonValue& v) { return v.integer(0, most_counts); });
  r.integer("order", s.order, 0, most_counts);
}

Summary read_summary(const JsonValue& json) {
  for (const std::string_view field : required_fields) static_cast<void>(wanted(json, field));
  return Record::read_known(json, Summary{});
}

std::span<const std::string_view> identity_fields() { return names_of<describe_identity>(); }
std::span<const std::string_view> settings_fields() { return names_of<describe_settings>(); }

}  // namespace halftone::lab
