// Tables of the report's pages, parsed to the texts of their cells.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace halftone::test {

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

}  // namespace halftone::test
