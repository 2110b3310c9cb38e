// Hashes as rows, in files, and compared.
#include <halftone/lab/trace.h>

#include <cmath>

#include <nlohmann/json.hpp>

#include <halftone/core/error.h>
#include <halftone/lab/json_input.h>
#include <halftone/lab/setting.h>
#include <halftone/lab/table.h>

namespace halftone::lab {

using nlohmann::ordered_json;

bool TraceRow::same_place(const TraceRow& other) const {
  return step == other.step && site == other.site && role == other.role && input == other.input;
}

bool Tracer::begin_pass(int64_t step) {
  step_ = step;
  return step % every_ == 0;
}

void Tracer::tensor(const policy::Seen& seen, const Tensor&, const Tensor& after) {
  double squares = 0;
  for (const double x : after.to_vector<double>()) squares += x * x;
  PlainText dtype;
  dtype << after.dtype();
  rows_.push_back(
      {.step = step_,
       .site = seen.site,
       .role = seen.role,
       .input = seen.input,
       .dtype = dtype.str(),
       .shape = after.shape(),
       .hash = hash_of(std::span(&after, 1)),
       .root_mean_square = after.numel() > 0 ? std::sqrt(squares / double(after.numel())) : 0});
}

std::string Tracer::lines() const {
  std::string text;
  for (const TraceRow& row : rows_) {
    ordered_json line{{"step", row.step},   {"site", row.site},   {"role", policy::name(row.role)},
                      {"input", row.input}, {"dtype", row.dtype}, {"shape", ordered_json::array()},
                      {"hash", row.hash}};
    for (int i = 0; i < row.shape.rank(); ++i) line["shape"].push_back(row.shape[i]);
    line["root_mean_square"] =
        std::isfinite(row.root_mean_square) ? ordered_json(row.root_mean_square) : ordered_json();
    text += line.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + '\n';
  }
  return text;
}

std::vector<TraceRow> read_trace(std::string_view op, const std::filesystem::path& path) {
  std::vector<TraceRow> rows;
  const int64_t skipped = each_json_line(op, path, [&](const nlohmann::json& line) {
    const auto step = count_in(line, "step"), input = count_in(line, "input");
    const auto role = policy::role_named(text_in(line, "role"));
    TraceRow row{.site = text_in(line, "site"),
                 .dtype = text_in(line, "dtype"),
                 .hash = text_in(line, "hash"),
                 .root_mean_square = number_in(line, "root_mean_square").value_or(NAN)};
    const auto& shape = array_in(line, "shape");
    if (!step || !input || !role || row.hash.size() != 16 ||
        row.hash.find_first_not_of("0123456789abcdef") != std::string::npos || shape.size() > 8)
      return false;
    std::vector<int64_t> sizes;
    for (const nlohmann::json& size : shape)
      if (size.is_number_unsigned() && size.get<uint64_t>() < (uint64_t(1) << 40))
        sizes.push_back(size.get<int64_t>());
      else return false;
    row.step = *step, row.role = *role, row.input = std::size_t(*input);
    row.shape = Shape(sizes);
    rows.push_back(std::move(row));
    return true;
  });
  if (skipped > 0)
    fail<FormatError>(
        op, printable(path.string()), ": ", skipped,
        " lines are not rows of a trace. Make it anew with halftone-lab run --trace.");
  return rows;
}

std::set<int64_t> steps_of(const std::vector<TraceRow>& rows) {
  std::set<int64_t> steps;
  for (const TraceRow& row : rows) steps.insert(row.step);
  return steps;
}

std::optional<TraceDifference> first_difference(const std::vector<TraceRow>& there,
                                                const std::vector<TraceRow>& here) {
  const std::size_t count = std::max(there.size(), here.size());
  for (std::size_t i = 0; i < count; ++i) {
    const bool both = i < there.size() && i < here.size();
    if (both && there[i].same_place(here[i]) && there[i].hash == here[i].hash) continue;
    TraceDifference difference{.row = i};
    if (i < there.size()) difference.there = there[i];
    if (i < here.size()) difference.here = here[i];
    return difference;
  }
  return {};
}

namespace {
std::string place_of(const TraceRow& row) {
  PlainText text;
  text << "step " << row.step << ", " << printable(row.site) << ", " << policy::name(row.role);
  if (row.input > 0) text << ' ' << row.input;
  text << ' ' << row.shape << ' ' << printable(row.dtype);
  return text.str();
}
}  // namespace

std::string text_of(const TraceDifference& difference) {
  const auto &there = difference.there, &here = difference.here;
  if (!there || !here)
    return std::string(there ? "the second" : "the first") + " ends before " +
           place_of(there ? *there : *here);
  if (!there->same_place(*here) || there->shape != here->shape || there->dtype != here->dtype)
    return "other tensors: " + place_of(*there) + " and " + place_of(*here);
  const double a = there->root_mean_square, b = here->root_mean_square;
  std::string text =
      place_of(*here) + ": other bits; root mean squares " + number(a, 7) + " and " + number(b, 7);
  if (std::isfinite(a) && std::isfinite(b) && a != b)
    text += " differ by " + number(std::abs(a - b) / std::max(std::abs(a), std::abs(b)), 2);
  return text;
}

}  // namespace halftone::lab
