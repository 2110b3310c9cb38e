// One list of fields, each with the function that checks its value.
#include <halftone/lab/run_files/summary_fields.h>

#include <halftone/lab/run.h>
#include <halftone/policy/policy_file.h>

namespace halftone::lab {

namespace {
using policy::JsonValue;

constexpr int64_t most_counts = int64_t(1) << 53;

void require_format(const JsonValue& value) {
  if (const int64_t format = value.integer(0, 1'000'000); format != 1)
    fail<FormatError>("summary", "/: the format is ", format, ", and this program reads 1.");
}

void require_text(const JsonValue& value) { static_cast<void>(value.text()); }

void require_hash(const JsonValue& value) {
  const std::string text = value.text();
  if (text.size() != 16 || text.find_first_not_of("0123456789abcdef") != std::string::npos)
    value.refuse("expected 16 hexadecimal digits, got \"", text.substr(0, 40), "\".");
}

void require_seed(const JsonValue& value) {
  if (!value.json().is_number_unsigned())
    value.refuse("expected a whole number from 0 to 2^64 - 1.");
}

void require_steps(const JsonValue& value) { static_cast<void>(value.integer(1, most_steps)); }
void require_count(const JsonValue& value) { static_cast<void>(value.integer(0, most_counts)); }

void require_rate(const JsonValue& value) {
  if (const double lr = value.number(); !(lr > 0))
    value.refuse("expected a number above 0, got ", lr, '.');
}

void require_size(const JsonValue& value) {
  if (const double x = value.number(); !(x >= 0))
    value.refuse("expected a number from 0, got ", x, '.');
}

/// A result: null if the run diverged, or had no validation data.
void require_result(const JsonValue& value) {
  if (!value.is_null()) static_cast<void>(value.number());
}

void require_time(const JsonValue& value) {
  if (!value.is_null()) require_size(value);
}

void require_fact(const JsonValue& value) {
  if (!value.is_null()) require_text(value);
}

void require_yes_or_no(const JsonValue& value) {
  if (!value.is_null()) static_cast<void>(value.boolean());
}

void require_object(const JsonValue& value) {
  if (!value.is_object()) value.refuse("expected an object.");
}

void require_counts(const JsonValue& value) {
  require_object(value);
  for (const JsonValue& member : value.members()) require_count(member);
}

void require_sizes(const JsonValue& value) {
  require_object(value);
  for (const JsonValue& member : value.members()) require_size(member);
}

/// An optimizer or a schedule.
void require_choice(const JsonValue& value) {
  require_object(value);
  for (const char* key : {"named", "class", "hash"})
    if (const auto member = value.find(key)) require_fact(*member);
}

void require_origin(const JsonValue& value) {
  if (value.is_null()) return;
  const JsonValue path = wanted(value, "path");
  if (path.text().empty()) path.refuse("expected a path, got \"\".");
  require_hash(wanted(value, "hash"));
}

struct Field {
  std::string_view name;
  void (*check)(const JsonValue&);
};

/// Every run has these fields.
constexpr Field required_fields[] = {{"format", require_format},
                                     {"policy", require_text},
                                     {"policy_hash", require_hash},
                                     {"workload", require_text},
                                     {"seed", require_seed},
                                     {"steps", require_steps},
                                     {"lr", require_rate},
                                     {"loss", require_result},
                                     {"late_loss", require_result},
                                     {"milliseconds_per_step", require_time},
                                     {"skipped_steps", require_count},
                                     {"weights_hash", require_hash}};

/// Runs of earlier versions may be without these fields.
constexpr Field later_fields[] = {{"resolved_hash", require_hash},
                                  {"optimizer", require_choice},
                                  {"schedule", require_choice},
                                  {"clip_norm", require_size},
                                  {"batch", require_count},
                                  {"data", require_object},
                                  {"from", require_origin},
                                  {"version", require_fact},
                                  {"commit", require_fact},
                                  {"compiler", require_fact},
                                  {"backend", require_fact},
                                  {"kernels", require_fact},
                                  {"threads", require_count},
                                  {"processor", require_fact},
                                  {"portable_bits", require_yes_or_no},
                                  {"validation_loss", require_result},
                                  {"validation_accuracy", require_result},
                                  {"parameters", require_count},
                                  {"tokens", require_count},
                                  {"operands", require_sizes},
                                  {"order", require_count},
                                  {"probe", require_count},
                                  {"environment", require_fact},
                                  {"bytes_at_peak", require_counts}};
}  // namespace

void refuse_file(std::string_view op, const std::filesystem::path& file, std::string_view problem) {
  fail<FormatError>(std::string(op), policy::printable(file.string()), ": ",
                    policy::printable(std::string(problem)));
}

JsonValue wanted(const JsonValue& object, std::string_view key) {
  if (!object.is_object()) object.refuse("expected an object.");
  const auto found = object.find(key);
  if (!found) object.refuse("the entry \"", key, "\" is missing.");
  return *found;
}

void require_fields(const JsonValue& summary) {
  for (const Field& field : required_fields) field.check(wanted(summary, field.name));
  for (const Field& field : later_fields)
    if (const auto value = summary.find(field.name)) field.check(*value);
}

void require_policy(std::string_view op, const std::filesystem::path& folder,
                    std::string_view policy_hash) {
  const std::filesystem::path file = folder / "policy.json";
  of_file(op, file, [&] {
    if (const std::string there = policy::hash(policy::read(file)); there != policy_hash)
      fail<FormatError>("policy", "its hash is ", there, ", and that of the run's policy ",
                        policy_hash, ".");
  });
}

}  // namespace halftone::lab
