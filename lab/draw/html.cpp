// Pieces of a page as text.
#include <halftone/lab/draw/html.h>

#include <algorithm>
#include <cstdint>

namespace halftone::lab::html {

namespace {

/// The first character of `text` and its number of bytes. A byte that does not begin a character
/// gives U+FFFD and 1.
struct Character {
  uint32_t code = 0xFFFD;
  std::size_t bytes = 1;
};
Character first_of(std::string_view text) {
  const auto byte = [&](std::size_t i) { return uint32_t(uint8_t(text[i])); };
  const uint32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  const std::size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < length) return {};
  uint32_t code = lead & (0x7Fu >> length);
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return {};
    code = code << 6 | (byte(i) & 0x3F);
  }
  constexpr uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
  if (code < least[length] || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) return {};
  return {code, length};
}

/// Returns false for control characters except tabs and line ends, for codes that are not
/// characters, and for marks that change the direction of writing.
bool is_shown(uint32_t code) {
  if (code < 0x20) return code == '\t' || code == '\n';
  const bool turns = (code >= 0x202A && code <= 0x202E) || (code >= 0x2066 && code <= 0x2069);
  return !(code >= 0x7F && code < 0xA0) && (code & 0xFFFE) != 0xFFFE && !turns;
}

}  // namespace

std::string escaped(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const Character next = first_of(text);
    switch (next.code) {
      case '&': result += "&amp;"; break;
      case '<': result += "&lt;"; break;
      case '>': result += "&gt;"; break;
      case '"': result += "&quot;"; break;
      case '\'': result += "&#39;"; break;
      case 0xFFFD: result += "\xEF\xBF\xBD"; break;
      default:
        if (is_shown(next.code)) result += text.substr(0, next.bytes);
        else result += "\xEF\xBF\xBD";
    }
    text.remove_prefix(next.bytes);
  }
  return result;
}

std::string shortened(std::string_view text, std::size_t most) {
  std::vector<std::size_t> starts;  // byte index of each character
  for (std::size_t at = 0; at < text.size(); at += first_of(text.substr(at)).bytes)
    starts.push_back(at);
  if (starts.size() <= most || most < 3) return std::string(text);
  const std::size_t front = (most - 1) / 2, back = most - 1 - front;
  return std::string(text.substr(0, starts[front])) + "…" +
         std::string(text.substr(starts[starts.size() - back]));
}

std::string element(std::string_view tag, std::string_view attributes, std::string_view content) {
  std::string text = "<" + std::string(tag);
  if (!attributes.empty()) text += " " + std::string(attributes);
  return text + ">" + std::string(content) + "</" + std::string(tag) + ">";
}

Table::Table(std::vector<std::string> heads, std::size_t texts) : texts_(texts) {
  for (std::size_t i = 0; i < heads.size(); ++i)
    head_ += element("th", i < texts ? "class=\"t\"" : "", heads[i]);
}

void Table::row(const std::vector<std::string>& cells) {
  body_ += "<tr>";
  for (std::size_t i = 0; i < cells.size(); ++i)
    body_ += i == 0 ? element("th", "class=\"t\" scope=\"row\"", cells[i])
                    : element("td", i < texts_ ? "class=\"t\"" : "", cells[i]);
  body_ += "</tr>\n";
  ++rows_;
}

std::string Table::text() const {
  return "<div class=\"wide\"><table>\n<thead><tr>" + head_ + "</tr></thead>\n<tbody>\n" + body_ +
         "</tbody></table></div>\n";
}

std::string heat_map(std::string_view caption, const std::vector<std::string>& heads,
                     const std::vector<HeatRow>& rows) {
  std::string text = "<div class=\"wide\"><table class=\"heat\">\n" +
                     element("caption", "", caption) + "\n<thead><tr><th></th>";
  for (const std::string& head : heads) text += element("th", "", escaped(head));
  text += "</tr></thead>\n<tbody>\n";
  for (const HeatRow& row : rows) {
    text += "<tr>" + element("th", "class=\"t\" scope=\"row\"", escaped(row.name));
    for (const HeatCell& cell : row.cells) {
      std::string attributes;
      if (cell.strength >= 0) {
        const int level = int(std::clamp(cell.strength, 0.0, 1.0) * 8 + 0.5);
        attributes = "class=\"h" + std::to_string(level) + "\"";
      }
      if (!cell.title.empty()) attributes += " title=\"" + escaped(cell.title) + "\"";
      text += element("td", attributes, cell.text);
    }
    text += "</tr>\n";
  }
  return text + "</tbody></table></div>\n";
}

}  // namespace halftone::lab::html
