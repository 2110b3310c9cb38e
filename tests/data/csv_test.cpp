// Tables: valid files, refusals with their line, columns as tensors; subsets and
// splits.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <fstream>

#include <halftone/core/factory.h>
#include <halftone/data/csv.h>
#include <halftone/data/data_loader.h>

#include "../support.h"

namespace halftone::test::csv_test {

using data::CsvTable, data::csv_from_text, data::read_csv;

namespace {

namespace fs = std::filesystem;
using Values = std::vector<double>;
Values values(const Tensor& x) { return x.to_vector<double>(); }

TEST_CASE("a table: names, numbers, classes") {
  const TemporaryDirectory directory;
  std::ofstream(directory / "t.csv")
      << "size,color,price\r\n1.5, red ,10\n-2e1,blue,+3.25\n\n0.5, red ,.5";
  const CsvTable table = read_csv(directory / "t.csv");
  CHECK(table.rows() == 3);
  CHECK(table.columns() == std::vector<std::string>{"size", "color", "price"});
  const Tensor x = table.numbers({"price", "size"});
  CHECK(x.shape() == Shape{3, 2});
  CHECK(x.dtype() == f32);
  CHECK(values(x) == Values{10, 1.5, 3.25, -20, 0.5, 0.5});
  CHECK(table.column("size", f64).shape() == Shape{3});
  const data::Classes classes = table.classes("color");
  CHECK(values(classes.numbers) == Values{0, 1, 0});
  CHECK(classes.names == std::vector<std::string>{" red ", "blue"});
  CHECK(table.columns_without({"color"}) == std::vector<std::string>{"size", "price"});
  CHECK(table.cell(1, "color") == "blue");
}

TEST_CASE("quotes, separators, marks, no header") {
  const CsvTable table =
      csv_from_text("\xef\xbb\xbf\"a \"\"b\"\"\";\"c;\nd\"\r\n1;\"x\r\ny\"\n", {.separator = ';'});
  CHECK(table.columns() == std::vector<std::string>{"a \"b\"", "c;\nd"});
  CHECK(table.cell(0, "c;\nd") == "x\r\ny");
  const CsvTable bare = csv_from_text("1,2\n3,4", {.header = false});
  CHECK(values(bare.numbers({"0", "1"})) == Values{1, 2, 3, 4});
  CHECK(csv_from_text("").rows() == 0);
  CHECK(csv_from_text("a,b\n").rows() == 0);
  CHECK(csv_from_text("a,b\n").numbers({"a", "b"}).shape() == Shape{0, 2});
}

TEST_CASE("invalid tables, with the line of the error") {
  const auto message = [](std::string_view text) {
    return message_of<FormatError>([&] { csv_from_text(text); });
  };
  CHECK(message("a,b\n1,2\n3\n") ==
        "[csv] the text, line 3: it has 1 cells, the first has 2. Every line must have as many.");
  CHECK(message("a,a\n") == "[csv] the text: two columns are called \"a\". Rename one.");
  CHECK(message("a\n\"1\n2") == "[csv] the text, line 2: a quote is never closed. Close it.");
  CHECK(message("a\n1\"2") ==
        "[csv] the text, line 2: a quote inside a cell that does not begin with one. Quote the "
        "whole cell, "
        "and write \"\" for a quote in it.");
  CHECK(message("a\n\"1\"2") ==
        "[csv] the text, line 2: text after a closing quote. Write \"\" for a quote in a cell.");
  const CsvTable table = csv_from_text("a,b\n\n1,x\n,2\n");
  CHECK(message_of<FormatError>([&] { table.column("b"); }) ==
        "[csv] the text, line 3, column \"b\": \"x\" is not a number. Fix the file, or read the "
        "column as "
        "classes.");
  CHECK(message_of<FormatError>([&] { table.column("a"); }).starts_with("[csv] the text, line 4"));
  CHECK(message_of<UsageError>([&] { table.column("c"); }) ==
        "[csv] there is no column \"c\" in the text. Its columns are: \"a\", \"b\".");
  CHECK_THROWS_AS(table.cell(2, "a"), UsageError);
  CHECK_THROWS_AS(csv_from_text("a", {.separator = '"'}), UsageError);
  const TemporaryDirectory directory;
  CHECK_THROWS_AS(read_csv(directory / "none.csv"), FormatError);
  CHECK_THROWS_AS(read_csv(directory / "."), FormatError);
}

TEST_CASE("numbers are rounded once, to the dtype asked for") {
  // Just above the middle of two floats; as a double it is the middle, which rounds down.
  const CsvTable table = csv_from_text("x\n1.00000005960464477540\n1e-60\n-1e-400\n+16777217\n");
  const Tensor x = table.column("x");
  CHECK(x.at({0}) == 1 + 0x1p-23);
  CHECK(x.at({1}) == 0);
  CHECK(x.at({2}) == 0);
  CHECK(x.at({3}) == 16777216);
  CHECK(table.column("x", f64).at({1}) == 1e-60);
  CHECK(csv_from_text("n\n9007199254740993\n3.0\n").column("n", i64).to_vector<int64_t>() ==
        std::vector<int64_t>{9007199254740993, 3});
  const auto refused = [](const char* text, DType dtype) {
    return message_of<FormatError>([&] { csv_from_text(text).column("x", dtype); });
  };
  CHECK(refused("x\n1\n1e39\n", f32) ==
        "[csv] the text, line 3, column \"x\": \"1e39\" cannot be a number in f32. Read the column "
        "in a wider dtype, or fix the file.");
  CHECK(refused("x\n1e39\n", f64).empty());
  for (const auto& [text, dtype] : {std::pair("x\n1e400\n", f64),
                                    {"x\n-1e400\n", f32},
                                    {"x\n1e5\n", f16},
                                    {"x\n1e39\n", bf16},
                                    {"x\n1.5\n", i64},
                                    {"x\n9223372036854775808\n", i64},
                                    {"x\n256\n", u8},
                                    {"x\nnan\n", i64}})
    CHECK(contains(refused(text, dtype), "cannot be a number in"));
  CHECK(contains(refused("x\n1e39x\n", f32), "is not a number"));
}

TEST_CASE("missing values, decimal commas and thousands") {
  const auto column = [](const char* text, const data::CsvOptions& options, DType dtype = f64) {
    return values(csv_from_text(text, options).column("x", dtype));
  };
  const Values some = column("x,y\n1,2\nNA,2\n,2\n NA ,3\n", {.missing = {"NA", ""}});
  CHECK(some[0] == 1);
  for (const std::size_t i : {1u, 2u, 3u}) CHECK(std::isnan(some[i]));
  CHECK(message_of<FormatError>([&] { column("x\n1\nNA\n", {.missing = {"NA"}}, i64); }) ==
        "[csv] the text, line 3, column \"x\": \"NA\" is a missing value, which no integer can be. "
        "Read the column as f32, or fill the cell.");
  CHECK_THROWS_AS(column("x\nNA\n", {}), FormatError);
  const data::CsvOptions german{.separator = ';', .decimal_comma = true, .thousands = '.'};
  CHECK(column("x;y\n1,5;2\n-1.234.567,25;0\n1e3;0\n12.345;0\n,5;0\n", german) ==
        Values{1.5, -1234567.25, 1000, 12345, 0.5});
  CHECK(column("x\n\"1,234.5\"\n+1\n", {.thousands = ','}) == Values{1234.5, 1});
  CHECK(column("x\n\"1,234\"\n", {.thousands = ','}, i64) == Values{1234});
  CHECK(column("x\n\"0,5\"\n", {.decimal_comma = true}) == Values{0.5});
  for (const char* wrong : {"1.5", "1.2345", "1234.567", "1..234", ".123", "1,5,5", "1.234.56", "x",
                            "", "+-1", "1,234.567"}) {
    CAPTURE(wrong);
    const std::string text = std::string("x;y\n") + wrong + ";0\n";
    CHECK_THROWS_AS(column(text.c_str(), german), FormatError);
  }
  CHECK_THROWS_AS(column("x\n1.5\n", {.decimal_comma = true}), FormatError);
  CHECK_THROWS_AS(column("x\n", {.thousands = '.'}), UsageError);
  CHECK_THROWS_AS(column("x\n", {.decimal_comma = true, .thousands = ','}), UsageError);
  CHECK_THROWS_AS(column("x\n", {.thousands = '1'}), UsageError);
}

TEST_CASE("a table in UTF-16 is called that, and errors name the file") {
  const TemporaryDirectory directory;
  const fs::path path = directory / "t.csv";
  for (const std::string& text : {std::string("\xff\xfe"
                                              "a\0\n\0",
                                              6),
                                  std::string("\xfe\xff\0a\0\n", 6)}) {
    write_file(path, text);
    CHECK(message_of<FormatError>([&] { read_csv(path); }) ==
          "[csv] " + path.string() + " is UTF-16. Save it as UTF-8.");
  }
  write_file(path, "a,b\n1\n");
  CHECK(contains(message_of<FormatError>([&] { read_csv(path); }),
                 path.string() + ", line 2: it has 1"));
}

TEST_CASE("another table's classes give equal texts equal numbers") {
  const data::Classes train = csv_from_text("pet\ncat\ndog\neel\n").classes("pet");
  const CsvTable test = csv_from_text("pet\ndog\neel\n");
  const data::Classes classes = test.classes("pet", train.names);
  CHECK(values(classes.numbers) == Values{1, 2});
  CHECK(classes.names == train.names);
  CHECK(message_of<FormatError>([&] {
          test.classes("pet", {"cat", "dog"});
        }) ==
        "[csv] the text, line 3, column \"pet\": \"eel\" is none of the 2 classes given. Pass the "
        "names of a table that has them all.");
  CHECK_THROWS_AS(test.classes("pet", {"dog", "eel", "dog"}), UsageError);
}

TEST_CASE("a batch of several tensors; subsets and splits") {
  const data::TensorDataset three(
      {from({0.0, 1, 2, 3, 4}), from({10.0, 11, 12, 13, 14}), from({5.0, 6, 7, 8, 9})});
  data::DataLoader loader(three, {.batch_size = 2, .drop_last = true});
  for (const data::Batch& batch : loader) {
    const auto& [inputs, targets] = batch;
    REQUIRE(batch.more.size() == 1);
    CHECK(values(batch.more[0])[0] == values(inputs)[0] + 10);
    CHECK(values(targets)[0] == values(inputs)[0] + 5);
  }
  for (auto [inputs, targets] : loader) CHECK(inputs.shape() == targets.shape());
  CHECK(data::Batch::of({ones({1})}).targets.defined() == false);
  CHECK_THROWS_AS(data::Batch::of({}), UsageError);
  CHECK_THROWS_AS(data::TensorDataset({ones({2}), ones({3}), ones({2})}), ShapeError);

  const data::Subset subset(three, {4, 0});
  const std::vector<int64_t> both{0, 1};
  CHECK(values(subset.batch(both).inputs) == Values{4, 0});
  CHECK_THROWS_AS(data::Subset(three, {5}), UsageError);
  const std::vector<int64_t> third{2};
  CHECK_THROWS_AS(subset.batch(third), UsageError);
  const auto [first, rest] = data::random_split(three, 0.6, 3);
  CHECK(first.size() == 3);
  CHECK(rest.size() == 2);
  std::vector<int64_t> all{0, 1, 2};
  Values seen = values(first.batch(all).inputs);
  all.pop_back();
  for (const double v : values(rest.batch(all).inputs)) seen.push_back(v);
  std::ranges::sort(seen);
  CHECK(seen == Values{0, 1, 2, 3, 4});
  CHECK_THROWS_AS(data::random_split(three, 1.5), UsageError);

  const auto [numbers, others] = data::random_split(5, 0.6, 3);
  CHECK(values(data::Subset(three, numbers).batch(all).inputs) == values(first.batch(all).inputs));
  CHECK(others.size() == 2);
  CHECK_THROWS_AS(data::random_split(-1, 0.5), UsageError);
}

}  // namespace

}  // namespace halftone::test::csv_test
