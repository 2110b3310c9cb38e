// How pages look: two schemes, narrow and wide windows, paper.
#include <halftone/lab/report/page.h>

#include <halftone/lab/draw/html.h>
#include <halftone/lab/draw/svg.h>

namespace halftone::lab::html {

namespace {

/// Nine backgrounds of heat maps, from nothing to bad, with the ink that is read on them.
std::string heat_colors() {
  constexpr const char* light[] = {"#fff",    "#fff1e3", "#fee0c4", "#fdc795", "#fba562",
                                   "#f07f35", "#d9601a", "#ab4310", "#7d2d0a"};
  constexpr const char* dark[] = {"#16191d", "#291f18", "#3d2818", "#573519", "#75451a",
                                  "#97571b", "#bb6c22", "#df8836", "#ffab5e"};
  std::string text, in_dark;
  for (int i = 0; i < 9; ++i) {
    const std::string name = ".h" + std::to_string(i);
    text += name + "{background:" + light[i] + ";color:" + (i < 6 ? "#1b1f24" : "#fff") + "}\n";
    in_dark += name + "{background:" + dark[i] + ";color:" + (i < 6 ? "#f2f3f5" : "#111") + "}\n";
  }
  return text + "@media screen and (prefers-color-scheme:dark){\n" + in_dark + "}\n";
}

std::string page_styles() {
  return R"(*{box-sizing:border-box}
body{margin:0 auto;padding:1rem;max-width:100rem;font:16px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--ground);overflow-wrap:anywhere}
h1{font-size:1.5rem;line-height:1.25;margin:.5rem 0}
h2{font-size:1.25rem;margin:2.5rem 0 .5rem;padding-top:.75rem;border-top:1px solid var(--line)}
h3{font-size:1rem;margin:1.25rem 0 .5rem}
p,dl,ul{max-width:48rem}
a{color:var(--c0)}
nav{display:flex;flex-wrap:wrap;gap:.35rem 1.1rem}
code{font:.875em ui-monospace,monospace}
.absent,figcaption{color:var(--faint)}
.wide{overflow-x:auto;max-width:100%;margin:.75rem 0}
table{border-collapse:collapse;font-size:.875rem;line-height:1.35;font-variant-numeric:tabular-nums}
th,td{padding:.25rem .6rem;text-align:right;vertical-align:top;white-space:nowrap;font-weight:400}
th.t,td.t{text-align:left}
th.t,td.t{white-space:normal;overflow-wrap:break-word;min-width:7rem;max-width:24rem}
thead th{font-weight:600;border-bottom:1px solid var(--faint);vertical-align:bottom}
tbody tr+tr>*{border-top:1px solid var(--line)}
caption{text-align:left;font-weight:600;padding:.25rem 0}
.heat th,.heat td{padding:.15rem .5rem}
.heat td,.figures rect,.figures path{print-color-adjust:exact;-webkit-print-color-adjust:exact}
.maps{display:flex;flex-wrap:wrap;gap:0 2.5rem;align-items:flex-start}
.differs{border-left:3px solid var(--c1);padding-left:.4rem;display:inline-block}
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,27rem),1fr));gap:1rem;align-items:start}
figure{margin:0;min-width:0;max-width:48rem}
figure svg{display:block;width:100%;height:auto}
dt{font-weight:600;margin-top:.6rem}
dd{margin:0 0 0 1rem}
@media (max-width:40rem){th.t,td.t{max-width:13rem}}
.facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,28rem),1fr));gap:.1rem 2rem;max-width:none;font-size:.875rem}
.facts div{display:grid;grid-template-columns:15rem 1fr;gap:1rem}
.facts dt{margin:0}
.facts dd{margin:0}
dl.letters{margin:.5rem 0}
dl.letters div{grid-template-columns:2rem 1fr}
@media (max-width:40rem){.facts div{grid-template-columns:10rem 1fr}}
@media print{
body{max-width:none;padding:0;font-size:11px}
table{font-size:9px}
th,td,th.t,td.t{white-space:normal;min-width:0;padding:.1rem .3rem}
.wide{overflow:visible}
nav{display:none}
figure,tr{break-inside:avoid}
h2,h3{break-after:avoid}
}
)" + heat_colors();
}

}  // namespace

std::string paragraph(std::string_view text) { return element("p", "", escaped(text)) + "\n"; }

std::string figures(const std::vector<std::string>& drawings) {
  std::string text;
  for (const std::string& drawing : drawings)
    if (!drawing.empty()) text += element("figure", "", "\n" + drawing) + "\n";
  return text.empty() ? "" : element("div", "class=\"figures\"", "\n" + text) + "\n";
}

std::string document(std::string_view title, std::string_view body) {
  return "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
         "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n"
         "<meta name=\"color-scheme\" content=\"light dark\"/>\n" +
         element("title", "", escaped(title)) + "\n" +
         element("style", "", "\n" + svg::styles() + page_styles()) + "\n</head>\n" +
         element("body", "", "\n" + std::string(body)) + "\n</html>\n";
}

}  // namespace halftone::lab::html
