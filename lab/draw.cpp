// Lays out pictures as marks.
#include <halftone/lab/draw.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>

#include <halftone/core/formats/number_format.h>
#include <halftone/lab/table.h>

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

/// The same with room for wider fonts.
double room_for(std::string_view text, double size) { return 1.13 * width_of(text, size); }

/// Returns the text, or its end after an ellipsis, from the next part of a path on if it has one:
/// the ends of sites and policies tell them apart.
std::string fitted(std::string_view text, double width, double size) {
  if (room_for(text, size) <= width) return std::string(text);
  while (!text.empty() && room_for(text, size) + size > width)
    text.remove_prefix(html::first_of(text).bytes);
  const std::size_t dot = text.find('.');
  if (dot < text.size() / 2 && (text[dot + 1] < '0' || text[dot + 1] > '9'))  // not in a number
    text.remove_prefix(dot + 1);
  return "…" + std::string(text);
}

/// Builds a drawing from marks.
class Sheet {
 public:
  Sheet(const std::string& title, double width) { all_.title = title, all_.width = width; }

  void text(double x, double y, char anchor, const std::string& text,
            std::string_view look = "text", const std::string& series = "", bool turned = false) {
    if (!text.empty())
      all_.marks.push_back({look, 0, {{'M', x, y}}, text, "", series, anchor, 0, turned});
  }
  void path(std::string_view look, int style, std::vector<Step> path, const std::string& title = "",
            const std::string& series = "", double radius = 0) {
    if (!path.empty())
      all_.marks.push_back({look, style, std::move(path), "", title, series, 's', radius});
  }
  void rectangle(std::string_view look, int style, double x, double y, double width, double height,
                 const std::string& title, const std::string& series = "") {
    const double right = x + width, low = y + height;
    path(look, style, {{'M', x, y}, {'L', right, y}, {'L', right, low}, {'L', x, low}, {'Z'}},
         title, series);
  }
  /// A style's shape around a position; `look` t: a disc that only the pointer sees.
  void shape(std::string_view look, int style, double x, double y, double r,
             const std::string& title = "", const std::string& series = "") {
    static const std::vector<Step> shapes[] = {
        {{'O'}},
        {{'M', -1, -1}, {'L', 1, -1}, {'L', 1, 1}, {'L', -1, 1}, {'Z'}},
        {{'M', 0, -1.2}, {'L', 1.2, 1}, {'L', -1.2, 1}, {'Z'}},
        {{'M', 0, -1.4}, {'L', 1.4, 0}, {'L', 0, 1.4}, {'L', -1.4, 0}, {'Z'}},
        {{'M', -1.2, -1}, {'L', 1.2, -1}, {'L', 0, 1.2}, {'Z'}}};
    std::vector<Step> steps = shapes[look == "t" ? 0 : style % 5];
    for (Step& step : steps) step.x = x + r * step.x, step.y = y + r * step.y;
    path(look, style, std::move(steps), title, series, r);
  }
  /// Writes the title in as many lines as it needs. Returns the place below them.
  double heading() {
    double y = 16;
    for (std::string_view rest = all_.title; !rest.empty(); y += 18) {
      std::size_t end = rest.size();
      while (room_for(rest.substr(0, end), 14) > all_.width - 8) {
        const std::size_t space = rest.rfind(' ', end - 1);
        if (space == rest.npos || space == 0) break;
        end = space;
      }
      text(4, y, 's', std::string(rest.substr(0, end)), "head");
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
    return y - 4;
  }
  struct Entry {
    std::string name, label{};
    int style = 0;
    bool line = false, shape = true;
  };
  /// Writes rows of samples with names. Returns the place below them.
  double legend(const std::vector<Entry>& entries, double left, double top) {
    double x = left, y = top;
    for (const Entry& entry : entries) {
      const double right = all_.width - 4;
      const std::string name = fitted(entry.name, right - left - 26, 13);
      const double width = 26 + room_for(name, 13);
      if (x > left && x + width > right) x = left, y += 19;
      if (entry.line) sample(entry.style, x, y - 4, entry.name, entry.shape);
      else rectangle("f", entry.style, x, y - 10, 18, 12, "", entry.name);
      text(x + 9, y, 'm', entry.label, "on", entry.name);
      text(x + 26, y, 's', name, "text", entry.name);
      x += width + 12;
    }
    return entries.empty() ? top - 14 : y + 8;
  }
  void sample(int style, double x, double y, const std::string& series, bool with_shape = true) {
    path("l", style, {{'M', x, y}, {'L', x + 20, y}}, "", series);
    if (with_shape) shape("m", style, x + 10, y, 3.5, "", series);
  }
  void widen(double width) { all_.width = std::max(all_.width, width); }
  Drawing done(double height) {
    all_.height = height;
    return std::move(all_);
  }

 private:
  Drawing all_{};
};

class PlotSheet {
 public:
  explicit PlotSheet(const Plot& plot) : plot_(plot), sheet_(plot.title, plot.width) {
    Extent x{plot.x.logarithmic}, y{plot.y.logarithmic};
    bool filled = false;
    for (const Curve& curve : plot.curves) {
      filled = filled || curve.filled;
      if (curve.filled) y.see(0);
      for (const Point& p : curve.points)
        if (std::isfinite(p.y)) x.see(p.x), y.see(p.y), y.see(p.low), y.see(p.high);
    }
    double lines = 0;
    left_ = 16;
    for (std::size_t i = 0; i < plot.ranges.size(); ++i) {
      if (plot.curves.empty()) x.see(plot.ranges[i].low), x.see(plot.ranges[i].high);
      lines += begins_line(i);
      left_ = std::max(left_, std::min(room_for(plot.ranges[i].name, 12), names) + 10);
    }
    x_ = scale_of(plot.x, x, filled ? 0 : 0.02), y_ = scale_of(plot.y, y, 0.06);
    ranges_ = sheet_.heading() + 4;
    top_ = ranges_ + 16 * lines + (lines > 0 ? 6 : 0);
    bottom_ = top_ + (plot.curves.empty() ? 0 : plot.height - 72);
    for (const double tick : y_ticks()) left_ = std::max(left_, room_for(label_of(tick), 12) + 10);
    left_ += plot.y.label.empty() ? 0 : 16;
    right_ = plot.width - 12;
    x_.from = left_, x_.to = right_, y_.from = bottom_, y_.to = top_;
  }

  Drawing drawing() {
    axes();
    double y = ranges_ - 16;
    for (std::size_t i = 0; i < plot_.ranges.size(); ++i)
      add(plot_.ranges[i], y += 16 * begins_line(i));
    for (const Curve& curve : plot_.curves) add_areas(curve);
    for (const Rule& rule : plot_.rules) add(rule);
    for (const Curve& curve : plot_.curves) add(curve);
    return sheet_.done(sheet_.legend(entries_, 16, bottom_ + (plot_.x.label.empty() ? 40 : 58)));
  }

 private:
  static constexpr double names = 170;  // of ranges, at most

  bool begins_line(std::size_t i) const {
    return i == 0 || plot_.ranges[i].name != plot_.ranges[i - 1].name;
  }
  std::vector<double> y_ticks() const {
    if (plot_.curves.empty()) return {};
    return ticks(y_.low, y_.high, y_.logarithmic, 5);
  }

  void axes() {
    std::vector<Step> grid;
    for (const double tick : y_ticks()) {
      grid.insert(grid.end(), {{'M', left_, y_(tick)}, {'L', right_, y_(tick)}});
      sheet_.text(left_ - 6, y_(tick) + 4, 'e', label_of(tick), "small");
    }
    const int wanted = std::clamp(int((right_ - left_) / 60), 2, 6);
    for (const double tick : ticks(x_.low, x_.high, x_.logarithmic, wanted)) {
      const double from = plot_.curves.empty() ? ranges_ : top_;
      grid.insert(grid.end(), {{'M', x_(tick), from}, {'L', x_(tick), bottom_ + 4}});
      sheet_.text(x_(tick), bottom_ + 18, 'm', label_of(tick), "small");
    }
    sheet_.path("grid", 0, std::move(grid));
    sheet_.path("axis", 0, {{'M', left_, top_}, {'L', left_, bottom_}, {'L', right_, bottom_}});
    sheet_.text((left_ + right_) / 2, bottom_ + 35, 'm', plot_.x.label);
    sheet_.text(14, (top_ + bottom_) / 2, 'm', plot_.y.label, "text", "", true);
  }

  void add(const Range& range, double y) {
    const double low = across(range.low), high = across(range.high),
                 faint = across(range.faint_low);
    const std::string title =
        range.name + ": " + label_of(range.low) + " to " + label_of(range.high);
    if (high > low) sheet_.rectangle("r", 0, low, y, high - low, 9, title);
    if (faint < low)
      sheet_.rectangle("rf", 0, faint, y, low - faint, 9,
                       range.name + ", subnormal: from " + label_of(range.faint_low));
    sheet_.text(left_ - 6, y + 9, 'e', fitted(range.name, names, 12), "small");
  }

  /// Draws bands for points in a row and whiskers for points that are alone, and the area below a
  /// filled staircase.
  void add_areas(const Curve& curve) {
    std::vector<Step> there, back;
    const auto end = [&] {
      const std::size_t count = there.size();
      if (count == 1) {
        const double x = there[0].x, high = there[0].y, low = back[0].y;
        there = {{'M', x, low}, {'L', x, high}};
        for (const double y : {low, high})
          there.insert(there.end(), {{'M', x - 4, y}, {'L', x + 4, y}});
      } else if (count > 1) {
        there[0].kind = 'M';
        there.insert(there.end(), back.rbegin(), back.rend()), there.push_back({'Z'});
      }
      const char* const look = curve.filled               ? "f"
                               : count == 1               ? "whisker"
                               : plot_.curves.size() <= 4 ? "band"
                                                          : "many";
      sheet_.path(look, curve.style, std::move(there), curve.name, curve.name);
      there.clear(), back.clear();
    };
    for (const Point& p : curve.points) {
      const double x = across(p.x), high = up(curve.filled ? p.y : p.high);
      const double low = curve.filled ? bottom_ : up(p.low);
      if (std::isfinite(x + low + high)) {
        if (curve.filled && !there.empty()) there.push_back({'L', x, there.back().y});
        there.push_back({'L', x, high}), back.push_back({'L', x, low});
      } else if (!std::isfinite(p.y)) end();
    }
    end();
  }

  void add(const Rule& rule) {
    const double at = rule.vertical ? x_(rule.at) : y_(rule.at);
    if (at != (rule.vertical ? across(rule.at) : up(rule.at))) return;
    // Writes the name next to the line, because dashes alone do not explain it.
    if (rule.vertical) sheet_.text(at + 4, top_ + 11, 's', rule.name, "small");
    sheet_.path("rule", 0,
                rule.vertical ? std::vector<Step>{{'M', at, top_}, {'L', at, bottom_}}
                              : std::vector<Step>{{'M', left_, at}, {'L', right_, at}},
                rule.name + ": " + label_of(rule.at));
  }

  void add(const Curve& curve) {
    std::vector<Step> path, places;
    std::vector<const Point*> points;
    bool gap = true;
    double before = 0;
    for (const Point& point : curve.points) {
      const double x = x_(point.x), y = up(point.y), beyond = y_(point.y) - y;
      if (!std::isfinite(x) || !std::isfinite(y)) {
        gap = true;
        continue;
      }
      gap = gap || beyond * before > 0;  // does not run along the border
      if (curve.staircase && !gap) path.push_back({'L', x, path.back().y});
      path.push_back({gap ? 'M' : 'L', x, y}), gap = false, before = beyond;
      if (beyond == 0) places.push_back({'M', x, y}), points.push_back(&point);
    }
    if (path.size() > 1 && !curve.filled)
      sheet_.path(curve.wide ? "wide" : "l", curve.style, std::move(path), curve.name, curve.name);
    // Limits the marks so that the page stays small; a quarter of them are visible.
    const std::size_t apart = places.size() / 24 + 1;
    for (std::size_t i = 0; i < places.size(); i += apart) {
      const bool seen =
          curve.shapes && !curve.filled && (i / apart % 4 == 0 || places.size() <= 12);
      sheet_.shape(seen ? "m" : "t", curve.style, places[i].x, places[i].y, seen ? 3.5 : 6,
                   curve.name + (curve.name.empty() ? "" : ", ") + label_of(points[i]->x, 6) +
                       ": " + label_of(points[i]->y, 6),
                   curve.name);
    }
    const auto same = [&](const Sheet::Entry& e) {
      return e.name == curve.name && e.style == curve.style;
    };
    if (!curve.name.empty() && std::ranges::none_of(entries_, same))
      entries_.push_back({curve.name, "", curve.style, !curve.filled, curve.shapes});
  }

  /// Returns the place of a value; that of the border for a value beyond it.
  double across(double x) const {
    const double at = x_(x);
    return std::isnan(at) ? at : std::clamp(at, left_, right_);
  }
  double up(double y) const {
    const double at = y_(y);
    return std::isnan(at) ? at : std::clamp(at, top_, bottom_);
  }

  const Plot& plot_;
  Sheet sheet_;
  Scale x_{}, y_{};
  double left_ = 0, right_ = 0, ranges_ = 0, top_ = 0, bottom_ = 0;
  std::vector<Sheet::Entry> entries_{};
};

Drawing drawn(const Plot& plot) { return PlotSheet(plot).drawing(); }

Drawing drawn(const Bars& bars) {
  const double left = 4, right = bars.width - 4;
  const auto size = [](double part) { return part > 0 && std::isfinite(part) ? part : 0; };
  const auto sum_of = [&](const Bar& row) {
    double sum = 0;
    for (const double part : row.parts) sum += size(part);
    return sum;
  };
  double most = 0;
  for (const Bar& row : bars.bars) most = std::max(most, sum_of(row));
  Sheet sheet(bars.title, bars.width);
  double y = sheet.heading() + 14;
  std::vector<bool> used(bars.parts.size());
  for (const Bar& row : bars.bars) {
    double x = left;
    for (std::size_t i = 0; i < row.parts.size(); ++i) {
      const double width = most > 0 ? size(row.parts[i]) / most * (right - left) : 0;
      if (!(width > 0)) continue;
      const std::string number = label_of(row.parts[i], 3), both = bars.labels[i] + " " + number;
      sheet.rectangle("f", int(i % curve_styles), x, y + 6, std::max(width - 1, 0.3), 20,
                      row.name + ", " + bars.parts[i] + ": " + number + " " + bars.unit, row.name);
      for (const std::string& label : {both, bars.labels[i]})
        if (width > room_for(label, 11) + 2) {
          sheet.text(x + (width - 1) / 2, y + 20, 'm', label, "on", row.name);
          break;
        }
      x += width, used[i] = true;
    }
    const std::string sum = label_of(sum_of(row), 3) + " " + bars.unit;
    sheet.text(left, y, 's', fitted(row.name, right - left - room_for(sum, 12), 13), "text",
               row.name);
    sheet.text(right, y, 'e', sum, "small", row.name);
    y += 46;
  }
  std::vector<Sheet::Entry> entries;
  for (std::size_t i = 0; i < bars.parts.size(); ++i)
    if (used[i]) entries.push_back({bars.parts[i], bars.labels[i], int(i % curve_styles)});
  return sheet.done(sheet.legend(entries, left, y));
}

Drawing drawn(const Forest& forest) {
  const double left = 16, right = forest.width - 16, line = 38;
  Extent seen{false, 0, 0};
  for (const ForestRow& row : forest.rows) {
    seen.see(row.middle), seen.see(row.middle - row.half), seen.see(row.middle + row.half);
    for (const double dot : row.dots) seen.see(dot);
  }
  Scale scale = scale_of({}, seen, 0.05);
  scale.from = left, scale.to = right;
  Sheet sheet(forest.title, forest.width);
  double y = sheet.heading();
  const double bottom = y + line * double(forest.rows.size());
  for (const double tick : ticks(scale.low, scale.high, false, 6)) {
    const double x = scale(tick);
    sheet.path(tick == 0 ? "rule" : "grid", 0, {{'M', x, y}, {'L', x, bottom}});
    sheet.text(x, bottom + 14, 'm', label_of(tick), "small");
  }
  for (const ForestRow& row : forest.rows) {
    const std::string value = interval_text(row.middle, row.half) + " " + forest.unit,
                      title = row.name + ": " + value;
    sheet.text(left, y + 12, 's', fitted(row.name, right - left - room_for(value, 12), 13), "text",
               row.name);
    sheet.text(right, y + 12, 'e', value, "small", row.name);
    const double low = scale(row.middle - row.half), high = scale(row.middle + row.half);
    if (std::isfinite(row.half))
      sheet.path("whisker", row.style, {{'M', low, y + 23}, {'L', high, y + 23}}, title, row.name);
    sheet.shape("m", row.style, scale(row.middle), y + 23, 4, title, row.name);
    for (const double dot : row.dots)
      sheet.path("m", row.style, {{'O', scale(dot), y + 31}}, label_of(dot), row.name, 2.5);
    y += line;
  }
  sheet.text((left + right) / 2, bottom + 30, 'm', forest.axis, "small");
  return sheet.done(bottom + 38);
}

Drawing drawn(const Map& map) {
  constexpr double line = 18, least = 30;
  double names = 0, heads = 0;
  for (const auto& [name, cells] : map.rows) names = std::max(names, room_for(name, 12));
  for (const auto& [group, head] : map.columns) heads = std::max(heads, room_for(head, 12));
  names = std::min(names, 180.0) + 12;
  const double columns = double(std::max<std::size_t>(map.columns.size(), 1));
  const double cell = std::clamp((map.width - names - 4) / columns, least, 64.0);
  Sheet sheet(map.title, map.width);
  const double groups = sheet.heading() + 12;
  double y = groups + heads + 12, right = names;
  std::vector<double> places;  // of columns
  for (std::size_t i = 0; i < map.columns.size();) {
    const std::string& group = map.columns[i].first;
    const double left = right;
    sheet.text(left, groups, 's', group, "head", group);
    for (; i < map.columns.size() && map.columns[i].first == group; ++i, right += cell) {
      places.push_back(right);
      sheet.text(right + cell / 2 + 4, y - 4, 's', map.columns[i].second, "small", group, true);
    }
    right = std::max(right, left + room_for(group, 13) + 8);
  }
  sheet.widen(right + 4);
  for (const auto& [name, cells] : map.rows) {
    sheet.text(names - 6, y + 13, 'e', fitted(name, names - 10, 12), "small");
    for (std::size_t i = 0; i < cells.size(); ++i) {
      const Cell& c = cells[i];
      const double x = places[i];
      const int level = int(std::clamp(c.strength, 0.0, 1.0) * (map_levels - 1) + 0.5);
      const std::string& series = map.columns[i].first;
      if (c.strength >= 0)
        sheet.rectangle("f", curve_styles + level, x, y, cell - 1, line - 1, c.title, series);
      sheet.text(x + (cell - 1) / 2, y + 12.5, 'm', c.text,
                 c.strength >= 0 && level > 5 ? "on" : "cell", series);
    }
    y += line;
  }
  return sheet.done(y + 4);
}

}  // namespace

Drawing drawing_of(const Picture& picture) {
  return std::visit([](const auto& p) { return drawn(p); }, picture);
}

Drawing sample_of(int style) {
  Sheet sheet("", 20);
  sheet.sample(style, 0, 5, "");
  return sheet.done(10);
}

Drawing grid_of(const std::vector<Picture>& pictures, int width) {
  const int columns = pictures.size() > 3 ? 2 : 1, gap = 16;
  Drawing all{.width = double(width)};
  double y = 0, lowest = 0;
  for (std::size_t i = 0; i < pictures.size(); ++i) {
    Picture picture = pictures[i];
    std::visit([&](auto& p) { p.width = (width - (columns - 1) * gap) / columns; }, picture);
    if (Plot* const plot = std::get_if<Plot>(&picture))
      plot->height = std::clamp(plot->width * 26 / 48, 180, 400);
    Drawing one = drawing_of(picture);
    const double x = double(i % std::size_t(columns)) * (one.width + gap);
    if (x == 0) y = lowest;
    lowest = std::max(lowest, y + one.height + gap);
    all.width = std::max(all.width, x + one.width);
    all.title += (all.title.empty() ? "" : "; ") + one.title;
    for (Mark& mark : one.marks) {
      for (Step& step : mark.path) step.x += x, step.y += y;
      all.marks.push_back(std::move(mark));
    }
  }
  all.height = std::max(lowest - gap, 0.0);
  return all;
}

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

std::string label_of(double value, int digits) {
  if (std::isnan(value)) return "?";
  if (std::isinf(value)) return value > 0 ? "∞" : "-∞";
  char text[40];
  const auto end =
      std::to_chars(text, text + sizeof text, value + 0.0, std::chars_format::general, digits).ptr;
  return {text, end};
}

}  // namespace halftone::lab::svg

// Sizes of numbers and uses of memory.

namespace halftone::lab {

svg::Range range_of_format(std::string_view name) {
  const NumberFormat format = *number_format_named(name);
  return {std::string(name), double(format.min_exponent), std::log2(double(format.max)),
          double(format.min_exponent - format.significand_bits + 1)};
}

std::vector<svg::Range> ranges_of_formats() {
  std::vector<svg::Range> result;
  for (const std::string_view name : shown_formats) result.push_back(range_of_format(name));
  return result;
}

const std::vector<MemoryPart>& memory_parts() {
  static const std::vector<MemoryPart> parts{{"weights", "w", {"parameter"}},
                                             {"masters", "m", {"master_weight", "compensation"}},
                                             {"optimizer state", "s", {"optimizer_state"}},
                                             {"gradients", "g", {"gradient", "master_gradient"}},
                                             {"casts of weights", "c", {"cast_cache"}},
                                             {"activations", "a", {"activation"}},
                                             {"workspace", "x", {"workspace", "communication"}}};
  return parts;
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
