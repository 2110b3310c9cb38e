// Writes marks as SVG, PDF and CSV, and texts for HTML.
#include <halftone/lab/draw.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <sstream>

#include <halftone/lab/table.h>

namespace halftone::lab::html {

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

namespace {
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

std::string brief(std::string_view text, std::size_t most) {
  return escaped(shortened(text, most));
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
  if (rows_ == 0) return "";
  return "<div class=\"wide\"><table>\n<thead><tr>" + head_ + "</tr></thead>\n<tbody>\n" + body_ +
         "</tbody></table></div>\n";
}

}  // namespace halftone::lab::html

namespace halftone::lab::svg {

namespace {

// Drawings: marks with looks.

/// How marks are painted. Colors: n: none, o: the mark's style, i: ink, a: faint ink, l: lines,
/// g: the ground.
struct Look {
  std::string_view name;
  char fill, stroke;
  double width = 0, opacity = 1;
  char dashed = 'n';  // n: not, o: as the style, r: 3 3
  double size = 0;    // of a text
  bool bold = false;
};
constexpr Look looks[] = {{"l", 'n', 'o', 1.8, 1, 'o'},
                          {"wide", 'n', 'o', 7, .4, 'o'},
                          {"whisker", 'n', 'o', 1.4},
                          {"m", 'o', 'g', .7},
                          {"f", 'o', 'n'},
                          {"band", 'o', 'n', 0, .22},
                          {"many", 'o', 'n', 0, .1},
                          {"grid", 'n', 'l', 1},
                          {"axis", 'n', 'a', 1},
                          {"rule", 'n', 'i', 1, 1, 'r'},
                          {"r", 'a', 'n'},
                          {"rf", 'a', 'n', 0, .4},
                          {"t", 'g', 'n', 0, 0},  // seen by the pointer only
                          {"text", 'i', 'n', 0, 1, 'n', 13},
                          {"head", 'i', 'n', 0, 1, 'n', 13, true},
                          {"small", 'a', 'n', 0, 1, 'n', 12},
                          {"cell", 'i', 'n', 0, 1, 'n', 11},
                          {"on", 'g', 'n', 0, 1, 'n', 11}};
const Look& look_of(const Mark& mark) { return *std::ranges::find(looks, mark.look, &Look::name); }

/// Okabe and Ito's colors, darker on white and lighter on black if they would be faint; nine
/// backgrounds of maps from nothing to bad; ink, faint ink, lines, ground.
constexpr int colors = curve_styles + map_levels + 4;
using Scheme = std::array<const char*, colors>;
constexpr Scheme light{"#0067a5", "#c4500a", "#00805c", "#a33c82", "#7a6a00", "#3a9bd1",
                       "#8a1c1c", "#555b66", "#2f8f2f", "#6a4fc0", "#ffffff", "#fff1e3",
                       "#fee0c4", "#fdc795", "#fba562", "#f07f35", "#d9601a", "#ab4310",
                       "#7d2d0a", "#1b1f24", "#5b6470", "#d5dae0", "#ffffff"};
constexpr Scheme dark{"#62b5f0", "#ff9a4d", "#35c796", "#ee8fc8", "#dcc94a", "#8fd3ff",
                      "#ff7b7b", "#b3bac6", "#86d986", "#b6a1ff", "#16191d", "#291f18",
                      "#3d2818", "#573519", "#75451a", "#97571b", "#bb6c22", "#df8836",
                      "#ffab5e", "#e6e8eb", "#9aa3af", "#3a4048", "#16191d"};
constexpr std::string_view color_names[] = {"ink", "faint", "line", "ground"};

/// Returns the place in a scheme; -1: no color.
int place_of(char code, int style) {
  const auto others = std::string_view("ialg").find(code);
  if (code == 'o') return std::clamp(style, 0, curve_styles + map_levels - 1);
  return code == 'n' ? -1 : curve_styles + map_levels + int(others);
}
std::string_view dashes_of(char dashed, int style) {
  constexpr const char* all[] = {"", "7 3", "2 2", "9 3 2 3", "12 4", "4 2 1 2"};
  return dashed == 'r' ? "3 3" : dashed == 'o' ? all[style % 6] : "";
}

/// Returns a number with at most `digits` digits after the point.
std::string coordinate(double value, int digits = 1) {
  char text[40];
  const double one = std::pow(10, digits);
  const double rounded = std::round(std::clamp(value, -1e6, 1e6) * one) / one;
  return {text, std::to_chars(text, text + sizeof text, rounded + 0.0).ptr};
}

}  // namespace

/// Returns the width of a text in Helvetica, in pixels.
double width_of(std::string_view text, double size) {
  double sum = 0;
  while (!text.empty()) {
    const std::string_view letter = text.substr(0, html::first_of(text).bytes);
    const auto is_one_of = [&](std::string_view all) { return all.find(letter) != all.npos; };
    sum += is_one_of("%@MWmw…")                ? .87
           : is_one_of("'|ijl.,:;![]()/ftI -") ? .29
           : is_one_of("CDGHNOQRTUwZ")         ? .71
                                               : .56;
    text.remove_prefix(letter.size());
  }
  return sum * size;
}
// Drawings as SVG.

namespace {

std::string attribute(std::string_view name, std::string_view value) {
  return " " + std::string(name) + "=\"" + std::string(value) + "\"";
}

/// Returns the name of a color for style sheets: "--c3", "--ink".
std::string variable(int color) {
  const int other = color - curve_styles - map_levels;
  return "--" + (other < 0 ? "c" + std::to_string(color) : std::string(color_names[other]));
}
/// scheme: none: the reader's.
std::string color_of(int color, const Scheme* scheme) {
  return color < 0 ? "none"
         : scheme  ? (*scheme)[std::size_t(color)]
                   : "var(" + variable(color) + ")";
}

std::string paint_of(const Mark& mark, const Scheme* scheme) {
  const Look& look = look_of(mark);
  std::string text = attribute("fill", color_of(place_of(look.fill, mark.style), scheme));
  if (look.stroke != 'n')
    text += attribute("stroke", color_of(place_of(look.stroke, mark.style), scheme)) +
            attribute("stroke-width", label_of(look.width));
  if (look.opacity != 1) text += attribute("opacity", label_of(look.opacity));
  if (const auto dashes = dashes_of(look.dashed, mark.style); !dashes.empty())
    text += attribute("stroke-dasharray", dashes);
  if (look.size > 0) text += attribute("font-size", label_of(look.size));
  return text + (look.bold ? attribute("font-weight", "bold") : "");
}

std::string path_of(const Mark& mark) {
  std::string text, x, y;
  const std::string r = coordinate(mark.radius), d = coordinate(2 * mark.radius);
  for (const Step& step : mark.path) {
    const std::string to_x = coordinate(step.x), to_y = coordinate(step.y);
    if (step.kind == 'Z') text += 'z';
    else if (step.kind == 'O')
      text += "M" + coordinate(step.x - mark.radius) + " " + to_y + "a" + r + " " + r + " 0 1 0 " +
              d + " 0a" + r + " " + r + " 0 1 0 -" + d + " 0z";
    else if (step.kind == 'L' && to_y == y) text += "H" + to_x;
    else if (step.kind == 'L' && to_x == x) text += "V" + to_y;
    else text += step.kind + to_x + " " + to_y;
    x = to_x, y = to_y;
  }
  return text;
}

std::string element_of(const Mark& mark) {
  if (mark.text.empty()) {
    const std::string start = "<path" + attribute("d", path_of(mark));
    if (mark.title.empty()) return start + "/>\n";
    return start + "><title>" + html::escaped(mark.title) + "</title></path>\n";
  }
  const std::string x = coordinate(mark.path[0].x), y = coordinate(mark.path[0].y);
  std::string start = mark.turned
                          ? attribute("transform", "translate(" + x + " " + y + ") rotate(-90)")
                          : attribute("x", x) + attribute("y", y);
  if (mark.anchor != 's') start += attribute("text-anchor", mark.anchor == 'm' ? "middle" : "end");
  return "<text" + start + ">" + html::escaped(mark.text) + "</text>\n";
}

}  // namespace

std::string svg_of(const Drawing& drawing, Place place, double millimetres) {
  const Scheme* const scheme = place == Place::light  ? &light
                               : place == Place::dark ? &dark
                                                      : nullptr;
  const double times = millimetres > 0 ? millimetres / drawing.width : 1;
  const std::string unit = millimetres > 0 ? "mm" : "";
  std::string text =
      "<svg" +
      (place == Place::page ? attribute("class", "plot")
                            : attribute("xmlns", "http://www.w3.org/2000/svg")) +
      attribute("viewBox", "0 0 " + coordinate(drawing.width) + " " + coordinate(drawing.height)) +
      attribute("width", coordinate(drawing.width * times) + unit) +
      attribute("height", coordinate(drawing.height * times) + unit) +
      attribute("font-family", "Helvetica, Arial, sans-serif") + " role=\"img\">\n";
  if (!drawing.title.empty())
    text += html::element("title", "", html::escaped(drawing.title)) + "\n";
  if (place == Place::file) text += html::element("style", "", "\n" + styles()) + "\n";
  if (place != Place::page)
    text += "<rect" + attribute("fill", color_of(place_of('g', 0), scheme)) +
            " width=\"100%\" height=\"100%\"/>\n";
  std::string group;  // attributes of marks in a row
  for (const Mark& mark : drawing.marks) {
    std::string own = paint_of(mark, scheme);
    if (place == Place::page && !mark.series.empty())
      own += attribute("data-series", html::escaped(mark.series));
    if (own != group) text += (group.empty() ? "<g" : "</g>\n<g") + own + ">\n";
    group = std::move(own);
    text += element_of(mark);
  }
  return text + (group.empty() ? "" : "</g>\n") + "</svg>\n";
}

std::string styles() {
  const auto variables = [](const Scheme& scheme) {
    std::string text = ":root{";
    for (int i = 0; i < colors; ++i) text += variable(i) + ":" + scheme[std::size_t(i)] + ";";
    return text + "}";
  };
  return variables(light) + "\n@media screen and (prefers-color-scheme:dark){" + variables(dark) +
         "}\n";
}

// Drawings as PDF: one page, whose content is text.

namespace {

/// Returns a string of PDF in WinAnsiEncoding; letters that it lacks are spelled.
std::string pdf_string(std::string_view text) {
  constexpr std::pair<uint32_t, std::string_view> spelled[] = {
      {'(', "\\("},     {')', "\\)"},   {'\\', "\\\\"}, {0x2026, "\\205"}, {0x221E, "inf"},
      {0x221A, "sqrt"}, {0x2260, "!="}, {0x2264, "<="}, {0x2265, ">="},    {0xB1, "\\261"}};
  std::string result = "(";
  while (!text.empty()) {
    const html::Character next = html::first_of(text);
    text.remove_prefix(next.bytes);
    const auto found =
        std::ranges::find(spelled, next.code, &std::pair<uint32_t, std::string_view>::first);
    if (found != std::end(spelled)) result += found->second;
    else result += next.code >= 0x20 && next.code < 0x7F ? char(next.code) : '?';
  }
  return result + ")";
}

/// Writes marks with coordinates in points, from the lower left corner up.
class PdfPage {
 public:
  PdfPage(const Drawing& drawing, const Scheme& scheme, double scale)
      : height_(drawing.height), scale_(scale), scheme_(scheme) {
    add_color(place_of('g', 0), "rg");
    text += "0 0 " + size(drawing.width) + size(drawing.height) + "re f\n";
    for (const Mark& mark : drawing.marks)
      if (look_of(mark).opacity > 0) add(mark);
  }
  std::string text{};

 private:
  std::string size(double x) const { return coordinate(x * scale_, 2) + " "; }
  std::string at(double x, double y) const { return size(x) + size(height_ - y); }

  void add_color(int color, const char* what) {
    for (const int digit : {1, 3, 5}) {
      int value = 0;
      const char* const hex = scheme_[std::size_t(color)] + digit;
      std::from_chars(hex, hex + 2, value, 16);
      text += coordinate(value / 255.0, 3) + " ";
    }
    text += what + std::string("\n");
  }
  void add(const Mark& mark) {
    const Look& look = look_of(mark);
    text += "/G" + std::to_string(&look - looks) + " gs\n";
    if (look.fill != 'n') add_color(place_of(look.fill, mark.style), "rg");
    if (look.stroke != 'n') {
      add_color(place_of(look.stroke, mark.style), "RG");
      text += size(look.width) + "w [";
      std::istringstream dashes{std::string(dashes_of(look.dashed, mark.style))};
      for (double dash = 0; dashes >> dash;) text += size(dash);
      text += "] 0 d\n";
    }
    if (!mark.text.empty()) return add_text(mark, look);
    for (const Step& step : mark.path) {
      if (step.kind == 'Z') text += "h\n";
      else if (step.kind == 'O') add_disc(step, mark.radius);
      else text += at(step.x, step.y) + (step.kind == 'M' ? "m\n" : "l\n");
    }
    text += look.fill == 'n' ? "S\n" : look.stroke == 'n' ? "f\n" : "B\n";
  }
  /// Four Bezier curves.
  void add_disc(const Step& middle, double r) {
    const double k = 0.5523 * r, x = middle.x, y = middle.y;
    text += at(x + r, y) + "m\n";
    for (const auto& [a, b] : {std::pair(1, 0), {0, 1}, {-1, 0}, {0, -1}})
      text += at(x + a * r - b * k, y + b * r + a * k) + at(x + a * k - b * r, y + b * k + a * r) +
              at(x - b * r, y + a * r) + "c\n";
    text += "h\n";
  }
  void add_text(const Mark& mark, const Look& look) {
    const double share = mark.anchor == 's' ? 0 : mark.anchor == 'm' ? 0.5 : 1;
    const double back = share * width_of(mark.text, look.size);
    const auto& [kind, x, y] = mark.path[0];
    text += std::string("BT /F") + (look.bold ? "2 " : "1 ") + size(look.size) + "Tf " +
            (mark.turned ? "0 1 -1 0 " + at(x, y + back) : "1 0 0 1 " + at(x - back, y)) + "Tm " +
            pdf_string(mark.text) + " Tj ET\n";
  }

  double height_, scale_;
  const Scheme& scheme_;
};

}  // namespace

std::string pdf_of(const Drawing& drawing, bool is_dark, double millimetres) {
  const double scale = millimetres * 72 / 25.4 / drawing.width;
  const std::string content = PdfPage(drawing, is_dark ? dark : light, scale).text;
  std::string states;
  for (std::size_t i = 0; i < std::size(looks); ++i) {
    const std::string opacity = coordinate(looks[i].opacity, 2);
    states += "/G" + std::to_string(i) + " << /ca " + opacity + " /CA " + opacity + " >> ";
  }
  const std::string font = "<< /Type /Font /Subtype /Type1 /Encoding /WinAnsiEncoding /BaseFont ";
  const std::string objects[] = {
      "<< /Type /Catalog /Pages 2 0 R >>",
      "<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
      "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 " + coordinate(drawing.width * scale, 2) + " " +
          coordinate(drawing.height * scale, 2) +
          "] /Contents 4 0 R /Resources << /Font << /F1 5 0 R /F2 6 0 R >> /ExtGState << " +
          states + ">> >> >>",
      "<< /Length " + std::to_string(content.size()) + " >>\nstream\n" + content + "endstream",
      font + "/Helvetica >>",
      font + "/Helvetica-Bold >>"};
  std::string text = "%PDF-1.4\n", places;
  for (const std::string& object : objects) {
    const std::string place = std::to_string(text.size());
    places += std::string(10 - place.size(), '0') + place + " 00000 n \n";
    text += std::to_string(&object - objects + 1) + " 0 obj\n" + object + "\nendobj\n";
  }
  const std::string start = std::to_string(text.size());
  return text + "xref\n0 7\n0000000000 65535 f \n" + places +
         "trailer\n<< /Size 7 /Root 1 0 R >>\nstartxref\n" + start + "\n%%EOF\n";
}

// The numbers of pictures.

namespace {

struct Rows {
  std::string text = "panel,series,x,y,low,high\n";

  static std::string exact(double value) {
    char text[40];
    if (!std::isfinite(value)) return "";
    return {text, std::to_chars(text, text + sizeof text, value).ptr};
  }
  void row(const std::string& panel, const std::string& series, const std::string& x, double y,
           double low = automatic, double high = automatic) {
    text += csv_cell(panel) + "," + csv_cell(series) + "," + csv_cell(x) + "," + exact(y) + "," +
            exact(low) + "," + exact(high) + "\n";
  }
  void operator()(const Plot& plot) {
    for (const Range& r : plot.ranges) row(plot.title, r.name, "", automatic, r.low, r.high);
    for (const Curve& c : plot.curves)
      for (const Point& p : c.points) row(plot.title, c.name, exact(p.x), p.y, p.low, p.high);
  }
  void operator()(const Bars& bars) {
    for (const Bar& bar : bars.bars)
      for (std::size_t i = 0; i < bar.parts.size(); ++i)
        row(bars.title, bar.name, bars.parts[i], bar.parts[i]);
  }
  void operator()(const Forest& forest) {
    for (const ForestRow& r : forest.rows) {
      row(forest.title, r.name, "", r.middle, r.middle - r.half, r.middle + r.half);
      for (const double dot : r.dots) row(forest.title, r.name, "seed", dot);
    }
  }
  void operator()(const Map& map) {
    for (const auto& [name, cells] : map.rows)
      for (std::size_t i = 0; i < cells.size(); ++i)
        if (!std::isnan(cells[i].value))
          row(map.title, map.columns[i].first, name + " " + map.columns[i].second, cells[i].value);
  }
};

}  // namespace

std::string csv_of(const std::vector<Picture>& pictures) {
  Rows rows;
  for (const Picture& picture : pictures) std::visit(rows, picture);
  return rows.text;
}

}  // namespace halftone::lab::svg
