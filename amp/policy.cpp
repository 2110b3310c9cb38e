// One description of a policy is its reader and its writer, which writes every entry in one order,
// so that equal policies are equal texts.
#include <halftone/amp/policy.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <iomanip>
#include <map>
#include <ostream>
#include <set>
#include <sstream>
#include <typeinfo>
#include <vector>

#include <halftone/amp/cast_policy.h>
#include <halftone/amp/policy_reader.h>
#include <halftone/core/error.h>
#include <halftone/core/files.h>
#include <halftone/distributed/collectives.h>
#include <halftone/nn/conv.h>

namespace halftone::policy {

using amp::Policy;

namespace {
std::atomic<int64_t> read_so_far{0};

using Words = std::vector<std::string_view>;

/// Returns "policy x.json", the start of messages; a file name may have any characters.
std::string where_of(const std::filesystem::path& path) {
  return "policy " + printable(path.filename().string());
}

/// Reads a name of 1 to 100 printable letters, which messages repeat.
std::string label_in(const JsonValue& value) {
  const std::string label = value.text();
  if (label.empty() || label.size() > 100 || printable(label) != label)
    value.refuse("a name has 1 to 100 letters, all of them printable.");
  return label;
}

/// Throws FormatError for a text that does not name an operation of the library.
void require_operation(const JsonValue& op) {
  const auto known = amp::CastPolicy::operations();
  if (const std::string name = op.text(); std::ranges::find(known, name) == known.end())
    op.refuse_unknown("operation", name, known);
}

std::string pattern_in(const JsonValue& value) {
  const std::string pattern = value.text();
  checked_at(value, [&] { PathPattern("match", pattern); });
  if (printable(pattern) != pattern)
    value.refuse("a path has letters that are not printable. Leave them out.");
  return pattern;
}

RoleRule role_in(Role role, const JsonValue& value, const Grids& grids) {
  if (value.is_text() && value.text() == "none") return {.kind = RoleRule::Kind::none};
  if (value.is_text() && value.text() == "as_used") {
    if (!is_use(role))
      value.refuse(
          "as_used is of input.backward, weight.backward and grad_output.weight. "
          "\"none\" leaves a role as it is.");
    return {.kind = RoleRule::Kind::as_used};
  }
  return {.kind = RoleRule::Kind::grid,
          .quantizer = grids.quantizer_in(value),
          .named = value.is_text() ? value.text() : ""};
}

/// "op" and "except": a text, or a list of them.
template <class Read> std::vector<std::string> texts_in(const JsonValue& value, const Read& read) {
  std::vector<std::string> texts;
  for (const JsonValue& one : value.is_text() ? std::vector{value} : value.elements())
    texts.push_back(read(one));
  return texts;
}

std::vector<std::string> operations_in(const JsonValue& value) {
  if (!value.is_text() && value.elements().empty())
    value.refuse("the list names no operation. Leave \"op\" out where all are meant.");
  return texts_in(value, [](const JsonValue& op) {
    require_operation(op);
    return op.text();
  });
}

using Steps = std::pair<int64_t, int64_t>;
constexpr Steps always{0, std::numeric_limits<int64_t>::max()};

Steps steps_in(const JsonValue& value) {
  const std::vector<JsonValue> edges = value.elements();
  constexpr int64_t most = int64_t(1) << 53;
  if (edges.size() != 2)
    value.refuse("steps are [first, last], the last not included; null: without end.");
  Steps steps = always;
  steps.first = edges[0].integer(0, most);
  if (!edges[1].is_null()) steps.second = edges[1].integer(0, most);
  if (steps.second <= steps.first)
    value.refuse("there is no step from ", steps.first, " up to ", steps.second, '.');
  return steps;
}

Json steps_json(const Steps& steps) {
  return Json::array({steps.first, steps.second == always.second ? Json() : Json(steps.second)});
}

/// Checks that the dtype in which a rule computes holds the rule's grids.
void require_exact(const Rule& rule, Role role, const JsonValue& value,
                   std::optional<DType> autocast) {
  const RoleRule& said = rule.roles.at(role);
  if (said.kind != RoleRule::Kind::grid || !rule.compute || is_inner(role)) return;
  std::optional<DType> dtype;
  if (*rule.compute == Compute::bf16) dtype = bf16;
  if (*rule.compute == Compute::f16) dtype = f16;
  if (*rule.compute == Compute::low) dtype = autocast;
  if (!dtype || said.quantizer.exact_in(*dtype)) return;
  value.refuse("the grid of \"", name(role), "\" is ", described(said.quantizer), ", which ",
               *dtype,
               " does not hold exactly. Add \"compute\": \"f32\", or a power-of-two scale.");
}

/// Checks that only weights have averages over steps: other tensors are new in each step.
void require_average(const Rule& rule, Role role, const JsonValue& value) {
  if (rule.roles.at(role).quantizer.average > 0 && role != Role::weight &&
      role != Role::weight_backward)
    value.refuse("an average over steps is for weights, and \"", name(role),
                 "\" is another tensor in each step. Use it for \"weight\" or "
                 "\"weight.backward\".");
}

/// Checks that a learned scale is one of an operand, which has a gradient; rows have a meaning for
/// weights only.
void require_learned(const Rule& rule, Role role, const JsonValue& value) {
  const Scaling& scaling = rule.roles.at(role).quantizer.scaling;
  if (!scaling.learned) return;
  const bool input = role == Role::input || role == Role::input_0 || role == Role::input_1 ||
                     role == Role::query || role == Role::key || role == Role::value ||
                     role == Role::probabilities;
  if (role != Role::weight && !input)
    value.refuse("a scale is learned, and \"", name(role),
                 "\" has no gradient that could teach it. Use it for \"weight\" or \"input\".");
  if (scaling.row_level && input)
    value.refuse("a scale is learned for each row, and the rows of \"", name(role),
                 "\" are others in each step. Use \"per\": \"tensor\".");
}

/// Checks that an operation of the rule can have the operand that an entry is about.
void require_operand(const Rule& rule, Role role, const JsonValue& value) {
  const std::vector<std::string>& ops = rule.match.ops;
  const bool all_unary = !ops.empty() && std::ranges::all_of(ops, amp::CastPolicy::takes_one_input);
  if (operand_of(role) != std::size_t(1) || !all_unary) return;
  std::string names;
  for (const std::string& op : ops) names += (names.empty() ? "" : ", ") + op;
  value.refuse("an operation with one input has no operand 1: ", names,
               ". Use \"input\", or leave the entry out.");
}

/// Checks that an entry for the inside of attention is in a rule that can match attention.
void require_attention(const Rule& rule, Role role, const JsonValue& value) {
  const std::vector<std::string>& ops = rule.match.ops;
  if (!is_inner(role) || ops.empty() || std::ranges::find(ops, attention_op) != ops.end()) return;
  value.refuse("\"", name(role), "\" is inside of ", attention_op,
               ". Name this operation in \"op\".");
}

/// Refuses "input.2" and the like with the numbers that operands have in rules.
void require_operand_numbers(const JsonValue& rule) {
  if (!rule.is_object()) return;
  for (const JsonValue& entry : rule.members()) {
    const std::string_view key = entry.key();
    constexpr std::string_view input = "input.";
    if (key.starts_with(input) && key.size() > input.size() && key[input.size()] >= '2' &&
        key[input.size()] <= '9')
      entry.refuse("rules name only the operands 0 and 1. \"input\" alone is for all operands.");
  }
}

/// "norm_to_noise": {"below": 1.73}
struct Bound {
  std::optional<double> below{}, above{};
  bool operator==(const Bound&) const = default;
};
void describe(Record& r, Bound& bound) {
  r.number("below", bound.below);
  r.number("above", bound.above);
  if (r.reads() && bound.below.has_value() == bound.above.has_value())
    r.whole().refuse("a bound is {\"below\": number} or {\"above\": number}.");
}

Role measured_role_in(const JsonValue& value) {
  const auto role = role_named(value.text());
  if (!role || *role == Role::input_backward || *role == Role::weight_backward)
    value.refuse(in_quotes(value.text()),
                 " is no tensor that a condition measures. Name input, weight, bias, output, "
                 "grad_output, grad_output.weight, grad_input or grad_weight.");
  return *role;
}

}  // namespace

static void describe(Record& r, When& when) {
  r.require("role", "\"role\", the tensor that is measured, is missing.");
  r.entry("role", when.role, {}, measured_role_in, [](Role role) { return Json(name(role)); });
  int bounds = 0;
  for (std::size_t i = 0; i < words_of<Statistic>.size(); ++i) {
    const std::string_view word = words_of<Statistic>[i];
    std::optional<Bound> bound;
    if (!r.reads() && when.statistic == Statistic(i))
      bound = when.below ? Bound{.below = when.bound} : Bound{.above = when.bound};
    r.part(word, "a bound", bound, {});
    if (!r.given(word)) continue;
    ++bounds, when.statistic = Statistic(i), when.below = bound->below.has_value();
    when.bound = when.below ? *bound->below : *bound->above;
  }
  if (r.reads() && bounds != 1)
    r.whole().refuse(
        "a condition has one of norm_to_noise, saturated, underflow, bias_t and "
        "sqnr_db, got ",
        bounds, '.');
  r.integer("over", when.over, 1, 1 << 20);
  r.word("then", when.stays, {{"while", false}, {"stays", true}});
}

static void describe(Record& r, Match& match) {
  r.entry("op", match.ops, !match.ops.empty(), operations_in);
  r.word("asks", match.asks);
  r.entry("path", match.path, {}, pattern_in);
  r.entry("except", match.except, !match.except.empty(),
          [](const JsonValue& v) { return texts_in(v, pattern_in); });
  r.integer("ordinal", match.ordinal, 0, 1 << 30);
  Steps steps{match.from_step, match.to_step};
  r.entry("steps", steps, steps != always, steps_in, steps_json);
  match.from_step = steps.first, match.to_step = steps.second;
  r.part("when", "a condition", match.when, {});
}

/// autocast: the dtype of "compute": "low".
static void describe(Record& r, Rule& rule, const Grids& grids, std::optional<DType> autocast) {
  r.entry("name", rule.name, !rule.name.empty(), label_in);
  r.text("about", rule.about, !rule.about.empty());
  r.part("match", "a match", rule.match, {});
  r.word("compute", rule.compute);
  r.word("result", rule.result, {{"f32", f32}, {"bf16", bf16}, {"f16", f16}});
  r.word("saved", rule.saved);
  for (std::size_t i = 0; i < words_of<Role>.size(); ++i) {
    const auto role = Role(i);
    const auto found = rule.roles.find(role);
    auto said = found == rule.roles.end() ? std::nullopt : std::optional(found->second);
    r.entry(
        name(role), said, {},
        [&](const JsonValue& value) {
          rule.roles[role] = role_in(role, value, grids);
          require_exact(rule, role, value, autocast);
          require_average(rule, role, value), require_learned(rule, role, value);
          require_operand(rule, role, value);
          require_attention(rule, role, value);
          return std::optional(rule.roles[role]);
        },
        [](const RoleRule& x) { return json_of(x); });
  }
  r.entry(
      "accumulate", rule.accumulate, {},
      [&](const JsonValue& v) { return std::optional(grids.accumulator_in(v)); },
      [](const Accumulator& x) { return json_of(x); });
  r.flag("optional", rule.optional, rule.optional);
}

Rule rule_in(const JsonValue& value, const Grids& grids, std::optional<DType> autocast) {
  require_operand_numbers(value);
  const Rule rule = Record::read(value, "a rule", Rule{}, grids, autocast);
  if (rule.roles.empty() && !rule.compute && !rule.result && !rule.saved && !rule.accumulate)
    value.refuse(
        "the rule sets nothing. Give it an entry, such as \"input\" or \"compute\", or leave "
        "it out.");
  for (const std::string& op : rule.match.ops)
    if (const OpInfo* info = amp::CastPolicy::info(op);
        rule.accumulate && !(info && info->accumulator))
      value.find("accumulate")
          ->refuse(op, " has no emulated accumulator. ",
                   amp::CastPolicy::operations_with(&OpFacts::accumulator), " do.");
  return rule;
}

}  // namespace halftone::policy

namespace halftone {
static void describe(Record& r, LossScaleOptions& options) {
  r.number("init", options.init_scale);
  r.number("growth", options.growth_factor);
  r.number("backoff", options.backoff_factor);
  r.integer("interval", options.growth_interval, 1, int64_t(1) << 53);
  r.number("min", options.min_scale);
  r.number("max", options.max_scale, std::isfinite(options.max_scale));
  r.integer("hysteresis", options.hysteresis, 1, 1 << 20);
}
}  // namespace halftone

namespace halftone::policy {

namespace {

// --- parts of a policy

struct Lists {
  std::string preset;
  std::shared_ptr<const amp::CastPolicy> own;
  bool operator==(const Lists&) const = default;
};

/// Reads {"preset": ..., class: operations}. lists: those of the base.
Lists lists_in(const JsonValue& value, Lists lists) {
  const std::span<const std::string_view> classes = words_of<CastClass>;
  Words known(classes.begin(), classes.end());
  known.push_back("preset");
  value.only("lists", known);
  if (const auto preset = value.find("preset")) {
    const auto presets = amp::CastPolicy::preset_names();
    if (std::ranges::find(presets, preset->text()) == presets.end())
      preset->refuse_unknown("preset", preset->text(), presets);
    lists = {.preset = preset->text(), .own = {}};
  }
  amp::CastPolicy policy = lists.own ? *lists.own : amp::CastPolicy::preset(lists.preset);
  bool changed = false;
  std::map<std::string, std::string_view> listed;
  for (std::size_t i = 0; i < classes.size(); ++i)
    if (const auto list = value.find(classes[i]))
      for (const JsonValue& op : list->elements()) {
        require_operation(op);
        if (const auto [at, fresh] = listed.emplace(op.text(), classes[i]); !fresh)
          op.refuse(op.text(), " is in \"", at->second, "\" already. Keep one of them.");
        policy[op.text()] = CastClass(i), changed = true;
      }
  if (changed) lists.own = std::make_shared<const amp::CastPolicy>(policy);
  return lists;
}

/// A policy may have entries for users' operations. No list of names has them, but they are
/// printed.
void require_known_operations(const std::string& strategy, const amp::CastPolicy& own) {
  amp::CastPolicy known = amp::CastPolicy::preset(own.name());
  for (const std::string_view op : amp::CastPolicy::operations()) known[op] = own[op];
  std::ostringstream all, without;
  all << own, without << known;
  if (all.str() != without.str())
    fail<UsageError>("policy.write", "the policy of ", strategy,
                     " has entries of operations that are not the library's, which no file can "
                     "say. In a file that is a rule that matches a path: {\"match\": {\"path\": "
                     "\"...\"}, \"compute\": ...}.");
}

Json lists_of(const amp::Policy& base) {
  Json lists{{"preset", base.policy}};
  if (!base.own_policy) return lists;
  const amp::CastPolicy& own = *base.own_policy;
  if (typeid(own) != typeid(amp::CastPolicy))
    fail<UsageError>("policy.write", base.name,
                     " has a policy that is a class of its own, which no file can say.");
  const amp::CastPolicy preset = amp::CastPolicy::preset(base.policy);
  for (const std::string_view op : amp::CastPolicy::operations()) {
    const amp::CastDecision& now = own[op];
    if (now == preset[op]) continue;
    if (now.dtype || now.cuda_dtype)
      fail<UsageError>("policy.write", "the policy of ", base.name, " gives ", op, ' ',
                       described(now), ". In a file that is a rule: {\"match\": {\"op\": \"", op,
                       "\"}, \"compute\": ...}.");
    lists[std::string(name(now.cast_class))].push_back(op);
  }
  require_known_operations(base.name, own);
  return lists;
}

struct Scaled {
  bool scales_loss = false;
  amp::LossScaleOptions options{};
  bool operator==(const Scaled&) const = default;
};

/// Reads "none", "dynamic", a number, or an object.
Scaled loss_scale_in(const JsonValue& value) {
  constexpr std::array<std::string_view, 2> words{"none", "dynamic"};
  Scaled scaled{.scales_loss = true};
  if (value.is_text()) scaled.scales_loss = value.word(words) == 1;
  else if (value.is_object()) scaled.options = Record::read(value, "a loss scale", scaled.options);
  else scaled.options.init_scale = value.number(), scaled.options.dynamic = false;
  checked_at(value, [&] { scaled.options.check("loss_scale"); });
  return scaled;
}

Json loss_scale_json(const Scaled& scaled) {
  if (!scaled.scales_loss) return "none";
  if (!scaled.options.dynamic) return scaled.options.init_scale;
  return Record::write(scaled.options);
}

distributed::WireFormat wire_in(const JsonValue& value) {
  const auto names = distributed::WireFormat::names();
  const std::string name = value.text();
  if (std::ranges::find(names, name) == names.end())
    value.refuse_unknown("wire format", name, names);
  return distributed::WireFormat::named(name);
}

/// Reads the grid of something that an optimizer keeps; "none" removes a base's.
std::optional<Quantizer> kept_grid_in(const JsonValue& value, const Grids& grids) {
  if (value.is_text() && value.text() == "none") return {};
  const Quantizer quantizer = grids.quantizer_in(value);
  if (quantizer.scaling.per == Scaling::Per::tensor && quantizer.scaling.from_history)
    value.refuse("scales from history are for operands, not for what an optimizer keeps.");
  if (quantizer.scaling.learned)
    value.refuse("learned scales are for operands, not for what an optimizer keeps.");
  if (quantizer.average > 0)
    value.refuse("averages are for the weights of operations, not for what an optimizer keeps.");
  return quantizer;
}

void describe_weights(Record& r, amp::Policy& base) {
  r.word("dtype", base.weights, {{"f32", f32}, {"bf16", bf16}, {"f16", f16}, {"f64", f64}});
  r.word("form", base.form);
  r.flag("batch_norm_f32", base.keep_batch_norm);
  r.flag("accumulate_in_f32", base.accumulate_in_f32);
  r.flag("fused", base.fused_master);
  r.flag("hold_statistics", base.hold_statistics);
}

std::vector<Word<optim::StateFormat>> state_formats_by_word() {
  std::vector<Word<optim::StateFormat>> words;
  for (const auto& [word, format] : optim::named_state_formats()) words.push_back({word, format});
  return words;
}

/// {"stored": "8bit"}
struct StoredState {
  optim::StateFormat format{};
};
static void describe(Record& r, StoredState& state) {
  const auto formats = state_formats_by_word();
  r.word("stored", state.format, std::span(formats));
}

void describe_optimizer(Record& r, Policy& file, const Grids& grids) {
  const auto formats = state_formats_by_word();
  r.word("state_dtype", file.state_dtype, std::span(formats));
  const auto written = [](const Quantizer& quantizer) { return json_of(quantizer); };
  r.entry(
      "parameters", file.rules.parameters, {},
      [&](const JsonValue& v) { return kept_grid_in(v, grids); }, written);
  // A state has a grid, {"stored": FORMAT}, or neither.
  r.entry(
      "states", file.rules.states, !file.rules.states.empty() || !file.states.empty(),
      [&](const JsonValue& v) {
        auto states = file.rules.states;
        for (const JsonValue& state : v.members()) {
          state.require_printable_key();
          states.erase(state.key()), file.states.erase(state.key());
          if (state.is_object() && state.find("stored"))
            file.states.emplace(state.key(),
                                Record::read(state, "a stored state", StoredState{}).format);
          else if (const auto grid = kept_grid_in(state, grids)) states.emplace(state.key(), *grid);
        }
        return states;
      },
      [&](const auto& states) {
        Json json = Json::object();
        for (const auto& [state, quantizer] : states) json[state] = written(quantizer);
        for (const auto& [state, format] : file.states)
          json[state] = Record::write(StoredState{format});
        return json;
      });
}

void describe_communication(Record& r, distributed::WireFormat& wire) {
  const auto written = [](const distributed::WireFormat& format) { return Json(name(format)); };
  distributed::WireFormat parameters;
  r.entry("gradients", wire, {}, wire_in, written);
  r.entry(
      "parameters", parameters, {},
      [](const JsonValue& v) {
        if (wire_in(v) != distributed::WireFormat{})
          v.refuse(
              "weights travel as they are, \"own\": rounded on their way they would be "
              "others than their owner's. Say \"own\", or give \"weights\" a short dtype.");
        return distributed::WireFormat{};
      },
      written);
}

/// Reads a policy, and the files that it extends.
class Reader {
 public:
  Reader(std::string where, std::filesystem::path folder, int depth)
      : where_(std::move(where)), folder_(std::move(folder)), depth_(depth) {}

  Policy read(std::string_view text) {
    const Json json = parsed_json(where_, text);
    const JsonValue top(where_, "", json);
    Policy file = Record::read(top, "a policy", Policy{}, *this);
    require_sensible(top, file);
    if (depth_ == 0)  // a file in between may redefine what only the files above it use
      for (const char* kind : {"formats", "quantizers"})
        if (const auto defined = top.find(kind)) grids_.require_used(kind, *defined);
    return file;
  }
  /// Returns the contents of a file that may be anything.
  std::string file_text(std::string_view asked, const std::filesystem::path& path) const {
    try {
      ++read_so_far;
      return files::read_text(where_, path, 1 << 20);
    } catch (const FormatError& error) {
      const std::string at = asked.empty() ? "" : std::string(asked) + ": ";
      fail<FormatError>(where_, at, printable(error.message()));
    }
  }

  Grids& grids() { return grids_; }
  /// Returns what a file starts from.
  Policy base_of(const Record& r) {
    Policy file = Policy::named("fp32");
    const auto extends = r.given("extends");
    if (!extends) return file;
    const std::string base = extends->text();
    const auto names = amp::Policy::names();
    if (std::ranges::find(names, base) != names.end()) {
      file = Policy::named(base);
      return file;
    }
    // A text without a folder, such as a shipped policy, finds only shipped files.
    const bool is_file = base.ends_with(".json");
    if (const ShippedPolicy* shipped = shipped_policy(base);
        shipped && (!is_file || folder_.empty()))
      return take(Reader("policy " + base, {}, depth_ + 1), shipped->text);
    if (!is_file) extends->refuse_unknown("strategy", base, names);
    if (folder_.empty())
      extends->refuse("only a file can extend a file. Extend a strategy or a shipped policy.");
    if (depth_ > 7) extends->refuse("more than 8 files extend one another, perhaps in a circle.");
    const std::filesystem::path path = folder_ / base;
    return take(Reader(where_of(path), path.parent_path(), depth_ + 1),
                file_text(extends->pointer(), path));
  }

 private:
  /// Starts from what another text says.
  Policy take(Reader base, std::string_view text) {
    Policy file = base.read(text);
    grids_ = std::move(base.grids_);
    return file;
  }

  std::string where_;
  std::filesystem::path folder_;
  int depth_;
  Grids grids_{};
};

int64_t version_in(const JsonValue& value) {
  if (const int64_t version = value.integer(1, 1 << 30); version > 1)
    value.refuse("the version is ", version, ", this program reads 1. Use a newer one.");
  return 1;
}

std::vector<std::string> models_in(const JsonValue& value) {
  if (value.elements().empty())
    value.refuse(
        "the list is empty. Name at least one model, or leave \"for\" out: then the "
        "policy is for all models.");
  std::vector<std::string> models;
  for (const JsonValue& model : value.elements())
    models.emplace_back(model_names()[model.word(model_names())]);
  return models;
}

/// The dtype of autocast, or null.
struct Autocast {
  std::optional<DType> dtype{};
  bool operator==(const Autocast&) const = default;
};

Autocast autocast_in(const JsonValue& value) {
  constexpr std::array<std::string_view, 2> dtypes{"bf16", "f16"};
  if (value.is_null()) return {};
  return {dtype_named(dtypes[value.word(dtypes)])};
}

void describe(Record& r, Policy& file, Reader& reader) {
  Policy& base = file;
  int64_t version = 1;
  r.require("halftone_policy", "\"halftone_policy\": 1 is missing. Is this a policy?");
  r.entry("halftone_policy", version, {}, version_in);
  if (r.reads()) file = reader.base_of(r);
  r.require("name", "\"name\" is missing. Give the policy one.");
  r.entry("name", base.name, {}, label_in);
  r.text("about", file.about, !file.about.empty());
  r.entry("for", file.meant_for, !file.meant_for.empty(), models_in);
  r.remark("extends");
  r.group("weights", "weights", [&](Record& weights) { describe_weights(weights, base); });
  Autocast autocast{base.autocast};
  r.entry("autocast", autocast, {}, autocast_in,
          [](const Autocast& cast) { return cast.dtype ? Json(name(*cast.dtype)) : Json(); });
  base.autocast = autocast.dtype;
  Lists lists{base.policy, base.own_policy};
  r.entry(
      "lists", lists, {}, [&](const JsonValue& v) { return lists_in(v, lists); },
      [&](const Lists&) { return lists_of(base); });
  base.policy = lists.preset, base.own_policy = lists.own;
  r.remark("formats"), r.remark("quantizers");
  if (const auto formats = r.given("formats")) reader.grids().read_formats(*formats);
  if (const auto quantizers = r.given("quantizers")) reader.grids().read_quantizers(*quantizers);
  r.entry(
      "rules", file.rules.rules, {},
      [&](const JsonValue& v) {
        std::vector<Rule> rules = file.rules.rules;
        for (const JsonValue& rule : v.elements())
          rules.push_back(rule_in(rule, reader.grids(), base.autocast));
        return rules;
      },
      [&](const std::vector<Rule>& rules) {
        Json json = Json::array();
        for (const Rule& rule : rules)
          json.push_back(Record::write(rule, reader.grids(), base.autocast));
        return json;
      });
  r.group("optimizer", "optimizer",
          [&](Record& optimizer) { describe_optimizer(optimizer, file, reader.grids()); });
  Scaled scaled{base.scales_loss, base.loss_scale};
  r.entry("loss_scale", scaled, {}, loss_scale_in, loss_scale_json);
  base.scales_loss = scaled.scales_loss, base.loss_scale = scaled.options;
  // Hashes of policies without this entry stay as they are.
  r.group(
      "communication", "communication",
      [&](Record& wire) { describe_communication(wire, base.wire); },
      base.wire != distributed::WireFormat{});
  r.word("evaluation", file.rules.in_evaluation, {{"same", true}, {"reference", false}});
  r.integer("seed", base.seed, 0, std::numeric_limits<int64_t>::max());
}

}  // namespace
int64_t files_read() { return read_so_far; }

Policy read(const std::filesystem::path& path) {
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : ".";
  Reader reader(where_of(path), folder, 0);
  return reader.read(reader.file_text("", path));
}

Policy read_text(std::string_view text, std::string_view where) {
  return Reader("policy " + std::string(where), {}, 0).read(text);
}

// Entries that exclude each other, from a file itself or from its base.

namespace {

/// Returns the entry of the file with this key, or the file if it has none.
JsonValue place_of(const JsonValue& top, std::string_view key, std::string_view inner = {}) {
  const auto outer = top.find(key);
  if (!outer || inner.empty()) return outer.value_or(top);
  return outer->find(inner).value_or(*outer);
}

/// "low" is the dtype of autocast; rules of the base come before those of this file.
void require_low_dtype(const JsonValue& top, const Policy& file) {
  if (file.autocast) return;
  const auto own = top.find("rules");
  const std::size_t count = own ? own->elements().size() : 0,
                    inherited = file.rules.rules.size() - count;
  for (std::size_t i = 0; i < file.rules.rules.size(); ++i) {
    const std::optional<Compute> compute = file.rules.rules[i].compute;
    if (compute != Compute::low && compute != Compute::hardware) continue;
    const std::string_view wanted =
        compute == Compute::low ? "computes in \"low\", the dtype of autocast, and there is "
                                  "none. Say \"bf16\" or \"f16\", or add \"autocast\"."
                                : "computes in \"hardware\", whose results have the dtype of "
                                  "autocast, and there is none. Add \"autocast\".";
    if (i >= inherited) own->elements()[i - inherited].find("compute")->refuse("the rule ", wanted);
    place_of(top, "autocast").refuse("rule ", i, " of the base ", wanted);
  }
}

}  // namespace

void require_sensible(const JsonValue& top, const Policy& file) {
  const Policy& base = file;
  const bool is_short = base.weights == bf16 || base.weights == f16;
  if (base.form != WeightForm::plain && !is_short)
    place_of(top, "weights")
        .refuse("weights are ", base.weights, " and their form is ", name(base.form),
                ", which keeps what a short dtype loses. Use \"form\": \"plain\", or \"dtype\": "
                "\"bf16\".");
  if (base.weights == f64 && base.autocast)
    place_of(top, top.find("autocast") ? "autocast" : "weights")
        .refuse("weights are f64 and autocast is ", *base.autocast,
                ": f64 is never cast. Use f32 weights, or \"autocast\": null.");
  const bool has_companion = base.form == WeightForm::split ||
                             base.form == WeightForm::split_rounded ||
                             base.form == WeightForm::kahan;
  if (file.rules.parameters && has_companion)
    place_of(top, "optimizer", "parameters")
        .refuse("parameters go onto a grid, and the form ", name(base.form),
                " stores what they lost, which would bring it back. Use \"form\": "
                "\"plain\", or \"parameters\": \"none\".");
  if (base.weights == f64 && file.wire.dtype)
    place_of(top, "communication", "gradients")
        .refuse(
            "weights are f64, and their gradients travel as they are. Use f32 weights, or "
            "\"own\".");
  require_low_dtype(top, file);
}

std::span<const std::string_view> model_names() {
  static constexpr std::array<std::string_view, 8> names{
      "gpt", "lenet", "llama", "lstm_classifier", "mlp", "resnet", "unet", "vit"};
  return names;
}

static std::string text_of(const Policy& file) {
  Reader reader("policy", {}, 0);
  return Record::write(file, reader).dump(2) + '\n';
}

namespace {

/// Code can make a strategy that reading refuses; the written text must be readable.
void require_readable(const std::string& text, const Policy& file) {
  const std::string& name = file.name;
  std::optional<Policy> again;
  try {
    again = read_text(text, "again");
  } catch (const FormatError& error) {
    fail<UsageError>("policy.write", printable(name),
                     " is none that a file can say: ", error.message());
  }
  if (again->rules != file.rules || text_of(*again) != text)
    fail<UsageError>(
        "policy.write", name,
        " has values where they have no effect, such as random bits of a rounding that "
        "is not stochastic, which a file does not keep. Leave them at their defaults.");
}

}  // namespace

std::string write(const Policy& file) {
  std::string text;
  try {
    text = text_of(file);
  } catch (const nlohmann::json::exception&) {
    fail<UsageError>("policy.write", printable(file.name),
                     " has a text that is not UTF-8. Write names and remarks in UTF-8.");
  }
  require_readable(text, file);
  return text;
}

amp::Policy named_or_read(std::string_view name) {
  if (name.ends_with(".json")) return read(name);
  const auto strategies = Policy::names();
  if (std::ranges::find(strategies, name) != strategies.end()) return Policy::named(name);
  std::vector<std::string_view> names(strategies.begin(), strategies.end());
  for (const ShippedPolicy& shipped : shipped_policies()) {
    if (shipped.name == name) return read_text(shipped.text, shipped.name);
    if (std::ranges::find(strategies, shipped.name) == strategies.end())
      names.push_back(shipped.name);
  }
  fail_unknown_name("policy", "strategy or shipped policy", name, names);
}

std::string hash(const Policy& file) {
  const std::string text = write(file);
  Fingerprint print;
  print.add(text);
  for (const std::string& name : own_quantizer_names())  // a file has only their names
    if (text.find(Json(name).dump()) != std::string::npos)
      print.add(own_quantizer_named(name)->hash);
  return print.text();
}

}  // namespace halftone::policy

// The table of strategies.

namespace halftone::amp {

namespace {
const std::vector<Policy>& strategies() {
  static const std::vector<Policy> all{
      {.name = "fp64", .weights = f64, .state_dtype = f64},
      {.name = "fp32"},
      {.name = "amp-bf16", .autocast = bf16},
      {.name = "amp-fp16", .autocast = f16, .scales_loss = true},
      {.name = "o1-fp16", .autocast = f16, .policy = "apex-o1", .scales_loss = true},
      {.name = "o2-bf16", .weights = bf16, .keep_batch_norm = true, .form = WeightForm::master},
      {.name = "o2-fp16",
       .weights = f16,
       .keep_batch_norm = true,
       .form = WeightForm::master,
       .scales_loss = true},
      {.name = "o3-fp16", .weights = f16, .loss_scale = {.init_scale = 1, .dynamic = false}},
      {.name = "full-bf16", .weights = bf16, .state_dtype = bf16},
      {.name = "full-bf16-sr",
       .weights = bf16,
       .form = WeightForm::stochastic,
       .state_dtype = bf16},
      {.name = "full-bf16-kahan", .weights = bf16, .form = WeightForm::kahan, .state_dtype = bf16},
      {.name = "split-bf16", .weights = bf16, .form = WeightForm::split_rounded},
  };
  return all;
}
}  // namespace

std::span<const std::string_view> Policy::names() {
  static const auto names = [] {
    std::vector<std::string_view> list;
    for (const Policy& strategy : strategies()) list.push_back(strategy.name);
    return list;
  }();
  return names;
}

Policy Policy::named(std::string_view name) {
  const auto found = std::ranges::find(strategies(), name, &Policy::name);
  if (found == strategies().end()) fail_unknown_name("Policy", "strategy", name, names());
  return *found;
}

std::ostream& operator<<(std::ostream& out, const Policy& s) {
  PlainText line;
  line << std::left << std::setw(16) << s.name << " weights " << s.weights;
  if (s.form != WeightForm::plain) line << " (" << halftone::name(s.form) << ')';
  if (s.keep_batch_norm) line << ", batch norm f32";
  if (s.autocast) line << ", autocast " << *s.autocast << " by " << s.policy;
  if (s.scales_loss)
    line << ", loss scale " << (s.loss_scale.dynamic ? "dynamic from " : "static ")
         << s.loss_scale.init_scale;
  else if (!s.loss_scale.dynamic) line << ", loss scale static " << s.loss_scale.init_scale;
  if (s.state_dtype) line << ", optimizer state " << *s.state_dtype;
  for (const auto& [state, format] : s.states) line << ", " << state << ' ' << format;
  if (s.wire != distributed::WireFormat{}) line << ", gradients travel in " << name(s.wire);
  return out << line.str();
}

// The sums of strategy.h: shapes times the sizes of each strategy's tensors.

namespace {
using Bodies = std::set<const TensorBody*>;

Bodies batch_norm_parameters(nn::Module& model) {
  Bodies bodies;
  for (const auto& [name, module] : model.named_modules())
    if (dynamic_cast<const nn::BatchNorm*>(module))
      for (const Tensor& x : module->parameters()) bodies.insert(x.body().get());
  return bodies;
}

/// Returns the bytes of a form's companion for an element of a short parameter.
int64_t companion(WeightForm form, DType parameter) {
  const WeightFormFacts& kept = facts(form);
  return kept.has_companion() ? size_of(kept.companion_dtype(parameter)) : 0;
}

/// Returns the model's tensor for a parameter of the optimizer, which may hold only a part of it.
Tensor whole_of(const Tensor& x, const std::vector<Tensor>& parameters) {
  if (std::ranges::find(parameters, x.body(), &Tensor::body) != parameters.end()) return x;
  const auto found = std::ranges::find(parameters, x.storage(), &Tensor::storage);
  return found == parameters.end() ? x : *found;
}

/// Returns, by rank, the elements of each of the optimizer's parameters that the rank keeps.
std::vector<std::vector<int64_t>> elements_of_ranks(const std::vector<Tensor>& parameters,
                                                    bool elementwise, int ranks) {
  const distributed::Shards shards(parameters, elementwise ? ranks : 1);
  std::vector<std::vector<int64_t>> elements;
  for (int rank = 0; rank < shards.ranks(); ++rank) {
    elements.emplace_back();
    for (std::size_t i = 0; i < parameters.size(); ++i)
      elements.back().push_back(shards.range(i, rank).count);
  }
  return elements;
}
}  // namespace

StrategyBytes predicted_bytes(const Policy& strategy, nn::Module& model,
                              optim::Optimizer& optimizer, int ranks) {
  if (ranks < 1) fail<UsageError>("predicted_bytes", "of ", ranks, " ranks. Use 1 or more.");
  const Bodies kept = strategy.keep_batch_norm ? batch_norm_parameters(model) : Bodies{};
  const auto dtype_of = [&](const Tensor& x) {
    return kept.contains(x.body().get()) ? f32 : strategy.weights;
  };
  const std::vector<Tensor> of_model = model.parameters();
  StrategyBytes bytes;
  for (const Tensor& x : of_model) bytes.parameter += x.numel() * size_of(dtype_of(x));
  std::vector<Tensor> whole;
  for (const Tensor& x : optimizer.parameters()) whole.push_back(whole_of(x, of_model));

  const auto of_rank = [&](const std::vector<int64_t>& elements) {
    StrategyBytes own = bytes;
    std::size_t i = 0;
    for (int group = 0; group < optimizer.group_count(); ++group)
      for (std::size_t end = i + optimizer.group_parameters(group).size(); i < end; ++i) {
        const Tensor& x = whole[i];
        const DType dtype = dtype_of(x);
        if (dtype == bf16 || dtype == f16)
          own.companion += elements[i] * companion(strategy.form, dtype);
        if (!x.requires_grad()) continue;
        own.gradient += elements[i] * (ranks == 1 || dtype == f64 ? size_of(dtype) : size_of(f32));
        // A rank has the state of its part of the elements.
        own.optimizer_state +=
            optimizer.state_bytes(group, x, dtype, elements[i], strategy.state_formats());
      }
    return own;
  };
  StrategyBytes most;
  for (const auto& elements : elements_of_ranks(whole, optimizer.elementwise(), ranks))
    if (const StrategyBytes own = of_rank(elements); own.total() >= most.total()) most = own;
  return most;
}

}  // namespace halftone::amp
