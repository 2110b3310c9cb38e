// The list of commands, and each command's flags: help names them, values out of range are
// mistakes, and the work gets the parsed options.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>

#include <nlohmann/json.hpp>

#include <halftone/lab/commands/commands.h>
#include <halftone/lab/lab.h>

#include "lab/runs.h"
#include "lab/said.h"
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
      {"vectors", {"--count", "--exhaustive", "--out", "--quantizer", "--rounding"}},
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
      {"sensitivity", and_also(ranking, {"--check", "--one-pass"})},
      {"search", and_also(ranking, {"--bits", "--budget", "--gate", "--objective", "--out",
                                    "--seeds", "--steps"})},
      {"report", {"--output", "--reference"}},
      {"table", {"--csv", "--jsonl", "--output", "--where"}},
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
