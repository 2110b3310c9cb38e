// Tables of lab/table.h, read again: cells by line and column.
#pragma once

#include <algorithm>
#include <cctype>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <halftone/core/error.h>

namespace halftone::test {

/// A table as text. The first column begins after two spaces. The others end below the end of their
/// heads, or further to the right, with two spaces between them.
class Columns {
 public:
  explicit Columns(const std::string& text) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) lines_.push_back(line);
    find_ends();
  }

  int rows() const { return int(lines_.size()) - 1; }
  int columns() const { return int(starts_.size()); }
  /// Returns a cell without the spaces around it; row -1 has the heads.
  std::string cell(int row, int column) const {
    const std::string& line = lines_.at(std::size_t(row + 1));
    const std::size_t from = starts_.at(std::size_t(column));
    if (from >= line.size()) return "";
    const bool last = column + 1 == columns();
    return trimmed(line.substr(from, last ? line.npos : starts_[std::size_t(column + 1)] - from));
  }
  bool has(const std::string& head) const {
    for (int column = 0; column < columns(); ++column)
      if (cell(-1, column) == head) return true;
    return false;
  }
  std::string at(int row, const std::string& head) const {
    for (int column = 0; column < columns(); ++column)
      if (cell(-1, column) == head) return cell(row, column);
    fail<UsageError>("test", "no column has the head \"", head, "\".");
  }

 private:
  static std::string trimmed(const std::string& text) {
    const std::size_t from = text.find_first_not_of(' '), to = text.find_last_not_of(' ');
    return from == text.npos ? "" : text.substr(from, to - from + 1);
  }
  /// Columns begin after two spaces that all lines have.
  void find_ends() {
    std::size_t width = 0;
    for (const std::string& line : lines_) width = std::max(width, line.size());
    const auto is_gap = [&](std::size_t at) {
      return std::ranges::all_of(
          lines_, [&](const std::string& line) { return at >= line.size() || line[at] == ' '; });
    };
    for (std::size_t at = 2; at < width; ++at)
      if (!is_gap(at) && is_gap(at - 1) && is_gap(at - 2)) starts_.push_back(at);
  }

  std::vector<std::string> lines_{};
  std::vector<std::size_t> starts_{};
};

// Tables of the report's pages, parsed to the texts of their cells.

/// Rows of cells; the first row has the heads. Tags inside of cells are left out.
using HtmlTable = std::vector<std::vector<std::string>>;

/// Text without its tags.
inline std::string text_of_markup(std::string_view markup) {
  std::string text;
  bool inside = false;
  for (const char c : markup) {
    if (c == '<') inside = true;
    if (!inside) text += c;
    if (c == '>') inside = false;
  }
  return text;
}

/// Returns the text between the end of the tag `name` at or after `at` and its closing tag. Moves
/// `at` past it, or to npos if there is none.
inline std::string_view content_of(std::string_view page, std::string_view name, std::size_t& at) {
  const std::string open = "<" + std::string(name), close = "</" + std::string(name) + ">";
  const auto begins = [&] {
    const char next = at + open.size() < page.size() ? page[at + open.size()] : ' ';
    return next == ' ' || next == '>';
  };
  at = page.find(open, at);
  while (at != page.npos && !begins()) at = page.find(open, at + 1);
  if (at == page.npos) return {};
  const std::size_t from = page.find('>', at) + 1, to = page.find(close, from);
  at = to + close.size();
  return page.substr(from, to - from);
}

inline std::vector<HtmlTable> html_tables(std::string_view page) {
  std::vector<HtmlTable> tables;
  for (std::size_t at = 0;;) {
    const std::string_view table = content_of(page, "table", at);
    if (at == page.npos) return tables;
    tables.emplace_back();
    for (std::size_t row_at = 0;;) {
      const std::string_view row = content_of(table, "tr", row_at);
      if (row_at == table.npos) break;
      std::vector<std::string>& cells = tables.back().emplace_back();
      for (std::size_t cell = row.find("<t"); cell != row.npos; cell = row.find("<t", cell)) {
        std::size_t end = cell;
        cells.push_back(text_of_markup(content_of(row, row.substr(cell + 1, 2), end)));
        cell = end;
      }
    }
  }
}

// Checks whether a page is well-formed XML, and lists its elements and attributes: a parser of
// minimal size.

struct Page {
  std::string mistake{};  // the first, with the text around it; "" if there is none
  std::multiset<std::string> ids{}, tags{};
  std::vector<std::string> links{};  // of href and src
};

class PageReader {
 public:
  explicit PageReader(std::string_view text) : rest_(text) {}

  Page read() {
    if (rest_.starts_with("<!DOCTYPE html>")) rest_.remove_prefix(15);
    while (!rest_.empty() && page_.mistake.empty()) {
      if (rest_.front() == '<') tag();
      else if (rest_.front() == '&') entity();
      else character();
    }
    if (page_.mistake.empty() && !open_.empty()) wrong("not closed: " + open_.back());
    return page_;
  }

 private:
  void wrong(const std::string& what) {
    page_.mistake = what + " before: " + std::string(rest_.substr(0, 60));
  }

  /// Bytes below a space other than line ends and tabs are not allowed in XML.
  void character() {
    const auto byte = static_cast<unsigned char>(rest_.front());
    if (byte < ' ' && byte != '\n' && byte != '\t') return wrong("a control character");
    if (open_.empty() && !std::isspace(byte)) return wrong("text outside of all elements");
    rest_.remove_prefix(1);
  }

  void entity() {
    for (const std::string_view known : {"&amp;", "&lt;", "&gt;", "&quot;", "&#39;"})
      if (rest_.starts_with(known)) return rest_.remove_prefix(known.size());
    wrong("an unknown entity");
  }

  std::string word() {
    std::size_t end = 0;
    while (end < rest_.size() && (std::isalnum(static_cast<unsigned char>(rest_[end])) ||
                                  rest_[end] == '-' || rest_[end] == ':'))
      ++end;
    const std::string result(rest_.substr(0, end));
    rest_.remove_prefix(end);
    return result;
  }

  void tag() {
    rest_.remove_prefix(1);
    if (rest_.starts_with('/')) {
      rest_.remove_prefix(1);
      const std::string name = word();
      if (open_.empty() || open_.back() != name || !rest_.starts_with('>'))
        return wrong("closed, but not the last that is open: " + name);
      open_.pop_back();
      return rest_.remove_prefix(1);
    }
    const std::string name = word();
    if (name.empty()) return wrong("a tag without a name");
    page_.tags.insert(name);
    attributes();
    if (!page_.mistake.empty()) return;
    if (rest_.starts_with("/>")) return rest_.remove_prefix(2);
    if (!rest_.starts_with('>')) return wrong("a tag without an end");
    rest_.remove_prefix(1);
    open_.push_back(name);
  }

  void attributes() {
    std::set<std::string> seen;
    while (rest_.starts_with(' ')) {
      rest_.remove_prefix(1);
      const std::string name = word();
      if (name.empty() || !rest_.starts_with("=\"")) return wrong("an attribute without a value");
      if (!seen.insert(name).second) return wrong("an attribute twice: " + name);
      rest_.remove_prefix(2);
      const std::string_view before = rest_;
      while (!rest_.empty() && rest_.front() != '"' && page_.mistake.empty()) {
        if (rest_.front() == '<') return wrong("< in an attribute");
        if (rest_.front() == '&') entity();
        else rest_.remove_prefix(1);
      }
      const std::string value(before.substr(0, before.size() - rest_.size()));
      if (name == "id") page_.ids.insert(value);
      if (name == "href" || name == "src") page_.links.push_back(value);
      if (rest_.empty()) return wrong("an attribute without an end");
      rest_.remove_prefix(1);
    }
  }

  std::string_view rest_;
  std::vector<std::string> open_{};
  Page page_{};
};

}  // namespace halftone::test
