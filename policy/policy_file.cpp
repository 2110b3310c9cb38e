// Reading: each object of the grammar is one function; an unknown entry is always an error.
#include <halftone/policy/policy_file.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <map>
#include <sstream>
#include <typeinfo>
#include <vector>

#include <halftone/amp/cast_policy.h>
#include <halftone/core/files.h>
#include <halftone/policy/json_value.h>
#include <halftone/policy/policy_reader.h>

namespace halftone::policy {

namespace {
std::atomic<int64_t> read_so_far{0};

using Words = std::vector<std::string_view>;

/// Returns "policy x.json", the start of messages; a file name may have any characters.
std::string where_of(const std::filesystem::path& path) {
  return "policy " + printable(path.filename().string());
}

class Reader {
 public:
  Reader(std::string where, std::filesystem::path folder, int depth)
      : where_(std::move(where)), folder_(std::move(folder)), depth_(depth) {}

  PolicyFile read(std::string_view text) {
    const Json json = parsed_json(where_, text);
    const JsonValue top(where_, "", json);
    constexpr std::array<std::string_view, 16> known{
        "halftone_policy", "name",          "about",      "for",        "extends", "weights",
        "autocast",        "lists",         "formats",    "quantizers", "rules",   "optimizer",
        "loss_scale",      "communication", "evaluation", "seed"};
    top.only("a policy", known);
    const auto version = top.find("halftone_policy");
    if (!version) top.refuse("\"halftone_policy\": 1 is missing. Is this a policy?");
    if (version->integer(1, 1 << 30) > 1)
      version->refuse("the version is ", version->integer(1, 1 << 30),
                      ", this program reads 1. Use a newer one.");
    read_base(top);
    if (const auto name = top.find("name")) file_.base.name = label_in(*name);
    else top.refuse("\"name\" is missing. Give the policy one.");
    if (const auto about = top.find("about")) file_.about = about->text();
    if (const auto meant = top.find("for")) {
      if (meant->elements().empty())
        meant->refuse(
            "the list is empty. Name at least one model, or leave \"for\" out: then the "
            "policy is for all models.");
      file_.meant_for.clear();
      for (const JsonValue& model : meant->elements())
        file_.meant_for.emplace_back(model_names()[model.word(model_names())]);
    }
    if (const auto weights = top.find("weights")) read_weights(*weights);
    if (const auto autocast = top.find("autocast")) {
      constexpr std::array<std::string_view, 2> dtypes{"bf16", "f16"};
      if (autocast->is_null()) file_.base.autocast.reset();
      else file_.base.autocast = dtype_in(*autocast, dtypes);
    }
    if (const auto lists = top.find("lists")) read_lists(*lists);
    const auto formats = top.find("formats"), quantizers = top.find("quantizers");
    if (formats) grids_.read_formats(*formats);
    if (quantizers) grids_.read_quantizers(*quantizers);
    if (const auto rules = top.find("rules"))
      for (const JsonValue& rule : rules->elements())
        file_.rules.rules.push_back(rule_in(rule, grids_, file_.base.autocast));
    if (const auto optimizer = top.find("optimizer")) read_optimizer(*optimizer);
    if (const auto scale = top.find("loss_scale")) read_loss_scale(*scale);
    if (const auto on_wire = top.find("communication")) read_communication(*on_wire);
    if (const auto evaluation = top.find("evaluation")) {
      constexpr std::array<std::string_view, 2> words{"same", "reference"};
      file_.rules.in_evaluation = evaluation->word(words) == 0;
    }
    if (const auto seed = top.find("seed"))
      file_.base.seed = uint64_t(seed->integer(0, std::numeric_limits<int64_t>::max()));
    require_sensible(top, file_);
    if (depth_ == 0) {  // a file in between may redefine what only the files above it use
      if (formats) grids_.require_used("formats", *formats);
      if (quantizers) grids_.require_used("quantizers", *quantizers);
    }
    return std::move(file_);
  }

 private:
  void read_base(const JsonValue& top) {
    file_.base = amp::Strategy::named("fp32");
    const auto extends = top.find("extends");
    if (!extends) return;
    const std::string base = extends->text();
    const auto names = amp::Strategy::names();
    if (std::ranges::find(names, base) != names.end()) {
      file_.base = amp::Strategy::named(base);
      return;
    }
    // A text without a folder, such as a shipped policy, finds only shipped files.
    const bool is_file = base.ends_with(".json");
    if (const ShippedPolicy* shipped = shipped_policy(base);
        shipped && (!is_file || folder_.empty()))
      return take(Reader("policy " + base, {}, depth_ + 1), shipped->text);
    if (!is_file) extends->refuse_unknown("strategy", base, names);
    if (folder_.empty())
      extends->refuse("only a file can extend a file. Extend a strategy or a shipped policy.");
    if (depth_ > 8) extends->refuse("more than 8 files extend one another, perhaps in a circle.");
    const std::filesystem::path path = folder_ / base;
    take(Reader(where_of(path), path.parent_path(), depth_ + 1),
         file_text(extends->pointer(), path));
  }

  /// Starts from what another text says.
  void take(Reader base, std::string_view text) {
    file_ = base.read(text);
    grids_ = std::move(base.grids_);
  }

 public:
  /// Returns the contents of a file that may be anything.
  std::string file_text(std::string_view asked, const std::filesystem::path& path) const {
    try {
      ++read_so_far;
      return files::read_text(where_, path, 1 << 20);
    } catch (const FormatError& error) {
      const std::string at = asked.empty() ? "" : std::string(asked) + ": ";
      const std::string_view message = error.what();
      const std::size_t begin = std::min(message.find("] ") + 2, message.size());
      fail<FormatError>(where_, at, printable(std::string(message.substr(begin))));
    }
  }

 private:
  void read_weights(const JsonValue& weights) {
    constexpr std::array<std::string_view, 6> known{
        "dtype", "form", "batch_norm_f32", "accumulate_in_f32", "fused", "hold_statistics"};
    constexpr std::array<std::string_view, 4> dtypes{"f32", "bf16", "f16", "f64"};
    weights.only("weights", known);
    amp::Strategy& base = file_.base;
    if (const auto dtype = weights.find("dtype")) base.weights = dtype_in(*dtype, dtypes);
    if (const auto form = weights.find("form")) {
      const Words forms = form_names();
      base.form = *weight_form_named(forms[form->word(forms)]);
    }
    if (const auto on = weights.find("batch_norm_f32")) base.keep_batch_norm = on->boolean();
    if (const auto on = weights.find("accumulate_in_f32")) base.accumulate_in_f32 = on->boolean();
    if (const auto on = weights.find("fused")) base.fused_master = on->boolean();
    if (const auto on = weights.find("hold_statistics")) base.hold_statistics = on->boolean();
  }

  void read_lists(const JsonValue& lists) {
    const Words classes = cast_class_names();
    Words known = classes;
    known.push_back("preset");
    lists.only("lists", known);
    if (const auto preset = lists.find("preset")) {
      const auto presets = amp::CastPolicy::preset_names();
      if (std::ranges::find(presets, preset->text()) == presets.end())
        preset->refuse_unknown("preset", preset->text(), presets);
      file_.base.policy = preset->text(), file_.base.own_policy.reset();
    }
    amp::CastPolicy policy =
        file_.base.own_policy ? *file_.base.own_policy : amp::CastPolicy::preset(file_.base.policy);
    bool changed = false;
    std::map<std::string, std::string_view> listed;
    for (std::size_t i = 0; i < classes.size(); ++i)
      if (const auto list = lists.find(classes[i]))
        for (const JsonValue& op : list->elements()) {
          require_operation(op);
          if (const auto [at, fresh] = listed.emplace(op.text(), classes[i]); !fresh)
            op.refuse(op.text(), " is in \"", at->second, "\" already. Keep one of them.");
          policy[op.text()] = CastClass(i), changed = true;
        }
    if (changed) file_.base.own_policy = std::make_shared<const amp::CastPolicy>(policy);
  }

  // --- optimizer and loss scale

  void read_optimizer(const JsonValue& optimizer) {
    constexpr std::array<std::string_view, 3> known{"state_dtype", "parameters", "states"};
    constexpr std::array<std::string_view, 4> dtypes{"f32", "bf16", "f16", "f64"};
    optimizer.only("optimizer", known);
    if (const auto dtype = optimizer.find("state_dtype"))
      file_.base.state_dtype = dtype_in(*dtype, dtypes);
    // "none" removes a base's grid.
    const auto grid_in = [&](const JsonValue& value) -> std::optional<Quantizer> {
      if (value.is_text() && value.text() == "none") return {};
      const Quantizer quantizer = grids_.quantizer_in(value);
      if (quantizer.scaling.per == Scaling::Per::tensor && quantizer.scaling.from_history)
        value.refuse("scales from history are for operands, not for what an optimizer keeps.");
      if (quantizer.average > 0)
        value.refuse(
            "averages are for the weights of operations, not for what an optimizer keeps.");
      return quantizer;
    };
    if (const auto parameters = optimizer.find("parameters"))
      file_.rules.parameters = grid_in(*parameters);
    if (const auto states = optimizer.find("states"))
      for (const JsonValue& state : states->members()) {
        state.require_printable_key();
        file_.rules.states.erase(state.key());
        if (const auto grid = grid_in(state)) file_.rules.states.emplace(state.key(), *grid);
      }
  }

  void read_loss_scale(const JsonValue& value) {
    amp::Strategy& base = file_.base;
    amp::LossScaleOptions options;
    base.scales_loss = true;
    if (value.is_text()) {
      constexpr std::array<std::string_view, 2> words{"none", "dynamic"};
      base.scales_loss = value.word(words) == 1;
    } else if (!value.is_object()) {
      options.init_scale = value.number(), options.dynamic = false;
    } else {
      constexpr std::array<std::string_view, 7> known{"init", "growth", "backoff",   "interval",
                                                      "min",  "max",    "hysteresis"};
      value.only("a loss scale", known);
      if (const auto number = value.find("init")) options.init_scale = number->number();
      if (const auto number = value.find("growth")) options.growth_factor = number->number();
      if (const auto number = value.find("backoff")) options.backoff_factor = number->number();
      if (const auto number = value.find("interval"))
        options.growth_interval = number->integer(1, int64_t(1) << 53);
      if (const auto number = value.find("min")) options.min_scale = number->number();
      if (const auto number = value.find("max")) options.max_scale = number->number();
      if (const auto number = value.find("hysteresis"))
        options.hysteresis = int(number->integer(1, 1 << 20));
    }
    checked_at(value, [&] { options.check("loss_scale"); });
    base.loss_scale = options;
  }

  static distributed::WireFormat wire_in(const JsonValue& value) {
    const auto names = distributed::WireFormat::names();
    const std::string name = value.text();
    if (std::ranges::find(names, name) == names.end())
      value.refuse_unknown("wire format", name, names);
    return distributed::WireFormat::named(name);
  }

  void read_communication(const JsonValue& value) {
    constexpr std::array<std::string_view, 2> known{"gradients", "parameters"};
    value.only("communication", known);
    if (const auto gradients = value.find("gradients")) file_.base.wire = wire_in(*gradients);
    const auto parameters = value.find("parameters");
    if (parameters && wire_in(*parameters) != distributed::WireFormat{})
      parameters->refuse(
          "weights travel as they are, \"own\": rounded on their way they would be "
          "others than their owner's. Say \"own\", or give \"weights\" a short dtype.");
  }

  std::string where_;
  std::filesystem::path folder_;
  int depth_;
  PolicyFile file_{};
  QuantizerReader grids_{};
};

}  // namespace

int64_t files_read() { return read_so_far; }

PolicyFile read(const std::filesystem::path& path) {
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : ".";
  Reader reader(where_of(path), folder, 0);
  return reader.read(reader.file_text("", path));
}

PolicyFile read_text(std::string_view text, std::string_view where) {
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
void require_low_dtype(const JsonValue& top, const PolicyFile& file) {
  if (file.base.autocast) return;
  const auto own = top.find("rules");
  const std::size_t count = own ? own->elements().size() : 0,
                    inherited = file.rules.rules.size() - count;
  for (std::size_t i = 0; i < file.rules.rules.size(); ++i) {
    if (file.rules.rules[i].compute != Compute::low) continue;
    const std::string_view wanted =
        "computes in \"low\", the dtype of autocast, and there is "
        "none. Say \"bf16\" or \"f16\", or add \"autocast\".";
    if (i >= inherited) own->elements()[i - inherited].find("compute")->refuse("the rule ", wanted);
    place_of(top, "autocast").refuse("rule ", i, " of the base ", wanted);
  }
}

}  // namespace

void require_sensible(const JsonValue& top, const PolicyFile& file) {
  const amp::Strategy& base = file.base;
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
  if (base.weights == f64 && file.base.wire.dtype)
    place_of(top, "communication", "gradients")
        .refuse(
            "weights are f64, and their gradients travel as they are. Use f32 weights, or "
            "\"own\".");
  require_low_dtype(top, file);
}

std::span<const std::string_view> model_names() {
  static constexpr std::array<std::string_view, 6> names{"gpt", "lenet",  "lstm_classifier",
                                                         "mlp", "resnet", "unet"};
  return names;
}

// Reading rules: an entry that no operation of the rule can follow is an error.

std::string label_in(const JsonValue& value) {
  const std::string label = value.text();
  if (label.empty() || label.size() > 100 || printable(label) != label)
    value.refuse("a name has 1 to 100 letters, all of them printable.");
  return label;
}

DType dtype_in(const JsonValue& value, std::span<const std::string_view> allowed) {
  return *dtype_named(allowed[value.word(allowed)]);
}

void require_operation(const JsonValue& op) {
  const auto known = amp::CastPolicy::operations();
  if (const std::string name = op.text(); std::ranges::find(known, name) == known.end())
    op.refuse_unknown("operation", name, known);
}

namespace {

using Words = std::vector<std::string_view>;

std::string pattern_in(const JsonValue& value) {
  const std::string pattern = value.text();
  checked_at(value, [&] { PathPattern("match", pattern); });
  if (printable(pattern) != pattern)
    value.refuse("a path has letters that are not printable. Leave them out.");
  return pattern;
}

Match match_in(const JsonValue& value) {
  constexpr std::array<std::string_view, 6> known{"op",     "asks",    "path",
                                                  "except", "ordinal", "steps"};
  value.only("a match", known);
  Match match;
  if (const auto op = value.find("op")) {
    if (!op->is_text() && op->elements().empty())
      op->refuse("the list names no operation. Leave \"op\" out where all are meant.");
    for (const JsonValue& one : op->is_text() ? std::vector{*op} : op->elements()) {
      require_operation(one);
      match.ops.push_back(one.text());
    }
  }
  if (const auto asks = value.find("asks")) match.asks = CastClass(asks->word(cast_class_names()));
  if (const auto path = value.find("path")) match.path = pattern_in(*path);
  if (const auto except = value.find("except"))
    for (const JsonValue& one : except->is_text() ? std::vector{*except} : except->elements())
      match.except.push_back(pattern_in(one));
  if (const auto ordinal = value.find("ordinal")) match.ordinal = ordinal->integer(0, 1 << 30);
  if (const auto steps = value.find("steps")) {
    const std::vector<JsonValue> edges = steps->elements();
    constexpr int64_t most = int64_t(1) << 53;
    if (edges.size() != 2)
      steps->refuse("steps are [first, last], the last not included; null: without end.");
    match.from_step = edges[0].integer(0, most);
    if (!edges[1].is_null()) match.to_step = edges[1].integer(0, most);
    if (match.to_step <= match.from_step)
      steps->refuse("there is no step from ", match.from_step, " up to ", match.to_step, '.');
  }
  return match;
}

RoleRule role_in(Role role, const JsonValue& value, const QuantizerReader& grids) {
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

Accumulator accumulator_in(const JsonValue& value, const QuantizerReader& grids) {
  constexpr std::array<std::string_view, 3> known{"format", "rounding", "chunk"};
  value.only("an accumulator", known);
  Accumulator accumulator;
  const auto format = value.find("format");
  if (!format) value.refuse("\"format\" is missing.");
  accumulator.grid = grids.format_in(*format);
  if (is_unsigned(accumulator.grid))
    format->refuse(described(accumulator.grid),
                   " has no sign bit, and sums can be negative. Choose a format with a sign.");
  if (const auto rounding = value.find("rounding")) {
    const Words roundings = rounding_names();
    accumulator.rounding = *rounding_named(roundings[rounding->word(roundings)]);
  }
  if (const auto chunk = value.find("chunk"))
    accumulator.chunk = int32_t(chunk->integer(0, 1 << 30));
  checked_at(value, [&] { check_accumulator("accumulator", accumulator); });
  return accumulator;
}

/// Checks that the dtype in which a rule computes holds the rule's grids.
void require_exact(const Rule& rule, Role role, const JsonValue& value,
                   std::optional<DType> autocast) {
  const RoleRule& said = rule.roles.at(role);
  if (said.kind != RoleRule::Kind::grid || !rule.compute) return;
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

}  // namespace

Rule rule_in(const JsonValue& value, const QuantizerReader& grids, std::optional<DType> autocast) {
  Words known{"name", "about", "match", "compute", "result", "accumulate", "optional"};
  const Words roles = rule_role_names();
  known.insert(known.end(), roles.begin(), roles.end());
  require_operand_numbers(value);
  value.only("a rule", known);
  Rule rule;
  if (const auto name = value.find("name")) rule.name = label_in(*name);
  if (const auto about = value.find("about")) rule.about = about->text();
  if (const auto match = value.find("match")) rule.match = match_in(*match);
  if (const auto compute = value.find("compute"))
    rule.compute = Compute(compute->word(compute_names()));
  constexpr std::array<std::string_view, 3> dtypes{"f32", "bf16", "f16"};
  if (const auto result = value.find("result")) rule.result = dtype_in(*result, dtypes);
  if (const auto accumulate = value.find("accumulate"))
    rule.accumulate = accumulator_in(*accumulate, grids);
  if (const auto optional = value.find("optional")) rule.optional = optional->boolean();
  for (std::size_t role = 0; role < roles.size(); ++role)
    if (const auto said = value.find(roles[role])) {
      rule.roles[Role(role)] = role_in(Role(role), *said, grids);
      require_exact(rule, Role(role), *said, autocast);
      require_average(rule, Role(role), *said), require_operand(rule, Role(role), *said);
    }
  if (rule.roles.empty() && !rule.compute && !rule.result && !rule.accumulate)
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

// Writes every entry of a policy, in one order, so that equal policies are equal texts.

namespace {

Json entries_of(const Match& match) {
  Json json = Json::object();
  if (!match.ops.empty()) json["op"] = match.ops;
  if (match.asks) json["asks"] = name(*match.asks);
  json["path"] = match.path;
  if (!match.except.empty()) json["except"] = match.except;
  if (match.ordinal) json["ordinal"] = *match.ordinal;
  const bool always = match.from_step == 0 && match.to_step == Match{}.to_step;
  if (!always)
    json["steps"] = Json::array(
        {match.from_step, match.to_step == Match{}.to_step ? Json() : Json(match.to_step)});
  return json;
}

Json entries_of(const Rule& rule) {
  Json json = Json::object();
  if (!rule.name.empty()) json["name"] = rule.name;
  if (!rule.about.empty()) json["about"] = rule.about;
  json["match"] = entries_of(rule.match);
  if (rule.compute) json["compute"] = name(*rule.compute);
  if (rule.result) json["result"] = name(*rule.result);
  for (const auto& [role, said] : rule.roles) json[std::string(name(role))] = json_of(said);
  if (rule.accumulate) json["accumulate"] = json_of(*rule.accumulate);
  if (rule.optional) json["optional"] = true;
  return json;
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

Json lists_of(const amp::Strategy& base) {
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

Json loss_scale_of(const amp::Strategy& base) {
  if (!base.scales_loss) return "none";
  const amp::LossScaleOptions& options = base.loss_scale;
  if (!options.dynamic) return options.init_scale;
  Json json{{"init", options.init_scale},
            {"growth", options.growth_factor},
            {"backoff", options.backoff_factor},
            {"interval", options.growth_interval},
            {"min", options.min_scale}};
  if (std::isfinite(options.max_scale)) json["max"] = options.max_scale;
  json["hysteresis"] = options.hysteresis;
  return json;
}

Json entries_of(const PolicyFile& file) {
  const amp::Strategy& base = file.base;
  Json json{{"halftone_policy", 1}, {"name", base.name}};
  if (!file.about.empty()) json["about"] = file.about;
  if (!file.meant_for.empty()) json["for"] = file.meant_for;
  json["weights"] = {{"dtype", name(base.weights)},
                     {"form", name(base.form)},
                     {"batch_norm_f32", base.keep_batch_norm},
                     {"accumulate_in_f32", base.accumulate_in_f32},
                     {"fused", base.fused_master},
                     {"hold_statistics", base.hold_statistics}};
  json["autocast"] = base.autocast ? Json(name(*base.autocast)) : Json();
  json["lists"] = lists_of(base);
  json["rules"] = Json::array();
  for (const Rule& rule : file.rules.rules) json["rules"].push_back(entries_of(rule));
  Json optimizer = Json::object();
  if (base.state_dtype) optimizer["state_dtype"] = name(*base.state_dtype);
  if (file.rules.parameters) optimizer["parameters"] = json_of(*file.rules.parameters);
  for (const auto& [state, quantizer] : file.rules.states)
    optimizer["states"][state] = json_of(quantizer);
  json["optimizer"] = optimizer;
  json["loss_scale"] = loss_scale_of(base);
  if (file.base.wire != distributed::WireFormat{})  // keeps hashes of policies without this entry
    json["communication"] = {{"gradients", name(file.base.wire)}, {"parameters", "own"}};
  json["evaluation"] = file.rules.in_evaluation ? "same" : "reference";
  json["seed"] = file.base.seed;
  return json;
}

/// Code can make a strategy that reading refuses; the written text must be readable.
void require_readable(const std::string& text, const PolicyFile& file) {
  const std::string& name = file.base.name;
  std::optional<PolicyFile> again;
  try {
    again = read_text(text, "again");
  } catch (const FormatError& error) {
    const std::string_view message = error.what();
    const std::size_t begin = message.find("] ");
    fail<UsageError>("policy.write", printable(name), " is none that a file can say: ",
                     message.substr(begin == std::string_view::npos ? 0 : begin + 2));
  }
  if (again->rules != file.rules || entries_of(*again).dump(2) + '\n' != text)
    fail<UsageError>(
        "policy.write", name,
        " has values where they have no effect, such as random bits of a rounding that "
        "is not stochastic, which a file does not keep. Leave them at their defaults.");
}

}  // namespace

std::string write(const PolicyFile& file) {
  std::string text;
  try {
    text = entries_of(file).dump(2) + '\n';
  } catch (const nlohmann::json::exception&) {
    fail<UsageError>("policy.write", printable(file.base.name),
                     " has a text that is not UTF-8. Write names and remarks in UTF-8.");
  }
  require_readable(text, file);
  return text;
}

std::string hash(const PolicyFile& file) {
  const std::string text = write(file);
  Fingerprint print;
  print.add(text);
  for (const std::string& name : own_quantizer_names())  // a file has only their names
    if (text.find(Json(name).dump()) != std::string::npos)
      print.add(own_quantizer_named(name)->hash);
  return print.text();
}

}  // namespace halftone::policy
