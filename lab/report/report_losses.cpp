// Panels on losses and on the resolved policy.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include <halftone/core/memory.h>
#include <halftone/lab/draw.h>
#include <halftone/lab/gate.h>
#include <halftone/lab/report/report.h>
#include <halftone/lab/run.h>
#include <halftone/lab/table.h>

namespace halftone::lab {

// Panels 1 to 3: settings of the runs, their losses, their memory.

using html::escaped;

namespace {

double peak_of(const ReportRun& run) {
  double sum = 0;
  for (const auto& [use, bytes] : run.summary.bytes_at_peak) sum += bytes;
  return sum;
}

std::string joined_seeds(const ReportGroup& group) {
  std::string text;
  for (const ReportRun& run : group.runs)
    if (run.seed) text += (text.empty() ? "" : ", ") + std::to_string(*run.seed);
  return html::shortened(text, 40);
}

/// Returns the sum over the runs as text: "0.5" or "-".
std::string sum_of(const ReportGroup& group, const char* name) {
  const std::vector<double> values = group.numbers(name);
  if (values.empty()) return "-";
  return number(std::accumulate(values.begin(), values.end(), 0.0));
}

/// Returns the place in the ledger's order; unknown names come last.
int place_of_use(const std::string& use) {
  for (int i = 0; i < memory_use_count; ++i)
    if (name(MemoryUse(i)) == use) return i;
  return memory_use_count;
}

/// Avoids exponents where a column is wide enough.
std::string plain(double value) {
  return std::abs(value) >= 100 && std::abs(value) < 1e7 ? fixed(value, 0) : number(value, 3);
}

/// Lists the facts that no column shows, with up to 4 different values each.
std::string common_facts(const ReportData& data) {
  std::map<std::string, std::set<std::string>> values;
  for (const ReportGroup& group : data.groups)
    for (const ReportRun& run : group.runs) {
      for (const auto& [name, text] : run.summary.texts) values[name].insert(text);
      for (const auto& [name, value] : run.summary.numbers) values[name].insert(number(value, 6));
    }
  for (const char* shown : {"format", "loss", "policy", "seed", "milliseconds_per_step",
                            "skipped_steps", "weights_hash", "policy_hash", "resolved_hash"})
    values.erase(shown);
  std::string rows;
  for (const auto& [name, all] : values) {
    if (all.size() > 4) continue;
    std::string text;
    for (const std::string& value : all)
      text += (text.empty() ? "" : "; ") + escaped(html::shortened(value, 120));
    rows += html::element("div", "",
                          html::element("dt", "", escaped(html::shortened(name, 40))) +
                              html::element("dd", "", text)) +
            "\n";
  }
  return rows.empty() ? "" : html::element("dl", "class=\"facts\"", "\n" + rows) + "\n";
}

/// Returns the mean loss of each piece of `width` steps, by the number of the piece.
std::map<int64_t, double> in_pieces(const std::vector<svg::Point>& points, double width) {
  std::map<int64_t, std::pair<double, double>> sums;
  for (const svg::Point& p : points) {
    auto& [sum, count] = sums[int64_t(std::clamp(p.x / width, -1e15, 1e15))];
    sum += p.y, count += 1;
  }
  std::map<int64_t, double> means;
  for (const auto& [piece, sum] : sums) means[piece] = sum.first / sum.second;
  return means;
}

/// Losses of one workload's groups, averaged in pieces of steps: [group][run].
struct Losses {
  double width = 1;  // steps of a piece
  std::vector<std::vector<std::map<int64_t, double>>> runs{};

  explicit Losses(const std::vector<const ReportGroup*>& groups) {
    constexpr double most_pieces = 120;
    double last = 0;
    for (const ReportGroup* group : groups)
      for (const ReportRun& run : group->runs)
        for (const svg::Point& p : run.losses) last = std::max(last, p.x);
    width = std::max(1.0, std::ceil(last / most_pieces));
    for (const ReportGroup* group : groups) {
      runs.emplace_back();
      for (const ReportRun& run : group->runs) runs.back().push_back(in_pieces(run.losses, width));
    }
  }
  bool empty() const {
    return std::ranges::all_of(runs, [](const auto& r) {
      return std::ranges::all_of(r, [](auto& m) { return m.empty(); });
    });
  }
  double step_of(int64_t piece) const { return double(piece) * width; }
};

std::string loss_curves(const std::vector<const ReportGroup*>& groups, const Losses& losses,
                        bool logarithmic) {
  svg::Plot plot{.title = "training loss"};
  plot.x.label = "step", plot.y = {.label = "loss", .logarithmic = logarithmic};
  for (std::size_t g = 0; g < groups.size(); ++g) {
    std::map<int64_t, std::vector<double>> at;
    for (const auto& run : losses.runs[g])
      for (const auto& [piece, loss] : run) at[piece].push_back(loss);
    svg::Curve curve{.name = groups[g]->label, .points = {}, .style = groups[g]->style};
    svg::Band band{.name = groups[g]->label + ": least to largest of the seeds",
                   .x = {},
                   .low = {},
                   .high = {},
                   .style = groups[g]->style};
    for (const auto& [piece, all] : at) {
      curve.points.push_back({losses.step_of(piece), median(all)});
      band.x.push_back(losses.step_of(piece));
      band.low.push_back(std::ranges::min(all)), band.high.push_back(std::ranges::max(all));
    }
    if (losses.runs[g].size() > 1) plot.bands.push_back(std::move(band));
    plot.curves.push_back(std::move(curve));
  }
  return svg::draw(plot);
}

/// Returns the differences of two runs' losses in percent of the second one's. Both are means over
/// `reach` pieces before and after each piece, fewer at the ends.
std::map<int64_t, double> smooth_differences(const std::map<int64_t, double>& mine,
                                             const std::map<int64_t, double>& theirs,
                                             std::size_t reach) {
  std::vector<int64_t> pieces;
  std::vector<double> sums{0}, their_sums{0};  // of all pieces before
  for (const auto& [piece, loss] : mine)
    if (const auto found = theirs.find(piece); found != theirs.end()) {
      pieces.push_back(piece), sums.push_back(sums.back() + loss);
      their_sums.push_back(their_sums.back() + found->second);
    }
  std::map<int64_t, double> result;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const std::size_t own = std::min({reach, i, pieces.size() - 1 - i});
    const double base = their_sums[i + own + 1] - their_sums[i - own];
    if (base != 0)
      result[pieces[i]] = 100 * (sums[i + own + 1] - sums[i - own] - base) / std::abs(base);
  }
  return result;
}

/// Gives the axis the range of most of the curves and of most ends of the bands, with 0: a few
/// outliers or wide intervals must not hide the rest.
void fit_axis(svg::Plot& plot) {
  std::vector<double> middles, ends;
  for (const svg::Curve& curve : plot.curves)
    for (const svg::Point& p : curve.points)
      if (std::isfinite(p.y)) middles.push_back(p.y);
  for (const svg::Band& band : plot.bands)
    ends.insert(ends.end(), band.low.begin(), band.low.end()),
        ends.insert(ends.end(), band.high.begin(), band.high.end());
  const auto quantile = [](std::vector<double>& all, double share) {
    std::ranges::sort(all);
    return all[std::size_t(share * double(all.size() - 1))];
  };
  double low = 0, high = 0;
  const auto take = [&](std::vector<double>& all, double share) {
    if (all.empty()) return;
    low = std::min(low, quantile(all, share)), high = std::max(high, quantile(all, 1 - share));
  };
  take(middles, 0.02), take(ends, 0.1);
  const double room = std::max(0.08 * (high - low), 0.01);
  plot.y.low = low - room, plot.y.high = high + room;
}

/// Draws the differences paired by seed, in percent of the reference's loss.
std::string loss_differences(const std::vector<const ReportGroup*>& groups, const Losses& losses) {
  const ReportGroup& base = *groups.front();
  svg::Plot plot{.title = "loss against " + base.label + ", paired by seed"};
  plot.x.label = "step", plot.y.label = "percent";
  plot.rules.push_back({"no difference", 0});
  for (std::size_t g = 1; g < groups.size(); ++g) {
    std::map<int64_t, std::vector<double>> at;
    for (std::size_t r = 0; r < groups[g]->runs.size(); ++r) {
      const auto& seed = groups[g]->runs[r].seed;
      const auto other = std::ranges::find(base.runs, seed, &ReportRun::seed);
      if (!seed || other == base.runs.end()) continue;
      const auto& theirs = losses.runs[0][std::size_t(other - base.runs.begin())];
      const auto reach = losses.runs[g][r].size() / 40;
      for (const auto& [piece, difference] : smooth_differences(losses.runs[g][r], theirs, reach))
        at[piece].push_back(difference);
    }
    if (at.empty()) continue;
    svg::Curve curve{.name = groups[g]->label, .points = {}, .style = groups[g]->style};
    svg::Band band{.name = groups[g]->label + ": 95 % interval of the mean",
                   .x = {},
                   .low = {},
                   .high = {},
                   .style = groups[g]->style};
    for (const auto& [piece, all] : at) {
      const Interval interval = interval_of(all);
      curve.points.push_back({losses.step_of(piece), interval.mean});
      if (!std::isfinite(interval.half)) continue;
      band.x.push_back(losses.step_of(piece));
      band.low.push_back(interval.mean - interval.half);
      band.high.push_back(interval.mean + interval.half);
    }
    plot.curves.push_back(std::move(curve)), plot.bands.push_back(std::move(band));
  }
  if (plot.curves.empty()) return "";
  fit_axis(plot);
  return svg::draw(plot);
}

}  // namespace

std::string interval_text(const std::vector<double>& differences) {
  if (differences.empty()) return "-";
  const Interval interval = interval_of(differences);
  const std::string sign = interval.mean > 0 ? "+" : "";
  const std::string half =
      std::isfinite(interval.half) ? " ± " + number(100 * interval.half, 2) : "";
  return sign + number(100 * interval.mean, 3) + half + " %";
}

std::string summary_panel(const ReportData& data) {
  std::string text;
  for (const auto& groups : data.by_workload()) {
    const ReportGroup& base = *groups.front();
    if (base.is_file) continue;
    html::Table table({"policy", "seeds", defined("final loss", "final-loss"), "least to largest",
                       defined("against " + base.label, "paired"), defined("ms per step", "ms"),
                       "peak MiB", "skipped", "hash of the policy", "hash of what sites get"},
                      2);
    for (const ReportGroup* group : groups) {
      if (group->is_file) continue;
      const std::vector<double> losses = group->numbers_beside(groups, "loss");
      const auto hash = [&](const char* name) {
        const auto& texts = group->runs.front().summary.texts;
        const auto found = texts.find(name);
        return found == texts.end() ? "-" : html::element("code", "", escaped(found->second));
      };
      std::vector<double> peaks;
      for (const ReportRun& run : group->runs)
        if (peak_of(run) > 0) peaks.push_back(peak_of(run) / 1048576);
      table.row({escaped(html::shortened(group->label, 80)), joined_seeds(*group),
                 losses.empty() ? "-" : number(interval_of(losses).mean),
                 losses.size() < 2
                     ? "-"
                     : number(std::ranges::min(losses)) + " to " + number(std::ranges::max(losses)),
                 group == &base ? "" : interval_text(group->paired(base, "loss")),
                 group->numbers("milliseconds_per_step").empty()
                     ? "-"
                     : plain(median(group->numbers("milliseconds_per_step"))),
                 peaks.empty() ? "-" : number(median(peaks), 4), sum_of(*group, "skipped_steps"),
                 hash("policy_hash"), hash("resolved_hash")});
    }
    if (!base.workload.empty())
      text += html::element("h3", "", "Workload " + escaped(html::shortened(base.workload, 60)));
    text += table.text() + choice_figures(groups);
  }
  if (text.empty()) return absent("No run is here", "halftone-lab run POLICY... --out runs");
  return text + common_facts(data);
}

std::string loss_panel(const ReportData& data) {
  std::string text;
  for (const auto& groups : data.by_workload()) {
    const Losses losses(groups);
    if (losses.empty()) continue;
    if (!groups.front()->workload.empty())
      text += html::element("h3", "", escaped(html::shortened(groups.front()->workload, 60)));
    double least = HUGE_VAL, most = 0;
    for (const auto& group : losses.runs)
      for (const auto& run : group)
        for (const auto& [piece, loss] : run)
          least = std::min(least, loss), most = std::max(most, loss);
    text += figures({loss_curves(groups, losses, least > 0 && most > 8 * least),
                     groups.size() > 1 ? loss_differences(groups, losses) : ""});
    text += paragraph(
        "Training loss: the line is the median over seeds, the band covers all seeds. Difference: "
        "taken between runs of the same seed, whose losses are first averaged over a twentieth of "
        "the steps; the line is its mean, the band the 95 % interval of that mean (Student's t), "
        "cut at the border. If the band contains 0, these runs do not "
        "distinguish the policies." +
        (losses.width > 1 ? " Each point is the mean of " + number(losses.width) + " steps." : ""));
  }
  if (text.empty()) return absent("No losses are here", "halftone-lab run POLICY... --out runs");
  return text;
}

std::string memory_panel(const ReportData& data) {
  const auto groups =
      data.that([](const ReportGroup& g) { return !g.runs.front().summary.bytes_at_peak.empty(); });
  if (groups.empty())
    return absent("No figures of memory are here", "halftone-lab run POLICY... --out runs");
  std::vector<std::string> uses;
  for (const ReportGroup* group : groups)
    for (const auto& [use, bytes] : group->runs.front().summary.bytes_at_peak)
      if (bytes > 0 && std::ranges::find(uses, use) == uses.end() && uses.size() < 12)
        uses.push_back(use);
  std::ranges::stable_sort(uses, std::less(), place_of_use);
  svg::Bars bars{
      .title = "bytes at the peak, by use", .unit = "MiB", .parts = uses, .labels = {}, .bars = {}};
  std::vector<std::string> heads{"policy"};
  for (std::size_t i = 0; i < uses.size(); ++i) {
    bars.labels.push_back(std::string(1, char('A' + i)));
    heads.push_back(bars.labels.back() + " " + escaped(html::shortened(uses[i], 30)));
  }
  heads.insert(heads.end(), {"sum, MiB", defined("at rest, MiB", "at-rest")});
  html::Table table(heads);
  for (const ReportGroup* group : groups) {
    svg::Bar bar{group->label, {}};
    double rest = 0, sum = 0;
    for (const std::string& use : uses) {
      double mib = 0;
      for (const auto& [name, bytes] : group->runs.front().summary.bytes_at_peak)
        if (name == use) mib = bytes / 1048576;
      bar.parts.push_back(mib), sum += mib;
      if (use == "parameter" || use == "master_weight" || use == "compensation") rest += mib;
    }
    std::vector<std::string> cells{escaped(html::shortened(group->label, 80))};
    for (const double mib : bar.parts) cells.push_back(mib == 0 ? "0" : fixed(mib, 3));
    cells.push_back(fixed(sum, 3)), cells.push_back(fixed(rest, 3));
    table.row(cells);
    if (bars.bars.size() < 24) bars.bars.push_back(std::move(bar));
  }
  return figures({svg::draw(bars)}) + table.text() +
         paragraph(
             "Values emulated on a grid are stored as f32 (or in a short dtype that holds "
             "them): "
             "bytes are those of this run, not those of hardware that has the encoding.");
}

// Panel 4: the treatment of each site under each policy.

using html::escaped;

namespace {

constexpr std::size_t most_rows = 150, most_policies = 8;

/// The quantizers of sites by role, each set under a letter and each quantizer under a number, so
/// that a page names them once.
class Legend {
 public:
  /// Returns the letters of the set: "A" to "Z", "AA", ...
  std::string letters_of(const std::string& set) {
    std::size_t number = place_in(sets_, set);
    std::string letters(1, char('A' + number % 26));
    while ((number /= 26) > 0) letters.insert(letters.begin(), char('A' + --number % 26));
    return letters;
  }
  std::string number_of(const std::string& quantizer) {
    return std::to_string(place_in(quantizers_, quantizer) + 1);
  }
  std::string text() {
    std::string sets, quantizers;
    for (const std::string& set : std::vector(sets_)) sets += line(letters_of(set), set);
    for (const std::string& quantizer : std::vector(quantizers_))
      quantizers += line(number_of(quantizer), escaped(html::shortened(quantizer, 160)));
    return list(sets) + list(quantizers);
  }

 private:
  static std::size_t place_in(std::vector<std::string>& all, const std::string& text) {
    const auto found = std::ranges::find(all, text);
    const auto place = std::size_t(found - all.begin());
    if (found == all.end()) all.push_back(text);
    return place;
  }
  static std::string line(const std::string& key, const std::string& markup) {
    return html::element("div", "",
                         html::element("dt", "", key) + html::element("dd", "", markup)) +
           "\n";
  }
  static std::string list(const std::string& lines) {
    return lines.empty() ? "" : html::element("dl", "class=\"facts letters\"", "\n" + lines) + "\n";
  }
  std::vector<std::string> sets_{};  // markup
  std::vector<std::string> quantizers_{};
};

/// Returns the dtype, and the letters of the site's quantizers.
std::string treatment_of(const RecordedSite& site, Legend& legend) {
  std::vector<std::pair<std::string, std::string>> lines;  // quantizer, roles
  for (const auto& [role, quantizer] : site.roles) {
    const auto same =
        std::ranges::find(lines, quantizer, &std::pair<std::string, std::string>::first);
    if (same != lines.end()) same->second += ", " + role;
    else lines.emplace_back(quantizer, role);
  }
  std::string set;
  for (const auto& [quantizer, roles] : lines)
    set += (set.empty() ? "" : "; ") + escaped(html::shortened(roles, 120)) + " <b>" +
           legend.number_of(quantizer) + "</b>";
  const std::string dtype =
      escaped(site.computes_in.empty() ? "-" : html::shortened(site.computes_in, 30));
  return set.empty() ? dtype : dtype + ", <b>" + legend.letters_of(set) + "</b>";
}

/// Sites whose names differ only in numbers, and that get the same treatment under every policy.
struct FoldedSites {
  std::vector<std::string> names;
  std::vector<std::string> treatments;  // by group
};

std::vector<FoldedSites> fold(const std::vector<const ReportGroup*>& groups, Legend& legend) {
  std::vector<std::string> order;
  std::map<std::string, std::vector<std::string>> treatments;
  for (std::size_t g = 0; g < groups.size(); ++g)
    for (const RecordedSite& site : groups[g]->resolved) {
      auto& row = treatments[site.site];
      if (row.empty()) order.push_back(site.site), row.resize(groups.size(), "not there");
      row[g] = treatment_of(site, legend);
    }
  std::vector<FoldedSites> result;
  std::map<std::pair<std::string, std::vector<std::string>>, std::size_t> known;
  for (const std::string& site : order) {
    const auto [at, added] =
        known.try_emplace({without_numbers(site), treatments[site]}, result.size());
    if (added) result.push_back({{}, treatments[site]});
    result[at->second].names.push_back(site);
  }
  return result;
}

}  // namespace

std::size_t number_at(std::string_view name, std::size_t at) {
  const auto separates = [&](std::size_t i) { return name[i] == '.' || name[i] == '/'; };
  if (at > 0 && !separates(at - 1)) return 0;
  std::size_t end = at;
  while (end < name.size() && name[end] >= '0' && name[end] <= '9') ++end;
  return end < name.size() && !separates(end) ? 0 : end - at;
}

std::string without_numbers(std::string_view site) {
  std::string result;
  for (std::size_t at = 0; at < site.size();) {
    const std::size_t digits = number_at(site, at);
    if (digits > 0) result += '#', at += digits;
    else result += site[at++];
  }
  return result;
}

std::string folded(const std::vector<std::string>& names) {
  if (names.size() == 1) return names.front();
  // Shows the first number in which the names differ as a range; more numbers would need a table.
  const std::string &first = names.front(), &last = names.back();
  std::size_t at = 0;
  while (at < std::min(first.size(), last.size()) && first[at] == last[at]) ++at;
  while (at > 0 && first[at - 1] >= '0' && first[at - 1] <= '9') --at;
  const std::size_t a = number_at(first, at), b = number_at(last, at);
  const std::string count = " (" + std::to_string(names.size()) + ")";
  if (a == 0 || b == 0 || first.substr(at + a) != last.substr(at + b))
    return first + " ..." + count;
  return first.substr(0, at) + "{" + first.substr(at, a) + "-" + last.substr(at, b) + "}" +
         first.substr(at + a) + count;
}

std::string resolved_panel(const ReportData& data) {
  std::string text;
  for (const auto& all : data.by_workload()) {
    std::vector<const ReportGroup*> groups;
    for (const ReportGroup* group : all)
      if (!group->resolved.empty() && groups.size() < most_policies) groups.push_back(group);
    if (groups.empty()) continue;
    std::vector<std::string> heads{"sites"};
    for (const ReportGroup* group : groups)
      heads.push_back(escaped(html::shortened(group->label, 60)));
    html::Table table(heads, heads.size());
    Legend legend;
    const std::vector<FoldedSites> rows = fold(groups, legend);
    for (const FoldedSites& row : rows) {
      if (table.rows() == most_rows) break;
      std::vector<std::string> cells{escaped(html::shortened(folded(row.names), 90))};
      for (const std::string& treatment : row.treatments)
        cells.push_back(treatment == row.treatments.front()
                            ? treatment
                            : "<span class=\"differs\" title=\"differs from the first column\">≠ " +
                                  treatment + "</span>");
      table.row(cells);
    }
    if (!groups.front()->workload.empty())
      text += html::element("h3", "", escaped(html::shortened(groups.front()->workload, 60)));
    text += table.text() + legend.text();
    if (rows.size() > most_rows)
      text += paragraph("The first " + std::to_string(most_rows) + " of " +
                        std::to_string(rows.size()) +
                        " kinds of sites; all of them: "
                        "halftone-lab show POLICY --workload W.");
  }
  if (text.empty())
    return absent("No resolved table is here", "halftone-lab run POLICY... --out runs");
  return paragraph(
             "The dtype that an operation computes in, and a letter for the quantizers of its "
             "roles. The lists under the table explain the letters and the numbers of quantizers. "
             "≠ marks a difference from the first policy. Sites whose names differ only in a "
             "number and that get the same treatment share a line.") +
         text;
}

}  // namespace halftone::lab
