// Reading: each object of the grammar is one function; an unknown entry is always an error.
#include <halftone/policy/policy_file.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <map>

#include <halftone/amp/cast_policy.h>
#include <halftone/core/files.h>
#include <halftone/policy/file/policy_checks.h>
#include <halftone/policy/file/policy_words.h>
#include <halftone/policy/file/shipped_policies.h>
#include <halftone/policy/json_value.h>
#include <halftone/policy/policy_reader.h>
#include <halftone/policy/quantizer_json.h>

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

}  // namespace halftone::policy
