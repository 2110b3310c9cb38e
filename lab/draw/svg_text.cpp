// The building blocks of drawings.
#include <halftone/lab/draw/svg_text.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include <halftone/lab/draw/html.h>

namespace halftone::lab::svg {

std::string coordinate(double value) {
  char text[32];
  const double rounded = std::round(std::clamp(value, -1e6, 1e6) * 10) / 10;
  const auto end = std::to_chars(text, text + sizeof text, rounded + 0.0).ptr;
  return {text, end};
}

std::string label_of(double value, int digits) {
  if (std::isnan(value)) return "?";
  if (std::isinf(value)) return value > 0 ? "∞" : "-∞";
  char text[40];
  const auto end =
      std::to_chars(text, text + sizeof text, value + 0.0, std::chars_format::general, digits).ptr;
  return {text, end};
}

std::string mark(std::string_view name, const std::string& attributes, std::string_view title) {
  const std::string start = "<" + std::string(name) + " " + attributes;
  if (title.empty()) return start + "/>\n";
  return start + "><title>" + html::escaped(title) + "</title></" + std::string(name) + ">\n";
}

std::string words(double x, double y, std::string_view anchor, std::string_view text,
                  std::string_view more) {
  std::string attributes = "x=\"" + coordinate(x) + "\" y=\"" + coordinate(y) + "\"";
  if (anchor != "start") attributes += " text-anchor=\"" + std::string(anchor) + "\"";
  if (!more.empty()) attributes += " " + std::string(more);
  return html::element("text", attributes, html::escaped(text)) + "\n";
}

std::string shape_path(int style, double x, double y, double r) {
  const auto at = [&](const char* command, double dx, double dy) {
    return command + coordinate(x + dx * r) + " " + coordinate(y + dy * r);
  };
  switch (style % 5) {
    case 0:  // a disc
      return at("M", -1, 0) + "a" + coordinate(r) + " " + coordinate(r) + " 0 1 0 " +
             coordinate(2 * r) + " 0a" + coordinate(r) + " " + coordinate(r) + " 0 1 0 " +
             coordinate(-2 * r) + " 0z";
    case 1: return at("M", -1, -1) + at("L", 1, -1) + at("L", 1, 1) + at("L", -1, 1) + "z";
    case 2: return at("M", 0, -1.2) + at("L", 1.2, 1) + at("L", -1.2, 1) + "z";
    case 3: return at("M", 0, -1.4) + at("L", 1.4, 0) + at("L", 0, 1.4) + at("L", -1.4, 0) + "z";
    default: return at("M", -1.2, -1) + at("L", 1.2, -1) + at("L", 0, 1.2) + "z";
  }
}

std::string legend(const std::vector<LegendEntry>& entries, double left, double right, double top,
                   double& height) {
  constexpr double line = 19, sample = 26, letter = 6.9, gap = 16;
  std::string text;
  double x = left, y = top;
  for (const LegendEntry& entry : entries) {
    const auto most = std::size_t((right - left - sample) / letter);
    const std::string name = html::shortened(entry.name, most);
    const double width = sample + letter * double(std::min(name.size(), most));
    if (x > left && x + width > right) x = left, y += line;
    const std::string style = std::to_string(entry.style % 10);
    if (entry.kind == LegendEntry::Kind::area) {
      text += "<rect class=\"f" + style + "\" x=\"" + coordinate(x) + "\" y=\"" +
              coordinate(y - 10) + "\" width=\"18\" height=\"12\"/>\n";
      if (!entry.label.empty()) text += words(x + 9, y, "middle", entry.label, "class=\"on\"");
    } else {
      text += "<path class=\"l l" + style + "\" d=\"M" + coordinate(x) + " " + coordinate(y - 4) +
              "h20\"/>\n<path class=\"m f" + style + "\" d=\"" +
              shape_path(entry.style, x + 10, y - 4, 3.5) + "\"/>\n";
    }
    text += words(x + sample, y, "start", name);
    x += width + gap;
  }
  if (!entries.empty()) height = y + 8;
  return text;
}

std::string document(int width, double height, std::string_view title, const std::string& content,
                     Place place) {
  std::string text = "<svg class=\"plot\" viewBox=\"0 0 " + std::to_string(width) + " " +
                     coordinate(height) + "\" role=\"img\"";
  if (place == Place::file)
    text += " xmlns=\"http://www.w3.org/2000/svg\" width=\"" + std::to_string(width) +
            "\" height=\"" + coordinate(height) + "\"";
  text += ">\n";
  if (!title.empty()) text += html::element("title", "", html::escaped(title)) + "\n";
  if (place == Place::file)
    text += html::element("style", "", "\n" + styles()) +
            "\n<rect class=\"ground\" width=\"100%\" height=\"100%\"/>\n";
  return text + content + "</svg>\n";
}

// Okabe and Ito's colors. They are darker on white and lighter on black if they would be faint.
std::string styles() {
  constexpr const char* light[] = {"#0067a5", "#c4500a", "#00805c", "#a33c82", "#7a6a00",
                                   "#3a9bd1", "#8a1c1c", "#555b66", "#2f8f2f", "#6a4fc0"};
  constexpr const char* dark[] = {"#62b5f0", "#ff9a4d", "#35c796", "#ee8fc8", "#dcc94a",
                                  "#8fd3ff", "#ff7b7b", "#b3bac6", "#86d986", "#b6a1ff"};
  constexpr const char* dashes[] = {"none", "7 3", "2 2", "9 3 2 3", "12 4", "4 2 1 2"};
  const auto variables = [](const auto& colors, std::string_view others) {
    std::string text(others);
    for (int i = 0; i < 10; ++i) text += "--c" + std::to_string(i) + ":" + colors[i] + ";";
    return text;
  };
  const std::string in_dark =
      variables(dark, "--ink:#e6e8eb;--faint:#9aa3af;--line:#3a4048;--ground:#16191d;");
  std::string text =
      ":root{" + variables(light, "--ink:#1b1f24;--faint:#5b6470;--line:#d5dae0;--ground:#fff;") +
      "}\n@media (prefers-color-scheme:dark){:root{" + in_dark + "}}\n";
  text +=
      ".plot{font:13px system-ui,sans-serif;fill:var(--ink)}\n"
      ".plot .ground{fill:var(--ground)}\n"
      ".plot .grid{stroke:var(--line);fill:none}\n"
      ".plot .axis{stroke:var(--faint);fill:none}\n"
      ".plot .rule{stroke:var(--ink);stroke-dasharray:3 3;fill:none}\n"
      ".plot .head{font-weight:600}\n"
      ".plot .small{font-size:12px;fill:var(--faint)}\n"
      ".plot .over{paint-order:stroke;stroke:var(--ground);stroke-width:4px}\n"
      ".plot .on{font-size:11px;fill:var(--ground)}\n"
      ".plot .l{fill:none;stroke-width:1.8;stroke-linejoin:round}\n"
      ".plot .wide{stroke-width:7;opacity:.4}\n"
      ".plot .m{stroke:var(--ground);stroke-width:.7}\n"
      ".plot .t{fill:transparent}\n"
      ".plot .band{opacity:.22}\n"
      ".plot .many{fill-opacity:.07;stroke-opacity:.45;stroke-width:.7}\n"
      ".plot .r{fill:var(--faint)}\n.plot .rf{fill:var(--faint);opacity:.4}\n";
  for (int i = 0; i < 10; ++i) {
    const std::string n = std::to_string(i);
    text += ".plot .l" + n + "{stroke:var(--c" + n + ");stroke-dasharray:" + dashes[i % 6] +
            "}.plot .e" + n + "{stroke:var(--c" + n + ")}.plot .f" + n + "{fill:var(--c" + n +
            ")}\n";
  }
  return text;
}

}  // namespace halftone::lab::svg
