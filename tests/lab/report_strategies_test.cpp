// Strategies in one table, from the JSON of compare_strategies: the tables' cells, and files that
// other programs wrote or damaged.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include <halftone/core/error.h>
#include <halftone/lab/report/page.h>
#include <halftone/lab/report/report.h>

#include "html_tables.h"
#include "pages.h"
#include "support.h"

namespace halftone::test::report_strategies_test {
namespace {

using nlohmann::json;

json measured(const std::string& name, double ms) {
  return {{"strategy", name},
          {"workload", "mlp"},
          {"epochs", 1},
          {"batch", 64},
          {"device", "cpu"},
          {"threads", 2},
          {"test_accuracy", 0.875},
          {"ms", ms},
          {"peak_bytes", 3 << 20},
          {"parameter_ratio", 1.5},
          {"skipped_steps", 2},
          {"final_loss", 0.25},
          {"at_peak", {{"parameter", 2 << 20}, {"gradient", 1 << 20}, {"workspace", 0}}},
          {"losses", {{1, 2.0}, {2, 1.0}}},
          {"casts",
           {{{"op", "matmul"}, {"runs_in", "bf16"}, {"casts", 2}, {"cache_hits", 1}},
            {{"op", "exp"}, {"runs_in", "f32"}, {"casts", 0}, {"to_zero", 3}}}}};
}

HtmlTable without_head(HtmlTable table) {
  table.erase(table.begin());
  return table;
}

TEST_CASE("the table of figures: a row per strategy, speed-ups over fp32") {
  const json all{measured("fp32", 10), measured("amp-bf16", 4)};
  CHECK(lab::is_strategy_list(all));
  const auto tables = html_tables(lab::strategy_sections(all));
  REQUIRE(tables.size() == 2);
  CHECK(without_head(tables[0]) ==
        HtmlTable{{"fp32", "87.50", "10.00", "1.00x", "3.00", "1.50x", "2", "0.2500"},
                  {"amp-bf16", "87.50", "4.00", "2.50x", "3.00", "1.50x", "2", "0.2500"}});
  CHECK(without_head(tables[1]) == HtmlTable{{"matmul", "bf16 (2 casts, 1 from the cache)",
                                              "bf16 (2 casts, 1 from the cache)"},
                                             {"exp", "f32, 3 to 0", "f32, 3 to 0"}});
}

TEST_CASE("a page and a report show the same sections") {
  const json all{measured("fp32", 10)};
  const std::string page = lab::strategy_page(all);
  CHECK(PageReader(page).read().mistake == "");
  const TemporaryDirectory directory;
  write_file(directory / "comparison.json", all.dump());
  const std::string report = lab::report({.paths = {directory / "comparison.json"}});
  CHECK(report.find(lab::strategy_sections(all)) != report.npos);
}

TEST_CASE("fields that are missing, of another type or markup change nothing else") {
  json broken = measured("<b>", 10);
  broken["losses"] = json::array({json::array({1}), "x", json::array({1, "y"})});
  broken["casts"] = "none";
  broken["at_peak"] = json::array({1, 2});
  broken["ms"] = "fast";
  const std::string page = lab::strategy_page(json{broken});
  CHECK(PageReader(page).read().mistake == "");
  CHECK(page.find("<b>") == page.npos);
  CHECK(page.find("<svg") == page.npos);
  CHECK_FALSE(lab::is_strategy_list(json::array()));
  CHECK_FALSE(lab::is_strategy_list(json{{{"strategy", "fp32"}}}));
  CHECK_FALSE(lab::is_strategy_list(json{{"strategy", "fp32"}, {"test_accuracy", 1}}));
}

}  // namespace
}  // namespace halftone::test::report_strategies_test
