// Pieces of a page as text.
#include <halftone/lab/draw.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <numeric>

#include <halftone/core/formats/number_format.h>

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

// Plots: axes and the marks between them.

namespace halftone::lab::svg {

namespace {

/// Maps values of an axis to coordinates.
struct Scale {
  double low = 0, high = 1, from = 0, to = 1;
  bool logarithmic = false;
  double operator()(double value) const {
    if (logarithmic && !(value > 0)) return automatic;
    const double a = logarithmic ? std::log10(low) : low, b = logarithmic ? std::log10(high) : high;
    const double v = logarithmic ? std::log10(value) : value;
    // Divides by 2 first, so that the widest range of doubles does not overflow.
    return from + (v / 2 - a / 2) / (b / 2 - a / 2) * (to - from);
  }
};

/// The least and the largest of the numbers that see() gets.
struct Extent {
  bool logarithmic;
  double low = HUGE_VAL, high = -HUGE_VAL;
  void see(double value) {
    if (!std::isfinite(value) || (logarithmic && value <= 0)) return;
    low = std::min(low, value), high = std::max(high, value);
  }
};

Scale scale_of(const Axis& axis, Extent seen, double margin) {
  if (seen.low > seen.high) seen.low = axis.logarithmic ? 1 : 0, seen.high = seen.low;
  if (seen.low == seen.high) {
    const double half = seen.low == 0 ? 0.5 : std::abs(seen.low) / 20;
    seen.low -= half, seen.high += half;
  } else if (axis.logarithmic) {
    const double by = std::pow(seen.high / seen.low, margin);
    if (std::isfinite(by)) seen.low = std::max(seen.low / by, 1e-300), seen.high *= by;
  } else {
    const double by = margin * (seen.high - seen.low);
    if (std::isfinite(by)) seen.low -= seen.low == 0 ? 0 : by, seen.high += by;
  }
  if (!std::isfinite(seen.high)) seen.high = std::numeric_limits<double>::max();
  Scale scale{.low = seen.low, .high = seen.high, .logarithmic = axis.logarithmic};
  if (std::isfinite(axis.low)) scale.low = axis.low;
  if (std::isfinite(axis.high)) scale.high = axis.high;
  return scale;
}

class Drawing {
 public:
  explicit Drawing(const Plot& plot) : plot_(plot) {
    see();
    top_ = 30 + 16 * double(plot.ranges.size()) + (plot.ranges.empty() ? 0 : 6);
    bottom_ = top_ + plot.height - 72;
    y_.from = bottom_, y_.to = top_;
    left_ = 16;
    for (const double tick : ticks(y_.low, y_.high, y_.logarithmic, 5))
      left_ = std::max(left_, 7.4 * double(label_of(tick).size()) + 14);
    left_ += plot.y.label.empty() ? 0 : 14;
    right_ = plot.width - 12;
    x_.from = left_, x_.to = right_;
  }

  std::string text(Place place) {
    axes();
    for (const Range& range : plot_.ranges) add(range);
    for (const Band& band : plot_.bands) add(band);
    for (const Histogram& histogram : plot_.histograms) add(histogram);
    for (const Rule& rule : plot_.rules) add(rule);
    for (const Curve& curve : plot_.curves) add(curve);
    double height = bottom_ + 42;
    text_ += legend(entries_, 16, right_, bottom_ + 58, height);
    return document(plot_.width, height, plot_.title, text_, place);
  }

 private:
  void see() {
    Extent x{plot_.x.logarithmic}, y{plot_.y.logarithmic};
    for (const Curve& curve : plot_.curves)
      for (const Point& p : curve.points)
        if (std::isfinite(p.y)) x.see(p.x), y.see(p.y);
    for (const Band& band : plot_.bands)
      for (std::size_t i = 0; i < band.x.size(); ++i)
        x.see(band.x[i]), y.see(band.low[i]), y.see(band.high[i]);
    for (const Histogram& histogram : plot_.histograms) {
      x.see(histogram.first), y.see(0);
      x.see(histogram.first + histogram.width * double(histogram.heights.size()));
      for (const double height : histogram.heights) y.see(height);
    }
    x_ = scale_of(plot_.x, x, plot_.histograms.empty() ? 0.02 : 0), y_ = scale_of(plot_.y, y, 0.06);
  }

  void axes() {
    if (!plot_.title.empty())
      text_ += words(16, 16, "start", html::shortened(plot_.title, 64), "class=\"head\"");
    std::string grid;
    for (const double tick : ticks(y_.low, y_.high, y_.logarithmic, 5)) {
      grid += "M" + coordinate(left_) + " " + coordinate(y_(tick)) + "H" + coordinate(right_);
      text_ += words(left_ - 6, y_(tick) + 4, "end", label_of(tick), "class=\"small\"");
    }
    for (const double tick : ticks(x_.low, x_.high, x_.logarithmic, 6)) {
      grid += "M" + coordinate(x_(tick)) + " " + coordinate(top_) + "V" + coordinate(bottom_ + 4);
      text_ += words(x_(tick), bottom_ + 18, "middle", label_of(tick), "class=\"small\"");
    }
    text_ += "<path class=\"grid\" d=\"" + grid + "\"/>\n<path class=\"axis\" d=\"M" +
             coordinate(left_) + " " + coordinate(top_) + "V" + coordinate(bottom_) + "H" +
             coordinate(right_) + "\"/>\n";
    text_ += words((left_ + right_) / 2, bottom_ + 35, "middle", plot_.x.label);
    if (!plot_.y.label.empty())
      text_ +=
          words(0, 0, "middle", plot_.y.label,
                "transform=\"translate(14 " + coordinate((top_ + bottom_) / 2) + ") rotate(-90)\"");
  }

  void add(const Range& range) {
    const double y = 26 + 16 * double(range_++), low = inside(x_(range.low), true);
    const double high = inside(x_(range.high), true);
    const auto bar = [&](const char* kind, double from, double to, const std::string& title) {
      if (to > from)
        text_ += mark("rect",
                      std::string("class=\"") + kind + "\" x=\"" + coordinate(from) + "\" y=\"" +
                          coordinate(y) + "\" width=\"" + coordinate(to - from) +
                          "\" height=\"9\" rx=\"2\"",
                      title);
    };
    const std::string numbers = label_of(range.low) + " to " + label_of(range.high);
    bar("r", low, high, range.name + ": " + numbers);
    if (std::isfinite(range.faint_low))
      bar("rf", inside(x_(range.faint_low), true), low,
          range.name + ", subnormal: from " + label_of(range.faint_low));
    text_ += words(left_ - 6, y + 9, "end", range.name, "class=\"small\"");
  }

  void add(const Band& band) {
    std::string there, back;
    for (std::size_t i = 0; i < band.x.size(); ++i) {
      const double x = inside(x_(band.x[i]), true);
      const double low = inside(y_(band.low[i]), false), high = inside(y_(band.high[i]), false);
      if (!std::isfinite(x + low + high)) continue;
      const std::string to = there.empty() ? "M" : "L";
      if (band.staircase && !there.empty()) {
        there += "H" + coordinate(x);
        back = "H" + coordinate(x) + back;
      }
      there += (band.staircase && !there.empty() ? "V" + coordinate(high)
                                                 : to + coordinate(x) + " " + coordinate(high));
      back = "L" + coordinate(x) + " " + coordinate(low) + back;
    }
    if (there.empty()) return;
    text_ += mark("path",
                  "class=\"" + kind_of(band) + "f" + std::to_string(band.style % 10) + "\" d=\"" +
                      there + back + "z\"",
                  band.name);
    if (!band.faint) enter({LegendEntry::Kind::area, band.name, band.style});
  }

  /// Many bands on top of each other are paler and have an edge.
  std::string kind_of(const Band& band) const {
    if (!band.faint) return "";
    return plot_.bands.size() <= 4 ? "band " : "many e" + std::to_string(band.style % 10) + " ";
  }

  void add(const Histogram& histogram) {
    const std::string style = std::to_string(histogram.style % 10);
    for (std::size_t i = 0; i < histogram.heights.size(); ++i) {
      const double height = histogram.heights[i],
                   from = histogram.first + histogram.width * double(i);
      if (!(height > 0)) continue;
      const double a = inside(x_(from), true), b = inside(x_(from + histogram.width), true);
      const double top = inside(y_(height), false);
      if (!std::isfinite(a + b + top) || b <= a) continue;
      text_ += mark("rect",
                    "class=\"f" + style + "\" x=\"" + coordinate(a) + "\" y=\"" + coordinate(top) +
                        "\" width=\"" + coordinate(std::max(b - a - 0.5, 0.3)) + "\" height=\"" +
                        coordinate(std::max(bottom_ - top, 0.5)) + "\"",
                    histogram.name + (histogram.name.empty() ? "" : ", ") + label_of(from) +
                        " to " + label_of(from + histogram.width) + ": " + label_of(height));
    }
    enter({LegendEntry::Kind::area, histogram.name, histogram.style});
  }

  void add(const Rule& rule) {
    const double at = rule.vertical ? x_(rule.at) : y_(rule.at);
    if (at != inside(at, rule.vertical)) return;
    const std::string path =
        rule.vertical ? "M" + coordinate(at) + " " + coordinate(top_) + "V" + coordinate(bottom_)
                      : "M" + coordinate(left_) + " " + coordinate(at) + "H" + coordinate(right_);
    // Writes the name next to the line, because dashes alone do not explain it.
    if (rule.vertical)
      text_ += words(at + 4, top_ + 11, "start", html::shortened(rule.name, 30), "class=\"small\"");
    text_ +=
        mark("path", "class=\"rule\" d=\"" + path + "\"", rule.name + ": " + label_of(rule.at));
  }

  void add(const Curve& curve) {
    struct Place {
      double x, y;
      const Point* point;
    };
    std::vector<Place> places;
    std::string path;
    bool gap = true;
    for (const Point& point : curve.points) {
      const double x = x_(point.x), y = inside(y_(point.y), false);
      if (!std::isfinite(x) || !std::isfinite(y)) {
        gap = true;
        continue;
      }
      if (gap) path += "M" + coordinate(x) + " " + coordinate(y);
      else if (curve.staircase) path += "H" + coordinate(x) + "V" + coordinate(y);
      else path += "L" + coordinate(x) + " " + coordinate(y);
      gap = false;
      places.push_back({x, y, &point});
    }
    const std::string style = std::to_string(curve.style % 10);
    if (!path.empty())
      text_ += mark("path",
                    std::string("class=\"l ") + (curve.wide ? "wide " : "") + "l" + style +
                        "\" d=\"" + path + "\"",
                    curve.name);
    // Limits the marks so that the page stays small; a quarter of them are visible.
    const std::size_t apart = places.size() / 24 + 1;
    for (std::size_t i = 0; i < places.size(); i += apart) {
      const Place& p = places[i];
      const std::string title = curve.name + (curve.name.empty() ? "" : ", ") +
                                label_of(p.point->x, 6) + ": " + label_of(p.point->y, 6);
      const bool seen = curve.shapes && (i / apart % 4 == 0 || places.size() <= 12);
      if (seen)
        text_ +=
            mark("path",
                 "class=\"m f" + style + "\" d=\"" + shape_path(curve.style, p.x, p.y, 3.5) + "\"",
                 title);
      else
        text_ += mark(
            "circle",
            "class=\"t\" cx=\"" + coordinate(p.x) + "\" cy=\"" + coordinate(p.y) + "\" r=\"6\"",
            title);
    }
    enter({LegendEntry::Kind::line, curve.name, curve.style});
  }

  void enter(const LegendEntry& entry) {
    const auto same = [&](const LegendEntry& e) {
      return e.name == entry.name && e.style == entry.style;
    };
    if (!entry.name.empty() && std::ranges::none_of(entries_, same)) entries_.push_back(entry);
  }

  /// Moves a point outside of the plot to its border.
  double inside(double at, bool horizontal) const {
    if (std::isnan(at)) return at;
    return horizontal ? std::clamp(at, left_, right_) : std::clamp(at, top_, bottom_);
  }

  const Plot& plot_;
  Scale x_{}, y_{};
  double left_ = 0, right_ = 0, top_ = 0, bottom_ = 0;
  int range_ = 0;
  std::vector<LegendEntry> entries_{};
  std::string text_{};
};

}  // namespace

std::vector<double> ticks(double low, double high, bool logarithmic, int wanted) {
  std::vector<double> result;
  if (!(low < high) || !std::isfinite(low) || !std::isfinite(high)) return result;
  if (logarithmic) {
    const double first = std::floor(std::log10(low)), last = std::ceil(std::log10(high));
    const double step = std::max(1.0, std::ceil((last - first) / wanted));
    const bool few = last - first <= 2;
    for (double e = std::ceil(first / step) * step; e <= last; e += step)
      for (const double times : {1.0, 2.0, 5.0}) {
        const double tick = times * std::pow(10.0, e);
        if ((times == 1 || few) && tick >= low && tick <= high) result.push_back(tick);
      }
    if (result.size() > 1 || high / low > 10) return result;
    result.clear();  // less than a decade: marks as on a linear axis
  }
  const double rough = (high / 2 - low / 2) / wanted * 2;
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (const double times : {5.0, 2.0, 1.0})
    if (times * power >= rough * 0.999) step = times * power;
  if (!std::isfinite(step) || step <= 0 || low + step == low) return {low, high};
  for (double i = std::ceil(low / step - 1e-9);
       i * step <= high + step * 1e-9 && result.size() < 100; ++i)
    result.push_back(i * step);
  return result;
}

std::string draw(const Plot& plot, Place place) { return Drawing(plot).text(place); }

std::string draw(const Bars& bars, Place place) {
  const double left = 16, right = bars.width - 16, bar = 20, line = 46;
  double most = 0;
  for (const Bar& row : bars.bars) {
    double sum = 0;
    for (const double part : row.parts) sum += part > 0 && std::isfinite(part) ? part : 0;
    most = std::max(most, sum);
  }
  std::string text = words(left, 16, "start", html::shortened(bars.title, 64), "class=\"head\"");
  double y = 40;
  for (const Bar& row : bars.bars) {
    double x = left, sum = 0;
    for (std::size_t i = 0; i < row.parts.size() && most > 0; ++i) {
      const double part = row.parts[i];
      if (!(part > 0) || !std::isfinite(part)) continue;
      const double width = part / most * (right - left);
      const std::string style = std::to_string(i % 10);
      text += mark("rect",
                   "class=\"f" + style + "\" x=\"" + coordinate(x) + "\" y=\"" + coordinate(y + 6) +
                       "\" width=\"" + coordinate(std::max(width - 1, 0.3)) + "\" height=\"" +
                       coordinate(bar) + "\"",
                   row.name + ", " + bars.parts[i] + ": " + label_of(part) + " " + bars.unit);
      if (width > 9.0 * double(bars.labels[i].size()) + 4)
        text += words(x + (width - 1) / 2, y + 20, "middle", bars.labels[i], "class=\"on\"");
      x += width, sum += part;
    }
    text += words(left, y, "start", html::shortened(row.name, 44));
    text += words(right, y, "end", label_of(sum) + " " + bars.unit, "class=\"small\"");
    y += line;
  }
  std::vector<LegendEntry> entries;
  for (std::size_t i = 0; i < bars.parts.size(); ++i)
    if (std::ranges::any_of(bars.bars,
                            [&](const Bar& b) { return i < b.parts.size() && b.parts[i] > 0; }))
      entries.push_back({LegendEntry::Kind::area, bars.parts[i], int(i), bars.labels[i]});
  double height = y;
  text += legend(entries, left, right, y, height);
  return document(bars.width, height, bars.title, text, place);
}

// The building blocks of drawings.

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

// Intervals as horizontal bars around their middle, one row each: a forest plot.

namespace {

/// The range of all rows, with 0.
struct Span {
  double low = 0, high = 0;
  void add(double value) {
    if (std::isfinite(value)) low = std::min(low, value), high = std::max(high, value);
  }
};

std::string line(const char* kind, double x1, double y1, double x2, double y2) {
  return std::string("<path class=\"") + kind + "\" d=\"M" + coordinate(x1) + " " + coordinate(y1) +
         "L" + coordinate(x2) + " " + coordinate(y2) + "\"/>\n";
}

}  // namespace

std::string draw(const Forest& forest, Place place) {
  const double left = 16, right = forest.width - 16, row_height = 34;
  Span extent;
  for (const ForestRow& row : forest.rows)
    extent.add(row.middle), extent.add(row.middle - row.half), extent.add(row.middle + row.half);
  const double room = std::max(extent.high - extent.low, 1e-12) * 0.05;
  extent.low -= room, extent.high += room;
  const auto place_of = [&](double value) {
    return left + (value - extent.low) / (extent.high - extent.low) * (right - left);
  };
  std::string text = words(left, 16, "start", html::shortened(forest.title, 64), "class=\"head\"");
  const double top = 30, bottom = top + row_height * double(forest.rows.size());
  for (const double tick : ticks(extent.low, extent.high, false, 6)) {
    text += line(tick == 0 ? "rule" : "grid", place_of(tick), top, place_of(tick), bottom);
    text += words(place_of(tick), bottom + 14, "middle", label_of(tick), "class=\"small\"");
  }
  double y = top;
  for (const ForestRow& row : forest.rows) {
    const bool wide = !std::isfinite(row.half);
    const std::string value = (row.middle > 0 ? "+" : "") + label_of(row.middle, 3) +
                              (wide ? "" : " ± " + label_of(row.half, 2)) + " " + forest.unit;
    text += words(left, y + 12, "start", html::shortened(row.name, 48), "class=\"over\"");
    text += words(right, y + 12, "end", value, "class=\"small over\"");
    const std::string style = std::to_string(row.style % 10);
    const double middle = place_of(row.middle), at = y + 23;
    if (!wide)
      text += mark("path",
                   "class=\"l l" + style + "\" d=\"M" +
                       coordinate(place_of(row.middle - row.half)) + " " + coordinate(at) + "L" +
                       coordinate(place_of(row.middle + row.half)) + " " + coordinate(at) + "\"",
                   row.name + ": " + value);
    text +=
        mark("path", "class=\"f" + style + "\" d=\"" + shape_path(row.style, middle, at, 4) + "\"",
             row.name + ": " + value);
    y += row_height;
  }
  text += words((left + right) / 2, bottom + 30, "middle", forest.axis, "class=\"small\"");
  return document(forest.width, bottom + 38, forest.title, text, place);
}

}  // namespace halftone::lab::svg

// Builds the curve in one pass over the bins.

namespace halftone::lab {

std::vector<svg::Range> ranges_of_formats(std::string_view own) {
  std::vector<std::string_view> names(std::begin(shown_formats), std::end(shown_formats));
  if (!own.empty() && std::ranges::find(names, own) == names.end()) names.push_back(own);
  std::vector<svg::Range> result;
  for (const std::string_view name : names) {
    const NumberFormat format = *number_format_named(name);
    result.push_back({std::string(name), double(format.min_exponent), std::log2(double(format.max)),
                      double(format.min_exponent - format.significand_bits + 1)});
  }
  return result;
}

svg::Curve distribution(std::string name, std::span<const double> counts, int lowest, int style,
                        double visible) {
  svg::Curve curve{.name = std::move(name), .points = {}, .style = style, .staircase = true};
  const double total = std::accumulate(counts.begin(), counts.end(), 0.0);
  const auto shown = [&](double count) { return count > 0 && count >= visible * total; };
  const auto first = std::ranges::find_if(counts, shown);
  if (first == counts.end()) return curve;
  auto end = counts.end();
  while (!shown(*std::prev(end))) --end;
  for (auto at = first; at != end; ++at)
    curve.points.push_back({double(lowest + (at - counts.begin())), 100 * *at / total});
  curve.points.push_back({double(lowest + (end - counts.begin())), 0});
  return curve;
}

}  // namespace halftone::lab
