// The list of commands, and each command's flags: help names them, values out of range are
// mistakes, and the work gets the parsed options.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <iostream>
#include <map>
#include <set>
#include <sstream>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <halftone/halftone.h>
#include <halftone/lab/commands/commands.h>
#include <halftone/lab/draw.h>
#include <halftone/lab/identity.h>
#include <halftone/lab/lab.h>
#include <halftone/lab/workload.h>

#include "lab/runs.h"
#include "support.h"

namespace halftone::test::commands_test {
namespace {

using lab::Command;
using lab::Context;
using Words = std::vector<std::string>;

lab::NamedWorkload mine() {
  return {"mine", "", [](uint64_t) { return linear_workload({4, 2}); }, {}};
}

const Command& command_named(const std::string& name) {
  const auto all = lab::commands();
  const auto found =
      std::ranges::find(all, name, [](const Command& c) { return std::string(c.name); });
  REQUIRE(found != all.end());
  return *found;
}

/// A command whose flags are defined.
struct Parsed {
  lab::NamedWorkload workload = mine();
  Context context{&workload};
  CLI::App app{"test"};
  lab::Work work;
  explicit Parsed(const std::string& name) : work(command_named(name).add(app, context)) {}

  /// Returns the mistake in a command line; "" if there is none.
  std::string mistake(Words words) {
    std::ranges::reverse(words);
    try {
      app.parse(words);
    } catch (const CLI::ParseError& error) { return error.what(); }
    return {};
  }
};

Said said_by(const Words& words) { return test::said_by(words, mine()); }

TEST_CASE("commands: names and descriptions, each once, in lower case") {
  std::set<std::string> names, about;
  for (const Command& command : lab::commands()) {
    CAPTURE(command.name);
    CHECK(names.insert(command.name).second);
    CHECK(about.insert(command.about).second);
    CHECK(std::ranges::all_of(std::string(command.name),
                              [](char c) { return c >= 'a' && c <= 'z'; }));
    CHECK(std::string(command.about).ends_with('.'));
    CHECK(bool(command.add));
  }
  CHECK(names.size() == lab::commands().size());
}

TEST_CASE("the flags that each command has") {
  const Words training{"--from",       "--lr",       "--optimizer", "--probe",
                       "--probe-from", "--schedule", "--steps",     "--workload"};
  const Words ranking{"--batches", "--reference", "--seed", "--space", "--to",
                      "--warm-up", "--workload",  "--json", "--menu"};
  const auto and_also = [](Words words, const Words& more) {
    words.insert(words.end(), more.begin(), more.end());
    std::ranges::sort(words);
    return words;
  };
  const std::map<std::string, Words> wanted{
      {"formats", {"--check", "--json", "--samples"}},
      {"export", {"--output", "--to", "--workload"}},
      {"vectors",
       {"--count", "--exhaustive", "--out", "--overflow", "--quantizer", "--rounding", "--table"}},
      {"show", {"--diff", "--json", "--workload"}},
      {"graph", {"--output", "--workload"}},
      {"picture", {"--output", "--workload"}},
      {"run", and_also(training, {"--json", "--out", "--seeds", "--trace"})},
      {"sweep",
       and_also(training, {"--against", "--axis", "--jobs", "--json", "--out", "--seeds"})},
      {"gate",
       {"--first", "--from", "--jobs", "--json", "--lr", "--max-minutes", "--metric", "--optimizer",
        "--out", "--pairs", "--reference", "--schedule", "--seed", "--steps", "--within",
        "--workload"}},
      {"fit", {"--bootstrap", "--json", "--law", "--metric", "--seed", "--simulations"}},
      {"diff", {"--json"}},
      {"rerun", {"--check", "--from", "--json"}},
      {"compare", {"--json", "--reference", "--seed", "--workload"}},
      {"explain", {"--json", "--scale", "--seed", "--steps", "--workload"}},
      {"sensitivity", and_also(ranking, {"--by", "--check", "--one-pass", "--probes"})},
      {"search", and_also(ranking, {"--bits", "--budget", "--gate", "--objective", "--out",
                                    "--seeds", "--steps"})},
      {"report", {"--output", "--reference"}},
      {"figure", {"--dark", "--output", "--reference", "--width"}},
      {"table", {"--csv", "--jsonl", "--output", "--statistic", "--top"}},
      {"experiment", {"--json", "--long"}}};
  for (const Command& command : lab::commands()) {
    CAPTURE(command.name);
    Parsed parsed(command.name);
    Words flags;
    for (const CLI::Option* option : parsed.app.get_options())
      if (!option->get_lnames().empty() && option->get_lnames()[0] != "help")
        flags.push_back("--" + option->get_lnames()[0]);
    std::ranges::sort(flags);
    CHECK(flags == wanted.at(command.name));
    const std::string help = parsed.app.help();
    for (const std::string& flag : flags) CHECK(contains(help, flag));
  }
}

TEST_CASE("a command without what it requires, and with what it does not know, is a mistake") {
  for (const Command& command : lab::commands()) {
    CAPTURE(command.name);
    const std::string name = command.name;
    const bool needs_nothing = name == "formats" || name == "vectors";
    CHECK(Parsed(command.name).mistake({}).empty() == needs_nothing);
    CHECK_FALSE(Parsed(command.name).mistake({"fp32", "--no-such-flag"}).empty());
  }
}

TEST_CASE("values out of range are mistakes that name their flag") {
  const std::pair<const char*, Words> bad[] = {
      {"run", {"fp32", "--steps", "0"}},
      {"run", {"fp32", "--steps", "x"}},
      {"run", {"fp32", "--steps", "1.5"}},
      {"run", {"fp32", "--steps", "99999999999999999999"}},
      {"run", {"fp32", "--steps", "1099511627777"}},
      {"run", {"fp32", "--trace", "99999999999999999999"}},
      {"run", {"fp32", "--probe", "99999999999999999999"}},
      {"run", {"fp32", "--lr", "1e999"}},
      {"run", {"fp32", "--lr", "inf"}},
      {"sweep", {"fp32", "--axis", "lr=1", "--out", "x", "--steps", "99999999999999999999"}},
      {"gate", {"fp32", "--steps", "99999999999999999999"}},
      {"explain", {"fp32", "--steps", "99999999999999999999"}},
      {"search", {"fp32", "--steps", "99999999999999999999"}},
      {"sensitivity", {"fp32", "--warm-up", "99999999999999999999"}},
      {"run", {"fp32", "--probe", "-1"}},
      {"run", {"fp32", "--lr", "0"}},
      {"run", {"fp32", "--lr", "-1"}},
      {"run", {"fp32", "--seeds", "1,x"}},
      {"run", {"fp32", "--seeds", "18446744073709551616"}},
      {"sweep", {"fp32", "--axis", "lr=1", "--out", "x", "--jobs", "0"}},
      {"compare", {"fp32", "--seed", "-1"}},
      {"compare", {"fp32", "--seed", ""}},
      {"explain", {"fp32", "--steps", "-5"}},
      {"explain", {"fp32", "--scale", "0"}},
      {"sensitivity", {"fp32", "--batches", "0"}},
      {"sensitivity", {"fp32", "--warm-up", "-1"}},
      {"sensitivity", {"fp32", "--probes", "1"}},
      {"search", {"fp32", "--budget", "0"}},
      {"search", {"fp32", "--steps", "0"}},
      {"formats", {"--samples", "many"}}};
  for (const auto& [name, words] : bad) {
    CAPTURE(name);
    CAPTURE(words.back().c_str());
    CAPTURE(words[1]);
    const std::string mistake = Parsed(name).mistake(words);
    const Words::const_reverse_iterator flag =
        std::find_if(words.rbegin(), words.rend(), [](auto& w) { return w.starts_with("--"); });
    CAPTURE(mistake);
    CHECK(contains(mistake, *flag));
    CHECK(mistake.size() < 150);
  }
  CHECK(Parsed("run").mistake({"fp32", "--lr", "-1"}) ==
        "--lr: expected a finite number above 0, got -1");
  CHECK(Parsed("run").mistake({"fp32", "--steps", "99999999999999999999"}) ==
        "--steps: expected a whole number from 1 to 1099511627776, got 99999999999999999999");
  CHECK_FALSE(Parsed("table").mistake({"x", "--csv", "--jsonl"}).empty());
  CHECK_FALSE(Parsed("sweep").mistake({"fp32", "--axis", "lr=1"}).empty());
}

TEST_CASE("good values are no mistake") {
  const std::pair<const char*, Words> good[] = {
      {"run",
       {"fp32", "amp-bf16", "--steps", "1099511627776", "--seeds", "0,18446744073709551615", "--lr",
        "1e-3"}},
      {"sweep", {"fp32", "--axis", "lr=1,2", "--axis", "seed=1", "--out", "x", "--seeds", "0..4"}},
      {"table", {"a", "b", "--jsonl", "-o", "x"}},
      {"report", {"a", "--reference", "p", "-o", "x.html"}},
      {"search", {"fp32", "--budget", "1e-3", "--seeds", "1,2", "--out", "x.json"}},
      {"formats", {"e4m3", "mxfp8", "--samples", "2048"}}};
  for (const auto& [name, words] : good) {
    CAPTURE(name);
    CHECK(Parsed(name).mistake(words) == "");
  }
}

TEST_CASE("help names every command, and of one command its flags; both end with 0") {
  const Said all = said_by({"--help"});
  CHECK(all.code == 0);
  for (const Command& command : lab::commands()) {
    CAPTURE(command.name);
    CHECK(contains(all.output, std::string(command.name) + ' '));
    const Said one = said_by({command.name, "--help"});
    CHECK(one.code == 0);
    CHECK(contains(one.output, "--threads") == command.trains);
    CHECK(one.errors.empty());
  }
}

TEST_CASE("a mistake ends with 2, one line to standard error and nothing to standard output") {
  for (const Words& words : {Words{},
                             {"no-such-command"},
                             {"show"},
                             {"show", "no-such-policy"},
                             {"show", "fp32", "--workload", "no-such"},
                             {"table", "/no/such/path"},
                             {"run", "fp32", "--threads", "0"},
                             {"show", "fp32", "--threads", "1"},
                             {"show", "/no/such/policy.json"},
                             {"experiment", "E99"},
                             {"compare", "fp32", "--json", "/no/such/place/x.json"},
                             {"graph", "fp32", "-o", "x.txt"},
                             {"picture", "none", "-o", "/tmp/x.svg"},
                             {"picture", "bytes", "-o", "/tmp/x.pdf"},
                             {"formats", "e4m33"},
                             {"formats", "--samples", "100"}}) {
    CAPTURE(words.size());
    const Said said = said_by(words);
    CHECK(said.code == 2);
    CHECK(said.output.empty());
    CHECK_FALSE(said.errors.empty());
  }
}

TEST_CASE("what an error quotes cannot move the cursor") {
  const Said said = said_by({"show", "\x1b[2J\xff"});
  CHECK(said.code == 2);
  CHECK(std::ranges::none_of(said.errors, [](char c) { return c == '\x1b' || c == '\xff'; }));
}

TEST_CASE("a workload of one's own is the default, and first among the names") {
  const Said said = said_by({"show", "amp-bf16", "--json", "-"});
  CHECK(said.code == 0);
  const auto sites = nlohmann::json::parse(said.output).at("sites");
  REQUIRE(sites.size() >= 1);
  CHECK(sites[0].at("site") == "0/linear.0");
  const lab::NamedWorkload own = mine();
  const Context with(&own), without(nullptr);
  CHECK(with.workload == "mine");
  CHECK(without.workload == "gpt_tiny");
  CHECK(with.names == "mine, " + without.names);
  CHECK(with.own.size() == 1);
  CHECK(without.own.empty());
  for (const lab::NamedWorkload& workload : lab::built_in_workloads())
    CHECK(contains(without.names, workload.name));
}

TEST_CASE("lists in one line") {
  CHECK(lab::list_of({}) == "");
  constexpr std::string_view names[] = {"a", "b", "c"};
  CHECK(lab::list_of(std::span(names).first(1)) == "a");
  CHECK(lab::list_of(names) == "a, b, c");
  std::string help = Parsed("picture").app.help();
  std::erase_if(help, [](char c) { return c == '\n' || c == ' '; });
  for (const std::string_view picture : lab::picture_names()) CHECK(contains(help, picture));
}

}  // namespace
}  // namespace halftone::test::commands_test

// halftone-lab formats: the numbers of a short format against their encoding, and tables.

namespace halftone::test::formats_test {
namespace {

using lab::FormatsOptions;

std::string said_by(const FormatsOptions& options, int code = 0) {
  const Captured output(std::cout);
  CHECK(lab::run_formats(options) == code);
  return output.text();
}

/// The words of the first line that begins with a name.
std::vector<std::string> line_of(const std::string& text, const std::string& name) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::vector<std::string> found;
    for (std::string word; words >> word;) found.push_back(word);
    if (!found.empty() && found[0] == name) return found;
  }
  return {};
}

/// The numbers that follow "from 0 up:".
std::vector<double> numbers_in(const std::string& text) {
  const std::size_t at = text.find("from 0 up:");
  REQUIRE(at != text.npos);
  std::istringstream in(text.substr(at + 10));
  std::vector<double> numbers;
  for (double x; in >> x;) numbers.push_back(x);
  return numbers;
}

/// Returns the values of codes 0, 1, 2, ... of an encoding without a sign: `exponent_bits`, then
/// `fraction_bits`, up to the largest number.
std::vector<double> decoded(int exponent_bits, int fraction_bits, double largest) {
  const int bias = (1 << (exponent_bits - 1)) - 1, fractions = 1 << fraction_bits;
  std::vector<double> numbers;
  for (int code = 0;; ++code) {
    const int exponent = code / fractions, fraction = code % fractions;
    const double significand = (exponent > 0 ? 1.0 : 0.0) + double(fraction) / fractions;
    const double number = std::ldexp(significand, std::max(exponent, 1) - bias);
    if (number > largest) return numbers;
    numbers.push_back(number);
  }
}

TEST_CASE("every number of a short format is printed, and no other") {
  struct Encoding {
    const char* name;
    int exponent_bits, fraction_bits;
    double largest;
  };
  const Encoding all[] = {{"e4m3", 4, 3, 448}, {"e5m2", 5, 2, 57344}, {"e3m2", 3, 2, 28},
                          {"e2m3", 2, 3, 7.5}, {"e2m1", 2, 1, 6},     {"e3m4", 3, 4, 15.5},
                          {"e4m0", 4, 0, 128}};
  for (const Encoding& e : all) {
    CAPTURE(e.name);
    const auto found = numbers_in(said_by({.names = {e.name}, .samples = 1024}));
    const auto wanted = decoded(e.exponent_bits, e.fraction_bits, e.largest);
    REQUIRE(found.size() == wanted.size());
    for (std::size_t i = 0; i < found.size(); ++i)  // nine digits are printed
      CHECK(std::abs(found[i] - wanted[i]) <= 1e-8 * wanted[i]);
  }
  std::vector<double> fixed;
  for (int i = 0; i < 128; ++i) fixed.push_back(i / 64.0);
  CHECK(numbers_in(said_by({.names = {"int8"}, .samples = 1024})) == fixed);
}

TEST_CASE("numbers are printed of one short format alone") {
  for (const std::vector<std::string>& names :
       std::vector<std::vector<std::string>>{{"bf16"}, {"e4m3", "e5m2"}, {"mxfp8"}, {}}) {
    CAPTURE(names.size());
    CHECK_FALSE(contains(said_by({.names = names, .samples = 1024}), "from 0 up:"));
  }
}

TEST_CASE("a line of a format: bits, significand, exponents, largest, smallest, what is beyond") {
  const std::string text = said_by({.samples = 1024});
  using Words = std::vector<std::string>;
  const auto front = [&](const char* name) {
    Words words = line_of(text, name);
    REQUIRE(words.size() == 10);  // and three ratios
    words.resize(7);
    return words;
  };
  CHECK(front("e4m3") == Words{"e4m3", "8", "4", "-6..8", "448", "0.00195312", "saturates"});
  CHECK(front("e5m2") == Words{"e5m2", "8", "3", "-14..15", "57344", "1.52588e-05", "infinity"});
  CHECK(front("f16") == Words{"f16", "16", "11", "-14..15", "65504", "5.96046e-08", "infinity"});
  CHECK(front("e2m1") == Words{"e2m1", "4", "2", "0..2", "6", "0.5", "saturates"});
}

TEST_CASE("f32 samples are exact in f32, and more bits have less noise") {
  const std::string text = said_by({.samples = 4096});
  const auto ratio = [&](const char* name) { return line_of(text, name).at(7); };
  CHECK(ratio("f32") == "exact");
  // Each significand bit is 6.02 dB: bf16 has 8, tf32 11.
  CHECK(std::stod(ratio("tf32")) - std::stod(ratio("bf16")) ==
        doctest::Approx(3 * 20 * std::log10(2.0)).epsilon(0.02));
  CHECK(std::stod(ratio("bf16")) > std::stod(ratio("e4m3")));
}

TEST_CASE("the same samples give the same table") {
  CHECK(said_by({.names = {"e4m3", "mxfp4"}, .samples = 2048}) ==
        said_by({.names = {"e4m3", "mxfp4"}, .samples = 2048}));
}

TEST_CASE("quantizers and formats go into tables of their own, unknown names are refused") {
  const std::string text = said_by({.names = {"mxfp4", "e4m3"}, .samples = 1024});
  CHECK_FALSE(line_of(text, "formats:").empty());
  CHECK_FALSE(line_of(text, "quantizers:").empty());
  CHECK(line_of(text, "mxfp8").empty());
  CHECK(line_of(said_by({.names = {"e4m3"}, .samples = 1024}), "quantizers:").empty());
  const Captured output(std::cout);
  CHECK(contains(
      message_of<UsageError>([] { lab::run_formats({.names = {"e4m33"}, .samples = 1024}); }),
      "e4m33"));
  CHECK(contains(message_of<UsageError>([] { lab::run_formats({.samples = 1023}); }),
                 "1023 samples are too few"));
}

}  // namespace
}  // namespace halftone::test::formats_test

// Data of pictures: shares of bins, and steps of a workload.

namespace halftone::test::pictures_test {
namespace {

TEST_CASE("a distribution is in percent, from the first to the last bin that can be seen") {
  const std::array<double, 6> counts{0, 1, 0, 298, 1, 0};
  const lab::svg::Curve all = lab::distribution("x", counts, -10, 2);
  REQUIRE(all.points.size() == 5);
  CHECK(all.points.front().x == -9);
  CHECK(all.points.front().y == doctest::Approx(100.0 / 300));
  CHECK(all.points[1].y == 0);  // a gap inside is a zero
  CHECK(all.points.back().x == -5);
  CHECK(all.points.back().y == 0);  // the staircase ends at 0
  const lab::svg::Curve seen = lab::distribution("x", counts, -10, 2, 0.01);
  REQUIRE(seen.points.size() == 2);
  CHECK(seen.points[0].x == -7);
  CHECK(seen.points[0].y == doctest::Approx(100 * 298.0 / 300));
  CHECK(lab::distribution("x", std::array<double, 2>{}, 0, 0).points.empty());
  CHECK(lab::distribution("x", std::span<const double>(), 0, 0).points.empty());
}

TEST_CASE("train_steps goes over the data as often as it takes, and refuses none") {
  lab::Workload work = lab::make_workload("mlp_tiny");
  const data::Batch batch = lab::example_of(work);
  work.train = [&] {
    return data::DataLoader(data::TensorDataset(batch.inputs, batch.targets),
                            {.batch_size = batch.inputs.size(0) / 2});
  };
  const auto optimizer = lab::optimizer_of(work);
  amp::Training training(amp::Policy::named("fp32"), *work.model, *optimizer);
  std::vector<int64_t> steps;
  double first = 0, last = 0;
  lab::train_steps(work, training, 5, [&](int64_t step, const Tensor& loss) {
    steps.push_back(step);
    (step == 0 ? first : last) = loss.item();
  });
  CHECK(steps == std::vector<int64_t>{0, 1, 2, 3, 4});
  CHECK(last < first);
  work.train = [] {
    return data::DataLoader(data::TensorDataset(zeros({0, 784}), zeros({0}, i64)));
  };
  CHECK(contains(message_of<UsageError>([&] { lab::train_steps(work, training, 1); }),
                 "the training data have no batch"));
}

}  // namespace
}  // namespace halftone::test::pictures_test

// halftone-lab show for programs: JSON of every workload, and of two policies.

namespace halftone::test::show_test {
namespace {

using nlohmann::json;

struct Said {
  std::string output, notes;
};

Said said_by(const lab::ShowOptions& options) {
  const Captured output(std::cout), notes(std::cerr);
  CHECK(lab::run_show(options, {}) == 0);
  return {output.text(), notes.text()};
}

std::string shipped_policy(const std::string& name) {
  return (policies_directory() / (name + ".json")).string();
}

TEST_CASE("show --json parses on every workload") {
  for (const lab::NamedWorkload& workload : lab::built_in_workloads()) {
    if (workload.name == "llama_124m") continue;  // as gpt2_124m, and seconds
    CAPTURE(workload.name);
    const Said said = said_by({.policy = "amp-bf16", .workload = workload.name, .json = "-"});
    const json all = json::parse(said.output);
    CHECK_FALSE(all.at("sites").empty());
    CHECK(all.at("hash").get<std::string>().size() == 16);
    CHECK(all.at("parameters") == "none");
    for (const json& site : all.at("sites")) {
      CHECK_FALSE(site.at("site").get<std::string>().empty());
      CHECK(site.at("treatment").at(0).at("does").empty());
    }
    CHECK(said.notes.empty());
    // The models of these are not in nn/models.
    const bool own = workload.name == "resnet8" || workload.name == "lstm_text";
    CHECK(workload.model.empty() == own);
  }
}

TEST_CASE("show --diff --json is what differs") {
  const Said said = said_by({.policy = shipped_policy("te_current"),
                             .workload = "mlp_tiny",
                             .other = shipped_policy("te_delayed_hybrid"),
                             .json = "-"});
  const json all = json::parse(said.output);
  REQUIRE(all.at("sites").size() == 1);  // not the head
  const auto from = [&](const char* when) {
    return all["sites"]["0/linear.0"][when]["treatment"][0]["does"]["input"]["scale"]["from"];
  };
  CHECK(from("before") == "current");
  CHECK(from("after") == "history");
  CHECK_FALSE(all.contains("strategy"));
  const json same = json::parse(said_by({.policy = "amp-bf16",
                                         .workload = "mlp_tiny",
                                         .other = shipped_policy("amp-bf16"),
                                         .json = "-"})
                                    .output);
  CHECK(same == json{{"sites", json::object()}});
  const json forms = json::parse(
      said_by(
          {.policy = "full-bf16", .workload = "mlp_tiny", .other = "full-bf16-kahan", .json = "-"})
          .output);
  CHECK(contains(forms.at("strategy").at("after").get<std::string>(), "(kahan)"));
  CHECK(contains(
      said_by({.policy = "full-bf16", .workload = "mlp_tiny", .other = "full-bf16-kahan"}).output,
      "+ strategy         weights bf16 (kahan)"));
}

TEST_CASE("a policy for other models is told so") {
  const Said said =
      said_by({.policy = shipped_policy("qpytorch_low8"), .workload = "gpt_tiny", .json = "-"});
  CHECK(said.notes ==
        "note: qpytorch-low8 is for lenet and mlp, and gpt_tiny trains gpt. Its rules may mean "
        "other layers.\n");
  CHECK(json::parse(said.output).contains("sites"));
  CHECK(said_by({.policy = shipped_policy("qpytorch_low8"), .workload = "student_teacher"})
            .notes.empty());

  std::ostringstream out;
  const std::vector<lab::NamedWorkload> own{{"mine", "", {}, {}}};
  lab::note_other_model(out, policy::read(shipped_policy("nvfp4")), "mine", own);
  CHECK(out.str() ==
        "note: nvfp4 is for gpt and llama, and mine trains a model of its own. Its rules may "
        "mean other layers.\n");
}

}  // namespace
}  // namespace halftone::test::show_test

// halftone-lab vectors: what the files hold, and the comparison with a search over the grid.

namespace halftone::test::vectors_test {
namespace {

using lab::Vectors;

std::vector<Rounding> all_roundings() {
  std::vector<Rounding> all;
  for (int i = 0; i < rounding_count; ++i) all.push_back(Rounding(i));
  return all;
}

TEST_CASE("vectors of a format have specials, ties and a result for each rounding") {
  const std::vector<float> x = lab::inputs_of(formats::e4m3, 200);
  REQUIRE(x.size() == 200);
  for (const float wanted : {448.0f, -448.0f, 464.0f, 0x1p-10f, 0x1p-149f})
    CHECK_MESSAGE(std::ranges::find(x, wanted) != x.end(), wanted);
  const Vectors vectors = lab::vectors_of("e4m3", {.grid = formats::e4m3}, all_roundings(), 200);
  CHECK(vectors.tensors.size() == 2 + rounding_count);  // x, random, seven roundings
  CHECK(vectors.metadata.at("grid.max") == "448");
  const auto to_even = vectors.tensors.at("nearest_even").to_vector<float>();
  for (std::size_t i = 0; i < x.size(); ++i) {
    const bool same = std::bit_cast<uint32_t>(round_to(formats::e4m3, x[i])) ==
                      std::bit_cast<uint32_t>(to_even[i]);
    CHECK_MESSAGE(same, x[i]);
  }
}

TEST_CASE("vectors of a quantizer: a number on the grid times its scales is the result") {
  for (const std::string_view name : ready_made_quantizers()) {
    CAPTURE(name);
    const Quantizer quantizer = *quantizer_named(name);
    const Vectors vectors =
        lab::vectors_of(std::string(name), quantizer, {Rounding::toward_zero}, 100);
    const Tensor& y = vectors.tensors.at("random.toward_zero");
    CHECK(y.numel() >= 100);
    CHECK(y.size(1) % quantizer.scaling.columns != 0);       // the last block is shorter
    CHECK_FALSE(vectors.tensors.contains("random.random"));  // words are for stochastic rounding
    const bool blocks = quantizer.scaling.per == Scaling::Per::block;
    const auto values = y.to_vector<float>();
    for (int64_t i = 0; i < y.numel(); ++i) {
      float scale = 1;
      if (blocks) {
        const Tensor& scales = vectors.tensors.at("random.scale");
        const int64_t row = i / y.size(1), column = i % y.size(1);
        scale = scales.data<float>()[row * scales.size(1) + column / quantizer.scaling.columns];
      }
      if (vectors.tensors.contains("random.tensor_scale"))
        scale *= vectors.tensors.at("random.tensor_scale").data<float>()[0];
      if (scale == 0) {  // a block far below the largest of the tensor
        CHECK(values[std::size_t(i)] == 0);
        continue;
      }
      const float element = values[std::size_t(i)] / scale;  // f32 scales: up to two roundings off
      const float near = round_to(quantizer.grid, element);
      CHECK_MESSAGE(std::abs(near - element) <= 4e-7f * std::abs(element), i);
    }
  }
}

TEST_CASE("vectors as JSON lines have the bits of the tensors") {
  const Vectors vectors = lab::vectors_of("mxfp4", *quantizer_named("mxfp4"), all_roundings(), 64);
  std::istringstream lines(lab::json_lines_of(vectors));
  std::string line;
  REQUIRE(std::getline(lines, line));
  CHECK(nlohmann::json::parse(line).at("scale.block") == "1x32");
  const auto word = [](const nlohmann::json& text) {
    return std::bit_cast<float>(uint32_t(std::stoul(text.get<std::string>(), nullptr, 16)));
  };
  const auto bits = [](float x) { return std::bit_cast<uint32_t>(x); };
  int count = 0;
  while (std::getline(lines, line)) {
    const nlohmann::json all = nlohmann::json::parse(line);
    const std::string prefix = all.at("case").get<std::string>() + '.';
    const int64_t row = all.at("row"), column = all.at("column");
    for (const char* name : {"x", "up", "stochastic"}) {
      const Tensor& x = vectors.tensors.at(prefix + name);
      CHECK(bits(word(all.at(name))) == bits(x.data<float>()[row * x.size(1) + column]));
    }
    const Tensor& scale = vectors.tensors.at(prefix + "scale");
    CHECK(word(all.at("scale")) == scale.data<float>()[row * scale.size(1) + column / 32]);
    ++count;
  }
  CHECK(count == 3 * vectors.tensors.at("random.x").numel());
}

TEST_CASE("vectors: counts that are refused") {
  CHECK_THROWS_WITH_AS(lab::vectors_of("e4m3", {.grid = formats::e4m3}, all_roundings(), 10),
                       "[halftone-lab vectors] --count is 10. Choose 64 to 16777216.", UsageError);
  CHECK_THROWS_AS(lab::compare_all(formats::bf16, all_roundings()), UsageError);
}

TEST_CASE("rounding is what a search over the grid finds, around every exponent") {
  std::vector<std::string> names{"binary8p4se", "binary8p1uf", "binary6p3ue"};
  for (const NamedFormat& named : named_formats())
    if (named.format.bits <= 8) names.emplace_back(named.name);
  for (const std::string& name : names) {
    const NumberFormat format = *number_format_named(name);
    CAPTURE(name);
    for (const uint64_t sign : {uint64_t(0), uint64_t(0x80000000u)})
      for (uint64_t exponent = 0; exponent < 256; exponent += 5) {
        const uint64_t first = sign | (exponent << 23);
        const lab::Exhaustive result =
            lab::compare_all(format, all_roundings(), Saturation::none, first, first + 512);
        CHECK_MESSAGE(result.different == 0, result.first);
        CHECK(result.compared == rounding_count * 512);
      }
  }
}

TEST_CASE("the search finds results that were derived by hand") {
  const auto found = [](const NumberFormat& format, Rounding rounding, float x, uint32_t word = 0) {
    return lab::found_by_search(format, rounding, x, word);
  };
  CHECK(found(formats::e4m3, Rounding::nearest_even, 17) == 16);  // between 16 and 18
  CHECK(found(formats::e4m3, Rounding::nearest_even, 19) == 20);
  CHECK(found(formats::e4m3, Rounding::nearest_away, 17) == 18);
  CHECK(found(formats::e4m3, Rounding::up, 16.001f) == 18);
  CHECK(found(formats::e4m3, Rounding::up, -17.9f) == -16);
  CHECK(found(formats::e4m3, Rounding::down, -16.001f) == -18);
  CHECK(found(formats::e4m3, Rounding::toward_zero, 17.9f) == 16);
  CHECK(found(formats::e4m3, Rounding::to_odd, 17) == 18);
  CHECK(found(formats::e4m3, Rounding::nearest_even, 1000) == 448);
  CHECK(std::isinf(found(formats::e5m2, Rounding::nearest_even, 61440)));
  CHECK(found(formats::e5m2, Rounding::to_odd, 1e30f) == 57344);
  CHECK(found(formats::e2m1, Rounding::nearest_even, 0.25f) == 0);
  CHECK(found(formats::e2m1, Rounding::stochastic, 3.25f, 0xbfffffffu) == 3);  // 1/4 of the way
  CHECK(found(formats::e2m1, Rounding::stochastic, 3.25f, 0xc0000000u) == 4);
  CHECK(std::signbit(found(formats::e2m1, Rounding::toward_zero, -0.1f)));
}

}  // namespace
}  // namespace halftone::test::vectors_test
